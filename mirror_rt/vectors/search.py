"""Compare embeddings, and find the nearest rows of a matrix (csrc/vector_ops/vector_ops.cpp)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.cpus import available_cpus
from mirror_rt.errors import ConfigError
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.quantization import Ranges, checked_ranges, unit_ranges

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

# Limits of the scores, corpus rows and queries in memory at once, so that they take a few MB.
_BLOCK_SCORES, _BLOCK_ROWS, _BLOCK_QUERIES = 1 << 21, 1 << 14, 256
# With fewer products (or bytes of bits) than this, a second thread costs more than it saves.
_WORK_PER_THREAD = 1 << 22


class SearchResult(NamedTuple):
    """The best rows for every query, best first; rows of equal score in the order of the corpus.

    Attributes:
        scores: float32 [q, k], dot products.
        indices: int64 [q, k], rows of the corpus. k is at most the number of rows that have a
            score, which a row of NaN has not; -1 (with a score of -inf) stands for none where a row
            with infinity gives some queries a score and others none.
    """

    scores: Floats
    indices: Indices


def cosine_similarity(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """Return the cosine of every row of `a` (float [n, D]) with every row of `b` (float [m, D]).

    The result is float32 [n, m]. An argument [D] counts as one row, and a zero vector has cosine 0
    with all rows.
    """
    left, right = _matrix(a, "a"), _matrix(b, "b")
    _check_dimensions(left.shape[1], right.shape[1])
    return np.asarray(normalize_rows(left) @ normalize_rows(right).T)


def search(
    queries: npt.ArrayLike,
    corpus: npt.NDArray[Any],
    k: int = 10,
    *,
    ranges: npt.ArrayLike | None = None,
    rescore: int = 4,
    mask: npt.ArrayLike | None = None,
) -> SearchResult:
    """Find the k rows of `corpus` with the largest dot product (the cosine, for unit vectors).

    Every row of the corpus is compared, but the corpus is never copied as a whole, so it may be a
    `numpy.memmap`. Queries stay float, so only the corpus loses accuracy by quantisation:

    - floats [n, D]: exact (float16 in the precision of its values, float64 in float32).
    - `int8`, `uint8` codes [n, D]: the dot product with the middle of each code's step.
    - `binary`, `ubinary` bits [n, D / 8]: `k * rescore` rows by Hamming distance to the signs of
      the query, then the dot product of the query with their signs, divided by sqrt(D).

    Args:
        queries: float [q, D] or [D].
        corpus: rows in any precision of `quantize_embeddings`.
        k: number of rows to find for each query, at least 1; all rows if the corpus has fewer.
        ranges: [2, D], ranges that the `int8` or `uint8` codes were made with; None for
            `unit_ranges`.
        rescore: factor of the candidates of binary precisions (see above), at least 1.
        mask: bool [n], the rows of the corpus to look among; None for all. Of codes and bits these
            rows are copied.

    Returns:
        Scores and indices [q, k], fewer where fewer rows have a score; [k] for one query [D].

    Raises:
        ConfigError: an argument has an unusable type, shape or value.
    """
    rows = _matrix(queries, "queries")
    if not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise ConfigError(f"query {bad} holds NaN or infinity")
    if not isinstance(corpus, np.ndarray) or corpus.ndim != 2:
        is_array = isinstance(corpus, np.ndarray)
        found = f"an array {list(corpus.shape)}" if is_array else type(corpus).__name__
        raise ConfigError(f"corpus must be an array [n, D], got {found}")
    if k < 1 or rescore < 1:
        raise ConfigError(f"k and rescore must be at least 1, got {k} and {rescore}")
    chosen = _chosen(mask, len(corpus))
    if chosen is not None and not np.issubdtype(corpus.dtype, np.floating):
        corpus = corpus[chosen]
    k = min(k, len(corpus) if chosen is None else len(chosen))
    if k == 0 or len(rows) == 0:
        result = _empty(len(rows), k)
    elif np.issubdtype(corpus.dtype, np.floating):
        _check_dimensions(rows.shape[1], corpus.shape[1])
        result = _search_floats(rows, corpus, k, chosen)
    elif corpus.dtype not in (np.int8, np.uint8):
        raise ConfigError(f"corpus must be floats, int8 or uint8, got {corpus.dtype}")
    elif corpus.shape[1] == rows.shape[1]:
        dim = corpus.shape[1]
        known = unit_ranges(dim) if ranges is None else checked_ranges(ranges, dim)
        result = _search_codes(rows, corpus, k, known)
    elif corpus.shape[1] == -(-rows.shape[1] // 8):
        result = _search_bits(rows, corpus, k, rescore)
    else:
        raise ConfigError(
            f"a corpus of {corpus.shape[1]} bytes a row is neither codes nor bits of the queries' "
            f"{rows.shape[1]} dimensions"
        )
    if chosen is not None and not np.issubdtype(corpus.dtype, np.floating):
        result = result._replace(indices=chosen[result.indices])
    most = int((result.indices >= 0).sum(axis=1).max()) if len(rows) else k
    result = SearchResult(result.scores[:, :most], result.indices[:, :most])
    return SearchResult(*(part[0] for part in result)) if np.ndim(queries) == 1 else result


def _chosen(mask: npt.ArrayLike | None, rows: int) -> Indices | None:
    """Return the rows of a mask; None for all."""
    if mask is None:
        return None
    wanted = np.asarray(mask)
    if wanted.dtype != np.bool_ or wanted.shape != (rows,):
        found = f"{wanted.dtype} {list(wanted.shape)}"
        raise ConfigError(field="mask", expected=f"bool [{rows}], one for each row", value=found)
    return np.flatnonzero(wanted)


def _search_floats(
    queries: Floats, corpus: npt.NDArray[Any], k: int, chosen: Indices | None
) -> SearchResult:
    # numpy computes the products, since its BLAS is as fast as the machine allows. C++ picks the
    # best of them, which in numpy would take a quarter longer (benchmarks/encode/vector_ops.py).
    best, left_out = _empty(len(queries), k), None
    if chosen is not None:
        left_out = np.ones(len(corpus), np.bool_)
        left_out[chosen] = False
    for q in range(0, len(queries), _BLOCK_QUERIES):
        some = queries[q : q + _BLOCK_QUERIES]
        heaps = _empty(len(some), k)
        products = _Products(some, corpus)
        for first in range(0, len(corpus), products.step):
            step = slice(first, first + products.step)
            scores = products.with_rows(corpus[step])
            if left_out is not None:
                scores[:, left_out[step]] = np.nan  # which is no score
            _core.keep_best(scores, first, *heaps)
        best.scores[q : q + len(some)], best.indices[q : q + len(some)] = _sorted(*heaps)
    return best


class _Products:
    """Dot products of queries with `step` rows of a corpus of floats at a time."""

    def __init__(self, queries: Floats, corpus: npt.NDArray[Any]) -> None:
        self._queries = queries
        self._halves = corpus.dtype == np.float16
        self.step = max(256, _BLOCK_SCORES // len(queries))
        if not self._halves:
            self.step = min(_BLOCK_ROWS, self.step)

    def with_rows(self, rows: npt.NDArray[Any]) -> Floats:
        """Return the products [queries, rows]."""
        if not self._halves:
            return np.asarray(self._queries @ rows.astype(np.float32, copy=False).T)
        halves = np.ascontiguousarray(rows).view(np.uint16)
        parts = _parts(rows.size * len(self._queries), len(rows))
        return _core.half_products(self._queries, halves, parts=parts)


def _search_codes(
    queries: Floats, corpus: npt.NDArray[Any], k: int, ranges: Ranges
) -> SearchResult:
    """Search 8-bit codes with integer products.

    With codes u >= 0, a row is starts + (u + 1/2) steps, so its score is q steps u + constant. The
    weights `q steps` are rounded to the most bits that a 32-bit sum allows (15 for 384 dimensions
    of int8), which is far finer than the codes.
    """
    signed = corpus.dtype == np.int8
    starts, steps = ranges[0], (ranges[1] - ranges[0]) / np.float32(255)
    weights = queries * steps
    largest_code = 128 if signed else 255
    limit = min(2**15 - 1, (2**31 - 1) // (largest_code * queries.shape[1]))
    largest = np.abs(weights).max(axis=1, keepdims=True)
    scale = limit / np.where(largest > 0, largest, 1)
    scores, indices = _core.search_codes(
        np.rint(weights * scale).astype(np.int16),
        np.ascontiguousarray(corpus).view(np.uint8),
        signed=bool(signed),
        k=k,
        parts=_parts(corpus.size * len(queries), len(corpus)),
    )
    constant = queries @ (starts + (128.5 if signed else 0.5) * steps)
    sums = _merge(scores, indices, k)
    return SearchResult((sums.scores / scale + constant[:, None]).astype(np.float32), sums.indices)


def _search_bits(queries: Floats, corpus: npt.NDArray[Any], k: int, rescore: int) -> SearchResult:
    dimension, bits = queries.shape[1], np.ascontiguousarray(corpus).view(np.uint8)
    # In `binary`, the highest bit of each byte is flipped.
    turned = 0x80 if corpus.dtype == np.int8 else 0
    candidates = min(len(corpus), k * rescore)
    found = _core.search_bits(
        np.packbits(queries > 0, axis=1) ^ np.uint8(turned),
        bits,
        k=candidates,
        parts=_parts(corpus.size * len(queries), len(corpus)),
    )
    nearest = _merge(*found, candidates).indices
    result = _empty(len(queries), k)
    for q, query in enumerate(queries):
        signs = np.unpackbits(bits[nearest[q]] ^ np.uint8(turned), axis=1, count=dimension)
        scores = (2 * (signs @ query) - query.sum()) / np.float32(dimension**0.5)
        order = np.lexsort((nearest[q], -scores))[:k]
        result.scores[q], result.indices[q] = scores[order], nearest[q, order]
    return result


def _merge(scores: npt.NDArray[np.int32], indices: Indices, k: int) -> SearchResult:
    """Merge the heaps [parts, q, k] of parts of the corpus into the best k rows of all."""
    queries = scores.shape[1]
    best = _sorted(
        np.moveaxis(scores, 0, 1).reshape(queries, -1).astype(np.float64),
        np.moveaxis(indices, 0, 1).reshape(queries, -1),
    )
    return SearchResult(best[0][:, :k], best[1][:, :k])


def _sorted(scores: npt.NDArray[Any], indices: Indices) -> tuple[npt.NDArray[Any], Indices]:
    order = np.lexsort((indices, -scores), axis=-1)
    return np.take_along_axis(scores, order, 1), np.take_along_axis(indices, order, 1)


def _empty(queries: int, k: int) -> SearchResult:
    return SearchResult(
        np.full((queries, k), -np.inf, dtype=np.float32), np.full((queries, k), -1, dtype=np.int64)
    )


def _parts(work: int, rows: int) -> int:
    return max(1, min(available_cpus(), work // _WORK_PER_THREAD, rows))


def _matrix(values: npt.ArrayLike, name: str) -> Floats:
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.floating):
        raise ConfigError(f"{name} must be floating-point vectors, got {array.dtype}")
    if array.ndim not in (1, 2):
        raise ConfigError(f"{name} must be [n, D] or [D], got {list(array.shape)}")
    return np.ascontiguousarray(np.atleast_2d(array), dtype=np.float32)


def _check_dimensions(left: int, right: int) -> None:
    if left != right:
        raise ConfigError(f"vectors of {left} and of {right} dimensions cannot be compared")
