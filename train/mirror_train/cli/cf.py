"""mirror-rt cf."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mirror_rt.cli.common import Subparsers, add_subparser
from mirror_train.cli.flow import add_flow_options, add_model_options, flow_options, report
from mirror_train.cli.training_options import add_device_options, require_train, run_options
from mirror_train.cli.tune import add_data_options, training_data
from mirror_rt.errors import ConfigError

if TYPE_CHECKING:
    from mirror_train.flow import CfRecipe

__all__ = ["add_parser"]

# Field of the first step's recipe -> (option, type, help).
_MIRROR_OPTIONS: dict[str, tuple[str, type, str]] = {
    "epochs": ("--epochs", int, "passes over the strings (default 1)"),
    "batch_size": ("--mirror-batch-size", int, "strings of a step (default 16)"),
    "learning_rate": ("--mirror-learning-rate", float, "of AdamW (default 1e-4)"),
    "temperature": ("--temperature", float, "tau, in both steps (default 0.04)"),
    "dropout": ("--dropout", float, "in both steps (default 0.1)"),
    "max_length": ("--max-length", int, "most tokens of a training string (default 50)"),
}


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "cf",
        help="Mirror-BERT with masked tokens, then a flow that keeps its loss (BERT-CF)",
        description="Tune a masked language model on raw strings, without labels, by BERT-CF:\n"
        "1. Mirror-BERT, with spans of tokens masked (as 'mirror-rt tune --recipe cf');\n"
        "2. the encoder frozen, a normalising flow behind it, fitted by likelihood and by\n"
        "   Mirror-BERT's loss of what the flow gives, weighted by --mirror-weight.\n\n"
        "The folder is exported and evaluated like a tuned one, the flow inside the graph;\n"
        "sentence-transformers refuses it, for it has no such module. Ctrl-C in step 1 writes a\n"
        "checkpoint, in step 2 it keeps the tuned encoder in OUT.mirror; --resume goes on there.",
        examples="""
mirror-rt cf --data lines.txt --out cf
mirror-rt cf --model bert-base-uncased --data lines.txt --steps 2000 --out cf
mirror-rt cf --data lines.txt --out cf-simcse --views simcse
mirror-rt cf --data lines.txt --out cf-joint --joint
mirror-rt cf --data lines.txt --out mirror-flow --no-regulariser
""",
    )
    add_model_options(parser, "base model")
    add_data_options(parser)
    _add_ablations(parser)
    group = parser.add_argument_group("step 1, Mirror-BERT")
    group.add_argument(
        "--recipe", default="cf", metavar="NAME|FILE.toml", help="its recipe (default cf)"
    )
    for name, (option, kind, text) in _MIRROR_OPTIONS.items():
        group.add_argument(option, type=kind, help=text, dest=f"mirror_{name}")
    add_flow_options(parser)
    _add_run_options(parser)
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
        "--joint",
        action="store_true",
        help="no step 1: in step 2 Mirror-BERT's loss trains the encoder, too",
    )
    group.add_argument(
        "--regulariser",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="step 2 with Mirror-BERT's loss, or by likelihood alone (default: with it)",
    )
    group.add_argument(
        "--mirror-weight",
        type=float,
        metavar="LAMBDA",
        help="weight of Mirror-BERT's loss in step 2 (default 0.3)",
    )


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("run")
    add_device_options(
        group, precision="of the encoder (default auto: what the processor is good at)"
    )
    group.add_argument("--seed", type=int, default=42, help="default 42")
    group.add_argument("--resume", action="store_true", help="go on where step 1 was left")
    group.add_argument("--overwrite", action="store_true", help="replace --out, start afresh")
    group.add_argument("--quiet", action="store_true", help="no progress bars")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    require_train("cf")
    from mirror_train.flow import CfConfig, tune_cf

    if (arguments.data is None) == (arguments.words is None):
        arguments.wrong_usage("pass one of --data FILE and --words LANG")
    config = CfConfig(
        recipe=_recipe(arguments),
        pooling=arguments.pooling,
        precision=arguments.precision,
        resume=arguments.resume,
        **run_options(arguments),
    )
    report(tune_cf(training_data(arguments), config))


def _recipe(arguments: argparse.Namespace) -> CfRecipe:
    from mirror_train import load_recipe
    from mirror_train.flow import CfRecipe, FlowRecipe

    if not arguments.regulariser and arguments.mirror_weight is not None:
        raise ConfigError("--mirror-weight is the regulariser's: leave out --no-regulariser")
    changes = {name: getattr(arguments, f"mirror_{name}") for name in _MIRROR_OPTIONS}
    changes = {name: value for name, value in changes.items() if value is not None}
    if arguments.views == "simcse":
        changes["span_length"] = 0
    weight = 0.3 if arguments.mirror_weight is None else arguments.mirror_weight
    return CfRecipe(
        mirror=load_recipe(arguments.recipe).replace(**changes),
        flow=FlowRecipe(**flow_options(arguments)),
        mirror_weight=weight if arguments.regulariser else 0.0,
        joint=arguments.joint,
    )
