"""The systems of the papers as data: their inputs, their tuning and the claims about them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mirror_rt.errors import ConfigError
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.systems import tuning
from mirror_train.experiments.systems.claims import Claim
from mirror_train.experiments.systems.config import SystemJob
from mirror_train.experiments.systems.inputs import Inputs
from mirror_train.flow.recipe import CfRecipe, FlowRecipe
from mirror_train.pairs.recipe import BurtRecipe, MultitaskRecipe
from mirror_train.recipes.recipe import load_recipe, suggest

if TYPE_CHECKING:
    from mirror_train.training.output_folder import TuneReport

BASE = "untuned"


@dataclass(frozen=True, slots=True)
class System:
    """A row of the table of systems.

    Attributes:
        name: name on the command line.
        title: description in a line.
        source: the paper.
        inputs: names in `mirror_train.experiments.systems.inputs.INPUTS`; all are required.
        recipe: returns its hyper-parameters.
        tune: tunes it with these: reads the inputs and writes `SystemJob.out`.
        claims: the improvements that its paper claims.
        optional: inputs that are not required: further training data, or the evaluated pairs, which
            are left out of the training data.
    """

    name: str
    title: str
    source: str
    inputs: tuple[str, ...]
    recipe: Callable[[], Any]
    tune: Callable[[Any, SystemJob], TuneReport]
    claims: tuple[Claim, ...] = field(default=())
    optional: tuple[str, ...] = ()

    def options(self) -> dict[str, Any]:
        """Return what decides its result besides the job and the inputs, as JSON values."""
        recipe = self.recipe()
        return recipe.to_dict() if isinstance(recipe, CfRecipe) else dataclasses.asdict(recipe)


def _mirror(
    name: str,
    title: str,
    source: str,
    needs: str,
    read: Callable[[Inputs], TrainingData],
    recipe: str,
    *claims: Claim,
    **changes: Any,
) -> System:
    tune = functools.partial(tuning.tune_mirror, read)
    return System(
        name, title, source, (needs,), lambda: load_recipe(recipe).replace(**changes), tune, claims
    )


def _multi_similarity() -> dict[str, Any]:
    """Return the fields of the loss of `mirror-ms`, to put into another recipe."""
    recipe = load_recipe("mirror-ms")
    names = ("loss", "temperature", "ms_alpha", "ms_beta", "ms_base", "triplet_margin")
    return {name: getattr(recipe, name) for name in names}


_STS, _WORDS = ("sentences",), ("words",)
_COMPARED_WITH_CF = ("mirror-tokens", "flow", "cf-joint", "cf-unregularised")
_MIRROR = "Mirror-BERT (Liu et al. 2021)"
_SIMCSE = "SimCSE (Gao et al. 2021)"

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        _mirror("mirror", "dropout and span masking, on sentences", _MIRROR, "sentences",
                Inputs.sentences, "sentence", Claim(BASE, _STS)),
        _mirror("mirror-words", "dropout, on frequent words", _MIRROR, "words",
                Inputs.words, "word", Claim(BASE, _WORDS)),
        _mirror("mirror-ms", "mirror with multi-similarity on hard triplets",
                f"{_MIRROR}, footnote 2", "sentences", Inputs.sentences, "sentence",
                Claim("mirror", _STS, "on par"), **_multi_similarity()),
        _mirror("simcse", "dropout alone, one way, on sentences", _SIMCSE, "sentences",
                Inputs.sentences, "simcse", Claim(BASE, _STS)),
        _mirror("simcse-nli", "inference pairs, contradictions as hard negatives", _SIMCSE,
                "inference", Inputs.triplets, "simcse-nli", Claim("simcse", _STS)),
        _mirror("synonyms", "multi-similarity on names of one concept", "SapBERT (Liu et al. 2021)",
                "synonyms", Inputs.synonyms, "mirror-ms", Claim(BASE, ("linking",)),
                span_length=0, epochs=1, batch_size=256),
        _mirror("mirror-tokens", "the first step of cf: masked spans of tokens", "BERT-CF, 4.1",
                "sentences", Inputs.sentences, "cf", Claim(BASE, _STS)),
        System("flow", "a flow over frozen vectors, on sentences", "BERT-flow (Li et al. 2020)",
               ("sentences",), FlowRecipe, tuning.tune_flow, (Claim(BASE, _STS),)),
        System("cf", "Mirror-BERT with token spans, then a regularised flow", "BERT-CF",
               ("sentences",), tuning.cf_recipe, tuning.tune_cf,
               tuple(Claim(name, _STS) for name in _COMPARED_WITH_CF)),
        System("cf-simcse", "the same with SimCSE in the place of Mirror-BERT", "BERT-CF, 6.1",
               ("sentences",), functools.partial(tuning.cf_recipe, views="simcse"), tuning.tune_cf),
        System("cf-joint", "the same with the encoder unfrozen", "BERT-CF, 6.1", ("sentences",),
               functools.partial(tuning.cf_recipe, joint=True), tuning.tune_cf),
        System("cf-unregularised", "a flow after Mirror-BERT, by likelihood alone", "BERT-CF, 6.1",
               ("sentences",), functools.partial(tuning.cf_recipe, regulariser=False),
               tuning.tune_cf),
        System("burt", "inference and paraphrases, by classes", "BURT (Li and Zhao 2020)",
               ("inference",), BurtRecipe, tuning.tune_burt,
               (Claim(BASE, _STS + _WORDS),), ("ppdb", "paraphrases")),
        System("multitask", "sentiment, paraphrases and similarity at once", "BERT-CF, 4.3",
               ("sentiment", "paraphrases", "similarity"), MultitaskRecipe,
               tuning.tune_multitask, optional=("evaluated",)),
    )
}  # fmt: skip


def find_systems(names: list[str] | None) -> list[System]:
    """Return the systems of the given names, in the order of the table; all for None.

    Raises:
        ConfigError: there is no system of a name.
    """
    if names is None:
        return list(SYSTEMS.values())
    for name in names:
        if name not in SYSTEMS:
            raise ConfigError(
                f"no system {name!r}{suggest(name, SYSTEMS)}; there are {', '.join(SYSTEMS)}"
            )
    return [system for name, system in SYSTEMS.items() if name in names]
