"""Options that the commands with task heads share."""

from __future__ import annotations

import argparse
from typing import Any

from mirror_rt.cli.common import progress
from mirror_rt.cli.training_options import add_base_options, add_device_options

__all__ = ["add_run_options", "run_options"]


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add where the base model comes from, where the result goes, and how it is trained."""
    add_base_options(parser)
    group = parser.add_argument_group("run")
    add_device_options(group)
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
