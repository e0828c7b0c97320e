"""Run `mirror-rt encode`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from mirror_rt.bulk import (
    BulkConfig,
    BulkReport,
    DatasetConfig,
    DatasetReport,
    encode_dataset,
    encode_file,
    merge_manifest,
)
from mirror_rt.bundle.pack_index import PackIndex
from mirror_rt.cli.common import progress
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.cli.wording import flag_of
from mirror_rt.errors import ConfigError
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.storage import has_wildcards
from mirror_rt.languages.routing import AUTO, Router
from mirror_rt.pipeline.options import EncodeOptions

_OF_DATASETS = [
    "columns", "shard", "engine", "address", "workers", "worker_cpus", "worker_gpus",
]  # fmt: skip


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
mirror-rt encode bundle --input 'texts/*.parquet' --output vectors --shard 0/4 --resume
mirror-rt encode bundle --input 'texts/*.parquet' --output vectors --merge-manifest
mirror-rt encode bundle --input s3://texts --output s3://vectors --engine ray --address auto
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
    parser.add_argument(
        "--merge-manifest",
        action="store_true",
        help="encode nothing: prove that the shards in --output are complete and of one model, "
        "and write the manifest",
    )
    add_options(parser, BulkConfig, leave_out=["model", "show_progress_bar"])
    add_options(parser.add_argument_group("datasets"), DatasetConfig, only=_OF_DATASETS)
    add_options(parser.add_argument_group("vectors"), EncodeOptions)
    add_options(parser.add_argument_group("model"), LoadOptions)
    parser.set_defaults(
        run=run, kept=lambda _: "nothing was saved yet (work is saved after each window of texts)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    if _is_dataset(arguments):
        _run_dataset(arguments)
        return
    for name in _OF_DATASETS:
        if getattr(arguments, name) is not None:
            raise ConfigError(
                f"{flag_of(name)} is for datasets: let --input be a folder, a pattern or an address"
            )
    config = build(BulkConfig, from_arguments(arguments), show_progress_bar=progress(arguments))
    report = encode_file(replace(config, model=_bundle(arguments)))
    if not arguments.quiet:
        made = f"{report.rows} vectors of {report.dimension} {report.dtype}"
        print(f"{arguments.output}: {_summary(report, made)}", file=sys.stderr)


def _is_dataset(arguments: argparse.Namespace) -> bool:
    """Return whether the input is more than one file, or is to be divided."""
    where = arguments.input
    several = "://" in where or has_wildcards(where) or Path(where).is_dir()
    return bool(several or arguments.shard or arguments.engine or arguments.merge_manifest)


def _run_dataset(arguments: argparse.Namespace) -> None:
    for name in ("id_field", "processes"):
        if getattr(arguments, name) is not None:
            raise ConfigError(
                f"{flag_of(name)} is for one file: a dataset keeps its columns (--columns), and "
                "is divided by --shard"
            )
    config = build(DatasetConfig, from_arguments(arguments), show_progress_bar=progress(arguments))
    config = replace(config, model=_bundle(arguments))
    if arguments.merge_manifest:
        made = merge_manifest(config)
        said = f"{made['blocks']} parts of one model, complete; {made['rows']} rows"
    else:
        report = encode_dataset(config)
        said = _summary(report, f"{report.rows} vectors in {report.blocks} parts")
    if not arguments.quiet:
        print(f"{arguments.output}: {said}", file=sys.stderr)


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


def _summary(report: BulkReport | DatasetReport, made: str) -> str:
    fresh, seconds = report.rows - report.resumed, max(report.seconds, 1e-9)
    text = (
        f"{made}; {fresh} in {report.seconds:.1f} s ({fresh / seconds:.0f} texts/s, "
        f"{report.tokens / seconds:.0f} tokens/s, padding {report.padding:.1%})"
    )
    if report.resumed:
        text += f", {report.resumed} by an earlier run"
    if report.invalid:
        text += f", {report.invalid} of them could not be encoded (NaN)"
    return text
