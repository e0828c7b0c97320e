"""mirror-rt encode."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.cli.common import Subparsers, add_hub_options, add_subparser, progress
from mirror_rt.encoder import Encoder
from mirror_rt.errors import DataError, InvalidTextError, require
from mirror_rt.textio import iter_jsonl, iter_lines
from mirror_rt.tokenization import why_invalid
from mirror_rt.vectorio import open_sink

__all__ = ["add_parser"]

# Texts in memory at once: enough to sort by length, whatever the length of the file.
_WINDOW_TEXTS = 8192
_WINDOW_CHARACTERS = 16_000_000


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "encode",
        help="texts to vectors",
        description="Encode texts, one a line (or a field of JSON lines), with a bundle.\n"
        "Streams: memory does not grow with the file. The output appears when it is whole.",
        examples="""
mirror-rt encode --model bundle --input texts.txt --output vectors.npy
mirror-rt encode --model bundle --input rows.jsonl --text-field body --output vectors.jsonl
printf 'one text\\nanother\\n' | mirror-rt encode --model bundle --input - --output -
""",
    )
    parser.add_argument("--model", required=True, metavar="BUNDLE", help="folder or hub name")
    parser.add_argument(
        "--variant", metavar="NAME", help="graph of the bundle, int8 say (default: fp32)"
    )
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help="FILE.txt, FILE.jsonl, or - for lines on standard input",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="FILE.npy, FILE.jsonl, or - for JSON lines on standard output",
    )
    parser.add_argument(
        "--text-field",
        default="text",
        metavar="NAME",
        help="field of the JSON lines (default: text)",
    )
    parser.add_argument(
        "--errors",
        choices=["raise", "nan"],
        default="raise",
        help="a line that cannot be encoded (empty, say): stop (and leave no output file), "
        "or give it NaN (null in JSON) and go on",
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="work of one run, in texts of 64 tokens (default 32)",
    )
    parser.add_argument("--truncate-dim", type=int, metavar="D", help="keep D dimensions")
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="unit vectors, or vectors as pooled (default: what the bundle declares)",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="default: all available")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output")
    add_hub_options(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    encoder = Encoder.load(
        arguments.model,
        variant=arguments.variant,
        revision=arguments.revision,
        offline=arguments.offline,
        threads=arguments.threads,
    )
    dimension = arguments.truncate_dim or encoder.dimension
    began, invalid = time.perf_counter(), 0
    with (
        open_sink(arguments.output, dimension, overwrite=arguments.overwrite) as sink,
        _Bar(progress(arguments)) as bar,
    ):
        for window in _windows(_texts(arguments)):
            bad = [
                (sink.rows + i, why) for i, text in enumerate(window) if (why := why_invalid(text))
            ]
            if bad and arguments.errors == "raise":
                raise _invalid_lines(arguments.input, bad)
            vectors = encoder.encode(
                window,
                batch_size=arguments.batch_size,
                normalize_embeddings=arguments.normalize,
                truncate_dim=arguments.truncate_dim,
                errors="nan",
            )
            lost = [
                (sink.rows + int(i), "it has no tokens")
                for i in np.flatnonzero(np.isnan(vectors[:, 0]))
            ]
            if lost and arguments.errors == "raise":
                raise _invalid_lines(arguments.input, lost)
            invalid += len(lost)
            sink.write(vectors)
            bar.update(len(window))
        if sink.rows == 0:
            raise DataError(f"{arguments.input} holds no texts")
        rows = sink.rows
    if not arguments.quiet:
        seconds = time.perf_counter() - began
        skipped = f", {invalid} of them could not be encoded (NaN)" if invalid else ""
        print(
            f"{arguments.output}: {rows} texts of {dimension} dimensions in {seconds:.1f} s "
            f"({rows / seconds:.0f} texts/s){skipped}",
            file=sys.stderr,
        )


def _texts(arguments: argparse.Namespace) -> Iterator[Any]:
    if Path(arguments.input).suffix == ".jsonl":
        return iter_jsonl(arguments.input, arguments.text_field)
    return iter_lines(arguments.input)


def _windows(texts: Iterable[Any]) -> Iterator[list[Any]]:
    window: list[Any] = []
    characters = 0
    for text in texts:
        window.append(text)
        characters += len(text) if isinstance(text, str) else 0
        if len(window) == _WINDOW_TEXTS or characters >= _WINDOW_CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def _invalid_lines(path: str, bad: list[tuple[int, str]]) -> InvalidTextError:
    return InvalidTextError(
        [(row + 1, reason) for row, reason in bad],
        noun=f"{path}, text",
        hint="; pass --errors nan to give such texts NaN and encode the others",
    )


class _Bar:
    """Texts done and texts a second, on standard error."""

    def __init__(self, show: bool) -> None:
        self._bar = None
        if show:
            tqdm = require("tqdm", extra="train", purpose="a progress bar (or pass --quiet)").tqdm
            self._bar = tqdm(unit="text", desc="encode")

    def update(self, n: int) -> None:
        """Count `n` more texts."""
        if self._bar is not None:
            self._bar.update(n)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
