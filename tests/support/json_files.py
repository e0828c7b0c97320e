"""Change JSON documents on disk."""

import json
from pathlib import Path
from typing import Any


def change(path: Path, **values: Any) -> None:
    """Replace values of an object, which begins empty where there is no file."""
    old = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps(old | values), encoding="utf-8")
