"""Read the input of jobs: texts with ids from a file, and tables from the blocks of a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice, tee
from pathlib import Path
from typing import Any

import numpy as np

from mirror_rt.bulk.options import JobConfig
from mirror_rt.errors import DataError, require
from mirror_rt.io.arrow import open_parquet
from mirror_rt.io.rows import FORMATS, files_of_rows, row_format, row_suffix
from mirror_rt.io.storage import Folder, StoredFile, find_files
from mirror_rt.schema import is_unicode
from mirror_rt.system import names_trouble
from mirror_rt.tokens.windows import TextWindow, text_windows

_FOOTERS_AT_A_TIME = 16


def iter_records(
    path: str, text_field: str, id_field: str | None, *, strict: bool = True
) -> Iterator[tuple[Any, ...]]:
    """Yield (text,) or (text, id) for every row of a file; "-" stands for standard input's lines.

    The suffix tells the format (`mirror_rt.io.rows.FORMATS`); anything else is read as lines. A
    JSON object without a text has the text None, unless that is an error (`strict`).
    """
    asked = ("--text-field", None if text_field == JobConfig.text_field else text_field)
    found = row_format(path, asked, ("--id-field", id_field))
    fields = (text_field,) if id_field is None else (text_field, id_field)
    rows = (
        values
        for _, values in found.numbered(path, *fields, missing=None if strict else text_field)
    )
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


def count_records(path: str) -> int | None:
    """Return about how many texts a file holds: its lines, or its rows of a table.

    This is for a progress bar: blank lines count, and stray quotes mislead it. It reads GB/s. None
    for a file of which only reading tells, such as one that is packed.
    """
    suffix = row_suffix(path)
    if path.lower().endswith(".gz") or suffix == ".json":
        return None
    if suffix == ".parquet":
        with open_parquet(path) as table:
            return int(table.metadata.num_rows)
    quoted = suffix == ".csv"
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
    return max(0, count - 1) if suffix in (".csv", ".tsv") else count


@dataclass(frozen=True, slots=True)
class Block:
    """A row group of a Parquet file, or a whole file of another format."""

    file: StoredFile
    group: int  # number of the row group; 0 for a whole file
    rows: int | None  # number of rows; None where only reading tells

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
    files = find_files(where, FORMATS, files_of_rows, outside=outside)
    with ThreadPoolExecutor(_FOOTERS_AT_A_TIME) as pool:
        groups = pool.map(lambda file: list(row_format(file).groups(file)), files)
        blocks = [
            Block(file, i, rows)
            for file, counts in zip(files, groups, strict=True)
            for i, rows in enumerate(counts)
        ]
    parts = [block.part for block in blocks]
    if outside.local is not None and (trouble := names_trouble(parts, outside.local)):
        raise DataError(f"the vectors of {where} cannot be written to {outside}: {trouble}")
    return blocks


def read_block(block: Block, text: str, columns: Sequence[str] | None, rows: int) -> Iterator[Any]:
    """Yield the rows of a block in order, as `pyarrow.RecordBatch` of `rows` rows at most.

    The column `text` has the texts, or the lines of a file of lines; `columns` are further ones to
    read, None for all. A file that is damaged, lacks a column, or has values without a common type
    is a DataError.
    """
    pyarrow = require("pyarrow", extra="tables", purpose="a dataset")
    wanted = None if columns is None else list(dict.fromkeys([text, *columns]))
    file = block.file
    try:
        yield from row_format(file).batches(file, block.group, text, wanted, rows)
    except (pyarrow.ArrowException, OSError, OverflowError, UnicodeEncodeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
