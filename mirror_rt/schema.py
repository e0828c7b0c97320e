"""Check JSON values, and options, against the annotations of dataclasses.

A rule that a type cannot express is added to the annotation: `Annotated[int, between(1, 9)]`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from mirror_rt.errors import ConfigError

# `copy`, `json` and `repr` are recursive, so deep values would break them; real documents have 5
# levels.
_MOST_LEVELS = 32
_NAMES = {bool: "true or false", int: "an integer", float: "a number", str: "a string",
          dict: "an object", list: "a list"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on a value of the right type: in words, for the error, and as a function."""

    expected: str
    holds: Callable[[Any], bool]


def between(low: float, high: float) -> Rule:
    """Require a number in `low` .. `high`; NaN is refused."""
    return Rule(f"a number in {low:,} .. {high:,}", lambda value: low <= value <= high)


def least(number: int, reason: str = "") -> Rule:
    """Require a value of at least `number`."""
    return Rule(f"at least {number}{reason}", lambda value: value >= number)


def at_most(size: int, things: str) -> Rule:
    """Require a string, a list or an object of at most `size` characters, items or fields."""
    return Rule(f"at most {size:,} {things}", lambda value: len(value) <= size)


def matching(pattern: str, expected: str) -> Rule:
    """Require a string that matches a regular expression as a whole."""
    return Rule(expected, lambda value: re.fullmatch(pattern, value) is not None)


AboveZero = Rule("above 0", lambda value: 0 < value < math.inf)
# A text that is shown, or written to a log, as it is.
Printable = Rule("a name of printable characters", lambda text: text.isprintable() and text != "")


def _stays_inside(name: str) -> bool:
    """Return whether a relative path stays in its folder and is a valid name on every system."""
    parts = PurePosixPath(name).parts
    inside = bool(parts) and not name.startswith("/") and ".." not in parts
    usable = all(len(part.encode()) <= 255 for part in parts) and len(name) <= 1024
    controls = any(ord(character) < 32 or ord(character) == 127 for character in name)
    return inside and usable and not controls and not set(name) & set("\\:")


# A path in a document, which is checked because the document may come from a stranger.
InnerPath = Annotated[str, Rule("a path inside the folder", _stays_inside)]
# The same, or the folder itself.
InnerFolder = Annotated[
    str, Rule("a path inside the folder", lambda name: name in ("", ".") or _stays_inside(name))
]
Digest = Annotated[str, matching("[0-9a-f]{64}", "a SHA-256 in hexadecimal")]


