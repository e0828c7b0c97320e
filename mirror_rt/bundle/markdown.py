"""Write values as tables of Markdown."""

from __future__ import annotations

from typing import Any

from mirror_rt.io.tables import markdown_table


def facts(values: dict[str, Any]) -> str:
    """Return a table of names and values, without the unknown ones."""
    rows = [
        (name.replace("_", " ").replace("sha256", "SHA-256"), number(value))
        for name, value in values.items()
        if value is not None
    ]
    return markdown_table(("", ""), rows)


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """Flatten nested dictionaries; their keys are joined, as in `metrics, accuracy`."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= {f"{name}, {key}": inner for key, inner in flat(value).items()}
        else:
            found[name] = value
    return found


def number(value: Any) -> str:
    """Write a value, or the values of a list; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(map(number, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)
