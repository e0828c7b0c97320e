"""Make command-line options from the fields of a dataclass, and the dataclass from their values.

Each fact about an option stands in one place: its field's type says which values it takes, the
field's default applies if nothing is given, and the "Attributes" section of the class's docstring
is its help. A value from a flag, an environment variable or a TOML file is checked in the same way.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import inspect
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from mirror_rt.cli.option_kinds import BOOLEAN, Kind, kind_of
from mirror_rt.cli.parser import suggestion
from mirror_rt.cli.wording import NAMES, flag_of
from mirror_rt.errors import ConfigError

T = TypeVar("T")

# Help for fields whose docstrings describe Python objects.
_HELP = {
    "provider_options": "option of the provider that is preferred, in onnxruntime's names: "
    "gpu_mem_limit=4294967296 for CUDA; with openvino, a property of its CPU plugin",
    "ranges": "NumPy file with the ranges [2, D] of int8 and uint8, of calibration_ranges; "
    "leave it out for those of unit vectors",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """A field of a dataclass that users can set.

    Attributes:
        field: name of the field.
        name: name in a namespace, a file and (in capitals) the environment.
        hint: type of the field.
        default: value if none is given; `dataclasses.MISSING` if one is required.
        help: what the field means, for the help of a command.
    """

    field: str
    name: str
    hint: Any
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """Return the name on a command line."""
        return flag_of(self.name)


# Returns the value given for an option and, for errors, where it was given; None if it was not.
Source = Callable[[Option], "tuple[object, str] | None"]


def add_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    type_: type[Any],
    *,
    only: Collection[str] | None = None,
    leave_out: Collection[str] = (),
    names: Mapping[str, str] | None = None,
    overrides: bool = False,
) -> None:
    """Add a flag for each field of a dataclass; `build` and `given` convert the values.

    Args:
        parser: parser of a command, or a group of it.
        type_: the dataclass. Fields that are dataclasses themselves need a call of their own.
        only: names of fields to add; None for all.
        leave_out: names of fields to leave out.
        names: names of options that differ from those of fields.
        overrides: whether the options override values that are chosen elsewhere: none is required
            then, and the help names no defaults.
    """
    for option in options_of(type_, names):
        if option.field not in leave_out and (only is None or option.field in only):
            _add(parser, dataclasses.replace(option, default=None) if overrides else option)


def build(type_: type[T], *sources: Source, **given: Any) -> T:
    """Make a dataclass, and the dataclasses in its fields, from the values that sources find.

    Args:
        type_: the dataclass.
        *sources: the first source that has a value for an option decides.
        **given: values of fields for which no source is asked.

    Raises:
        ConfigError: a value cannot be used; the message names its flag, variable or key.
    """
    for name, hint in get_type_hints(type_).items():
        if dataclasses.is_dataclass(hint) and name not in given:
            given[name] = build(hint, *sources)  # type: ignore[arg-type]  # it is a class
    return type_(**given_values(type_, *sources, leave_out=given) | given)


def given_values(
    type_: type[Any],
    *sources: Source,
    only: Collection[str] | None = None,
    leave_out: Collection[str] = (),
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the fields of a dataclass that sources have values for; see `add_options`, `build`."""
    values = {}
    for option in options_of(type_, names):
        if option.field not in leave_out and (only is None or option.field in only):
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


def from_file(path: Path, *types: type[Any]) -> Source:
    """Return a source that finds options in a TOML file, under the names of their flags.

    Args:
        path: the file.
        *types: dataclasses whose fields the file may set.

    Raises:
        ConfigError: the file cannot be read, or has a key that is not the name of an option.
    """
    known = [option.name for type_ in types for option in options_of(type_)]
    values: dict[str, object] = {}
    for key, value in _toml(path).items():
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
    names = NAMES | dict(names or {})
    hints, said = get_type_hints(type_), _attributes(type_)
    for field in dataclasses.fields(type_):
        if not dataclasses.is_dataclass(hints[field.name]):
            default = field.default if field.default_factory is dataclasses.MISSING else None
            text = _HELP.get(field.name, said.get(field.name, ""))
            name = names.get(field.name, field.name)
            yield Option(field.name, name, hints[field.name], default, text)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:  # UnicodeDecodeError and TOMLDecodeError
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def _attributes(type_: type[Any]) -> dict[str, str]:
    """Read the "Attributes" section of a docstring; return the text for each name."""
    found = {name: text for base in type_.__bases__ for name, text in _attributes(base).items()}
    section = inspect.cleandoc(type_.__doc__ or "").partition("\nAttributes:")[2]
    for entry in re.split(r"\n {4}(?=\S)", re.split(r"\n(?=\S)", section)[0])[1:]:
        names, _, text = entry.partition(": ")
        for name in names.split(", "):
            found[name] = " ".join(text.split()).removesuffix(".")
    return found


def _add(parser: argparse.ArgumentParser | argparse._ArgumentGroup, option: Option) -> None:
    kind, text = kind_of(option.hint), _help(option)
    common: dict[str, Any] = {"dest": option.name, "default": None, "help": text}
    if kind is BOOLEAN and option.default is False:
        parser.add_argument(option.flag, action="store_const", const=True, **common)
        # A flag must be able to override what the environment or a file sets.
        common["help"] = argparse.SUPPRESS
        negative = f"--no-{option.flag[2:]}"
        parser.add_argument(negative, action="store_const", const=False, **common)
    elif kind is BOOLEAN:
        parser.add_argument(option.flag, action=argparse.BooleanOptionalAction, **common)
    else:
        metavar = kind.metavar or option.name.rpartition("_")[2].upper()
        if metavar == "N" and "seconds" in option.help:
            metavar = "SECONDS"
        action = "append" if kind.several else "store"
        needed = option.default is dataclasses.MISSING
        common |= {"type": partial(_checked, kind), "metavar": metavar, "required": needed}
        parser.add_argument(option.flag, action=action, **common)


def _checked(kind: Kind, text: str) -> str:
    """Return the text as it is, if a value can be made from it."""
    try:
        kind.convert(text)
    except (TypeError, ValueError) as error:
        near = suggestion(text, kind.choices)
        message = f"must be {kind.expected}, got {text!r}\n{near}"
        raise argparse.ArgumentTypeError(message) from error
    return text


def _help(option: Option) -> str:
    """Reword the docstring's text, which is written for Python, for the command line."""
    text = re.sub(r" \(see `[^)]*\)", "", option.help).replace("`", "")
    text = re.sub(r"(^|\. )None for", r"\1Leave it out for", text)
    text = text.replace("None for", "leave it out for")
    text = text.replace("True for", f"{option.flag} for")
    text = text.replace("False for", f"--no-{option.flag[2:]} for")
    if (kind := kind_of(option.hint)).several:
        text += " (several joined by commas)" if kind.choices else " (again for more)"
    if isinstance(option.default, tuple) and option.default:
        text += f" (default {','.join(option.default)})"
    if isinstance(option.default, int | float | str) and not isinstance(option.default, bool):
        text += f" (default {option.default:{'g' if isinstance(option.default, float) else ''}})"
    return text.replace("%", "%%")


def _converted(option: Option, raw: object, said: str) -> Any:
    kind = kind_of(option.hint)
    try:
        return kind.convert(raw)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{said} must be {kind.expected}, got {raw!r}") from error
