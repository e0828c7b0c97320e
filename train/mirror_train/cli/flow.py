"""The command `mirror-rt train flow`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mirror_rt.cli.options import add_options
from mirror_rt.cli.parser import Subparsers, add_subparser
from mirror_train.cli.training_options import add_base_options, add_run_options, given_config
from mirror_train.cli.tune import add_data_options, training_data
from mirror_train.flow.recipe import FlowConfig, FlowRecipe

if TYPE_CHECKING:
    from mirror_train.training.tune import TuneReport


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "flow",
        description="Fit a normalising flow, without labels, that maps an encoder's vectors to a "
        "Gaussian\n(BERT-flow, Li et al. 2020): a base model's vectors lie in a narrow cone, and "
        "the flow\nspreads them. The encoder stays as it is; each string is encoded once.\n\n"
        "The folder is exported and evaluated like a tuned one, the flow inside the graph;\n"
        "sentence-transformers refuses it, for it has no such module. Ctrl-C leaves nothing.",
        examples="""
mirror-rt train flow --data lines.txt --out flowed
mirror-rt train flow --model bert-base-uncased --data lines.txt --steps 2000 --out flowed
mirror-rt train flow --model tuned --words en --out flowed
mirror-rt export flowed --out bundle
""",
    )
    add_base_options(parser, what="encoder")
    add_data_options(parser)
    add_options(parser.add_argument_group("flow"), FlowRecipe)
    add_run_options(parser, FlowConfig)
    parser.set_defaults(run=run, wrong_usage=parser.error)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from mirror_train.flow.likelihood import tune_flow

    config = given_config(arguments, FlowConfig)
    report(tune_flow(training_data(arguments), config))


def report(made: TuneReport) -> None:
    """Print what was written, and how the flow's loss changed."""
    losses = made.stats.losses
    ends = max(1, min(100, len(losses) // 2))
    first, last = sum(losses[:ends]) / ends, sum(losses[-ends:]) / ends
    print(
        f"{made.out}: {len(losses)} steps of the flow in {made.stats.seconds:.1f} s, loss "
        f"{first:.4f} -> {last:.4f} (means of {ends} steps)"
    )
    print(f"next: mirror-rt export {made.out} --out BUNDLE")
