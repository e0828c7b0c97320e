"""Read what jobs encode: texts with ids from a file, and tables from the blocks of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.errors import ConfigError, DataError, require
from mirror_rt.io.arrow import iter_parquet, open_parquet
from mirror_rt.io.storage import Folder, StoredFile, find_files
from mirror_rt.io.text import (
    column_indices,
    iter_csv,
    iter_csv_rows,
    iter_jsonl,
    iter_lines,
    iter_objects,
)
from mirror_rt.schema import is_unicode
from mirror_rt.tokens.windows import TextWindow, text_windows

# Other files have a text on each line.
_READERS = {
    ".jsonl": iter_jsonl,
    ".ndjson": iter_jsonl,
    ".csv": iter_csv,
    ".parquet": iter_parquet,
}
_SUFFIXES = (*_READERS, ".txt")
_FOOTERS_AT_A_TIME = 16


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


@dataclass(frozen=True, slots=True)
class Block:
    """A row group of a Parquet file, or a whole file of another format.

    Attributes:
        file: the file.
        group: number of the row group; 0 for a whole file.
        rows: number of rows; None where only reading tells.
    """

    file: StoredFile
    group: int
    rows: int | None

    @property
    def part(self) -> str:
        """The name of the file of its vectors, relative to the output: no other block has it."""
        return f"{self.file.name}-{self.group:05d}.parquet"

    @property
    def source(self) -> dict[str, Any]:
        """The record of the block, kept beside its vectors; it changes with the block's file."""
        file = self.file
        return {"source": file.name, "group": self.group, "source_bytes": file.bytes,
                "source_modified": file.modified}  # fmt: skip


def find_blocks(where: str, *, outside: Folder) -> list[Block]:
    """Return the blocks of the files at a path, pattern or address, in order of their names.

    Files in the folder `outside`, which is that of the output, do not count.
    """
    files = find_files(where, _SUFFIXES, outside=outside)
    with ThreadPoolExecutor(_FOOTERS_AT_A_TIME) as pool:
        return [block for blocks in pool.map(_blocks_of, files) for block in blocks]


def read_block(block: Block, text: str, columns: Sequence[str] | None, rows: int) -> Iterator[Any]:
    """Yield the rows of a block in order, as `pyarrow.RecordBatch` of `rows` rows at most.

    Args:
        block: what to read.
        text: column of the texts; the lines of a file of lines are given this name.
        columns: further columns to read; None for all.
        rows: most rows of a batch.

    DataError says that the file is damaged, lacks a column, or has values without a common type.
    """
    pyarrow = require("pyarrow", extra="tables", purpose="a dataset")
    wanted = None if columns is None else list(dict.fromkeys([text, *columns]))
    name, file = block.file.name, block.file
    try:
        if name.endswith(".parquet"):
            yield from _read_row_group(block, text, wanted, rows)
        elif name.endswith((".jsonl", ".ndjson")):
            yield from _read_objects(file, text, wanted, rows)
        elif name.endswith(".csv"):
            yield from _read_cells(file, text, wanted, rows)
        else:
            for lines in _in_groups(iter_lines(file), rows):
                yield pyarrow.record_batch({text: pyarrow.array(lines, pyarrow.string())})
    except (pyarrow.ArrowException, OSError, OverflowError, UnicodeEncodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def _blocks_of(file: StoredFile) -> list[Block]:
    if not file.name.endswith(".parquet"):
        return [Block(file, 0, None)]
    metadata = open_parquet(file).metadata
    return [Block(file, i, metadata.row_group(i).num_rows) for i in range(metadata.num_row_groups)]


def _read_row_group(block: Block, text: str, wanted: list[str] | None, rows: int) -> Iterator[Any]:
    with open_parquet(block.file) as file:
        column_indices(block.file, file.schema_arrow.names, wanted or [text])
        yield from file.iter_batches(rows, row_groups=[block.group], columns=wanted)


def _read_objects(
    file: StoredFile, text: str, wanted: list[str] | None, rows: int
) -> Iterator[Any]:
    """Read JSON lines twice: the types of the columns follow from all of the values."""
    pyarrow = require("pyarrow", extra="tables", purpose="a dataset")

    def groups() -> Iterator[list[dict[str, Any]]]:
        for objects in _in_groups(iter_objects(file, text), rows):
            for one in objects:
                if not (isinstance(one[text], str) and is_unicode(one[text])):
                    one[text] = None  # which has no vector
            yield objects

    schema = pyarrow.schema([])
    for objects in groups():
        names = wanted or list(dict.fromkeys(name for one in objects for name in one))
        found = pyarrow.RecordBatch.from_pylist(
            [{name: one.get(name) for name in names} for one in objects]
        )
        schema = pyarrow.unify_schemas([schema, found.schema], promote_options="permissive")
    if len(schema) and pyarrow.types.is_null(schema.field(text).type):
        schema = schema.set(schema.get_field_index(text), pyarrow.field(text, pyarrow.string()))
    for objects in groups():
        yield pyarrow.RecordBatch.from_pylist(objects, schema=schema)


def _read_cells(file: StoredFile, text: str, wanted: list[str] | None, rows: int) -> Iterator[Any]:
    pyarrow = require("pyarrow", extra="tables", purpose="a dataset")
    cells = iter_csv_rows(file)
    header = next(cells, [])
    names = wanted or header
    column_indices(file, header, list(dict.fromkeys([text, *names])))
    for group in _in_groups(cells, rows):
        columns = dict(zip(header, zip(*group, strict=True), strict=True))
        yield pyarrow.record_batch(
            {name: pyarrow.array(columns[name], pyarrow.string()) for name in names}
        )


def _in_groups(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    stream = iter(items)
    while group := list(islice(stream, size)):
        yield group
