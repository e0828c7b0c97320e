"""Define options and helpers that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_rt.bundle.hub import hub_library
from mirror_rt.bundle.json_document import to_export
from mirror_rt.bundle.manifest import declared_format
from mirror_rt.bundle.onnx_files import onnx_variants
from mirror_rt.bundle.pack_index import refuse_pack
from mirror_rt.cli.options import add_options, build, from_arguments, options_of
from mirror_rt.encoding.encoder import Encoder
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.plugins import load_plugin
from mirror_rt.progress import transfer_progress

if TYPE_CHECKING:
    from mirror_rt.encoding.batch_encoder import BatchEncoder


def add_hub_options(parser: argparse.ArgumentParser) -> None:
    """Add --revision and --offline, for a model given by its hub name."""
    add_options(parser, LoadOptions, only=["revision", "offline"])
    parser.set_defaults(offline=False)


def add_loading_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `load_named`."""
    parser.add_argument(
        "--pooling",
        choices=["auto", "cls", "mean", "mean-without-special"],
        default="auto",
        help="of a model that is no bundle; auto: declared, else mean",
    )
    add_options(parser.add_argument_group("model"), LoadOptions, leave_out=["pooling"])


def load_named(name: str, arguments: argparse.Namespace) -> BatchEncoder:
    """Load a bundle with onnxruntime, or a Hugging Face folder or name with PyTorch.

    Without PyTorch, what has a name in both forms is loaded as a bundle.
    """
    pooling = arguments.pooling
    load = build(LoadOptions, from_arguments(arguments), pooling="auto")
    refuse_pack(Path(name))
    if _needs_no_torch(Path(name)):
        return Encoder.load(name, **load.keywords() | {"pooling": pooling})
    for option in options_of(LoadOptions):
        given = getattr(arguments, option.name)
        if given is not None and option.field not in ("revision", "offline", "pooling"):
            raise ConfigError(f"{option.flag} {given}: {name} is not a bundle; {to_export(name)}")
    torch_encoder = load_plugin(
        "mirror_rt.encoders", "torch", purpose=f"{name}, which is no bundle,"
    )
    encoder: BatchEncoder = torch_encoder.load(
        name, pooling=pooling, revision=load.revision, offline=load.offline
    )
    return encoder


def _needs_no_torch(path: Path) -> bool:
    """Return whether to load a model with onnxruntime: of several forms torch runs the original."""
    if declared_format(path) == "mirror_rt bundle":
        return True
    if not path.exists():
        return find_spec("torch") is None
    weights = [*path.glob("*.safetensors"), *path.glob("pytorch_model*.bin")]
    return bool(onnx_variants(path)) and not weights


def progress(arguments: argparse.Namespace) -> bool:
    """Return whether to show progress (see `mirror_rt.progress`): unless --quiet is given."""
    return not arguments.quiet


@contextlib.contextmanager
def hub_progress(
    arguments: argparse.Namespace, doing: str, folder: Path | None = None
) -> Iterator[None]:
    """Let huggingface_hub show bars on a terminal; our errors replace its warnings.

    Without a terminal, say what is being done, and every ten seconds that it goes on, with the
    bytes that have come into `folder`.
    """
    hub = hub_library("a model hub")
    terminal, shown = sys.stderr.isatty(), progress(arguments)
    verbosity, bars = hub.logging.get_verbosity(), not hub.utils.are_progress_bars_disabled()
    hub.logging.set_verbosity_error()
    if bars and not (shown and terminal):
        hub.utils.disable_progress_bars()
    lines: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if shown and not terminal:
        print(doing, file=sys.stderr, flush=True)
        lines = transfer_progress(doing, folder)
    try:
        with lines:
            yield
    finally:
        hub.logging.set_verbosity(verbosity)
        if bars:
            hub.utils.enable_progress_bars()


def fill_table(rows: list[tuple[str, str]]) -> str:
    """Format two columns, the first padded to its widest cell."""
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def format_table(header: list[str], rows: list[list[str]]) -> str:
    """Format columns as wide as their widest cells; the last column is not padded."""
    lines = [header, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header) - 1)]
    return "\n".join(
        "  ".join([*(f"{c:<{w}}" for c, w in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )
