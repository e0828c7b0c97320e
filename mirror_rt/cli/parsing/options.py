"""Make command-line options from the fields of a dataclass, and the dataclass from their values.

Each fact about an option stands in one place: its field's type says which values it takes, the
field's default applies if nothing is given, and its help is the `Help` in the field's annotation,
or else the text in the "Attributes" section of the class's docstring. A value from a flag, an
environment variable or a TOML file is checked in the same way.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import itertools
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from mirror_rt.cli.parsing.kinds import kind_of
from mirror_rt.errors import ConfigError
from mirror_rt.io.limits import read_toml

T = TypeVar("T")

# Names of options that differ from those of fields; a repeated option is named in the singular.
NAMES = {
    "normalize_embeddings": "normalize",
    "provider_options": "provider_option",
    "languages": "lang",
    "model_aliases": "model_alias",
    "cors_origins": "cors_origin",
    "precisions": "precision",
    "targets": "target",
}


class Help(NamedTuple):
    """The help text of an option, and the form in which its values are given."""

    text: str  # the meaning of the option
    metavar: str | None = None  # name of the value; None for the one that its type has
    # Whether the value may also stand right behind the command, without the flag.
    word: bool = False
    # Whether the flag is followed by several values, rather than given again for each.
    many: bool = False
    empty: str | None = None  # the value of the flag alone; None where it needs one
    flag: str | None = ""  # the flag; "" for that of the field's name, None for a word alone


class Group(NamedTuple):
    """The group of the help in which the options of a nested dataclass stand."""

    title: str = ""  # its title; "" for the first group, of the command itself
    text: str | None = None  # the text below the title
    only: Collection[str] = ()  # names of fields to add options for; empty for all
    leave_out: Collection[str] = ()  # names of fields without an option
    names: Mapping[str, str] = {}  # names of options that differ from those of fields
    # Whether the options override values that are chosen elsewhere: none is required then, and the
    # help names no defaults.
    overrides: bool = False

    def options(self, type_: type[Any]) -> Iterator[Option]:
        """Yield the options of a dataclass that stand in this group."""
        for option in options_of(type_, self.names):
            if option.field not in self.leave_out and (not self.only or option.field in self.only):
                yield option._replace(default=None) if self.overrides else option


class Option(NamedTuple):
    """A field of a dataclass that users can set."""

    field: str  # name of the field
    name: str  # name in a namespace, a file and (in capitals) the environment
    hint: Any  # type of the field
    default: Any  # value if none is given; `dataclasses.MISSING` if one is required
    about: Help  # its help

    @property
    def flag(self) -> str:
        """Return the name on a command line."""
        return self.about.flag or flag_of(self.name)


# Returns the value given for an option and, for errors, where it was given; None if it was not.
Source = Callable[[Option], "tuple[object, str] | None"]


class Given(Generic[T]):
    """The options that were given for a dataclass, of which other fields come from elsewhere."""

    def __init__(self, type_: type[T], group: Group, *sources: Source) -> None:
        self._type, self._group, self._sources = type_, group, sources

    def make(self, **fields: Any) -> T:
        """Make the dataclass of the options and of these fields, which no option changes."""
        return build(self._type, *self._sources, **fields)

    def values(self) -> dict[str, Any]:
        """Return the fields that options of this group were given for."""
        return _given(self._sources, self._group.options(self._type))


def build(type_: type[T], *sources: Source, **given: Any) -> T:
    """Make a dataclass, and the dataclasses in its fields, from the values that sources find.

    The first source that has a value for an option decides; for the fields `given`, none is asked.
    """
    for name, hint in nested(type_).items():
        if name not in given:
            if get_origin(hint.type_) is Given:
                (inner,) = get_args(hint.type_)
                given[name] = Given(inner, hint.group or Group(), *sources)
            else:
                given[name] = build(hint.type_, *sources)
    options = (option for option in options_of(type_) if option.field not in given)
    return type_(**_given(sources, options) | given)


class Nested(NamedTuple):
    """A field that holds a dataclass, or the options that were `Given` for one."""

    type_: Any
    group: Group | None


def nested(type_: type[Any]) -> dict[str, Nested]:
    """Return the fields of a dataclass that hold other dataclasses."""
    hints, extras = get_type_hints(type_), get_type_hints(type_, include_extras=True)
    return {
        field.name: Nested(hints[field.name], _annotated(extras[field.name], Group))
        for field in dataclasses.fields(type_)
        if get_origin(hints[field.name]) is Given or dataclasses.is_dataclass(hints[field.name])
    }


def _given(sources: tuple[Source, ...], options: Iterable[Option]) -> dict[str, Any]:
    values = {}
    for option in options:
        found = next(filter(None, (source(option) for source in sources)), None)
        if found is not None:
            values[option.field] = _converted(option, *found)
    return values


def from_arguments(arguments: argparse.Namespace) -> Source:
    """Return a source that finds options among the flags that a command was given."""

    def find(option: Option) -> tuple[object, str] | None:
        value = getattr(arguments, option.name, None)
        return None if value is None else (value, option.flag)

    return find


def from_environment(environment: Mapping[str, str], prefix: str) -> Source:
    """Return a source that finds options in the environment: `PREFIX` and the name in capitals."""

    def find(option: Option) -> tuple[object, str] | None:
        variable = prefix + option.name.upper()
        return (environment[variable], variable) if variable in environment else None

    return find


def unknown_variables(
    environment: Mapping[str, str], prefix: str, *types: type[Any]
) -> Iterator[str]:
    """Yield the variables of this prefix that set no option, with the one that was probably meant.

    They are no errors: an orchestrator may set some of its own, as Kubernetes does for services.
    """
    known = [option.name.upper() for type_ in types for option in options_of(type_)]
    for variable in environment:
        name = variable.removeprefix(prefix)
        if variable.startswith(prefix) and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            yield f"{variable}; did you mean {prefix}{near[0]}?" if near else variable


def from_file(path: Path, *types: type[Any]) -> Source:
    """Return a source that finds options in a TOML file, under the names of their flags.

    The file may set the fields of the dataclasses `types`; another key is a ConfigError.
    """
    known = [option.name for type_ in types for option in options_of(type_)]
    values: dict[str, object] = {}
    for key, value in read_toml(path).items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise ConfigError(f"{path}: no option {key!r}; {hint}")
        if name in values:
            raise ConfigError(f"{path}: {key!r} is given twice, with - and with _")
        values[name] = value

    def find(option: Option) -> tuple[object, str] | None:
        if option.name not in values:
            return None
        return values[option.name], f"{option.name} in {path}"

    return find


def options_of(type_: type[Any], names: Mapping[str, str] | None = None) -> Iterator[Option]:
    """Yield the fields of a dataclass that hold values rather than other dataclasses.

    The help is that of the class that the field's value is documented in, which may be a base.
    """
    names, inner = NAMES | dict(names or {}), nested(type_)
    hints, extras = get_type_hints(type_), get_type_hints(type_, include_extras=True)
    said = _attributes(type_)
    for name, field in type_.__dataclass_fields__.items():
        if name not in inner:
            default = field.default if field.default_factory is dataclasses.MISSING else None
            about = _annotated(extras[name], Help) or Help(said.get(name, ""))
            yield Option(name, names.get(name, name), hints[name], default, about)


def flag_of(name: str) -> str:
    """Return the flag of a field."""
    return f"--{NAMES.get(name, name).replace('_', '-')}"


def section(doc: str | None, name: str) -> list[str]:
    """Return the lines of a section of a docstring in Google's format."""
    lines = iter(inspect.cleandoc(doc or "").splitlines())
    if f"{name}:" not in lines:  # which draws the lines up to there
        return []
    own = itertools.takewhile(lambda line: not line or line.startswith(" "), lines)
    return textwrap.dedent("\n".join(own)).strip().splitlines()


def _attributes(type_: type[Any]) -> dict[str, str]:
    """Return the text for each name in the "Attributes" section of a class, and of its bases."""
    found = {name: text for base in type_.__bases__ for name, text in _attributes(base).items()}
    entries: dict[str, list[str]] = {}
    for line in section(type_.__doc__, "Attributes"):
        if line and not line.startswith(" "):
            names, _, line = line.partition(": ")
            entries[names] = []
        entries[names].append(line.strip())
    for names, text in entries.items():
        found |= dict.fromkeys(names.split(", "), " ".join(text).strip().removesuffix("."))
    return found


def _annotated(hint: Any, type_: type[T]) -> T | None:
    """Return the first object of a class that is annotated to a type."""
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, type_)), None)


def _converted(option: Option, raw: object, said: str) -> Any:
    kind = kind_of(option.hint)
    try:
        return kind.convert(raw)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{said} must be {kind.expected}, got {raw!r}") from error
