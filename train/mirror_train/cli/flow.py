"""The command `mirror-rt train flow`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_train.cli.training_options import MODEL, RUN, StringOptions, Training
from mirror_train.compute.launch import is_first_process
from mirror_train.recipes.systems import FlowRecipe
from mirror_train.training.run_config import FlowConfig

if TYPE_CHECKING:
    from mirror_train.training.tune import TuneReport


@dataclass(frozen=True, kw_only=True)
class Flow(Training):
    """Fit a normalising flow, without labels, that maps an encoder's vectors to a Gaussian.

    As BERT-flow does (Li et al. 2020): a base model's vectors lie in a narrow cone, and the flow
    spreads them. The encoder stays as it is; each string is encoded once.

    The folder is exported and evaluated like a tuned one, the flow inside the graph;
    sentence-transformers refuses it, for it has no such module. Ctrl-C writes a checkpoint.

    Examples:
        mirror-rt train flow --data lines.txt --out flowed
        mirror-rt train flow --model bert-base-uncased --data lines.txt --steps 2000 --out flowed
        mirror-rt train flow --model tuned --words en --out flowed
        mirror-rt export flowed --out bundle
    """

    model: Annotated[str | None, Help(f"encoder: {MODEL})", "MODEL", word=True)] = None
    strings: Annotated[StringOptions, Group("strings")]
    recipe: Annotated[Given[FlowRecipe], Group("flow")]
    config: Annotated[Given[FlowConfig], RUN]

    def run(self) -> None:
        from mirror_train.flow.likelihood import tune_flow

        config = self.config.make(show_progress_bar=not self.quiet)
        report(tune_flow(self.strings.read(), config))


def report(made: TuneReport) -> None:
    """Print what was written, and how the flow's loss changed, in the first process."""
    if not is_first_process():
        return
    losses = made.stats.losses
    ends = max(1, min(100, len(losses) // 2))
    first, last = sum(losses[:ends]) / ends, sum(losses[-ends:]) / ends
    print(
        f"{made.out}: {len(losses)} steps of the flow in {made.stats.seconds:.1f} s, loss "
        f"{first:.4f} -> {last:.4f} (means of {ends} steps)"
    )
    print(f"next: mirror-rt export {made.out} --out BUNDLE")
