"""Run `mirror-rt evaluate similarity` and `mirror-rt evaluate geometry`: a model and one file."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mirror_rt.cli.common import add_loading_options, fill_table, load_named
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_rt.evaluation import evaluate_geometry, evaluate_similarity, read_scored_pairs
from mirror_rt.io.text import read_texts


def add_parser(commands: Subparsers) -> None:
    """Add both commands to the command line."""
    _add(
        commands,
        "similarity",
        _run_similarity,
        file=("--pairs", "pairs.tsv"),
        file_help="a header, two text columns (text1 text2, sentence1 sentence2, word1 word2) and "
        "score",
        description="Spearman's rho between the cosines of pairs and their human scores.",
    )
    _add(
        commands,
        "geometry",
        _run_geometry,
        file=("--texts", "texts.txt"),
        file_help="UTF-8, one text a line; blank lines are left out",
        description="Isotropy score (Mirror-BERT, Eq. 2), mean-vector norm (Eq. 3), alignment and\n"
        "uniformity (Wang and Isola 2020), mean cosine of random pairs.",
    )


def _add(
    commands: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], None],
    *,
    file: tuple[str, str],
    file_help: str,
    description: str,
) -> None:
    example = f"mirror-rt evaluate {name} bundle {' '.join(file)}"
    parser = add_subparser(commands, name, description=description, examples=example)
    add_model(parser, help="bundle, or Hugging Face folder or name", metavar="M")
    parser.add_argument(file[0], required=True, type=Path, metavar="FILE", help=file_help)
    add_loading_options(parser)
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    parser.set_defaults(run=run)


def _run_similarity(arguments: argparse.Namespace) -> None:
    pairs = read_scored_pairs(arguments.pairs)
    model = load_named(arguments.model, arguments)
    rho = evaluate_similarity(model, pairs)
    _print({"spearman": rho, "n": len(pairs.scores)}, arguments)


def _run_geometry(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.texts)
    model = load_named(arguments.model, arguments)
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
