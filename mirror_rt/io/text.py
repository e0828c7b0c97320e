"""Read UTF-8 lines, JSON lines, CSV and TSV strictly and streaming, from a file or stdin."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

from mirror_rt.errors import DataError
from mirror_rt.io.limits import COLUMNS, LINE, unpacked
from mirror_rt.io.storage import StoredFile
from mirror_rt.schema import is_too_deep

# Where texts are read from; "-" is standard input.
Source = Path | str | StoredFile


def iter_lines(path: Source) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file, plain or `.gz`, without line ends; "-" is standard input.

    A byte order mark is dropped. Lines end in `\n` or `\r\n`; the last one needs no line end. What
    is not UTF-8 text, or has a line of more than 64 MiB, is a DataError that names the line.
    """
    with _open(path) as file:
        for number, raw in enumerate(iter(partial(file.readline, LINE + 1), b""), 1):
            _check_size(path, number, len(raw), "bytes")
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


def read_texts(path: Source, most: int | None = None) -> list[str]:
    """Read the lines that are not blank, or the first so many; errors are those of `iter_lines`."""
    texts = list(islice(filter(str.strip, iter_lines(path)), most))
    if not texts:
        raise DataError(f"{path} holds no texts")
    return texts


def iter_jsonl(path: Source, *fields: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values of the fields of the JSON object on every line; skip blank lines."""
    for record in iter_objects(path, *fields):
        yield tuple(record[field] for field in fields)


def iter_objects(path: Source, *fields: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON object on every line, as `iter_jsonl` with one field at least."""
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if is_too_deep(record):  # which Arrow would take hours for
                raise ValueError("its values are nested too deep")
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON: {error}") from error
        for field in fields:
            if not isinstance(record, dict) or field not in record:
                raise DataError(
                    f"{path}, line {number}: expected an object with the field {field!r}"
                )
        yield record


def iter_csv(path: Source, *columns: str) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the named columns of every row of a CSV file (RFC 4180) with a header."""
    rows = iter_csv_rows(path)
    indices = column_indices(path, next(rows, []), columns)
    for row in rows:
        yield tuple(row[i] for i in indices)


def iter_csv_rows(path: Source) -> Iterator[list[str]]:
    """Yield the header and every row of a CSV file (RFC 4180); errors are those of `iter_csv`."""
    numbered = numbered_csv(path)
    _, header = next(numbered, (1, []))
    yield header
    for number, row in numbered:
        _check_width(path, number, row, header)
        yield row


def numbered_csv(path: Source, delimiter: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of every row of a CSV file that is not empty."""
    # The csv module has one limit on the size of a cell for the whole process. It is only ever
    # raised, never lowered, so that what can be read does not depend on what was read before.
    csv.field_size_limit(max(csv.field_size_limit(), LINE))
    with _open(path) as file, io.TextIOWrapper(file, "utf-8-sig", newline="") as text:
        lines = iter(partial(text.readline, LINE + 1), "")
        reader = csv.reader(_checked_lines(path, lines), delimiter=delimiter, strict=True)
        try:
            yield from ((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, after line {reader.line_num}: not UTF-8 ({error.reason}); convert it "
                "first, for example with iconv -t UTF-8"
            ) from error


def column_indices(path: Source, header: Sequence[str], columns: Sequence[str]) -> tuple[int, ...]:
    """Return the columns' indices in the header; DataError if one is missing or there twice."""
    if not header:
        raise DataError(f"{path} is empty: expected a header and rows")
    _check_columns(path, header)
    for column in columns:
        if (found := header.count(column)) != 1:
            problem = f"no column {column!r}" if found == 0 else f"{found} columns {column!r}"
            raise DataError(f"{path} has {problem}; its columns are {', '.join(header)}")
    return tuple(header.index(column) for column in columns)


def _check_size(path: Source, number: int, size: int, unit: str) -> None:
    if size > LINE:
        raise DataError(
            f"{path}, line {number}: more than {LINE:,} {unit}; this is no file of texts, or "
            "its lines end in something else than a newline"
        )


def _checked_lines(path: Source, lines: Iterator[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        _check_size(path, number, len(line), "characters")
        if "\0" in line:
            raise DataError(f"{path}, line {number}: a NUL byte; this is not a text file")
        yield line


@dataclass(frozen=True, slots=True)
class Table:
    """A table: a header, and rows with as many cells.

    Attributes:
        path: path of the file.
        header: column names, all different.
        rows: cells of each row.
        lines: line number of each row in the file.
    """

    path: Path
    header: list[str]
    rows: list[list[str]]
    lines: list[int]

    def column(self, name: str) -> list[str]:
        """Return the cells of one column; raise DataError if the header lacks it."""
        if name not in self.header:
            raise DataError(f"{self.path} has no column {name!r}, only {', '.join(self.header)}")
        index = self.header.index(name)
        return [row[index] for row in self.rows]


def read_table(path: Path) -> Table:
    """Read a table with a header: `.csv` with quotes (comma or tab), anything else as plain TSV."""
    if path.suffix == ".csv":
        first = next(iter_lines(path), "")
        numbered = list(numbered_csv(path, "\t" if "\t" in first else ","))
    else:
        numbered = [(n, line.split("\t")) for n, line in enumerate(iter_lines(path), 1) if line]
    if not numbered:
        raise DataError(f"{path} is empty: expected a header and rows")
    (_, header), *rows = numbered
    _check_columns(path, header)
    if len(header) > len(counts := Counter(header)):
        repeated = min(name for name, count in counts.items() if count > 1)
        raise DataError(f"{path} has the column {repeated!r} more than once")
    for number, cells in rows:
        _check_width(path, number, cells, header)
    return Table(path, header, [cells for _, cells in rows], [number for number, _ in rows])


def _check_columns(path: Source, header: Sequence[str]) -> None:
    if len(header) > COLUMNS:
        raise DataError(f"{path} has {len(header):,} columns, expected at most {COLUMNS:,}")


def _check_width(path: Source, number: int, cells: list[str], header: list[str]) -> None:
    if len(cells) != len(header):
        raise DataError(f"{path}, line {number}: {len(cells)} cells, the header has {len(header)}")


@contextlib.contextmanager
def _open(path: Source) -> Iterator[IO[bytes]]:
    if isinstance(path, StoredFile):
        with path.open() as file:
            yield file
        return
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
        if path.suffix != ".gz":
            yield file
            return
        try:
            with gzip.open(file) as content:
                yield unpacked(cast(IO[bytes], content), os.fstat(file.fileno()).st_size, path)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} cannot be unpacked: {error}") from error
        except MemoryError as error:
            raise DataError(f"{path} needs more memory than there is") from error
