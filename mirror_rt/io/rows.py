"""Read rows in every format, by one table of suffixes: `.csv`, `.CSV` and `.csv.gz` are the same.

A new format is a line of `FORMATS`: commands, datasets and evaluation follow it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from mirror_rt.errors import ConfigError, DataError, require
from mirror_rt.io.arrow import iter_parquet, open_parquet
from mirror_rt.io.storage import StoredFile
from mirror_rt.io.text import (
    Source,
    check_columns,
    column_indices,
    iter_lines,
    numbered_csv,
    numbered_items,
    numbered_objects,
    read_whole,
)
from mirror_rt.schema import is_unicode

Names = list[str] | None
Numbered = Iterator[tuple[int, tuple[Any, ...]]]  # the number of each row, and its values
Tables = Iterator[Any]  # of `pyarrow.RecordBatch`


class RowFormat(ABC):
    """Read the rows of a file: by names of fields, or as batches of Arrow.

    Errors are DataError: the file is damaged, or lacks a field.
    """

    has_fields = True

    @abstractmethod
    def names(self, path: Source) -> list[str]:
        """Return the names of the fields."""

    @abstractmethod
    def numbered(self, path: Source, *fields: str, missing: str | None = None) -> Numbered:
        """Yield each row's number (of its line, where it has one) and its values of the fields.

        An object may lack the field `missing`, which is None then, and no other.
        """

    @abstractmethod
    def batches(self, file: StoredFile, group: int, text: str, wanted: Names, rows: int) -> Tables:
        """Yield `pyarrow.RecordBatch` of at most `rows` rows with the wanted columns (None: all).

        Values of the column `text` that are no text are null.
        """

    def groups(self, file: StoredFile) -> list[int | None]:
        """Return the number of rows of each group of rows; None where only reading tells."""
        return [None]


@dataclass(frozen=True, slots=True)
class _Lines(RowFormat):
    has_fields = False

    def names(self, path: Source) -> list[str]:
        return []

    def numbered(self, path: Source, *fields: str, missing: str | None = None) -> Numbered:
        return ((number, (line,)) for number, line in enumerate(iter_lines(path), 1))

    def batches(self, file: StoredFile, group: int, text: str, wanted: Names, rows: int) -> Tables:
        pyarrow = require("pyarrow", extra="tables", purpose="a dataset")
        if others := [name for name in wanted or () if name != text]:
            raise ConfigError(f"--columns {','.join(others)}: {file} is read as lines, which have "
                              "no columns")  # fmt: skip
        for lines in in_groups(iter_lines(file), rows):
            yield pyarrow.record_batch({text: pyarrow.array(lines, pyarrow.string())})


@dataclass(frozen=True, slots=True)
class _Objects(RowFormat):
    """A format of objects: `read` yields the number and the object of each row.

    It is given the file, and fields of which `checked_object` finds each in every row.
    """

    read: Callable[..., Iterator[tuple[int, dict[str, Any]]]]

    def names(self, path: Source) -> list[str]:
        _, first = next(self.read(path), (0, dict[str, Any]()))
        return list(first)

    def numbered(self, path: Source, *fields: str, missing: str | None = None) -> Numbered:
        for number, one in self.read(path, *(name for name in fields if name != missing)):
            yield number, tuple(one.get(name) for name in fields)

    def batches(self, file: StoredFile, group: int, text: str, wanted: Names, rows: int) -> Tables:
        """Read twice: the types of the columns follow from all of the values."""
        pyarrow = require("pyarrow", extra="tables", purpose="a dataset")

        there = False

        def groups() -> Iterator[list[dict[str, Any]]]:
            nonlocal there
            for objects in in_groups((one for _, one in self.read(file)), rows):
                for one in objects:
                    there = there or text in one
                    if not (isinstance(value := one.get(text), str) and is_unicode(value)):
                        one[text] = None  # which has no vector
                yield objects

        schema = pyarrow.schema([])
        for objects in groups():
            names = wanted or list(dict.fromkeys(name for one in objects for name in one))
            found = pyarrow.RecordBatch.from_pylist(
                [{name: one.get(name) for name in names} for one in objects]
            )
            schema = pyarrow.unify_schemas([schema, found.schema], promote_options="permissive")
        if len(schema) and not there:
            raise DataError(f"{file}: no object has the field {text!r}")
        if len(schema) and pyarrow.types.is_null(schema.field(text).type):
            schema = schema.set(schema.get_field_index(text), pyarrow.field(text, pyarrow.string()))
        for objects in groups():
            yield pyarrow.RecordBatch.from_pylist(objects, schema=schema)


@dataclass(frozen=True, slots=True)
class _Cells(RowFormat):
    """A format of cells: `read` yields the number and the cells of the header and each row."""

    read: Callable[[Source], Iterator[tuple[int, list[str]]]]

    def names(self, path: Source) -> list[str]:
        _, header = next(self.read(path), (1, list[str]()))
        return header

    def numbered(self, path: Source, *fields: str, missing: str | None = None) -> Numbered:
        rows = self.read(path)
        _, header = next(rows, (1, list[str]()))
        indices = column_indices(path, header, fields)
        for number, row in rows:
            if len(row) != len(header):
                said = f"{len(row)} cells, the header has {len(header)}"
                raise DataError(f"{path}, line {number}: {said}")
            yield number, tuple(row[i] for i in indices)

    def batches(self, file: StoredFile, group: int, text: str, wanted: Names, rows: int) -> Tables:
        pyarrow = require("pyarrow", extra="tables", purpose="a dataset")
        names = wanted or self.names(file)
        fields = list(dict.fromkeys([text, *names]))
        for cells in in_groups((row for _, row in self.numbered(file, *fields)), rows):
            columns = dict(zip(fields, zip(*cells, strict=True), strict=True))
            yield pyarrow.record_batch(
                {name: pyarrow.array(columns[name], pyarrow.string()) for name in names}
            )


@dataclass(frozen=True, slots=True)
class _Parquet(RowFormat):
    def names(self, path: Source) -> list[str]:
        with open_parquet(path) as file:
            return list(file.schema_arrow.names)

    def numbered(self, path: Source, *fields: str, missing: str | None = None) -> Numbered:
        return enumerate(iter_parquet(path, *fields), 1)

    def batches(self, file: StoredFile, group: int, text: str, wanted: Names, rows: int) -> Tables:
        with open_parquet(file) as opened:
            column_indices(file, opened.schema_arrow.names, wanted or [text])
            yield from opened.iter_batches(rows, row_groups=[group], columns=wanted)

    def groups(self, file: StoredFile) -> list[int | None]:
        with open_parquet(file) as opened:
            metadata = opened.metadata
            return [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]


_TSV = _Cells(
    lambda path: ((n, line.split("\t")) for n, line in enumerate(iter_lines(path), 1) if line)
)
# Files of other names have a text on each line.
FORMATS: dict[str, RowFormat] = {
    ".jsonl": _Objects(numbered_objects),
    ".ndjson": _Objects(numbered_objects),
    ".json": _Objects(numbered_items),
    ".csv": _Cells(numbered_csv),  # with quotes
    ".tsv": _TSV,  # without quotes
    ".parquet": _Parquet(),
    ".txt": _Lines(),
}
# Metadata beside the files of a dataset, as the library datasets takes them for.
METADATA = ("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json",
            "state.json")  # fmt: skip
WITH_FIELDS = ", ".join(suffix for suffix, one in FORMATS.items() if one.has_fields)


def row_suffix(path: Source) -> str:
    """Return the suffix that tells the format, in small letters and without `.gz`."""
    name = path.name if isinstance(path, StoredFile) else str(path)
    return Path(name.lower().removesuffix(".gz")).suffix


def row_format(path: Source, *asked: tuple[str, str | None]) -> RowFormat:
    """Return the format of a file by its name; "-" is standard input, which is read as lines.

    `asked` are names and values of options that choose fields, None where an option is not given;
    for a file of lines, one that is given is a ConfigError. Parquet within `.gz` is a DataError.
    """
    found = FORMATS.get(row_suffix(path), FORMATS[".txt"])
    if isinstance(found, _Parquet) and str(path).lower().endswith(".gz"):
        raise DataError(f"{path}: Parquet is packed by itself, unpack the file with gunzip first")
    given = [f"{name} {value}" for name, value in asked if value is not None]
    if given and not found.has_fields:
        raise ConfigError(
            f"{' and '.join(given)}: {path} is read as lines, which have no fields; give a file "
            f"in {WITH_FIELDS}"
        )
    return found


@dataclass(frozen=True, slots=True)
class Table:
    """A table: a header, and rows with a cell for each column."""

    path: Path  # path of the file
    header: list[str]  # column names, all different
    rows: list[list[str]]  # cells of each row
    lines: list[int]  # line number of each row in the file

    def column(self, name: str) -> list[str]:
        """Return the cells of one column; raise DataError if the header lacks it."""
        if name not in self.header:
            raise DataError(f"{self.path} has no column {name!r}, only {', '.join(self.header)}")
        index = self.header.index(name)
        return [row[index] for row in self.rows]


@read_whole
def read_table(path: Path) -> Table:
    """Read a table with names of columns; a file of no format of `FORMATS` is plain TSV."""
    found = row_format(path)
    found = found if found.has_fields else _TSV
    header = found.names(path)
    if not header:
        raise DataError(f"{path} is empty: expected a header and rows")
    check_columns(path, header)
    if len(header) > len(counts := Counter(header)):
        repeated = min(name for name, count in counts.items() if count > 1)
        raise DataError(f"{path} has the column {repeated!r} more than once")
    rows = list(found.numbered(path, *header))
    cells = [["" if value is None else str(value) for value in row] for _, row in rows]
    return Table(path, header, cells, [number for number, _ in rows])


@read_whole
def read_texts(path: Source, most: int | None = None) -> list[str]:
    """Read the texts that are not blank, or the first `most`: lines, or the field `text`."""
    found = row_format(path)
    texts = list(islice(filter(str.strip, _texts(path, found)), most))
    if not texts:
        raise DataError(f"{path} holds no texts")
    return texts


def _texts(path: Source, found: RowFormat) -> Iterator[str]:
    for number, (text,) in found.numbered(path, "text"):
        if not isinstance(text, str):
            raise DataError(f"{path}, line {number}: the field 'text' is {text!r:.60}, no string")
        yield text


def in_groups(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of `size` items, the last of fewer."""
    stream = iter(items)
    while group := list(islice(stream, size)):
        yield group


def files_of_rows(names: Iterable[str]) -> list[str]:
    """Return the names of files of rows among those of a folder, without metadata."""
    return [name for name in names
            if row_suffix(name) in FORMATS and name.rsplit("/", 1)[-1] not in METADATA]  # fmt: skip
