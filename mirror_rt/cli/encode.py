"""Run `mirror-rt encode`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from mirror_rt.bulk import BulkConfig, BulkReport, encode_file
from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.cli.common import progress
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.languages.routing import AUTO, Router
from mirror_rt.pipeline.options import EncodeOptions


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "encode",
        description="Encode the texts of a file (lines, JSON lines, CSV, Parquet) with a bundle.\n"
        "Streams: memory does not grow with the file. The output appears when it is whole; what "
        "is\nfinished before waits in OUTPUT.partial, from which --resume goes on after a kill.",
        examples="""
mirror-rt encode all-MiniLM-L6-v2 --input texts.txt --output vectors.npy
mirror-rt encode bundle --input texts.txt --output vectors.npy
mirror-rt encode bundle --input rows.csv --text-field body --id-field id --output v.parquet
mirror-rt encode bundle --input huge.jsonl --output vectors.arrow --resume
mirror-rt encode bundle --input huge.jsonl --output vectors.npy --devices all
mirror-rt encode pack --lang fr --input texts.txt --output vectors.npy
printf 'one text\\nanother\\n' | mirror-rt encode bundle --input - --output -
""",
    )
    add_model(parser, help="folder or hub name of a bundle, or a pack with --lang")
    parser.add_argument(
        "--lang",
        metavar="TAG",
        help="of a pack: the language of the texts; a pack without a bundle for it "
        "(pt for pt-BR will do) is refused, unless it declares a fallback",
    )
    parser.add_argument(
        "--fallback", metavar="TAG", help="with --lang: encode with this language instead"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    add_options(parser, BulkConfig, leave_out=["model", "show_progress_bar"])
    add_options(parser.add_argument_group("vectors"), EncodeOptions)
    add_options(parser.add_argument_group("model"), LoadOptions)
    parser.set_defaults(
        run=run,
        kept=lambda _: "nothing was saved yet (work is saved every half minute)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    config = build(BulkConfig, from_arguments(arguments), show_progress_bar=progress(arguments))
    report = encode_file(replace(config, model=_bundle(arguments)))
    if not arguments.quiet:
        print(f"{arguments.output}: {_summary(report)}", file=sys.stderr)


def _bundle(arguments: argparse.Namespace) -> str:
    """Return the bundle to encode with; with --lang, the bundle of that language in a pack."""
    if arguments.lang is None:
        if arguments.fallback is not None:
            raise ConfigError("--fallback goes with --lang TAG")
        return str(arguments.model)
    if arguments.lang == AUTO:
        raise ConfigError("--lang auto: a file is encoded in one language, name it")
    folder = Path(arguments.model)
    index = PackIndex.read(folder)
    router = Router(folder, index, fallback=arguments.fallback)
    return str(folder / index.bundles[router.route(arguments.lang)].path)


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
