"""The table of languages: the base model and the recipe for each language at each level."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, get_args

from mirror_rt.errors import ConfigError
from mirror_rt.languages.tags import did_you_mean, find_language, normalize_tag
from mirror_rt.schema import Rule, build
from mirror_train.recipes.recipe import Level, Recipe, RecipePooling, load_recipe, suggest

_LEVELS: tuple[Level, ...] = get_args(Level)
_LANGUAGE_KEYS = ("name", "scripts", "base", *_LEVELS)
_Text = Annotated[str, Rule("a text", lambda text: text.strip() != "")]


@dataclass(frozen=True, slots=True)
class BaseModel:
    """A model to start from."""

    name: str  # its name in the table
    model: _Text  # hub name, or folder
    languages: list[str] = field(default_factory=list)  # tags of those that it is suited to
    source: _Text = ""  # the publication or page that says so
    revision: _Text | None = None  # branch, tag or commit on the hub; None for the newest
    # Pooling to tune with; `auto` for the one that the model declares, else the recipe's.
    pooling: RecipePooling = "auto"


@dataclass(frozen=True, slots=True)
class _Language:
    """The row of a language, but for the differences of its levels."""

    name: _Text
    scripts: list[str]
    base: str


@dataclass(frozen=True, slots=True)
class LanguageRecipe:
    """All that tuning for one language at one level needs, except for the strings.

    Attributes:
        language: tag of the language.
        name: English name of the language.
        scripts: scripts that it is written in (ISO 15924); empty where they are not known.
        base: the model to start from.
        recipe: hyper-parameters.
        level_pooling: the pooling that the table names for this language and level; None where it
            names none.
    """

    language: str
    name: str
    scripts: tuple[str, ...]
    base: BaseModel
    recipe: Recipe
    level_pooling: RecipePooling | None = None

    @property
    def pooling(self) -> RecipePooling:
        """The pooling to tune with: that of the level, else that of the base model."""
        return self.level_pooling or self.base.pooling


@dataclass(frozen=True)
class LanguageTable:
    """The base models and languages that `load_languages` reads.

    Attributes:
        bases: the base models by name.
        languages: the row of each tag: name, scripts, base, and for each level the recipe fields
            that differ.
    """

    bases: dict[str, BaseModel]
    languages: dict[str, dict[str, Any]]

    def find(self, tag: str) -> str:
        """Return the language of the table that a BCP 47 tag means: `pt` for `pt-BR`."""
        with contextlib.suppress(ConfigError):
            if found := find_language(tag, {code: code for code in self.languages}):
                return found
        near = did_you_mean(
            tag, self.languages, {c: row["name"] for c, row in self.languages.items()}
        )
        raise ConfigError(
            f"no language {tag!r}{near}; mirror-rt recipes lists all, and "
            "the page 'Tune for many languages' of the documentation says how to add one"
        )

    def bases_of(self, language: str) -> list[BaseModel]:
        """Return the base models for a language of the table, its default first."""
        default = self.bases[self.languages[language]["base"]]
        others = [base for base in self.bases.values() if language in base.languages]
        return [default, *(base for base in others if base is not default)]

    def recipe(self, tag: str, level: str, *, base: str | None = None) -> LanguageRecipe:
        """Look up the base model and the recipe for a language at a level (word, phrase, sentence).

        The result has the tag as given, even if the table only has a more general one. `base` is
        another base model of the table, a folder or a hub name, in place of the language's own.
        """
        if level not in _LEVELS:
            raise ConfigError(
                f"no level {level!r}{suggest(level, list(_LEVELS))}; there are {', '.join(_LEVELS)}"
            )
        language = self.find(tag)
        row = self.languages[language]
        changes = dict(row.get(level, {}))
        chosen = changes.pop("base", row["base"])
        return LanguageRecipe(
            language=normalize_tag(tag),
            name=row["name"],
            scripts=tuple(row["scripts"]),
            base=self.base(base) if base else self.bases[chosen],
            recipe=self._level_recipes[level].replace(**changes),
            level_pooling=changes.get("pooling"),
        )

    def base(self, name: str) -> BaseModel:
        """Return the base model that a folder, else a name in the table or on a hub, means.

        A folder has the row of the model that it is a copy of, by its config.json or by its place
        in the cache of the hub. A model without a row has its name alone.
        """
        if Path(name).is_dir():
            origin = _origins(Path(name))
            rows = self.bases.values()
            row = next((r for r in rows if {r.model, str(Path(r.model).resolve())} & origin), None)
            if row is None:
                return BaseModel(name=Path(name).name, model=name)
            return dataclasses.replace(row, model=name, revision=None)
        same = next((base for base in self.bases.values() if base.model == name), None)
        return self.bases.get(name) or same or BaseModel(name=name, model=name)

    @cached_property
    def _level_recipes(self) -> dict[Level, Recipe]:
        return {level: load_recipe(level) for level in _LEVELS}


def load_languages(path: str | Path | None = None) -> LanguageTable:
    """Load the table that comes with the package, with the user's own changes on top.

    Later files override earlier ones key by key, in the order `mirror-rt/languages.toml` in
    $XDG_CONFIG_HOME (~/.config), the file that $MIRROR_RT_RECIPES names, `path`.

    Raises:
        ConfigError: a file cannot be read, or a key, language, level, base model or value in it
            is unknown or out of range; the message suggests the most similar name.
    """
    table = resources.files("mirror_train") / "languages" / "languages.toml"
    shipped = table.read_text(encoding="utf-8")
    bases: dict[str, dict[str, Any]] = {}
    languages: dict[str, dict[str, Any]] = {}
    _merge(bases, languages, tomllib.loads(shipped))
    for own in _own_files(path):
        try:
            _merge(bases, languages, tomllib.loads(own.read_text(encoding="utf-8")))
            _build(bases, languages)
        except ConfigError as error:
            raise ConfigError(f"{own}: {error}") from error
        except (OSError, ValueError) as error:  # TOML and UTF-8 errors are ValueErrors
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"{own}: {reason}") from error
    return _build(bases, languages)


def _origins(folder: Path) -> set[str]:
    """Return the names that a folder has for the model in it, on the hub or on this disk."""
    place, names = folder.resolve(), {str(folder.resolve())}
    repository = place.parent.parent.name  # models--OWNER--NAME/snapshots/COMMIT
    if repository.startswith("models--"):
        names.add(repository.removeprefix("models--").replace("--", "/"))
    with contextlib.suppress(OSError, ValueError):
        config = json.loads((place / "config.json").read_text(encoding="utf-8"))
        if isinstance(config, dict) and isinstance(own := config.get("_name_or_path"), str):
            names.add(own)
    return names


def _own_files(path: str | Path | None) -> list[Path]:
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    files = [folder / "mirror-rt" / "languages.toml"]
    files = [file for file in files if file.is_file()]
    if named := os.environ.get("MIRROR_RT_RECIPES"):
        files.append(Path(named))
    return [*files, Path(path)] if path is not None else files


def _merge(
    bases: dict[str, dict[str, Any]], languages: dict[str, dict[str, Any]], values: dict[str, Any]
) -> None:
    """Merge the tables of one file into those of the files before it, which it overrides."""
    _check_keys("the file", values, ("bases", "languages"))
    for kind, known in (("bases", bases), ("languages", languages)):
        for name, given in _table(kind, values.get(kind, {})).items():
            tag = name if kind == "bases" else normalize_tag(name)
            row = known.setdefault(tag, {})
            for key, value in _table(f"[{kind}.{name}]", given).items():
                both = isinstance(row.get(key), dict) and isinstance(value, dict)
                row[key] = row[key] | value if both else value


def _build(
    bases: Mapping[str, dict[str, Any]], languages: Mapping[str, dict[str, Any]]
) -> LanguageTable:
    """Build the table, and check it down to the recipe of each language at each level."""
    rows = {}
    for tag, given in languages.items():
        where = f"[languages.{tag}]"
        _check_keys(where, given, _LANGUAGE_KEYS)
        row = {"name": tag, "scripts": []} | given
        if "base" not in row:
            raise ConfigError(f"{where} is a new language: it needs base, the name of a base model")
        build(_Language, row, where)
        _check_base(where, row["base"], bases)
        rows[tag] = row
    table = LanguageTable({name: _base(name, given, rows) for name, given in bases.items()}, rows)
    for tag, row in rows.items():
        for level in _LEVELS:
            _check_level(table, f"[languages.{tag}.{level}]", tag, level, row.get(level, {}))
    return table


def _check_level(
    table: LanguageTable, where: str, tag: str, level: str, changes: dict[str, Any]
) -> None:
    fields = [f.name for f in dataclasses.fields(Recipe) if f.name != "level"]
    _check_keys(where, _table(where, changes), ("base", *fields))
    if "base" in changes:
        _check_base(where, changes["base"], table.bases)
    if changes:
        try:
            table.recipe(tag, level)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error


def _base(name: str, given: dict[str, Any], languages: Iterable[str]) -> BaseModel:
    where = f"[bases.{name}]"
    _check_keys(where, given, [f.name for f in dataclasses.fields(BaseModel) if f.name != "name"])
    if "model" not in given:
        raise ConfigError(f"{where} needs model, a hub name or a folder")
    base: BaseModel = build(BaseModel, given | {"name": name}, where)
    for tag in base.languages:
        if tag not in languages:
            raise ConfigError(f"{where}: no language {tag!r}{suggest(tag, languages)}")
    return base


def _check_base(where: str, name: Any, bases: Iterable[str]) -> None:
    if name not in list(bases):
        near = suggest(str(name), bases)
        raise ConfigError(f"{where}: no base model {name!r}{near}; define it as [bases.NAME]")


def _check_keys(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(
                f"unknown key {key!r} in {where}{suggest(key, known)}; expected {', '.join(known)}"
            )


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} must be a table, got {value!r}")
    return value
