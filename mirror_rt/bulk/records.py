"""Read texts and their ids from a file, and cut them into windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mirror_rt.errors import ConfigError, DataError
from mirror_rt.io.text import iter_csv, iter_jsonl, iter_lines
from mirror_rt.schema import is_unicode

# A window is sorted by length, and held in memory as a whole, so the length of its text is limited.
_WINDOW_CHARACTERS = 2_000_000

_TABLES = (".jsonl", ".ndjson", ".csv", ".parquet")


class Window(NamedTuple):
    """Consecutive rows of the input, from the row number `start` on.

    Attributes:
        texts: one text per row; values that are not strings are passed on unchecked.
        ids: one id per row, all str or all int; None if there is no id field.
    """

    start: int
    texts: list[Any]
    ids: list[int | str] | None


def iter_records(path: str, text_field: str, id_field: str | None) -> Iterator[tuple[Any, ...]]:
    """Yield (text,) or (text, id) for every row of a file; "-" stands for standard input's lines.

    The suffix tells the format: .jsonl or .ndjson, .csv, .parquet; anything else is read as lines.

    Raises:
        DataError: the file cannot be read, lacks a field, or has an unusable id.
        ConfigError: an id field was given for lines.
        MissingDependencyError: Parquet needs pyarrow.
    """
    fields = (text_field,) if id_field is None else (text_field, id_field)
    suffix = Path(path).suffix
    if suffix not in _TABLES and id_field is not None:
        raise ConfigError(
            f"--id-field {id_field}: {path} is read as lines, which have no fields; give a file "
            f"in {', '.join(_TABLES)}"
        )
    if suffix in (".jsonl", ".ndjson"):
        rows: Iterator[tuple[Any, ...]] = iter_jsonl(path, *fields)
    elif suffix == ".csv":
        rows = iter_csv(path, *fields)
    elif suffix == ".parquet":
        from mirror_rt.io.arrow import iter_parquet

        rows = iter_parquet(Path(path), *fields)
    else:
        rows = ((line,) for line in iter_lines(path))
    return rows if id_field is None else _checked_ids(path, id_field, rows)


def _checked_ids(
    path: str, field: str, rows: Iterable[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    """Yield rows, checking that their ids are all valid strings or all 64-bit integers."""
    expected: type | None = None
    for number, (text, name) in enumerate(rows, 1):
        problem = None
        if name is None or name == "":
            problem = "has no id"
        elif type(name) not in (str, int):
            problem = f"has the id {name!r}, expected a string or an integer"
        elif isinstance(name, int) and not -(2**63) <= name < 2**63:
            problem = f"has the id {name}, which does not fit into 64 bits"
        elif isinstance(name, str) and not is_unicode(name):
            problem = f"has the id {name!r}, which is not valid Unicode,"
        elif type(name) is not (expected := expected or type(name)):
            problem = f"has the id {name!r}, and the ids before are of type {expected.__name__}"
        if problem:
            raise DataError(f"{path}, text {number} {problem} in the field {field!r}")
        yield text, name


def windows(rows: Iterable[tuple[Any, ...]], size: int) -> Iterator[Window]:
    """Cut the rows of `iter_records` into windows of `size`, or fewer if texts are long.

    Time does not count: a job that is resumed needs the same windows, for they make the batches.
    """
    start, held, characters = 0, list[tuple[Any, ...]](), 0
    for row in rows:
        held.append(row)
        characters += len(row[0]) if isinstance(row[0], str) else 0
        if len(held) >= size or characters >= _WINDOW_CHARACTERS:
            yield _window(start, held)
            start, held, characters = start + len(held), [], 0
    if held:
        yield _window(start, held)


def _window(start: int, rows: list[tuple[Any, ...]]) -> Window:
    ids = [row[1] for row in rows] if len(rows[0]) > 1 else None
    return Window(start, [row[0] for row in rows], ids)


def count_records(path: str) -> int:
    """Return about how many texts a file holds: its lines, or its rows of CSV or Parquet.

    This is for a progress bar: blank lines count, and stray quotes mislead it. It reads GB/s.
    """
    if Path(path).suffix == ".parquet":
        from mirror_rt.io.arrow import count_parquet

        return count_parquet(Path(path))
    quoted = Path(path).suffix == ".csv"
    count, inside, last = 0, 0, b""
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            octets = np.frombuffer(block, dtype=np.uint8)
            ends = octets == ord("\n")
            if quoted:
                quotes = np.cumsum(octets == ord('"'), dtype=np.int64) + inside
                ends &= quotes % 2 == 0
                inside = int(quotes[-1])
            count += int(np.count_nonzero(ends))
            last = block[-1:]
    count += last not in (b"", b"\n")
    return max(0, count - 1) if quoted else count
