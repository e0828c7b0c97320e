"""Options that the commands with task heads share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mirror_rt.cli.common import add_hub_options, progress

__all__ = ["add_run_options", "require_train", "run_options"]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add where the base model comes from, where the result goes, and how it is trained."""
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--model",
        "--base",
        metavar="PATH|NAME",
        help="base model: folder or hub name (default: all-MiniLM-L6-v2, fetched once, checked "
        "and cached)",
    )
    add_hub_options(parser)
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code that comes with the base model, if it needs any: read it first",
    )
    group = parser.add_argument_group("run")
    group.add_argument(
        "--precision",
        choices=["auto", "fp32", "bf16", "fp16"],
        default="auto",
        help="auto: what the processor is good at",
    )
    group.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    group.add_argument("--seed", type=int, default=11711, help="default 11711, that of BERT-CF")
    group.add_argument("--overwrite", action="store_true", help="replace --out")
    group.add_argument("--quiet", action="store_true", help="no progress bar")


def run_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those options as fields of `mirror_train.pairs.session.TaskConfig`."""
    import mirror_train

    return {
        "out": arguments.out,
        "model": arguments.model or mirror_train.DEFAULT_MODEL,
        "revision": arguments.revision,
        "precision": arguments.precision,
        "device": arguments.device,
        "seed": arguments.seed,
        "overwrite": arguments.overwrite,
        "offline": arguments.offline,
        "trust_remote_code": arguments.trust_remote_code,
        "show_progress_bar": progress(arguments),
    }


def require_train(command: str) -> None:
    """Raise MissingDependencyError, naming the command, where tuning is not installed."""
    from mirror_rt.errors import MissingDependencyError

    try:
        import mirror_train  # noqa: F401
    except MissingDependencyError as error:
        raise MissingDependencyError(f"mirror-rt {command}: {error}") from error
