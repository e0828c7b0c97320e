"""JSON documents with a format and a version: mirror.json, pack.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from mirror_rt.errors import BundleError, BundleVersionError

__all__ = ["is_a", "read_document", "read_json"]


def read_json(path: Path, noun: str) -> Any:
    """Parse `path`.

    Raises:
        BundleError: its folder does not exist or is no `noun` (it has no such file), or the file
            is not JSON.
    """
    if not path.parent.is_dir():
        raise BundleError(f"{path.parent}: no such folder")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BundleError(f"{path.parent} is not a {noun}: it has no {path.name}") from None
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not valid JSON: {error}") from error


def read_document(
    path: Path, *, noun: str, expected: str, version: int, hints: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Parse `path` and check its `format` and `format_version`.

    Args:
        path: the file.
        noun: what its folder should be.
        expected: the format.
        version: the newest format version that is understood.
        hints: another format -> what to do about it.

    Raises:
        BundleError: as `read_json`, or it is of another format.
        BundleVersionError: the format version is newer than `version`.
    """
    values = read_json(path, noun)
    if not isinstance(values, dict) or values.get("format") != expected:
        found = values.get("format") if isinstance(values, dict) else type(values).__name__
        hint = (hints or {}).get(found) if isinstance(found, str) else None
        raise BundleError(
            f"{path} says {found!r}, expected {expected!r}{f'; {hint}' if hint else ''}"
        )
    written = values.get("format_version")
    if not isinstance(written, int) or isinstance(written, bool) or written < 1:
        raise BundleError(f"{path}: format_version {written!r} is invalid")
    if written > version:
        raise BundleVersionError(
            f"{path.parent} has format version {written}, this mirror_rt reads up to {version}: "
            "upgrade with pip install -U mirror-rt"
        )
    return values


def is_a(value: Any, hint: Any) -> bool:
    """Whether a JSON value has a field's declared type (of a list, its items are not looked at)."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) in (Union, UnionType):
        return any(is_a(value, part) for part in get_args(hint))
    kind = get_origin(hint) or hint
    return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
