"""mirror-rt flow."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from mirror_rt.cli.common import Subparsers, add_subparser
from mirror_train.cli.training_options import add_base_options, require_train, run_options
from mirror_train.cli.tune import add_data_options, training_data

if TYPE_CHECKING:
    from mirror_train import TuneReport

__all__ = ["add_flow_options", "add_model_options", "add_parser", "flow_options", "report"]

# Field of the recipe -> (type, help).
_OPTIONS: dict[str, tuple[type, str]] = {
    "steps": (int, "steps of the flow (default 10000)"),
    "batch_size": (int, "strings of a step (default 16)"),
    "learning_rate": (float, "of AdamW, for the flow (default 3e-4)"),
    "weight_decay": (float, "of AdamW, for the flow (default 0.01)"),
    "blocks": (int, "blocks of ActNorm, invertible matrix and additive coupling (default 3)"),
    "hidden_size": (int, "of the network in each coupling (default 32)"),
}


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "flow",
        help="fit a normalising flow behind an encoder that stays as it is (BERT-flow)",
        description="Fit a normalising flow, without labels, that maps an encoder's vectors to a "
        "Gaussian\n(BERT-flow, Li et al. 2020): a base model's vectors lie in a narrow cone, and "
        "the flow\nspreads them. The encoder stays as it is; each string is encoded once.\n\n"
        "The folder is exported and evaluated like a tuned one, the flow inside the graph;\n"
        "sentence-transformers refuses it, for it has no such module. Ctrl-C leaves nothing.",
        examples="""
mirror-rt flow --data lines.txt --out flowed
mirror-rt flow --model bert-base-uncased --data lines.txt --steps 2000 --out flowed
mirror-rt flow --model tuned --words en --out flowed
mirror-rt export flowed --out bundle
""",
    )
    add_model_options(parser, "encoder")
    add_data_options(parser)
    add_flow_options(parser)
    _add_run_options(parser)
    parser.set_defaults(run=run, wrong_usage=parser.error)


def add_model_options(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --out, --model, which is a `what`, and how that is loaded and pooled."""
    add_base_options(parser, what=what)
    parser.add_argument(
        "--pooling",
        choices=["auto", "cls", "mean", "mean-without-special"],
        default="auto",
        help="auto: what the model declares, else mean",
    )


def add_flow_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `flow_options` reads."""
    group = parser.add_argument_group("flow")
    for name, (kind, text) in _OPTIONS.items():
        group.add_argument("--" + name.replace("_", "-"), type=kind, help=text, dest=name)


def flow_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fields of the flow's recipe that were given."""
    given = {name: getattr(arguments, name) for name in _OPTIONS}
    return {name: value for name, value in given.items() if value is not None}


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    require_train("flow")
    from mirror_train.flow import FlowConfig, FlowRecipe, tune_flow

    if (arguments.data is None) == (arguments.words is None):
        arguments.wrong_usage("pass one of --data FILE and --words LANG")
    config = FlowConfig(
        recipe=FlowRecipe(**flow_options(arguments)),
        pooling=arguments.pooling,
        **run_options(arguments),
    )
    report(tune_flow(training_data(arguments), config))


def report(made: TuneReport) -> None:
    """Say what was written, and how the flow's loss went."""
    losses = made.stats.losses
    ends = max(1, min(100, len(losses) // 2))
    first, last = sum(losses[:ends]) / ends, sum(losses[-ends:]) / ends
    print(
        f"{made.out}: {len(losses)} steps of the flow in {made.stats.seconds:.1f} s, loss "
        f"{first:.4f} -> {last:.4f} (means of {ends} steps)"
    )
    print(f"next: mirror-rt export {made.out} --out BUNDLE")


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    group.add_argument("--seed", type=int, default=42, help="default 42")
    group.add_argument("--overwrite", action="store_true", help="replace --out")
    group.add_argument("--quiet", action="store_true", help="no progress bars")
