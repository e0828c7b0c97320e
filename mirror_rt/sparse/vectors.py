"""Hold sparse vectors: the indices and the values of the numbers that are not 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int32]
Values = npt.NDArray[np.float32]


class SparseVector(NamedTuple):
    """A sparse vector.

    Attributes:
        indices: int32 [k], ascending.
        values: float32 [k].
    """

    indices: Indices
    values: Values

    def as_dict(self) -> dict[str, list[Any]]:
        """Return `indices` and `values` as lists, as Qdrant's `SparseVector` takes them."""
        return {"indices": self.indices.tolist(), "values": self.values.tolist()}

    def above(self, threshold: float) -> SparseVector:
        """Return the values that are further from 0 than a threshold."""
        kept = np.abs(self.values) > threshold
        return SparseVector(self.indices[kept], self.values[kept])

    def strongest(self, count: int | None) -> SparseVector:
        """Return the `count` largest values, the first of equal ones; all for None."""
        if count is None or len(self.indices) <= count:
            return self
        kept = np.sort(np.argsort(-np.abs(self.values), kind="stable")[:count])
        return SparseVector(self.indices[kept], self.values[kept])


@dataclass(frozen=True, slots=True, eq=False)
class SparseVectors(Sequence[SparseVector]):
    """Sparse vectors of n texts, in the form of compressed sparse rows (CSR).

    `scipy.sparse.csr_array((v.values, v.indices, v.indptr), shape=v.shape)` takes them as they are.

    Attributes:
        indptr: int64 [n + 1]; text i has the numbers from `indptr[i]` to `indptr[i + 1]`.
        indices: int32, the words of all texts, ascending in each.
        values: float32, their weights.
        size: V, the number of words.
    """

    indptr: npt.NDArray[np.int64]
    indices: Indices
    values: Values
    size: int

    @classmethod
    def join(cls, rows: Sequence[SparseVector], size: int) -> SparseVectors:
        """Join the vectors of texts."""
        ends = np.cumsum([0, *(len(row.indices) for row in rows)], dtype=np.int64)
        none = SparseVector(np.empty(0, np.int32), np.empty(0, np.float32))
        indices, values = (np.concatenate(parts) for parts in zip(none, *rows, strict=True))
        return cls(ends, indices, values, size)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of texts and of words."""
        return len(self), self.size

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.join([self[i] for i in range(*index.indices(len(self)))], self.size)
        begin, end = self.indptr[range(len(self))[index] + np.arange(2)]
        return SparseVector(self.indices[begin:end], self.values[begin:end])

    def __iter__(self) -> Iterator[SparseVector]:
        return (cast(SparseVector, self[i]) for i in range(len(self)))

    def as_dict(self) -> list[dict[str, list[Any]]]:
        """Return each vector as `SparseVector.as_dict` does."""
        return [row.as_dict() for row in self]

    def toarray(self) -> Values:
        """Return dense vectors, float32 [n, V]."""
        dense = np.zeros(self.shape, np.float32)
        dense[np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.indices] = self.values
        return dense

    def dot(self, other: SparseVectors) -> Values:
        """Return the dot products of all rows with those of `other`: float32 [n, m]."""
        found = np.empty((len(self), len(other)), np.float32)
        dense = np.zeros(self.size, np.float32)
        sums = np.zeros(len(self.values) + 1)
        for column, row in enumerate(other):
            dense[row.indices] = row.values
            np.cumsum(self.values * dense[self.indices], dtype=np.float64, out=sums[1:])
            found[:, column] = sums[self.indptr[1:]] - sums[self.indptr[:-1]]
            dense[row.indices] = 0
        return found


def strongest_words(weights: Values, threshold: float, count: int | None) -> list[SparseVector]:
    """Take of each row [b, V] the words that weigh more than `threshold`, at most `count`."""
    found = []
    for row in weights:
        indices = np.flatnonzero(row).astype(np.int32)
        found.append(SparseVector(indices, row[indices]).above(threshold).strongest(count))
    return found
