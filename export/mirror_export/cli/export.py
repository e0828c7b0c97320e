"""The command `mirror-rt export`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from mirror_export.cli.export_pack import run_pack
from mirror_export.config import ExportConfig
from mirror_rt.bundle.manifest import Pooling, Precision, Target
from mirror_rt.cli.common import Subparsers, add_hub_options, add_subparser
from mirror_rt.cli.info import describe_parity
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.io.text import iter_lines

__all__ = ["add_parser"]

_DEFAULTS: dict[str, Any] = {one.name: one.default for one in dataclasses.fields(ExportConfig)}


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
    parser.add_argument(
        "models",
        nargs="*",
        metavar="DIR",
        help="tuned folder; also any encoder's folder or hub name; several make a pack",
    )
    parser.add_argument(
        "--out", required=True, type=Path, metavar="BUNDLE|PACK", help="folder to write"
    )
    _add_pack_options(parser)
    parser.add_argument(
        "--pooling",
        choices=["auto", *(mode for mode in get_args(Pooling) if mode != "mean-with-padding")],
        default=_DEFAULTS["pooling"],
        help="auto: what the folder declares, all of its sentence-transformers modules; or this "
        "pooling alone, in their place",
    )
    parser.add_argument(
        "--max-length",
        type=int,
        metavar="N",
        help="cut texts at N tokens (default: as many as the model takes)",
    )
    parser.add_argument(
        "--truncate-dim",
        type=int,
        metavar="D",
        help="keep D dimensions of the vectors (Matryoshka), normalised after the cut",
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="run the Python code that comes with the model, if it needs any: read it first",
    )
    _add_variant_options(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace --out, start afresh")
    parser.add_argument("--json", action="store_true", help="results as JSON on standard output")
    add_hub_options(parser)
    parser.set_defaults(run=run)


def _add_variant_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for which graphs are written and how they are compared with PyTorch."""
    parser.add_argument(
        "--precision",
        dest="precisions",
        type=_choices(*get_args(Precision)),
        default=_DEFAULTS["precisions"],
        metavar="P,...",
        help=f"{', '.join(get_args(Precision))}, or several joined by commas (default "
        f"{','.join(_DEFAULTS['precisions'])})",
    )
    parser.add_argument(
        "--target",
        dest="targets",
        type=_choices(*get_args(Target)),
        default=_DEFAULTS["targets"],
        metavar="T,...",
        help="cpu: graphs that run everywhere (default); cuda: also, or only, graphs without "
        "padding for NVIDIA cards; native: also, or only, bf16 and int8 for --providers native",
    )
    parser.add_argument(
        "--parity-texts",
        type=Path,
        metavar="FILE",
        help="strings to compare on, one a line (default: a built-in sample, in the model's "
        "language where that is known)",
    )
    parser.add_argument(
        "--parity-pairs",
        type=Path,
        metavar="FILE.tsv|FOLDER",
        help="text pairs with human scores (in a folder: LANGUAGE.tsv); Spearman's rho of PyTorch "
        "and of every graph is reported",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="write graphs that differ too much from PyTorch, too; the manifest says so",
    )


def _choices(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Return a parser of words out of `known`, joined by commas."""

    def parse(text: str) -> tuple[str, ...]:
        words = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
        if unknown := [word for word in words if word not in known]:
            raise argparse.ArgumentTypeError(
                f"{unknown[0]!r} is none of {', '.join(known)}; join several by commas"
            )
        return words

    return parse


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


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from mirror_export.export import export_bundle

    if arguments.all is not None or len(arguments.models) > 1:
        run_pack(arguments, _config(arguments, ""))
        return
    if not arguments.models:
        raise ConfigError("nothing to export: name a model, or pass --all FOLDER")
    if arguments.resume or arguments.jobs != 1:
        raise ConfigError("--resume and --jobs go with several models, or with --all FOLDER")
    manifest = export_bundle(_config(arguments, arguments.models[0]))
    if arguments.json:
        print(json.dumps(manifest.to_dict(), indent=2, ensure_ascii=False))
        return
    for name, variant in manifest.variants.items():
        print(f"{arguments.out}: {name}: {describe_parity(variant)}")


def _config(arguments: argparse.Namespace, model: str) -> ExportConfig:
    names = [one.name for one in dataclasses.fields(ExportConfig)]
    given = {name: getattr(arguments, name) for name in names if name in arguments}
    texts = _texts(arguments.parity_texts)
    return ExportConfig(**given | {"model": model, "parity_texts": texts})


def _jobs(text: str) -> int | str:
    return text if text == "auto" else int(text)


def _texts(path: Path | None) -> list[str] | None:
    if path is None:
        return None
    texts = [line for line in iter_lines(path) if line.strip()]
    if not texts:
        raise DataError(f"{path} holds no texts")
    return texts
