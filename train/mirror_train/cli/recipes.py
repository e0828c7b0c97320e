"""The command `mirror-rt recipes`."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import get_args

from mirror_rt.cli.common import format_table
from mirror_rt.cli.parser import Subparsers, add_model, add_subparser
from mirror_train.languages.base_models import LanguageRecipe, LanguageTable, load_languages
from mirror_train.recipes.recipe import Level

_LEVELS = get_args(Level)


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "recipes",
        description="Show the table that 'mirror-rt tune --lang' takes base models and "
        "hyper-parameters\nfrom: every language, or one with all base models for it, the default "
        "first.",
        examples="""
mirror-rt recipes
mirror-rt recipes fr
mirror-rt recipes fr --level word --json
mirror-rt recipes pt-BR --recipes mine.toml
""",
    )
    add_model(parser, help="a language tag", metavar="LANG", flag="--lang", required=False)
    parser.add_argument("--level", help=f"{', '.join(_LEVELS)} (default: all of one language)")
    add_recipes_option(parser)
    parser.add_argument("--json", action="store_true", help="every field, as JSON")
    parser.set_defaults(run=run)


def add_recipes_option(parser: argparse._ActionsContainer) -> None:
    """Add the option --recipes, which names a user's own table."""
    parser.add_argument(
        "--recipes",
        type=Path,
        metavar="FILE.toml",
        help="languages and base models of your own, over those of the package, of "
        "~/.config/mirror-rt/languages.toml and of $MIRROR_RT_RECIPES",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    table = load_languages(arguments.recipes)
    if arguments.lang is None:
        rows = [
            table.recipe(tag, level)
            for tag in sorted(table.languages)
            for level in ([arguments.level] if arguments.level else _LEVELS)
        ]
    else:
        rows = _of_language(table, arguments.lang, arguments.level)
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=2, ensure_ascii=False))
    elif arguments.lang is None and arguments.level is None:
        print(_languages(table))
    else:
        print(_details(rows))


def _of_language(table: LanguageTable, tag: str, level: str | None) -> list[LanguageRecipe]:
    """Return the recipes of a language, first with its default base model, then with others."""
    levels = [level] if level else _LEVELS
    rows = [table.recipe(tag, one) for one in levels]
    bases = table.bases_of(table.find(tag))
    for one, default in zip(levels, list(rows), strict=True):
        rows += [table.recipe(tag, one, base=base.name) for base in bases if base != default.base]
    return rows


def _languages(table: LanguageTable) -> str:
    rows = []
    for tag in sorted(table.languages):
        default, *others = table.bases_of(tag)
        row = table.languages[tag]
        more = ", ".join(base.name for base in others) or "-"
        rows.append([tag, row["name"], default.name, default.model, default.source or "-", more])
    return format_table(["tag", "language", "base", "model", "source", "others"], rows)


def _details(rows: list[LanguageRecipe]) -> str:
    header = ["language", "level", "base", "model", "revision", "pooling", "temperature", "masked",
              "dropout", "epochs", "tokens", "batch", "learning rate", "source"]  # fmt: skip
    return format_table(header, [_row(row) for row in rows])


def _row(row: LanguageRecipe) -> list[str]:
    recipe, base = row.recipe, row.base
    numbers = (recipe.temperature, recipe.span_length, recipe.dropout, recipe.epochs,
               recipe.max_length, recipe.batch_size, recipe.learning_rate)  # fmt: skip
    return [
        *(row.language, recipe.level, base.name, base.model, base.revision or "main"),
        row.pooling,
        *(f"{number:g}" for number in numbers),
        base.source or "-",
    ]
