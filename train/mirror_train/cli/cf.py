"""The command `mirror-rt train cf`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError
from mirror_train.cli.flow import report
from mirror_train.cli.training_options import RUN, StringOptions, Training
from mirror_train.recipes.recipe import Recipe, load_recipe
from mirror_train.recipes.systems import CfRecipe, FlowRecipe
from mirror_train.training.run_config import CfConfig

# The fields of the first step's recipe with an option; a flow has options of some of their names.
_MIRROR = ("epochs", "steps", "batch_size", "learning_rate", "warm_up", "decay", "temperature",
           "dropout", "max_length")  # fmt: skip
_NAMES = {
    name: f"mirror_{name}" for name in ("steps", "batch_size", "learning_rate", "warm_up", "decay")
}


@dataclass(frozen=True, kw_only=True)
class _Ablations:
    """Which parts of BERT-CF to leave out."""

    views: Annotated[
        Literal["mirror", "simcse"],
        Help("simcse: nothing masked, in both steps; the views differ by dropout alone"),
    ] = "mirror"
    regulariser: Annotated[
        bool, Help("step 2 with Mirror-BERT's loss, or by likelihood alone (default: with it)")
    ] = True
    cf: Annotated[Given[CfRecipe], Group()]


@dataclass(frozen=True, kw_only=True)
class _FirstStep:
    """The recipe of the first step, and what overrides it."""

    recipe: Annotated[str, Help("its recipe", "NAME|FILE.toml")] = "cf"
    changes: Annotated[
        Given[Recipe],
        Group(only=_MIRROR, names=_NAMES, overrides=True),
    ]


@dataclass(frozen=True, kw_only=True)
class Cf(Training):
    """Tune a masked language model on raw strings, without labels, by BERT-CF.

    First by Mirror-BERT, with spans of tokens masked (as 'mirror-rt tune --recipe cf'). Then the
    encoder is frozen, and a normalising flow behind it is fitted by likelihood and by Mirror-BERT's
    loss of what the flow gives, weighted by --mirror-weight.

    The folder is exported and evaluated like a tuned one, the flow inside the graph;
    sentence-transformers refuses it, for it has no such module. Ctrl-C writes a checkpoint,
    in step 2 beside the tuned encoder, which is in OUT.mirror; --resume goes on from there.

    Examples:
        mirror-rt train cf --data lines.txt --out cf
        mirror-rt train cf --model bert-base-uncased --data lines.txt --steps 2000 --out cf
        mirror-rt train cf --data lines.txt --out cf-simcse --views simcse
        mirror-rt train cf --data lines.txt --out cf-joint --joint
        mirror-rt train cf --data lines.txt --out mirror-flow --no-regulariser
    """

    strings: Annotated[StringOptions, Group("strings")]
    ablations: Annotated[_Ablations, Group("what the paper's section 6.1 compares")]
    first: Annotated[_FirstStep, Group("step 1, Mirror-BERT")]
    flow: Annotated[Given[FlowRecipe], Group("flow")]
    config: Annotated[Given[CfConfig], RUN]

    def run(self) -> None:
        from mirror_train.flow.contrastive import tune_cf

        config = self.config.make(recipe=self._recipe(), show_progress_bar=not self.quiet)
        report(tune_cf(self.strings.read(), config))

    def _recipe(self) -> CfRecipe:
        own = {}
        if not self.ablations.regulariser:
            if "mirror_weight" in self.ablations.cf.values():
                raise ConfigError(
                    "--mirror-weight is the regulariser's: leave out --no-regulariser"
                )
            own["mirror_weight"] = 0.0
        changes = self.first.changes.values()
        if self.ablations.views == "simcse":
            changes["span_length"] = 0
        mirror = load_recipe(self.first.recipe).replace(**changes)
        return self.ablations.cf.make(mirror=mirror, **own)
