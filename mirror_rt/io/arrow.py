"""Read Parquet files, and make Arrow's arrays of vectors (with pyarrow, extra `tables`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError, require
from mirror_rt.io.text import Source, column_indices

# The number of rows to decode at a time; a row group may be much larger.
_BATCH_ROWS = 4096


def open_parquet(source: Source, **options: Any) -> Any:
    """Open a Parquet file and read its footer: a `pyarrow.parquet.ParquetFile`.

    DataError says that there is no such file, or that it is not Parquet or was cut off.
    """
    pyarrow = require("pyarrow", extra="tables", purpose="Parquet")
    parquet = require("pyarrow.parquet", extra="tables", purpose="Parquet")
    if isinstance(source, Path | str) and not (path := Path(source)).is_file():
        raise DataError(f"{path} is a folder" if path.is_dir() else f"{path}: no such file")
    try:
        file = source if isinstance(source, Path | str) else source.open_arrow()
        return parquet.ParquetFile(file, **options)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:  # of a column's name
        raise DataError(f"{source} is not a Parquet file, or was cut off: {error}") from error


def iter_parquet(path: Source, *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield the values (str, int or None) of the named columns, for every row.

    DataError says that the file is damaged, that a column is missing or has another type than
    string or integer, or which row has a string that is not UTF-8.
    """
    pyarrow = require("pyarrow", extra="tables", purpose="Parquet")
    with open_parquet(path) as file:
        schema = file.schema_arrow
        column_indices(path, schema.names, columns)
        for column in columns:
            kind = schema.field(column).type
            if not (holds_texts(kind) or pyarrow.types.is_integer(kind)):
                raise DataError(
                    f"{path}: the column {column!r} is of type {kind}, expected string (or "
                    "integer, for an id)"
                )
        try:
            start = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=list(columns)):
                values = [_values(path, batch, column, start) for column in columns]
                yield from zip(*values, strict=True)
                start += batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(f"{path} is damaged: {error}") from error


def _values(path: Source, batch: Any, column: str, start: int) -> list[Any]:
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
    types = require("pyarrow", extra="tables", purpose="a table").types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(is_text or types.is_null(kind))


def vector_array(vectors: npt.NDArray[Any], invalid: npt.NDArray[np.bool_]) -> Any:
    """Return an Arrow array of lists of fixed size for vectors [n, D]; null for invalid rows."""
    pyarrow = require("pyarrow", extra="tables", purpose="a table of vectors")
    flat = pyarrow.array(np.ascontiguousarray(vectors).reshape(-1))
    mask = pyarrow.array(invalid)
    return pyarrow.FixedSizeListArray.from_arrays(flat, vectors.shape[1], mask=mask)
