"""Read rows of texts or of pairs for commands that write a JSON line for each."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

from mirror_rt.cli.common import Bundle, Quiet
from mirror_rt.cli.parsing.invocation import Invocation
from mirror_rt.cli.parsing.options import Help
from mirror_rt.errors import ConfigError, DataError
from mirror_rt.evaluation.readers.pairs import find_text_columns
from mirror_rt.evaluation.readers.tables import find_column, numbered_lines
from mirror_rt.io.atomic import check_free, new_file
from mirror_rt.io.rows import WITH_FIELDS, Table, row_format

WINDOW = 1024  # number of rows that are run together
_TEXT_FIELDS = ("text", "sentence")

# A text or a pair of texts, and the cell of its label (None if no label is asked for).
Row = tuple[Any, str | None]


@dataclass(frozen=True, kw_only=True)
class OverRows(Invocation):
    """The options of commands that write a line of JSON for each row of a file."""

    model: Bundle
    input: Annotated[
        str,
        Help(f"file with named columns ({WITH_FIELDS}; also with .gz); another name, or - for "
             "standard input, for lines: a text, or two with a tab between them", "FILE"),
    ]  # fmt: skip
    fields: Annotated[
        str | None,
        Help("columns of the text, or of the two texts (default: text or sentence; for pairs "
             "sentence1,sentence2 and other usual names)", "NAME[,NAME]"),
    ] = None  # fmt: skip
    output: Annotated[str, Help("- is standard output", "FILE.jsonl")] = "-"
    overwrite: Annotated[bool, Help("replace an existing output")] = False
    quiet: Quiet = False

    def check_output(self) -> None:
        """Raise OutputExistsError now, rather than after the work."""
        if self.output != "-":
            check_free(Path(self.output), overwrite=self.overwrite)

    @contextlib.contextmanager
    def open_output(self) -> Iterator[IO[bytes]]:
        """Open a file that is written whole or not at all, or standard output for `-`."""
        if self.output == "-":
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        with new_file(Path(self.output), overwrite=self.overwrite) as file:
            yield file


def rounded(value: Any) -> float | None:
    """Return a score as it is written; None for NaN."""
    return None if math.isnan(value) else round(float(value), 6)


def write_line(file: IO[bytes], record: dict[str, Any]) -> None:
    """Write a record as a line of JSON."""
    file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")


def read_rows(path: str, names: str | None, count: int, label: str | None = None) -> Iterator[Row]:
    """Read texts, or pairs of texts, from a file of lines, or of `mirror_rt.io.rows.FORMATS`.

    `names` are the columns of the `count` (1 or 2) texts, joined by commas; None for usual ones.
    Columns that do not go with the file, or with `count`, are a ConfigError.
    """
    fields = names.split(",") if names else None
    if fields is not None and len(fields) != count:
        raise ConfigError(
            f"--fields {names}: expected {count} column{'s' if count > 1 else ''}, as a row has "
            f"{'two texts' if count > 1 else 'one text'}"
        )
    found = row_format(path, ("--fields", names), ("--label-field", label))
    if not found.has_fields:
        lines = numbered_lines(path)
        return ((_item(_cells(path, n, line, count)), None) for n, line in lines)
    columns = fields or _usual_columns(Path(path), found.names(path), label, count)
    rows = found.numbered(path, *columns, *([label] if label else []))
    return ((_item(row[:count]), _label(row[count]) if label else None) for _, row in rows)


def _usual_columns(path: Path, names: list[str], label: str | None, count: int) -> list[str]:
    table = Table(path, names, [], [])
    if count == 1:
        return [find_column(table, _TEXT_FIELDS, "texts (see --fields)")]
    return list(find_text_columns(table, label or "score"))


def _label(value: Any) -> str:
    return "" if value is None else str(value)


def _cells(path: str, number: int, line: str, count: int) -> tuple[str, ...]:
    cells = tuple(line.split("\t")) if count == 2 else (line,)
    if len(cells) != count:
        raise DataError(
            f"{path}, line {number}: {len(cells)} cells, expected two texts with a tab between"
        )
    return cells


def _item(cells: tuple[Any, ...]) -> Any:
    return cells[0] if len(cells) == 1 else cells
