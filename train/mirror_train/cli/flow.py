"""The command `mirror-rt train flow`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from mirror_rt.cli.parser import Subparsers, add_subparser
from mirror_train.cli.training_options import (
    add_base_options,
    add_fields,
    add_run_options,
    defaults_of,
    given,
    given_config,
)
from mirror_train.cli.tune import add_data_options, training_data
from mirror_train.flow.recipe import FlowConfig, FlowRecipe

if TYPE_CHECKING:
    from mirror_train.training.tune import TuneReport

__all__ = ["add_flow_options", "add_parser", "flow_recipe", "report"]

_RECIPE: Mapping[str, str] = {
    "steps": "steps of the flow",
    "batch_size": "strings of a step",
    "learning_rate": "of AdamW, for the flow",
    "weight_decay": "of AdamW, for the flow",
    "blocks": "blocks of ActNorm, invertible matrix and additive coupling",
    "hidden_size": "of the network in each coupling",
}


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
    add_flow_options(parser)
    add_run_options(parser, FlowConfig, {"pooling": "auto: what the model declares, else mean"})
    parser.set_defaults(run=run, wrong_usage=parser.error)


def add_flow_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `flow_recipe` reads."""
    group = parser.add_argument_group("flow")
    add_fields(group, FlowRecipe, _RECIPE, defaults=defaults_of(FlowRecipe))


def flow_recipe(arguments: argparse.Namespace) -> FlowRecipe:
    """Return the recipe of the flow with the options that were given."""
    return FlowRecipe(**given(arguments, _RECIPE))


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from mirror_train.flow.likelihood import tune_flow

    if (arguments.data is None) == (arguments.words is None):
        arguments.wrong_usage("pass one of --data FILE and --words LANG")
    config = given_config(arguments, FlowConfig, recipe=flow_recipe(arguments))
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
