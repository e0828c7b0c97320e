"""Define which values an option takes, by the type of its field, and convert them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import numpy as np
import numpy.typing as npt

from mirror_rt.inference.devices import Devices
from mirror_rt.inference.providers import Providers


class Kind(NamedTuple):
    """The kind of values that options of a type take."""

    # Makes a value from a text, from several texts or from a TOML value; raises ValueError or
    # TypeError.
    convert: Callable[[Any], Any]
    expected: str  # description of valid values, for error messages
    metavar: str | None = None  # name of the value in the help; None for the option's own name
    several: bool = False  # whether the flag may be repeated
    choices: tuple[str, ...] = ()  # all valid values; empty where they cannot be listed


def kind_of(hint: Any) -> Kind:
    """Return the kind of an option's type; TypeError for a type that no option can have."""
    if hint in _KINDS:
        return _KINDS[hint]
    members = [member for member in get_args(hint) if member is not NoneType]
    if members and all(get_origin(member) is Literal for member in members):
        return kind_of(Literal[tuple(one for member in members for one in get_args(member))])
    if len(members) == 2 and members[0] is int and get_origin(members[1]) is Literal:
        others = get_args(members[1])
        expected, metavar = f"an integer or {', '.join(others)}", f"N|{'|'.join(others)}"
        return Kind(partial(_integer_or, others), expected, metavar)
    if get_origin(hint) is Literal:
        words, metavar = f"one of {', '.join(members)}", f"{{{','.join(members)}}}"
        return Kind(partial(_one_of, members), words, metavar, choices=tuple(members))
    if get_origin(hint) is tuple:
        one = kind_of(members[0])
        convert, expected = partial(_each, one.convert), f"{one.expected}, or several"
        if one.choices:
            convert = partial(_chosen, one.convert)
        return Kind(convert, expected, one.metavar, several=True, choices=one.choices)
    if len(members) == 1:  # X | None
        return kind_of(members[0])
    raise TypeError(f"no option takes {hint}")


def _exactly(type_: type[Any], raw: object) -> Any:
    """Return a value that has the type already, or convert it from text."""
    if isinstance(raw, str):
        return type_(raw)
    if type(raw) is type_ or (type_ is float and type(raw) is int) or isinstance(raw, Path):
        return type_(raw)
    raise TypeError


def _truth(raw: object) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in known:
        return known[raw.lower()]
    raise TypeError


def _integer_or(words: Collection[str], raw: object) -> Any:
    return raw if isinstance(raw, str) and raw in words else _exactly(int, raw)


def _one_of(choices: Collection[str], raw: object) -> str:
    if raw not in choices:
        raise ValueError
    return str(raw)


def _each(convert: Callable[[Any], Any], raw: object) -> tuple[Any, ...]:
    """Convert the items of a list, or of a text with commas."""
    if isinstance(raw, str):
        raw = [part.strip() for part in raw.split(",") if part.strip()]
    if not isinstance(raw, list):
        raise TypeError
    return tuple(convert(item) for item in raw)


def _chosen(convert: Callable[[Any], Any], raw: object) -> tuple[Any, ...]:
    """Convert words out of a few, joined by commas or repeated, and each of them once."""
    if isinstance(raw, list) and all(isinstance(item, str) for item in raw):
        raw = ",".join(raw)
    return tuple(dict.fromkeys(_each(convert, raw)))


def _providers(raw: object) -> Providers:
    if raw in ("auto", "cpu", "cuda", "native", "openvino"):
        return raw
    names = _each(partial(_exactly, str), raw)
    if not names or not all(name.endswith("ExecutionProvider") for name in names):
        raise ValueError
    return list(names)


def _devices(raw: object) -> Devices:
    return "all" if raw == "all" else list(_each(partial(_exactly, int), raw))


def _named_values(raw: object) -> dict[str, Any]:
    """Read NAME=VALUE pairs, from a list or a text with commas, or read a TOML table."""
    if isinstance(raw, dict):
        if any(isinstance(value, dict | list) for value in raw.values()):
            raise TypeError
        return raw
    if isinstance(raw, str):  # a value may contain commas: it ends only where NAME= follows
        raw = re.split(r",(?=\s*\w+=)", raw)
    if not isinstance(raw, list):
        raise TypeError
    pairs = [item.strip().partition("=") for item in raw]
    if not all(name and equals for name, equals, _ in pairs):
        raise ValueError
    return {name: _scalar(text) for name, _, text in pairs}


def _scalar(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for type_ in (int, float):
        if re.fullmatch(r"[+-]?\d[\d.eE+-]*", text):
            try:
                return type_(text)
            except ValueError:
                continue
    return text


def _array(raw: object) -> npt.NDArray[Any]:
    if not isinstance(raw, str):
        raise TypeError
    try:
        return np.asarray(np.load(raw, allow_pickle=False))
    except (OSError, EOFError) as error:
        raise ValueError from error


BOOLEAN = Kind(_truth, "true or false")

_KINDS: dict[Any, Kind] = {
    bool: BOOLEAN,
    int: Kind(partial(_exactly, int), "an integer", "N"),
    float: Kind(partial(_exactly, float), "a number", "N"),
    str: Kind(partial(_exactly, str), "text"),
    Path: Kind(partial(_exactly, Path), "the path of a file", "FILE"),
    tuple[int, ...]: Kind(
        partial(_each, partial(_exactly, int)), "integers separated by commas", "N"
    ),
    Mapping[str, Any]: Kind(_named_values, "NAME=VALUE", "NAME=VALUE", several=True),
    Providers: Kind(
        _providers,
        "one of auto, cpu, cuda, native, openvino, or names of onnxruntime's "
        "(...ExecutionProvider), separated by commas",
        "{auto,cpu,cuda,native,openvino}",
    ),
    Devices: Kind(_devices, "all, or numbers separated by commas", "{all,N[,N]}"),
    npt.ArrayLike | None: Kind(_array, "a NumPy file of numbers", "FILE.npy"),
}
