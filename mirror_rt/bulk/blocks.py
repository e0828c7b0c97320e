"""Divide the files of a dataset into blocks, and read the rows of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mirror_rt.errors import DataError, require
from mirror_rt.io.arrow import open_parquet
from mirror_rt.io.storage import Folder, StoredFile, find_files
from mirror_rt.io.text import column_indices, iter_csv_rows, iter_lines, iter_objects
from mirror_rt.schema import is_unicode

_SUFFIXES = (".parquet", ".jsonl", ".ndjson", ".csv", ".txt")
_FOOTERS_AT_A_TIME = 16


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
        """What is recorded of the block beside its vectors; another content differs in it."""
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
