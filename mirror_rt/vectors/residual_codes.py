"""Keep token vectors as the index of ColBERTv2 does, and score them (csrc/vector_ops/maxsim.cpp).

A vector is the number of its nearest centroid, and of what is left 1, 2 or 4 bits a dimension: the
number of a bucket, for which a weight stands (Santhanam et al.: ColBERTv2, 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.errors import ConfigError
from mirror_rt.vectors.maxsim import Floats, check_shapes, checked_query, threads_for
from mirror_rt.vectors.normalization import normalize_rows

Codes = npt.NDArray[np.uint8]
_ROUNDS = 4  # of k-means, as in ColBERT's indexer
_ROWS = 4096  # of vectors that are compared with all centroids at a time


@dataclass(frozen=True, slots=True, eq=False)
class ResidualCodec:
    """Encode token vectors, and score documents by their codes.

    `train` makes one as ColBERT's indexer does; the arrays of an index may be given as well.

    Attributes:
        centroids: float [K, D].
        cutoffs: float [2 ** bits - 1], the bounds of the buckets, rising.
        weights: float [2 ** bits], what stands for a residual of each bucket.

    Raises:
        ConfigError: an array has another shape, or D * bits is no multiple of 8.
    """

    centroids: Floats
    cutoffs: Floats
    weights: Floats

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            object.__setattr__(self, name, np.ascontiguousarray(getattr(self, name), np.float32))
        shapes = [one.shape for one in (self.centroids, self.cutoffs, self.weights)]
        buckets = 1 << self.bits
        whole = len(shapes[0]) == 2 and shapes[0][1] * self.bits % 8 == 0
        if not whole or self.bits not in (1, 2, 4) or shapes[1:] != [(buckets - 1,), (buckets,)]:
            expected = "[K, D], [2 ** bits - 1] and [2 ** bits] for 1, 2 or 4 bits, whole bytes"
            raise ConfigError(f"centroids, cutoffs and weights are {shapes}, expected {expected}")

    @property
    def bits(self) -> int:
        """The number of bits of a dimension."""
        return self.weights.size.bit_length() - 1

    @classmethod
    def train(
        cls, vectors: Floats, bits: int = 2, *, centroids: int | None = None, seed: int = 0
    ) -> ResidualCodec:
        """Train a codec on a sample of token vectors, of unit length, by spherical k-means.

        Args:
            vectors: float [n, D], of which a twentieth is held out for the buckets.
            bits: 1, 2 or 4.
            centroids: their number; by default, as in ColBERT, the power of 2 up to 16 sqrt(n).
            seed: of the draws.
        """
        rows = np.random.default_rng(seed).permutation(checked_query(0, vectors))
        held, rest = np.split(rows, [-(-len(rows) // 20)])
        count = 1 << int(np.log2(1 + 16 * len(rows) ** 0.5)) if centroids is None else centroids
        if not len(rest) or count < 1 or bits not in (1, 2, 4):
            expected = "2 vectors or more, 1, 2 or 4 bits, and a centroid or more"
            raise ConfigError(f"expected {expected}, got {rows.shape}, {bits} and {count}")
        found = rest[:count].copy()
        for _ in range(_ROUNDS):
            nearest = _nearest(rest, found)
            order = np.argsort(nearest, kind="stable")
            kept, starts = np.unique(nearest[order], return_index=True)
            found[kept] = normalize_rows(np.add.reduceat(rest[order], starts))
        left, parts = held - found[_nearest(held, found)], np.arange(1 << bits) / (1 << bits)
        cutoffs, weights = np.quantile(left, parts[1:]), np.quantile(left, parts + 0.5 / len(parts))
        return cls(found, cutoffs, weights)

    def compress(self, vectors: Floats) -> Codes:
        """Encode the token vectors of a document, float [t, D] of unit length.

        Returns:
            uint8 [t, 4 + D * bits / 8]: the number of a centroid as an int32, and the residuals as
            ColBERT packs them, the first dimension in the highest bits of a byte, and of a bucket's
            number the lowest bit first.
        """
        rows = checked_query(0, vectors)
        check_shapes([rows], self.centroids.shape[1])
        nearest = _nearest(rows, self.centroids)
        buckets = np.searchsorted(self.cutoffs, rows - self.centroids[nearest]).astype(np.uint8)
        bits = buckets[..., None] >> np.arange(self.bits, dtype=np.uint8) & 1
        packed = np.packbits(bits.reshape(len(rows), rows.shape[1] * self.bits), axis=1)
        return np.concatenate([nearest[:, None].view(np.uint8), packed], axis=1)

    def decompress(self, document: Codes) -> Floats:
        """Return the vectors that a document stands for, float32 [t, D] of unit length."""
        nearest = self.centroids[np.ascontiguousarray(document[:, :4]).view(np.int32)[:, 0]]
        left = self._table()[document[:, 4:]].reshape(nearest.shape)
        return np.asarray(normalize_rows(nearest + left))

    def maxsim(self, queries: Sequence[npt.NDArray[Any]], documents: Sequence[Codes]) -> Floats:
        """Score coded documents as `mirror_rt.vectors.maxsim.maxsim` would, decompressed.

        Each thread decompresses 48 tokens at a time. Documents may be views of one array on disk.

        Raises:
            ConfigError: a document is not of this codec, or a query no finite [t, D].
        """
        asked = [checked_query(number, one) for number, one in enumerate(queries)]
        given, threads = list(documents), threads_for(asked, documents)
        try:
            return _core.residual_similarities(
                asked, given, self.centroids, self._table(), threads=threads
            )
        except (TypeError, ValueError) as error:
            raise ConfigError(f"queries or documents are not of this codec: {error}") from error

    def _table(self) -> Floats:
        """Return the weights of the residuals in each byte: float32 [256, 8 / bits]."""
        every = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)
        return self.weights[every.reshape(256, -1, self.bits) @ (1 << np.arange(self.bits))]


def _nearest(vectors: Floats, centroids: Floats) -> npt.NDArray[np.int32]:
    """Return the number of the centroid of the largest product with each vector."""
    starts = range(0, len(vectors), _ROWS)
    found = [np.argmax(vectors[i : i + _ROWS] @ centroids.T, axis=1) for i in starts]
    return np.concatenate([np.empty(0, np.int32), *found]).astype(np.int32)
