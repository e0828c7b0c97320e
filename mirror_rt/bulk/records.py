"""Read texts and their ids from a file, and cut them into windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, tee
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.errors import ConfigError, DataError
from mirror_rt.io.arrow import iter_parquet, open_parquet
from mirror_rt.io.text import iter_csv, iter_jsonl, iter_lines
from mirror_rt.schema import is_unicode
from mirror_rt.tokens.windows import TextWindow, text_windows

_READERS = {
    ".jsonl": iter_jsonl,
    ".ndjson": iter_jsonl,
    ".csv": iter_csv,
    ".parquet": iter_parquet,
}


def iter_records(path: str, text_field: str, id_field: str | None) -> Iterator[tuple[Any, ...]]:
    """Yield (text,) or (text, id) for every row of a file; "-" stands for standard input's lines.

    The suffix tells the format: .jsonl or .ndjson, .csv, .parquet; anything else is read as lines.
    """
    fields = (text_field,) if id_field is None else (text_field, id_field)
    read = _READERS.get(Path(path).suffix)
    if read is None and id_field is not None:
        raise ConfigError(
            f"--id-field {id_field}: {path} is read as lines, which have no fields; give a file "
            f"in {', '.join(_READERS)}"
        )
    rows = ((line,) for line in iter_lines(path)) if read is None else read(path, *fields)
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


def record_windows(
    rows: Iterable[tuple[Any, ...]], size: int, most_characters: int
) -> Iterator[TextWindow]:
    """Cut the rows of `iter_records` into windows, as `text_windows` does, with their ids.

    Time does not count: a job that is resumed needs the same windows, for they make the batches.
    """
    texts, named = tee(rows)
    stream = text_windows((row[0] for row in texts), size, most_characters=most_characters)
    for window in stream:
        ids = [row[1] for row in islice(named, len(window.texts)) if len(row) > 1]
        yield window._replace(ids=ids or None)


def count_records(path: str) -> int:
    """Return about how many texts a file holds: its lines, or its rows of CSV or Parquet.

    This is for a progress bar: blank lines count, and stray quotes mislead it. It reads GB/s.
    """
    if Path(path).suffix == ".parquet":
        with open_parquet(path) as table:
            return int(table.metadata.num_rows)
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
