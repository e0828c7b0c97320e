"""The command `mirror-rt recipes`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, get_args

from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help
from mirror_rt.io.tables import shown, text_table
from mirror_train.recipes.base_models import LanguageRecipe, LanguageTable, load_languages
from mirror_train.recipes.recipe import Level

_LEVELS = get_args(Level)
_HEADER = ["language", "level", "base", "model", "revision", "pooling", "temperature", "masked",
           "dropout", "epochs", "tokens", "batch", "learning rate", "source"]  # fmt: skip

# The option that names a user's own table.
RecipesFile = Annotated[
    Path | None,
    Help("languages and base models of your own, over those of the package, of "
         "~/.config/mirror-rt/languages.toml and of $MIRROR_RT_RECIPES", "FILE.toml"),
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipes(Invocation):
    """Show the table that 'mirror-rt tune --lang' takes base models and hyper-parameters from.

    That is every language, or one with all base models for it, the default first.

    Examples:
        mirror-rt recipes
        mirror-rt recipes fr
        mirror-rt recipes fr --level word --json
        mirror-rt recipes pt-BR --recipes mine.toml
    """

    lang: Annotated[str | None, Help("a language tag", "LANG", word=True)] = None
    level: Annotated[str | None, Help(f"{', '.join(_LEVELS)} (default: all of one language)")] = (
        None
    )
    recipes: RecipesFile = None
    json: Annotated[bool, Help("every field, as JSON")] = False

    def run(self) -> None:
        table = load_languages(self.recipes)
        if self.lang is None:
            levels = [self.level] if self.level else _LEVELS
            tags = sorted(table.languages)
            rows = [table.recipe(tag, level) for tag in tags for level in levels]
        else:
            rows = _of_language(table, self.lang, self.level)
        if self.lang is None and self.level is None and not self.json:
            print(_languages(table))
        else:
            print(shown(rows, _HEADER, _row, self.json))


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
    return text_table(["tag", "language", "base", "model", "source", "others"], rows)


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
