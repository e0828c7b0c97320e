"""Find the rows that have to run: equal ones once, and none that a cache of vectors has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mirror_rt.pipeline.results import Indices, Vectors
from mirror_rt.tokens.chunking import TokenRows
from mirror_rt.tokens.padding import RaggedTokens

if TYPE_CHECKING:
    from mirror_rt.inference.vector_cache import VectorCache


class RowsToRun:
    """The rows of tokens of a window, and which of them have to run.

    Attributes:
        first: int64 [m], the first row that is equal to each row; None if all differ.
        found: pooled vectors that the cache has, float32 [D], by the first row that has them.
        rows: int64, the others that are first.
    """

    def __init__(self, tokens: RaggedTokens, cache: VectorCache | None = None) -> None:
        self._keys, self._cache = tokens.keys(), cache
        places: dict[bytes, int] = {}
        first = [places.setdefault(key, row) for row, key in enumerate(self._keys)]
        self.first = None if len(places) == len(first) else np.array(first)
        self.rows = np.array(list(places.values()), np.int64)
        self.found: dict[int, Vectors] = {}
        if cache is not None:
            found = cache.find(list(places))
            self.found = {int(self.rows[i]): vector for i, vector in found.items()}
            self.rows = np.delete(self.rows, list(found))

    def store(self, rows: Indices, vectors: Vectors) -> None:
        """Give the cache, if there is one, the pooled vectors of some rows: float32 [b, D]."""
        if self._cache is not None:
            self._cache.store([self._keys[row] for row in rows.tolist()], vectors)

    def texts_with(self, rows: Indices, window: TokenRows) -> Indices:
        """Return the index in the input of each text of the window that has one of these rows."""
        equal = rows if self.first is None else np.flatnonzero(np.isin(self.first, rows))
        return window.numbered(equal)

    def texts_done(self, window: TokenRows) -> Indices | None:
        """Return how many texts are done with each row: int64 [m]; None for one with each.

        A text is done with its last row, since progress is shown in texts.
        """
        if window.weights is None and self.first is None:
            return None
        first = np.arange(len(window.tokens)) if self.first is None else self.first
        is_last = np.diff(window.text_of_rows(), append=-1) != 0
        done: Indices = np.bincount(first[is_last], minlength=len(first))
        return done

    def spread(self, vectors: Vectors) -> Vectors:
        """Give every row the vector of the equal row that ran: float32 [m, D]."""
        return vectors if self.first is None else vectors[self.first]
