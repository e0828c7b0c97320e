"""Divide the files of a dataset into blocks, and read the rows of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

from mirror_rt.errors import ConfigError, DataError, require
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

    Raises:
        DataError: there are no such files, or one with the suffix .parquet is not Parquet.
    """
    files = find_files(where, _SUFFIXES, outside=outside)
    with ThreadPoolExecutor(_FOOTERS_AT_A_TIME) as pool:
        return [block for blocks in pool.map(_blocks_of, files) for block in blocks]


def parse_shard(shard: str | None) -> tuple[int, int]:
    """Return i and n of the text "i/n", and 0 and 1 for None.

    Raises:
        ConfigError: it is not of this form, or i is not in 0 .. n - 1.
    """
    if shard is None:
        return 0, 1
    index, _, count = shard.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ConfigError(f"shard must be I/N with I in 0 .. N-1, such as 0/4, got {shard!r}")
    return int(index), int(count)


def read_block(block: Block, text: str, columns: Sequence[str] | None, rows: int) -> Iterator[Any]:
    """Yield the rows of a block in order, as `pyarrow.RecordBatch` of `rows` rows at most.

    Args:
        block: what to read.
        text: column of the texts; the lines of a file of lines are given this name.
        columns: further columns to read; None for all.
        rows: most rows of a batch.

    Raises:
        DataError: the file is damaged, lacks a column, or its values have no common type.
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


def open_parquet(file: StoredFile, **options: Any) -> Any:
    """Open a Parquet file and read its footer: a `pyarrow.parquet.ParquetFile`.

    Raises:
        DataError: the file is not Parquet, or is damaged or gone.
    """
    pyarrow = require("pyarrow", extra="tables", purpose="Parquet")
    parquet = require("pyarrow.parquet", extra="tables", purpose="Parquet")
    try:
        return parquet.ParquetFile(file.open_arrow(), **options)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file} is not a whole Parquet file: {error}") from error


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
