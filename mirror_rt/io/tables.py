"""Write the rows of a table for a terminal, in Markdown and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def text_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Format a header and rows as `text_fields` does."""
    return text_fields([header, *rows])


def shown(
    found: Sequence[Any], header: Sequence[str], row: Callable[[Any], Sequence[str]], as_json: bool
) -> str:
    """Return values or dataclasses as a table with a `row` of each, or as JSON with all fields."""
    if not as_json:
        return text_table(header, map(row, found))
    return json.dumps(found, indent=2, ensure_ascii=False, default=dataclasses.asdict)


def text_fields(lines: Sequence[Sequence[str]]) -> str:
    """Format columns as wide as their widest cells; the last column is not padded."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]) - 1)]
    return "\n".join(
        "  ".join([*(f"{c:<{w}}" for c, w in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = False
) -> str:
    """Return a table in Markdown; with `numbers` all columns but the first are aligned right.

    Cells are escaped so that none can end its cell or its row. A row may have fewer cells.
    """
    align = "|".join(["---", *["--:" if numbers else "---"] * (len(header) - 1)])
    lines = [" | ".join(map(markdown_cell, line)) for line in (header, *rows)]
    first, *others = [f"| {line} |" for line in lines]
    return "\n".join([first, f"|{align}|", *others])


def markdown_cell(text: str) -> str:
    """Escape text so that it can end neither a cell nor a row of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split())
