"""JSON documents with a format and a version: mirror.json, pack.json, heads.json."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import reprlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from mirror_rt.errors import BundleError, BundleVersionError, ConfigError
from mirror_rt.io.limits import DOCUMENT
from mirror_rt.schema import check_values

T = TypeVar("T")


def read_json(path: Path, noun: str) -> Any:
    """Parse the JSON file `path` in the folder of a `noun`."""
    if not path.parent.is_dir():
        raise BundleError(f"{path.parent}: no such folder")
    if not path.exists():
        hint = f"; {to_export(path.parent)}" if noun == "bundle" else ""
        raise BundleError(f"{path.parent} is not a {noun}: it has no {path.name}{hint}")
    return parse_json(path)


def parse_json(path: Path, *, most: int = DOCUMENT, large: bool = False) -> Any:
    """Parse a JSON file of at most `most` bytes; with `large`, integers may have any size."""
    if not path.is_file():  # reading a pipe would wait forever
        raise BundleError(f"{path} is not a regular file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise BundleError(f"{path} has more than {most:,} bytes, the most that is read")
    try:
        values = json.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON: {error}") from error
    if isinstance(values, dict | list):
        with naming(path):
            check_values(values, large=large)
    return values


def to_export(model: Path | str) -> str:
    """Return the advice to make a bundle of a model, with the command to run."""
    return f"make a bundle of it: mirror-rt export {model} --out BUNDLE"


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn a ValueError about a value of a document into a BundleError that names the file."""
    try:
        yield
    except ValueError as error:
        raise BundleError(f"{path} is damaged: {error}") from error


def read_document(
    path: Path,
    make: Callable[[dict[str, Any]], T],
    *,
    noun: str,
    expected: tuple[str, ...],
    version: int,
    hints: Mapping[str, str] | None = None,
) -> T:
    """Parse `path`, and `make` something of its values, of which a ValueError says what is wrong.

    Its format must be one of `expected`, and its version at most `version`. `noun` is a word for
    the kind of folder that is expected, for errors, and `hints` maps another format to advice.
    """
    values = read_json(path, noun)
    if not isinstance(values, dict) or values.get("format") not in expected:
        found = values.get("format") if isinstance(values, dict) else type(values).__name__
        hint = (hints or {}).get(found) if isinstance(found, str) else None
        raise BundleError(
            f"{path} says {reprlib.repr(found)}, expected {' or '.join(map(repr, expected))}"
            + (f"; {hint}" if hint else "")
        )
    written = values.get("format_version")
    if not isinstance(written, int) or isinstance(written, bool) or written < 1:
        raise BundleError(f"{path}: format_version {reprlib.repr(written)} is invalid")
    if written > version:
        raise BundleVersionError(
            f"{path.parent} has format version {written}, this mirror_rt reads up to {version}: "
            "upgrade with pip install -U mirror-rt"
        )
    with naming(path):
        return make(values)


class Provenance(TypedDict):
    """The program that wrote a manifest or an index, and the time, in ISO 8601 and UTC."""

    generator: str
    created: str


def made_now() -> Provenance:
    """Return the fields for a file that is written now, by this version.

    SOURCE_DATE_EPOCH, in seconds since 1970, sets the time, so that a build can be repeated
    (https://reproducible-builds.org/specs/source-date-epoch).

    Raises:
        ConfigError: SOURCE_DATE_EPOCH is no such number.
    """
    from mirror_rt.version import __version__

    said = os.environ.get("SOURCE_DATE_EPOCH")
    try:
        now = datetime.datetime.fromtimestamp(int(said) if said else time.time(), datetime.UTC)
    except (ValueError, OverflowError, OSError) as error:
        expected = "whole seconds since 1970, such as those of git log -1 --format=%ct"
        raise ConfigError(f"SOURCE_DATE_EPOCH is {said!r}, expected {expected}") from error
    return {"generator": f"mirror-rt {__version__}", "created": now.isoformat(timespec="seconds")}
