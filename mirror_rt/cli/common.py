"""Options and helpers that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirror_rt.encoder import Encoder
from mirror_rt.errors import ConfigError
from mirror_rt.manifest import declared_format

if TYPE_CHECKING:
    from mirror_rt.encoding import BatchEncoder

__all__ = ["Subparsers", "add_subparser", "fill_table", "load_model", "progress"]

Subparsers = Any  # argparse keeps the type of add_subparsers() private


def add_subparser(
    commands: Subparsers, name: str, *, help: str, description: str, examples: str
) -> argparse.ArgumentParser:
    """Add a command whose help ends in examples to copy."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=help,
        description=description,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    return parser


def load_model(name: str, *, pooling: str = "auto", offline: bool = False) -> BatchEncoder:
    """Load a bundle with onnxruntime, or a Hugging Face folder or name with PyTorch."""
    if declared_format(Path(name)) == "mirror_rt bundle":
        if pooling != "auto":
            raise ConfigError(
                f"--pooling {pooling}: {name} is a bundle, its pooling is in the graph"
            )
        return Encoder.load(name)
    from mirror_train import TorchEncoder

    return TorchEncoder.load(name, pooling=pooling, offline=offline)  # type: ignore[arg-type]


def progress(arguments: argparse.Namespace) -> bool:
    """Whether to show bars: on a terminal, unless --quiet."""
    return sys.stderr.isatty() and not arguments.quiet


def fill_table(rows: list[tuple[str, str]]) -> str:
    """Two columns, the first padded to its widest cell."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
