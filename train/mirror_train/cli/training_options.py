"""Options and checks that the commands that tune share."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from mirror_rt.cli.common import add_hub_options, progress
from mirror_rt.errors import MissingDependencyError

__all__ = [
    "add_base_options",
    "add_device_options",
    "add_run_options",
    "require_train",
    "run_options",
]


def add_base_options(
    parser: argparse.ArgumentParser, *, what: str = "base model", note: str = ""
) -> None:
    """Add --out, --model and what loads it.

    Args:
        parser: of the command.
        what: the model is, in the help.
        note: what the help of --model says besides.
    """
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--model",
        "--base",
        metavar="PATH|NAME",
        help=f"{what}: folder or hub name (default: all-MiniLM-L6-v2, fetched once, checked and "
        f"cached{note})",
    )
    add_hub_options(parser)
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help=f"run the Python code that comes with the {what}, if it needs any: read it first",
    )


def add_device_options(
    group: argparse._ArgumentGroup, *, precision: str = "auto: what the processor is good at"
) -> None:
    """Add --precision, with that help, and --device."""
    group.add_argument(
        "--precision", choices=["auto", "fp32", "bf16", "fp16"], default="auto", help=precision
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add what the commands with task heads have in common: base model, result, device, seed."""
    add_base_options(parser)
    group = parser.add_argument_group("run")
    add_device_options(group)
    group.add_argument("--seed", type=int, default=11711, help="default 11711, that of BERT-CF")
    group.add_argument("--overwrite", action="store_true", help="replace --out")
    group.add_argument("--quiet", action="store_true", help="no progress bar")


def run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """What every command that trains has in common, as fields of `RunConfig`."""
    from mirror_train import DEFAULT_MODEL

    return {
        "out": arguments.out,
        "model": arguments.model or DEFAULT_MODEL,
        "revision": arguments.revision,
        "device": arguments.device,
        "seed": arguments.seed,
        "overwrite": arguments.overwrite,
        "offline": arguments.offline,
        "trust_remote_code": arguments.trust_remote_code,
        "show_progress_bar": progress(arguments),
    }


def require_train(command: str) -> None:
    """Find out whether tuning is installed.

    Raises:
        MissingDependencyError: it is not; the command is named.
    """
    try:
        importlib.import_module("mirror_train")  # which says what is missing
    except MissingDependencyError as error:
        raise MissingDependencyError(f"mirror-rt {command}: {error}") from error
