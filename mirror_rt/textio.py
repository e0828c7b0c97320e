"""Strict, streaming text input: UTF-8 lines, JSONL fields, TSV tables, from a file or stdin."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from mirror_rt.errors import DataError

__all__ = ["Table", "iter_jsonl", "iter_lines", "read_table"]


def iter_lines(path: Path | str) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file without their ends; "-" is standard input.

    A byte order mark is dropped, `\n` and `\r\n` both end a line, and the last line needs none.

    Raises:
        DataError: missing, a folder, binary, or not UTF-8 (naming the line).
    """
    with _open(path) as file:
        for number, raw in enumerate(file, 1):
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, line {number}: not UTF-8 (byte 0x{raw[error.start]:02x} at position "
                    f"{error.start}); convert it first, for example with iconv -t UTF-8"
                ) from error
            if "\0" in text:
                raise DataError(f"{path}, line {number}: a NUL byte; this is not a text file")
            yield text.removesuffix("\n").removesuffix("\r")


def iter_jsonl(path: Path | str, field: str) -> Iterator[Any]:
    """Yield one field of every JSON object, one a line; a blank line is skipped.

    Raises:
        DataError: as `iter_lines`, or a line is not a JSON object with that field.
    """
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(record, dict) or field not in record:
            raise DataError(f"{path}, line {number}: expected an object with the field {field!r}")
        yield record[field]


@dataclass(frozen=True, slots=True)
class Table:
    """A tab-separated table: a header, and rows of as many cells (no quoting).

    Attributes:
        path: the file.
        header: column names, all different.
        rows: the cells.
        lines: the line of the file that each row stands on.
    """

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    def column(self, name: str) -> list[str]:
        """The cells of one column; DataError if the header lacks it."""
        if name not in self.header:
            raise DataError(f"{self.path} has no column {name!r}, only {', '.join(self.header)}")
        index = self.header.index(name)
        return [row[index] for row in self.rows]


def read_table(path: Path) -> Table:
    """Read a TSV file with a header; empty lines are left out.

    Raises:
        DataError: no header, a column name twice, or a row with too few or too many cells.
    """
    lines = iter_lines(path)
    header = next(lines, "").split("\t")
    if header == [""]:
        raise DataError(f"{path} is empty: expected a header and rows")
    if repeated := {name for name in header if header.count(name) > 1}:
        raise DataError(f"{path} has the column {min(repeated)!r} more than once")
    rows = [(number, line.split("\t")) for number, line in enumerate(lines, 2) if line]
    for number, cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(cells)} cells, the header has {len(header)}"
            )
    return Table(path, header, [cells for _, cells in rows], [number for number, _ in rows])


@contextlib.contextmanager
def _open(path: Path | str) -> Iterator[IO[bytes]]:
    if str(path) == "-":
        if sys.stdin is None:
            raise DataError("standard input is closed")
        yield sys.stdin.buffer
        return
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected a file")
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    with file:
        yield file
