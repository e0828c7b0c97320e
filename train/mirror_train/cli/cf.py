"""The command `mirror-rt train cf`."""

from __future__ import annotations

import argparse

from mirror_rt.cli.options import add_options, build, from_arguments, given_values
from mirror_rt.cli.parser import Subparsers, add_subparser
from mirror_rt.errors import ConfigError
from mirror_train.cli.flow import report
from mirror_train.cli.training_options import add_base_options, add_run_options, given_config
from mirror_train.cli.tune import add_data_options, training_data
from mirror_train.flow.recipe import CfConfig, CfRecipe, FlowRecipe
from mirror_train.recipes.recipe import Recipe, load_recipe

_RECIPE = "cf"
# The fields of the first step's recipe with an option; a flow has options of some of their names.
_MIRROR = ("epochs", "batch_size", "learning_rate", "temperature", "dropout", "max_length")
_NAMES = {"batch_size": "mirror_batch_size", "learning_rate": "mirror_learning_rate"}


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "cf",
        description="Tune a masked language model on raw strings, without labels, by BERT-CF:\n"
        "1. Mirror-BERT, with spans of tokens masked (as 'mirror-rt tune --recipe cf');\n"
        "2. the encoder frozen, a normalising flow behind it, fitted by likelihood and by\n"
        "   Mirror-BERT's loss of what the flow gives, weighted by --mirror-weight.\n\n"
        "The folder is exported and evaluated like a tuned one, the flow inside the graph;\n"
        "sentence-transformers refuses it, for it has no such module. Ctrl-C in step 1 writes a\n"
        "checkpoint, in step 2 it keeps the tuned encoder in OUT.mirror; --resume goes on there.",
        examples="""
mirror-rt train cf --data lines.txt --out cf
mirror-rt train cf --model bert-base-uncased --data lines.txt --steps 2000 --out cf
mirror-rt train cf --data lines.txt --out cf-simcse --views simcse
mirror-rt train cf --data lines.txt --out cf-joint --joint
mirror-rt train cf --data lines.txt --out mirror-flow --no-regulariser
""",
    )
    add_base_options(parser)
    add_data_options(parser)
    _add_ablations(parser)
    group = parser.add_argument_group("step 1, Mirror-BERT")
    group.add_argument(
        "--recipe",
        default=_RECIPE,
        metavar="NAME|FILE.toml",
        help=f"its recipe (default {_RECIPE})",
    )
    add_options(group, Recipe, only=_MIRROR, names=_NAMES, overrides=True)
    add_options(parser.add_argument_group("flow"), FlowRecipe)
    add_run_options(parser, CfConfig)
    parser.set_defaults(run=run, wrong_usage=parser.error)


def _add_ablations(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the paper's section 6.1 compares")
    group.add_argument(
        "--views",
        choices=["mirror", "simcse"],
        default="mirror",
        help="simcse: nothing masked, in both steps; the views differ by dropout alone",
    )
    group.add_argument(
        "--regulariser",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="step 2 with Mirror-BERT's loss, or by likelihood alone (default: with it)",
    )
    add_options(group, CfRecipe)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from mirror_train.flow.contrastive import tune_cf

    config = given_config(arguments, CfConfig, recipe=_recipe(arguments))
    report(tune_cf(training_data(arguments), config))


def _recipe(arguments: argparse.Namespace) -> CfRecipe:
    source, own = from_arguments(arguments), {}
    if not arguments.regulariser:
        if arguments.mirror_weight is not None:
            raise ConfigError("--mirror-weight is the regulariser's: leave out --no-regulariser")
        own["mirror_weight"] = 0.0
    changes = given_values(Recipe, source, only=_MIRROR, names=_NAMES)
    if arguments.views == "simcse":
        changes["span_length"] = 0
    mirror = load_recipe(arguments.recipe).replace(**changes)
    return build(CfRecipe, source, mirror=mirror, **own)
