"""Run `mirror-rt evaluate`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from mirror_rt.cli.common import Subparsers, add_subparser, fill_table, load_model
from mirror_rt.cli.evaluate_suite import add_suite_options, run_suite
from mirror_rt.cli.options import add_options
from mirror_rt.errors import DataError
from mirror_rt.evaluation import evaluate_geometry, evaluate_similarity, read_scored_pairs
from mirror_rt.inference.load_options import LoadOptions
from mirror_rt.io.text import iter_lines

__all__ = ["add_parser"]


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "evaluate",
        description="Evaluate bundles (with onnxruntime) or Hugging Face folders (with torch):\n"
        "whole suites of sets in a folder, with a report, or one file (WHAT).",
        examples="""
mirror-rt evaluate --suite all --model bundle --data DIR --out report --allow-missing
mirror-rt evaluate --suite words bli --model before=bundle after=tuned --data DIR --out report
mirror-rt evaluate similarity --model bundle --pairs pairs.tsv
mirror-rt evaluate geometry --model bundle --texts texts.txt --json
""",
    )
    add_suite_options(parser)
    _add_model_options(parser)
    parser.set_defaults(run=run_suite)
    kinds = parser.add_subparsers(metavar="WHAT")
    similarity = add_subparser(
        kinds,
        "similarity",
        help="Spearman's rho of cosines and human scores",
        description="Spearman's rho between the cosines of pairs and their human scores.",
        examples="mirror-rt evaluate similarity --model bundle --pairs pairs.tsv",
    )
    similarity.add_argument(
        "--pairs",
        required=True,
        type=Path,
        metavar="FILE.tsv",
        help="a header, two text columns (text1 text2, sentence1 sentence2, word1 word2) and score",
    )
    similarity.set_defaults(run=_run_similarity)
    geometry = add_subparser(
        kinds,
        "geometry",
        help="isotropy, mean vector, alignment, uniformity",
        description="Isotropy score (Mirror-BERT, Eq. 2), mean-vector norm (Eq. 3), alignment and\n"
        "uniformity (Wang and Isola 2020), mean cosine of random pairs.",
        examples="mirror-rt evaluate geometry --model bundle --texts texts.txt",
    )
    geometry.add_argument(
        "--texts",
        required=True,
        type=Path,
        metavar="FILE",
        help="UTF-8, one text a line; blank lines are left out",
    )
    geometry.set_defaults(run=_run_geometry)
    for kind in (similarity, geometry):
        kind.add_argument(
            "--model", required=True, metavar="M", help="bundle, or Hugging Face folder or name"
        )
        _add_model_options(kind)
        kind.add_argument("--json", action="store_true", help="JSON instead of a table")


def _add_model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pooling",
        choices=["auto", "cls", "mean", "mean-without-special"],
        default="auto",
        help="of a Hugging Face model; auto: declared, else mean",
    )
    add_options(parser.add_argument_group("model"), LoadOptions, leave_out=["pooling"])


def _run_similarity(arguments: argparse.Namespace) -> None:
    pairs = read_scored_pairs(arguments.pairs)
    model = load_model(arguments)
    rho = evaluate_similarity(model, pairs)
    _print({"spearman": rho, "n": len(pairs.scores)}, arguments)


def _run_geometry(arguments: argparse.Namespace) -> None:
    texts = [line for line in iter_lines(arguments.texts) if line.strip()]
    if not texts:
        raise DataError(f"{arguments.texts} holds no texts")
    model = load_model(arguments)
    _print(dataclasses.asdict(evaluate_geometry(model, texts)), arguments)


def _print(values: dict[str, Any], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(values | {"model": arguments.model}))
        return
    print(fill_table([(name.replace("_", " "), _number(value)) for name, value in values.items()]))


def _number(value: float | None) -> str:
    if value is None:
        return "undefined"
    return str(value) if isinstance(value, int) else f"{value:.4f}"
