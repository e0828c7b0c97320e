"""Write a stream of vectors with ids to .npy, JSON lines, Arrow or Parquet files."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from mirror_rt.errors import ConfigError
from mirror_rt.io.arrow import TableSink
from mirror_rt.io.atomic import new_file
from mirror_rt.io.sink import Embeddings, Ids, VectorSink, invalid_rows


class NpySink(VectorSink):
    """A .npy file of one array [rows, D], and a file of the ids, if wanted: a JSON value a line."""

    def __init__(self, file: IO[bytes], ids: IO[bytes] | None = None) -> None:
        super().__init__()
        self._file = file
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

    The key is "index" if the row's id is its number, else "id".
    """

    def __init__(self, file: IO[bytes], key: str) -> None:
        super().__init__()
        self._file = file
        self._key = json.dumps(key)

    def _write(self, vectors: Embeddings, ids: Ids) -> None:
        for row, name, invalid in zip(vectors, ids, invalid_rows(vectors), strict=True):
            # str of a numpy number is its shortest exact form, and is valid JSON.
            numbers = "null" if invalid else f"[{', '.join(map(str, row))}]"
            line = f'{{{self._key}: {json.dumps(name)}, "embedding": {numbers}}}\n'
            self._file.write(line.encode())
        self._file.flush()


def output_files(path: Path, *, with_ids: bool) -> list[Path]:
    """Return the files of an output: `path`, and also NAME.ids.jsonl for a .npy with ids.

    Raises:
        ConfigError: the suffix is not .npy, .jsonl, .parquet, .arrow or .feather.
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

    Raises:
        ConfigError: the suffix is unknown.
        OutputExistsError: a file exists and `overwrite` is False.
        MissingDependencyError: the format is Parquet or Arrow, and pyarrow is not installed.
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