def build(kind: Any, value: Any, where: str = "") -> Any:
    """Check a JSON value against a type, and turn objects into the dataclasses that it names.

    Fields that a dataclass does not have are ignored, since a newer version may have added them.

    Args:
        kind: a dataclass, `int`, `float`, `str`, `bool`, `Any`, `list[...]`, `dict[str, ...]`,
            `Literal[...]`, any of them `| None`, and any of them in `Annotated` with a `Rule`.
        value: value as the json module returns it.
        where: name of the value, for errors.

    Raises:
        ValueError: a value does not fit; the error names its field and the expected value.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Annotated:
        built = build(arguments[0], value, where)
        for rule in arguments[1:]:
            if not rule.holds(built):
                raise _wrong(where, value, rule.expected)
        return built
    if origin in (Union, UnionType):
        (only,) = (argument for argument in arguments if argument is not NoneType)
        return None if value is None else build(only, value, where)
    if origin is Literal:
        if not isinstance(value, str) or value not in arguments:
            raise _wrong(where, value, f"one of {', '.join(map(repr, arguments))}")
        return value
    if dataclasses.is_dataclass(kind):
        return _build_fields(kind, value, where)
    return _build_plain(origin or kind, arguments, value, where)


def _build_plain(kind: Any, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    fits = isinstance(value, int | float if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise _wrong(where, value, _NAMES[kind])
    if kind is list:
        return [build(arguments[0], item, _inner(where, i)) for i, item in enumerate(value)]
    if kind is dict:
        of_key, of_item = arguments
        return {
            build(of_key, key, f"a name in {where}"): build(of_item, item, _inner(where, key))
            for key, item in value.items()
        }
    return value


def _build_fields(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    hints = _hints(kind)
    found = {}
    for field in dataclasses.fields(kind):
        name = _inner(where, field.name)
        if field.name in value:
            found[field.name] = build(hints[field.name], value[field.name], name)
        elif field.default is field.default_factory is dataclasses.MISSING:
            raise ValueError(f"{name} is missing")
    return kind(**found)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _wrong(where: str, value: Any, expected: str) -> ValueError:
    return ValueError(f"{where or 'it'} is {reprlib.repr(value)}, expected {expected}")


def _inner(where: str, key: str | int) -> str:
    plain = isinstance(key, str) and key.isidentifier() and len(key) <= 40
    return f"{where}.{key}".removeprefix(".") if plain else f"{where}[{reprlib.repr(key)}]"


def one_of(choices: Sequence[object]) -> str:
    """Say which values there are: `'a', 'b' or None`."""
    *most, last = map(repr, choices)
    return f"{', '.join(most)} or {last}" if most else last


def check_rules(values: Any) -> None:
    """Raise ConfigError for a field whose value is none of its choices, or breaks one of its rules.

    Both stand in its annotation; a rule holds for None.
    """
    kind: Any = type(values)
    hints = _hints(kind)
    for name in (field.name for field in dataclasses.fields(values)):
        value = getattr(values, name)
        if (choices := _choices(hints[name])) and value not in choices:
            raise ConfigError(field=name, expected=one_of(choices), value=value)
        for rule in getattr(hints[name], "__metadata__", ()):
            if isinstance(rule, Rule) and value is not None and not rule.holds(value):
                raise ConfigError(field=name, expected=rule.expected, value=value)


@functools.cache
def _choices(hint: Any) -> tuple[object, ...]:
    """Return the values of a `Literal`, or of several, and None if that is one; () for others."""
    inner = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    members = get_args(inner) if get_origin(inner) in (Union, UnionType) else (inner,)
    if not any(get_origin(one) is Literal for one in members):
        return ()
    if not all(get_origin(one) is Literal or one is NoneType for one in members):
        return ()
    found = [(None,) if one is NoneType else get_args(one) for one in members]
    return tuple(itertools.chain.from_iterable(found))


def check_values(document: Any, *, large: bool = False) -> None:
    """Check a whole document for values that could fail later in other places.

    With `large`, integers may have any size, as in the files of others.

    Raises:
        ValueError: a string is not valid Unicode, an integer has more than 64 bits, or a value is
            nested too deep; the error names it.
    """
    waiting: list[tuple[tuple[str | int, ...], Any]] = [((), document)]
    while waiting:
        where, value = waiting.pop()
        if len(where) > _MOST_LEVELS:
            raise ValueError(f"{_path(where[:3])} is nested too deep")
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if isinstance(item, dict | list):
                waiting.append(((*where, key), item))
            for part in (key, item):
                if fault := _fault(part, large=large):
                    raise ValueError(f"{_path((*where, key))} is {reprlib.repr(part)}, {fault}")


def is_too_deep(document: Any) -> bool:
    """Return whether a JSON value has lists and objects within each other on too many levels."""
    layer, levels = [document], 0
    while layer:
        levels += 1
        if levels > _MOST_LEVELS:
            return True
        inner = (value.values() if isinstance(value, dict) else value for value in layer
                 if isinstance(value, dict | list))  # fmt: skip
        layer = [item for items in inner for item in items if isinstance(item, dict | list)]
    return False


def _fault(value: Any, *, large: bool) -> str | None:
    if isinstance(value, str):
        return None if is_unicode(value) else "which is not valid Unicode"
    if not large and isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "which does not fit into 64 bits"
    return None


def is_unicode(text: str) -> bool:
    """Return whether a string has no lone surrogate, which JSON can write and UTF-8 cannot."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def _path(where: tuple[str | int, ...]) -> str:
    return functools.reduce(_inner, where, "")
