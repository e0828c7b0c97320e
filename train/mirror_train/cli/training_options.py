"""Define the options that the tuning commands share, out of the fields of their configurations."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_rt.cli.common import add_hub_options, progress
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import add_model
from mirror_train.model.model_folder import DEFAULT_MODEL

if TYPE_CHECKING:
    from mirror_train.training.output_folder import TuneReport


# The fields of a run that have no option in its group: `add_base_options` has one, or none has.
_ELSEWHERE = ("out", "model", "revision", "offline", "trust_remote_code", "show_progress_bar")


def given_config(arguments: argparse.Namespace, config: type, **changes: Any) -> Any:
    """Make a configuration from the options that were given, with some fields changed."""
    if "quiet" in arguments:  # otherwise, like a study, the command says itself how far it is
        changes["show_progress_bar"] = progress(arguments)
    return build(config, from_arguments(arguments), **changes)


def add_base_options(
    parser: argparse.ArgumentParser, *, what: str = "base model", note: str = ""
) -> None:
    """Add --out, --model and the options that say how the model is loaded.

    The help calls the model `what`, and has `note` at the end of its text on --model.
    """
    add_model(
        parser,
        help=f"{what}: folder or hub name (default: {DEFAULT_MODEL.partition('/')[2]}, fetched "
        f"once, checked and cached{note})",
        metavar="MODEL",
        required=False,
    )
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write")
    add_hub_options(parser)
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help=f"run the Python code that comes with the {what}, if it needs any: read it first",
    )


def add_run_options(parser: argparse.ArgumentParser, config: type) -> None:
    """Add the group of options that say how a command runs, for the fields of its configuration."""
    group = parser.add_argument_group("run")
    add_options(group, config, leave_out=_ELSEWHERE)
    group.add_argument("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(kept=_kept)


def _kept(arguments: argparse.Namespace) -> str:
    """Say what an interrupted run has left, if the run itself has not said so."""
    checkpoints = arguments.out.parent / f"{arguments.out.name}.checkpoints"
    if checkpoints.is_dir():
        return f"{checkpoints} holds a checkpoint, continue with --resume"
    return "nothing was saved yet, start the same command again"


def print_result(report: TuneReport, more: str = "") -> None:
    """Print what a run has written, how quickly, how its loss changed, and what to do next."""
    made = report.manifest.training or {}
    speed = f"{made['strings_per_second']} strings/s, " if "strings_per_second" in made else ""
    waste = f", padding {made['padding_percent']} %" if "padding_percent" in made else ""
    print(
        f"{report.out}: {made['steps']} steps in {made['seconds']} s "
        f"({speed}{made['precision']}{waste}), loss {made['loss_first']:.4f} -> "
        f"{made['loss_last']:.4f}{more}"
    )
    print(f"next: mirror-rt export {report.out} --out BUNDLE")
