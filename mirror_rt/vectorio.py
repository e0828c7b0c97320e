"""Streaming output of vectors: .npy of any number of rows, and JSON lines."""

from __future__ import annotations

import contextlib
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.files import new_file

__all__ = ["VectorSink", "open_sink"]

Vectors = npt.NDArray[np.float32]


class VectorSink(ABC):
    """Rows of vectors, written as they come."""

    def __init__(self, file: IO[bytes], dimension: int) -> None:
        self._file = file
        self._dimension = dimension
        self.rows = 0

    @abstractmethod
    def write(self, vectors: Vectors) -> None:
        """Append float32 [n, D]; a row of NaN stands for a text that could not be encoded."""

    def finish(self) -> None:
        """Complete the file."""
        self._file.flush()


class NpySink(VectorSink):
    """One float32 array [rows, D]; the row count in the header is filled in at the end."""

    def __init__(self, file: IO[bytes], dimension: int) -> None:
        super().__init__(file, dimension)
        self._write_header()

    def write(self, vectors: Vectors) -> None:
        """Append float32 [n, D]."""
        self._file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
        self.rows += len(vectors)

    def finish(self) -> None:
        """Write the header again, now with the number of rows."""
        self._file.seek(0)
        self._write_header()
        super().finish()

    def _write_header(self) -> None:
        # numpy pads the header so that the first axis can grow to 21 digits in place.
        shape = (self.rows, self._dimension)
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, header)


class JsonlSink(VectorSink):
    """A line {"index": i, "embedding": [...]} for each row; null for a row of NaN."""

    def write(self, vectors: Vectors) -> None:
        """Append float32 [n, D]."""
        for row in vectors:
            # str of a float32 is its shortest exact form, and valid JSON.
            numbers = "null" if np.isnan(row[0]) else f"[{', '.join(map(str, row))}]"
            line = f'{{"index": {json.dumps(self.rows)}, "embedding": {numbers}}}\n'
            self._file.write(line.encode())
            self.rows += 1
        self._file.flush()


@contextlib.contextmanager
def open_sink(path: str, dimension: int, *, overwrite: bool) -> Iterator[VectorSink]:
    """Open an output by its name: FILE.npy, FILE.jsonl, or "-" for JSON lines on stdout.

    A file appears under its name only when the block ends without error.

    Raises:
        ConfigError: another suffix.
        OutputExistsError: it exists and `overwrite` is False.
    """
    if path == "-":
        sink: VectorSink = JsonlSink(sys.stdout.buffer, dimension)
        yield sink
        sink.finish()
        return
    kinds: dict[str, type[VectorSink]] = {".npy": NpySink, ".jsonl": JsonlSink}
    kind = kinds.get(Path(path).suffix)
    if kind is None:
        raise ConfigError(f"--output {path}: expected a name in .npy or .jsonl, or -")
    with new_file(Path(path), overwrite=overwrite) as file:
        sink = kind(file, dimension)
        yield sink
        sink.finish()
