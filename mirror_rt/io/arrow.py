"""Read Parquet files; write Parquet and Arrow files (with pyarrow, extra `tables`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError, require
from mirror_rt.io.sink import Embeddings, Ids, VectorSink, invalid_rows
from mirror_rt.io.text import column_indices

# The number of rows to decode at a time; a row group may be much larger.
_BATCH_ROWS = 4096


def _pyarrow() -> Any:
    return require("pyarrow", extra="tables", purpose="Parquet or Arrow")


def _open_parquet(path: Path) -> Any:
    pyarrow = _pyarrow()
    parquet = require("pyarrow.parquet", extra="tables", purpose="Parquet")
    if not path.is_file():
        raise DataError(f"{path} is a folder" if path.is_dir() else f"{path}: no such file")
    try:
        return parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a Parquet file: {error}") from error


def count_parquet(path: Path) -> int:
    """Return the number of rows of a Parquet file, from its metadata."""
    with _open_parquet(path) as file:
        return int(file.metadata.num_rows)


def iter_parquet(path: Path, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values (str, int or None) of the named columns, for every row.

    Raises:
        DataError: the file is not Parquet or is damaged, a column is missing or has another type
            than string or integer, or a string is not UTF-8 (the error names its row).
        MissingDependencyError: pyarrow is not installed.
    """
    pyarrow = _pyarrow()
    with _open_parquet(path) as file:
        schema = file.schema_arrow
        column_indices(path, schema.names, columns)
        for column in columns:
            _check_type(path, schema.field(column), pyarrow.types)
        try:
            start = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns)):
                values = [_values(path, batch, column, start) for column in columns]
                yield from zip(*values, strict=True)
                start += batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path} is damaged: {error}") from error


def _values(path: Path, batch: Any, column: str, start: int) -> list[Any]:
    """Return the values of a column of a batch that begins at row `start` (from 0) of the file."""
    values = batch.column(column)
    try:
        return list(values.to_pylist())
    except UnicodeDecodeError:  # pyarrow does not check that strings are UTF-8 when it reads them
        for row, value in enumerate(values, start + 1):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, row {row}: the column {column!r} is not UTF-8 (byte "
                    f"0x{error.object[error.start]:02x} at position {error.start})"
                ) from error
        raise


def holds_texts(kind: Any) -> bool:
    """Return whether a column of an Arrow type can hold texts; one of nulls alone can."""
    types = _pyarrow().types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(is_text or types.is_null(kind))


def _check_type(path: Path, field: Any, types: Any) -> None:
    if not (holds_texts(field.type) or types.is_integer(field.type)):
        raise DataError(
            f"{path}: the column {field.name!r} is of type {field.type}, expected string (or "
            "integer, for an id)"
        )


def vector_array(vectors: Embeddings, invalid: npt.NDArray[np.bool_]) -> Any:
    """Return an Arrow array of lists of fixed size for vectors [n, D]; null for invalid rows."""
    pyarrow = _pyarrow()
    flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    mask = pyarrow.array(invalid)
    return pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=mask)


class TableSink(VectorSink):
    """A table of columns `id` (int64 or string) and `embedding` (D numbers, or null for NaN).

    The file is in Parquet, with a row group for each call of `write`; or in Arrow IPC (Feather
    version 2), which can be mapped into memory.
    """

    def __init__(self, file: IO[bytes], *, parquet: bool) -> None:
        super().__init__()
        self._pyarrow = _pyarrow()
        self._file = file
        self._parquet = parquet
        self._writer: Any = None

    def _write(self, vectors: Embeddings, ids: Ids) -> None:
        pyarrow = self._pyarrow
        rows = vector_array(vectors, invalid_rows(vectors))
        batch = pyarrow.record_batch({"id": _id_array(pyarrow, ids), "embedding": rows})
        if self._writer is None:
            self._writer = self._open(batch.schema)
        self._writer.write_batch(batch)

    def _open(self, schema: Any) -> Any:
        if not self._parquet:
            return self._pyarrow.ipc.new_file(self._file, schema)
        parquet = require("pyarrow.parquet", extra="tables", purpose="Parquet")
        # A dictionary or compression would not help, because the numbers hardly ever repeat.
        compression = {"id": "zstd", "embedding.list.element": "none"}
        return parquet.ParquetWriter(
            self._file, schema, use_dictionary=False, compression=compression
        )

    def finish(self) -> None:
        """Write the footer."""
        if self._writer is not None:
            self._writer.close()


def _id_array(pyarrow: Any, ids: Sequence[int | str]) -> Any:
    if isinstance(ids, range):
        return pyarrow.array(np.arange(ids.start, ids.stop))
    kind = pyarrow.int64() if len(ids) and isinstance(ids[0], int) else pyarrow.string()
    return pyarrow.array(ids, type=kind)
