"""Define what every output of vectors does, whatever its format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

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
        summary: numbers of all rows and of invalid ones, dimension and dtype; empty at first.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.summary: dict[str, Any] = {}

    def write(self, vectors: Embeddings, ids: Ids | None = None) -> None:
        """Append [n, D] and the ids of the rows (None to number them).

        A row of NaN stands for a text that could not be encoded.
        """
        self._write(vectors, range(self.rows, self.rows + len(vectors)) if ids is None else ids)
        self.rows += len(vectors)
        invalid = self.summary.get("invalid", 0) + int(np.count_nonzero(invalid_rows(vectors)))
        self.summary = {"rows": self.rows, "invalid": invalid}
        self.summary |= {"dimension": vectors.shape[1], "dtype": str(vectors.dtype)}

    @abstractmethod
    def _write(self, vectors: Embeddings, ids: Ids) -> None:
        """Append [n, D] and the ids."""

    def finish(self) -> None:  # noqa: B027  # most formats have no end
        """Complete the file."""
