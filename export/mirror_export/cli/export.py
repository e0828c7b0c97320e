"""The command `mirror-rt export`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from mirror_export.cli.export_pack import run_pack
from mirror_export.config import ExportConfig
from mirror_rt.cli.common import progress
from mirror_rt.cli.info import describe_parity
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.io.text import iter_lines


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "export",
        description="Write a bundle: ONNX graph with pooling and normalisation inside, tokenizer,\n"
        "manifest. It is compared with PyTorch on real strings, and refused if they differ.\n"
        "Of several models, write a pack: a folder of bundles with an index, pack.json.",
        examples="""
mirror-rt export tuned --out bundle
mirror-rt export sentence-transformers/all-MiniLM-L6-v2 --out bundle
mirror-rt export bert-base-uncased --pooling mean --out bundle
mirror-rt export tuned/fr tuned/en tuned/zh --out pack --jobs auto
mirror-rt export --all tuned --out pack --resume
mirror-rt export tuned --out bundle --precision fp32,int8 --parity-pairs pairs.tsv
""",
    )
    add_model(
        parser,
        help="tuned folder; also any encoder's folder or hub name; several make a pack",
        metavar="MODEL",
        dest="models",
        required=False,
        several=True,
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="BUNDLE|PACK", help="folder to write"
    )
    _add_pack_options(parser)
    add_options(parser, ExportConfig, leave_out=["model", "out", "parity_texts"])
    parser.add_argument(
        "--parity-texts",
        type=Path,
        metavar="FILE",
        help="strings to compare over, one a line (default: a built-in sample, in the model's "
        "language where that is known)",
    )
    parser.add_argument("--json", action="store_true", help="results as JSON on standard output")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.set_defaults(run=run, kept=lambda _: "nothing was written")


def _add_pack_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("pack")
    group.add_argument(
        "--all",
        type=Path,
        metavar="FOLDER",
        help="every tuned or model folder directly in FOLDER",
    )
    group.add_argument(
        "--jobs",
        type=_jobs,
        default=1,
        metavar="N|auto",
        help="models at a time (default 1); auto: as many as fit into memory",
    )
    group.add_argument(
        "--resume",
        action="store_true",
        help="keep the bundles of an earlier run that are whole and of the same models and options",
    )
    group.add_argument(
        "--fallback",
        metavar="NAME",
        help="bundle for languages that the pack lacks (default: such a language is refused; with "
        "--resume, what the pack declares)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from mirror_export.export import export_bundle

    if arguments.all is not None or len(arguments.models or []) > 1:
        run_pack(arguments, _config(arguments, ""))
        return
    if not arguments.models:
        raise ConfigError("nothing to export: name a model, or pass --all FOLDER")
    if arguments.resume or arguments.fallback or arguments.jobs != 1:
        raise ConfigError(
            "--resume, --fallback and --jobs go with several models, or with --all FOLDER"
        )
    manifest = export_bundle(
        _config(arguments, arguments.models[0]), show_progress_bar=progress(arguments)
    )
    if arguments.json:
        print(json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False))
        return
    for name, variant in manifest.variants.items():
        print(f"{arguments.out}: {name}: {describe_parity(variant)}")


def _config(arguments: argparse.Namespace, model: str) -> ExportConfig:
    texts = _texts(arguments.parity_texts)
    return build(ExportConfig, from_arguments(arguments), model=model, parity_texts=texts)


def _jobs(text: str) -> int | str:
    return text if text == "auto" else int(text)


def _texts(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    texts = [line for line in iter_lines(path) if line.strip()]
    if not texts:
        raise DataError(f"{path} holds no texts")
    return texts
