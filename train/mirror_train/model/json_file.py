"""JSON that others wrote: read, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mirror_rt.errors import ModelError

__all__ = ["read_json", "read_object"]


def read_json(path: Path) -> Any:
    """Whatever the file holds.

    Raises:
        ModelError: it cannot be read, or is not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of the file.

    Raises:
        ModelError: it cannot be read, or holds something else.
    """
    values = read_json(path)
    if not isinstance(values, dict):
        raise ModelError(f"{path} is not a JSON object")
    return values
