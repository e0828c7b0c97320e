"""Write a stream of vectors with ids to .npy, JSON lines, Arrow or Parquet files."""

from __future__ import annotations

import contextlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError, require
from mirror_rt.io.arrow import vector_array
from mirror_rt.io.atomic import new_file

# float32, float16, int8 or uint8 [n, D].
Embeddings = npt.NDArray[Any]
Ids = Sequence[int | str]


def invalid_rows(vectors: Embeddings) -> npt.NDArray[np.bool_]:
    """Return bool [n]: which rows are NaN, because their text could not be encoded."""
    if vectors.dtype.kind != "f":
        return np.zeros(len(vectors), dtype=np.bool_)
    return np.isnan(vectors[:, 0])


class VectorSink(ABC):
    """An output to which rows of vectors are written as they come, all of one dtype and length.

    Attributes:
        rows: number of rows so far.
        summary: dimension and dtype; empty at first.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.rows = 0
        self.summary: dict[str, Any] = {}

    def write(self, vectors: Embeddings, ids: Ids | None = None) -> None:
        """Append [n, D] and the ids of the rows (None to number them).

        A row of NaN stands for a text that could not be encoded.
        """
        self._write(vectors, range(self.rows, self.rows + len(vectors)) if ids is None else ids)
        self.rows += len(vectors)
        self.summary = {"dimension": vectors.shape[1], "dtype": str(vectors.dtype)}

    @abstractmethod
    def _write(self, vectors: Embeddings, ids: Ids) -> None:
        """Append [n, D] and the ids."""

    def finish(self) -> None:  # noqa: B027  # most formats have no end
        """Complete the file."""


class NpySink(VectorSink):
    """A .npy file of one array [rows, D], and a file of the ids, if wanted: a JSON value a line."""

    def __init__(self, file: IO[bytes], ids: IO[bytes] | None = None) -> None:
        super().__init__(file)
        self._ids = ids
        self._header: dict[str, Any] = {}

    def _write(self, vectors: Embeddings, ids: Ids) -> None:
        if not self._header:
            descr = vectors.dtype.newbyteorder("<").str
            self._header = {"descr": descr, "fortran_order": False, "shape": vectors.shape}
            self._write_header(0)
        self._file.write(np.ascontiguousarray(vectors, dtype=self._header["descr"]).data)
        if self._ids is not None:
            self._ids.write("".join(f"{json.dumps(name)}\n" for name in ids).encode())

    def finish(self) -> None:
        """Write the header again, now with the number of rows."""
        self._file.seek(0)
        self._write_header(self.rows)

    def _write_header(self, rows: int) -> None:
        # numpy pads the header, so that the first axis can grow to 21 digits without moving data.
        header = self._header | {"shape": (rows, *self._header["shape"][1:])}
        np.lib.format.write_array_header_1_0(self._file, header)


class JsonlSink(VectorSink):
    """A file with a line {"index": i, "embedding": [...]} for each row; null for a row of NaN.

    The key is "index" if the row's id is its number, else "id". Rows of several arrays, or of
    several vectors, have them by their names (`write_fields`).
    """

    def __init__(self, file: IO[bytes], key: str) -> None:
        super().__init__(file)
        self._key = json.dumps(key)

    def _write(self, vectors: Embeddings, ids: Ids) -> None:
        for row, name, invalid in zip(vectors, ids, invalid_rows(vectors), strict=True):
            self._write_line(name, {"embedding": "null" if invalid else _numbers(row)})
        self._file.flush()

    def write_fields(
        self, rows: Sequence[Mapping[str, npt.NDArray[Any]]], ids: Ids | None = None
    ) -> None:
        """Append rows of arrays [k] or [t, D] by their names, with ids as for `write`."""
        numbered = range(self.rows, self.rows + len(rows)) if ids is None else ids
        for row, name in zip(rows, numbered, strict=True):
            self._write_line(name, {field: _numbers(array) for field, array in row.items()})
        self._file.flush()
        self.rows += len(rows)

    def _write_line(self, name: int | str, fields: Mapping[str, str]) -> None:
        shown = "".join(f', "{field}": {numbers}' for field, numbers in fields.items())
        self._file.write(f"{{{self._key}: {json.dumps(name)}{shown}}}\n".encode())


def _numbers(array: npt.NDArray[Any]) -> str:
    """Return an array as JSON: str of a numpy number is its shortest exact form."""
    return f"[{', '.join(map(_numbers if array.ndim > 1 else str, array))}]"


class TableSink(VectorSink):
    """A table of columns `id` (int64 or string) and `embedding` (D numbers, or null for NaN).

    The file is in Parquet, with a row group for each call of `write`; or in Arrow IPC (Feather
    version 2), which can be mapped into memory.
    """

    def __init__(self, file: IO[bytes], *, parquet: bool) -> None:
        super().__init__(file)
        self._pyarrow = require("pyarrow", extra="tables", purpose="Parquet or Arrow")
        self._parquet = parquet
        self._writer: Any = None

    def _write(self, vectors: Embeddings, ids: Ids) -> None:
        pyarrow = self._pyarrow
        if isinstance(ids, range):
            names = pyarrow.array(np.arange(ids.start, ids.stop))
        else:
            kind = pyarrow.int64() if len(ids) and isinstance(ids[0], int) else pyarrow.string()
            names = pyarrow.array(ids, type=kind)
        rows = vector_array(vectors, invalid_rows(vectors))
        batch = pyarrow.record_batch({"id": names, "embedding": rows})
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


def output_files(path: Path, *, with_ids: bool) -> list[Path]:
    """Return the files of an output: `path`, and also NAME.ids.jsonl for a .npy with ids.

    ConfigError says that the suffix is not one of the formats.
    """
    if path.suffix not in _KINDS:
        raise ConfigError(f"--output {path}: expected a name in {', '.join(_KINDS)}, or -")
    companion = [path.with_suffix(".ids.jsonl")] if with_ids and path.suffix == ".npy" else []
    return [path, *companion]


@contextlib.contextmanager
def open_sink(path: str | Path, *, overwrite: bool, with_ids: bool = False) -> Iterator[VectorSink]:
    """Open an output whose name tells its format; "-" is JSON lines on standard output.

    A file appears under its name only when the block ends without an error. `with_ids` says whether
    rows have ids of their own, or are just numbered.
    """
    key = "id" if with_ids else "index"
    if str(path) == "-":
        yield JsonlSink(sys.stdout.buffer, key)
        return
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(new_file(file, overwrite=overwrite))
            for file in output_files(Path(path), with_ids=with_ids)
        ]
        sink = _KINDS[Path(path).suffix](files, key)
        yield sink
        sink.finish()


_KINDS: dict[str, Callable[[list[IO[bytes]], str], VectorSink]] = {
    ".npy": lambda files, _: NpySink(*files),
    ".jsonl": lambda files, key: JsonlSink(files[0], key),
    ".parquet": lambda files, _: TableSink(files[0], parquet=True),
    ".arrow": lambda files, _: TableSink(files[0], parquet=False),
    ".feather": lambda files, _: TableSink(files[0], parquet=False),
}
