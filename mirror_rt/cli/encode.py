"""mirror-rt encode."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import get_args

from mirror_rt.bulk import BulkConfig, BulkReport, encode_file
from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.cli.common import Subparsers, add_hub_options, add_subparser, progress
from mirror_rt.encoding.options import EncodeKeywords, OnTooLong
from mirror_rt.errors import ConfigError
from mirror_rt.languages.routing import AUTO, Router
from mirror_rt.vectors.quantization import EmbeddingPrecision

__all__ = ["add_parser"]


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "encode",
        help="texts to vectors",
        description="Encode the texts of a file (lines, JSON lines, CSV, Parquet) with a bundle.\n"
        "Streams: memory does not grow with the file. The output appears when it is whole; what "
        "is\nfinished before waits in OUTPUT.partial, from which --resume goes on after a kill.",
        examples="""
mirror-rt encode --model bundle --input texts.txt --output vectors.npy
mirror-rt encode --model bundle --input rows.csv --text-field body --id-field id --output v.parquet
mirror-rt encode --model bundle --input huge.jsonl --output vectors.arrow --resume
mirror-rt encode --model pack --lang fr --input texts.txt --output vectors.npy
printf 'one text\\nanother\\n' | mirror-rt encode --model bundle --input - --output -
""",
    )
    parser.add_argument("--model", required=True, metavar="BUNDLE", help="folder or hub name")
    parser.add_argument(
        "--lang",
        metavar="TAG",
        help="where --model is a pack: the language of the texts; a pack without a bundle for it "
        "(pt for pt-BR will do) encodes them with its default",
    )
    _add_files(parser)
    _add_options(parser)
    add_hub_options(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    parser.set_defaults(run=run)


def _add_files(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        required=True,
        metavar="FILE",
        help="FILE.jsonl, FILE.csv, FILE.parquet, another name for lines, - for lines on "
        "standard input",
    )
    parser.add_argument(
        "--output",
        required=True,
        metavar="FILE",
        help="FILE.npy, FILE.jsonl, FILE.parquet, FILE.arrow, - for JSON lines on standard output",
    )
    parser.add_argument(
        "--text-field", default="text", metavar="NAME", help="field of the texts (default: text)"
    )
    parser.add_argument(
        "--id-field", metavar="NAME", help="field of the ids (default: rows are numbered from 0)"
    )
    parser.add_argument(
        "--errors",
        choices=["raise", "nan"],
        default="raise",
        help="a text that cannot be encoded (empty, say): stop, or give it NaN (null in JSON, "
        "Parquet and Arrow) and go on",
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with an unfinished job, if there is one"
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace an existing output; without --resume, an unfinished job too",
    )


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--variant", metavar="NAME", help="graph of the bundle (default: that of Encoder.load)"
    )
    parser.add_argument(
        "--batch-size",
        type=int,
        default=32,
        metavar="N",
        help="work of one run, in texts of 64 tokens (default 32)",
    )
    parser.add_argument(
        "--window",
        type=int,
        default=8192,
        metavar="N",
        help="texts sorted by length together, and saved together (default 8192)",
    )
    parser.add_argument("--truncate-dim", type=int, metavar="D", help="keep D dimensions")
    parser.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="unit vectors, or vectors as pooled (default: what the bundle declares)",
    )
    parser.add_argument(
        "--precision",
        choices=get_args(EmbeddingPrecision),
        default="float32",
        help="of the output: float16 and the 8-bit codes take 1/2 and 1/4 of the space, the "
        "binary ones a bit a dimension (default: float32)",
    )
    parser.add_argument(
        "--prompt-name", metavar="NAME", help="prompt of the model before every text"
    )
    parser.add_argument(
        "--on-too-long",
        choices=get_args(OnTooLong),
        default="truncate",
        help="a text of more tokens than the model takes: cut it, refuse it, or average its "
        "chunks (default: truncate)",
    )
    parser.add_argument(
        "--processes", type=int, default=1, metavar="N", help="that encode (default 1)"
    )
    parser.add_argument(
        "--threads", type=int, metavar="N", help="of each process (default: all, shared out)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    report = encode_file(
        BulkConfig(
            model=_bundle(arguments),
            input=arguments.input,
            output=arguments.output,
            text_field=arguments.text_field,
            id_field=arguments.id_field,
            errors=arguments.errors,
            resume=arguments.resume,
            overwrite=arguments.overwrite,
            processes=arguments.processes,
            threads=arguments.threads,
            window=arguments.window,
            show_progress_bar=progress(arguments),
            variant=arguments.variant,
            revision=arguments.revision,
            offline=arguments.offline,
            options=_encode_options(arguments),
        )
    )
    if not arguments.quiet:
        print(f"{arguments.output}: {_summary(report)}", file=sys.stderr)


def _bundle(arguments: argparse.Namespace) -> str:
    """The bundle to encode with; with --lang that of a pack."""
    if arguments.lang is None:
        return str(arguments.model)
    if arguments.lang == AUTO:
        raise ConfigError("--lang auto: a file is encoded in one language, name it")
    folder = Path(arguments.model)
    index = PackIndex.read(folder)
    return str(folder / index.bundles[Router(folder, index).route(arguments.lang)].path)


def _encode_options(arguments: argparse.Namespace) -> EncodeKeywords:
    """Arguments of `Encoder.encode`; each is a part of what a job is."""
    return {
        "batch_size": arguments.batch_size,
        "normalize_embeddings": arguments.normalize,
        "truncate_dim": arguments.truncate_dim,
        "precision": arguments.precision,
        "prompt_name": arguments.prompt_name,
        "on_too_long": arguments.on_too_long,
    }


def _summary(report: BulkReport) -> str:
    fresh, seconds = report.rows - report.resumed, max(report.seconds, 1e-9)
    text = (
        f"{report.rows} vectors of {report.dimension} {report.dtype}; "
        f"{fresh} in {report.seconds:.1f} s ({fresh / seconds:.0f} texts/s, "
        f"{report.tokens / seconds:.0f} tokens/s, padding {report.padding:.1%})"
    )
    if report.resumed:
        text += f", {report.resumed} by an earlier run"
    if report.invalid:
        text += f", {report.invalid} of them could not be encoded (NaN)"
    return text
