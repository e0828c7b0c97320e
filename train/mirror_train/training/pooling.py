"""Choose the pooling of a run, and give the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirror_rt.bundle.families import family_of, is_causal
from mirror_rt.bundle.manifest import Pooling
from mirror_train.model.declared_modules import declared_pooling
from mirror_train.model.pretrained import Pretrained
from mirror_train.recipes.base_models import LanguageTable, load_languages

if TYPE_CHECKING:
    from mirror_train.training.run_config import TrainConfig


@dataclass(frozen=True, slots=True)
class ChosenPooling:
    """The pooling of a run."""

    pooling: Pooling
    why: str  # the reason of the choice, in words
    before: Pooling  # the pooling of the base model without tuning
    warning: str | None = None  # says that nobody named it; None if somebody did


def choose_pooling(
    base: Pretrained, config: TrainConfig, table: LanguageTable | None = None
) -> ChosenPooling:
    """Choose the pooling of a run, as `TrainConfig.pooling` describes.

    Where neither a user nor the base model, its row in the table, nor the recipe names one, it is
    that of the papers: the mean for BERT at the level of sentences, [CLS] otherwise (EMNLP 2021,
    appendix B). A decoder's first token sees no other, so its last one takes the place of [CLS]. A
    base model that declares a pooling or modules that cannot be tuned is refused with a ModelError,
    unless the pooling is to be that of the papers anyway.
    """

    def named(pooling: Pooling, why: str) -> ChosenPooling:
        return ChosenPooling(pooling, why, pooling)

    recipe = config.recipe
    if config.pooling != "auto" and config.pooling != "paper":
        return named(config.pooling, config.pooling_from)
    if recipe.pooling == "mean-without-special":
        return named(recipe.pooling, "by the recipe, which was made for it")
    table = table or load_languages()
    row = table.base(config.model)
    if config.pooling == "auto":
        in_table = f"by the row {row.name} of the table"
        if row.pooling != "auto" and row in table.bases.values():
            return named(row.pooling, in_table)
        if declared := declared_pooling(base.description):
            return named(declared, f"as {config.model} declares")
        if row.pooling != "auto":
            return named(row.pooling, in_table)
    if recipe.pooling in ("auto", "cls") and has_causal_attention(base):
        return ChosenPooling("lasttoken", "the one token that has seen all others", "mean")
    if recipe.pooling != "auto":
        return named(recipe.pooling, "by the recipe")
    is_bert = base.model.config.model_type == "bert"
    pooling: Pooling = "mean" if is_bert and recipe.level == "sentence" else "cls"
    warning = None
    if config.pooling == "auto" and pooling == "cls" and not row.source:
        warning = (
            f"{config.model} declares no pooling, and the table of base models has no row of it: "
            "[CLS] is tuned, as in the papers; for a model that was trained with the mean, pass "
            "--pooling mean"
        )
    return ChosenPooling(pooling, "as in the papers", "mean", warning)


def has_causal_attention(base: Pretrained) -> bool:
    """Return whether the tokens of a base model attend to none behind them, as a decoder's."""
    return is_causal(base.model.config.to_dict(), family_of(base.model).tensors)


def describe_vectors(base: Pretrained, config: TrainConfig) -> str:
    """Say how a run makes a vector of tokens, and why each part was chosen."""
    chosen, recipe = choose_pooling(base, config), config.recipe
    said = f"pooling {chosen.pooling}, {chosen.why}"
    if recipe.whitening:
        said += f"; a whitening layer (whitening {recipe.whitening:g}), by the recipe"
    if recipe.mlp != "none":
        said += f"; a layer (mlp {recipe.mlp}), by the recipe"
    left_out = [one.name for one in base.description.modules[2:] if one.name == "Dense"]
    return said + "; the base model's Dense is left out" * bool(left_out)
