"""Read UTF-8 lines, JSON lines, CSV and TSV strictly and streaming, from a file or stdin."""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar, cast

from mirror_rt.errors import DataError
from mirror_rt.io.limits import COLUMNS, DECLARED, LINE, unpacked
from mirror_rt.io.storage import StoredFile
from mirror_rt.schema import is_too_deep

# Where texts are read from; "-" is standard input.
Source = Path | str | StoredFile
_Source = TypeVar("_Source", bound=Source)
_Read = TypeVar("_Read")
_Rest = ParamSpec("_Rest")

# Bytes to set free where there is no more memory: CPython 3.11 needs some to leave a `with` block
# on an error, and tries for ever to get it.
_RESERVE = 1 << 22


def iter_lines(path: Source) -> Iterator[str]:
    r"""Yield the lines of a UTF-8 file, plain or `.gz`, without line ends; "-" is standard input.

    A byte order mark is dropped. Lines end in `\n` or `\r\n`; the last one needs no line end. A
    file that is not UTF-8, or has a line of more than 64 MiB, is a DataError that names the line.
    """
    with _open(path) as file:
        reserve = [bytes(_RESERVE)]
        try:
            for text in _decoded(path, file):
                yield text.removesuffix("\n").removesuffix("\r")
        except MemoryError as error:
            reserve.clear()
            raise _no_memory(path) from error
        finally:
            reserve.clear()


def read_whole(
    read: Callable[Concatenate[_Source, _Rest], _Read],
) -> Callable[Concatenate[_Source, _Rest], _Read]:
    """Let a function that keeps all of a file say so where there is too little memory for it."""

    @wraps(read)
    def with_reserve(path: _Source, /, *rest: _Rest.args, **more: _Rest.kwargs) -> _Read:
        reserve = [bytes(_RESERVE)]
        try:
            return read(path, *rest, **more)
        except MemoryError as error:
            reserve.clear()
            raise _no_memory(path) from error

    return with_reserve


def _decoded(path: Source, file: IO[bytes]) -> Iterator[str]:
    """Yield checked lines with their ends."""
    for number, raw in enumerate(iter(partial(file.readline, LINE + 1), b""), 1):
        if len(raw) > LINE:
            raise DataError(
                f"{path}, line {number}: more than {LINE:,} bytes; this is no file of texts, or "
                "its lines end in something else than a newline"
            )
        if b"\0" in raw and not raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{path}, line {number}: a NUL byte; this is not a text file")
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _not_utf8(path, f", line {number}", error) from error


def _not_utf8(path: Source, where: str, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"{path}{where}: not UTF-8 (byte 0x{error.object[error.start]:02x} at position "
        f"{error.start}); convert it first: iconv -f ENCODING -t UTF-8 FILE > NEW, where ENCODING "
        "is that of FILE, such as WINDOWS-1252, ISO-8859-2 or UTF-16"
    )


def numbered_objects(path: Source, *fields: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line number and the JSON object of every line; skip blank lines.

    Anything but an object with all of the fields is a DataError that names the line.
    """
    for number, line in enumerate(iter_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
            if is_too_deep(record):  # which Arrow would take hours for
                raise ValueError("its values are nested too deep")
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}, line {number}: not JSON: {error}") from error
        yield number, checked_object(path, f"line {number}", record, fields)


def numbered_items(path: Source, *fields: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the numbers (from 1) and the objects of a JSON list, or lines as `numbered_objects`.

    The list is read as a whole; one of more than 64 MiB is a DataError.
    """
    with _open(path) as file:
        content = file.read(DECLARED + 1)
    if not content.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        yield from numbered_objects(path, *fields)
        return
    if len(content) > DECLARED:
        raise DataError(f"{path} is a list of more than {DECLARED:,} bytes: give it as JSON lines")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_utf8(path, "", error) from error
    try:
        items = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    for number, one in enumerate(items, 1):
        if is_too_deep(one):
            raise DataError(f"{path}, item {number}: its values are nested too deep")
        yield number, checked_object(path, f"item {number}", one, fields)


def checked_object(path: Source, where: str, one: Any, fields: Sequence[str]) -> dict[str, Any]:
    """Return a row that was read, or raise DataError if it is no object with all of the fields."""
    if not isinstance(one, dict):
        raise DataError(f"{path}, {where}: expected an object")
    for field in fields:
        if field not in one:
            raise DataError(f"{path}, {where}: expected an object with the field {field!r}")
    return one


def numbered_csv(path: Source, delimiter: str | None = None) -> Iterator[tuple[int, list[str]]]:
    """Yield the line number and the cells of every row of a CSV file that is not empty.

    Without a delimiter it is a tab where the first line has one, and else a comma (RFC 4180).
    """
    # The csv module has one limit on the size of a cell for the whole process. It is only ever
    # raised, never lowered, so that no file becomes unreadable because another was read before.
    csv.field_size_limit(max(csv.field_size_limit(), LINE))
    with _open(path) as file:
        reserve = [bytes(_RESERVE)]
        # A lone carriage return ends a line, too.
        split = (io.StringIO(line, newline="") for line in _decoded(path, file))
        lines, reader = chain.from_iterable(split), None
        try:
            first = next(lines, "")
            delimiter = delimiter or ("\t" if "\t" in first else ",")
            reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
            yield from ((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise DataError(
                f"{path}, line {reader.line_num if reader else 1}: not CSV: {error}"
            ) from error
        except MemoryError as error:
            reserve.clear()
            raise _no_memory(path) from error
        finally:
            reserve.clear()


def column_indices(path: Source, header: Sequence[str], columns: Sequence[str]) -> tuple[int, ...]:
    """Return the columns' indices in the header; DataError if one is missing or there twice."""
    if not header:
        raise DataError(f"{path} is empty: expected a header and rows")
    check_columns(path, header)
    for column in columns:
        if (found := header.count(column)) != 1:
            problem = f"no column {column!r}" if found == 0 else f"{found} columns {column!r}"
            raise DataError(f"{path} has {problem}; its columns are {', '.join(header)}")
    return tuple(header.index(column) for column in columns)


def check_columns(path: Source, header: Sequence[str]) -> None:
    """Raise DataError for a header of very many columns."""
    if len(header) > COLUMNS:
        raise DataError(f"{path} has {len(header):,} columns, expected at most {COLUMNS:,}")


@contextlib.contextmanager
def _open(path: Source) -> Iterator[IO[bytes]]:
    if str(path) == "-":
        if sys.stdin is None:
            raise DataError("standard input is closed")
        yield sys.stdin.buffer
        return
    with path.open() if isinstance(path, StoredFile) else _open_local(Path(path)) as file:
        if not str(path).lower().endswith(".gz"):
            yield file
            return
        size = path.bytes if isinstance(path, StoredFile) else os.fstat(file.fileno()).st_size
        try:
            with gzip.open(file) as content:
                yield unpacked(cast(IO[bytes], content), size, path)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} cannot be unpacked: {error}") from error


def _no_memory(path: Source) -> DataError:
    return DataError(f"{path} needs more memory than there is")


def _open_local(path: Path) -> IO[bytes]:
    if path.is_dir():
        raise DataError(f"{path} is a folder, expected a file")
    try:
        return path.open("rb")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
