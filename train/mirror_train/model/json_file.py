"""Read JSON files of model folders, or refuse them with a one-line error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mirror_rt.errors import ModelError

# A tokenizer_config.json with all special tokens of a large vocabulary has a few million bytes.
_MOST_BYTES = 1 << 26


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that the file holds; raise ModelError for anything else."""
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise ModelError(f"{path} cannot be read: it is not a regular file")
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise ModelError(f"{path} cannot be read: it has more than {_MOST_BYTES:,} bytes")
        values = json.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path} is not a JSON object")
    return values
