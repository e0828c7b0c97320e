"""Similarity of embeddings, and the nearest rows of a matrix (csrc/vector_ops/vector_ops.cpp)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt import _core
from mirror_rt.cpus import available_cpus
from mirror_rt.errors import ConfigError
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.quantization import Ranges, checked_ranges, unit_ranges

__all__ = ["SearchResult", "cosine_similarity", "search"]

Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

# Scores in memory at once, and rows of the corpus at once: a few MB.
_BLOCK_SCORES, _BLOCK_ROWS, _BLOCK_QUERIES = 1 << 21, 1 << 14, 256
# Products (or bytes of bits) under which a second thread costs more than it brings.
_WORK_PER_THREAD = 1 << 22


class SearchResult(NamedTuple):
    """The best rows of every query, best first; of equal ones the first of the corpus.

    Attributes:
        scores: float32 [q, k], dot products.
        indices: int64 [q, k], rows of the corpus. -1 (and a score of -inf) where fewer than k
            rows have a score: a row of NaN has none.
    """

    scores: Floats
    indices: Indices


def cosine_similarity(a: npt.ArrayLike, b: npt.ArrayLike) -> Floats:
    """Cosine of every row of `a` with every row of `b`.

    Args:
        a: float [n, D] or [D].
        b: float [m, D] or [D].

    Returns:
        float32 [n, m]; n or m is 1 for a [D]. A zero vector has cosine 0 with everything.

    Raises:
        ConfigError: not floating-point (`search` takes quantised rows), or of unequal D.
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
) -> SearchResult:
    """The k rows of `corpus` of largest dot product with each query (of unit vectors: cosine).

    The corpus is compared whole and never copied whole; it may be a `numpy.memmap`. Queries stay
    float, so a quantised corpus costs the accuracy of its own codes alone:

    - float32, float16 [n, D]: exact (float16 in the precision of its values).
    - `int8`, `uint8` codes [n, D]: the dot product with the middle of each code's step.
    - `binary`, `ubinary` bits [n, D / 8]: `k * rescore` rows by Hamming distance to the signs of
      the query, then the dot product of the query with their signs, divided by sqrt(D).

    Args:
        queries: float [q, D] or [D].
        corpus: any precision of `quantize_embeddings`.
        k: rows a query, at least 1; all rows where the corpus has fewer.
        ranges: [2, D], with which `int8` or `uint8` codes were made; None for `unit_ranges`.
        rescore: see above; at least 1.

    Returns:
        Scores and indices [q, k]; [k] for a query of one dimension.

    Raises:
        ConfigError: an argument has an unusable type, shape or value.
    """
    rows = _matrix(queries, "queries")
    if not np.isfinite(rows).all():
        bad = int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
        raise ConfigError(f"query {bad} holds NaN or infinity")
    if not isinstance(corpus, np.ndarray) or corpus.ndim != 2:
        raise ConfigError(f"corpus must be an array [n, D], got {_describe(corpus)}")
    if k < 1 or rescore < 1:
        raise ConfigError(f"k and rescore must be at least 1, got {k} and {rescore}")
    k = min(k, len(corpus))
    if k == 0 or len(rows) == 0:
        result = _empty(len(rows), k)
    elif corpus.dtype in (np.float32, np.float16):
        _check_dimensions(rows.shape[1], corpus.shape[1])
        result = _search_floats(rows, corpus, k)
    elif corpus.dtype not in (np.int8, np.uint8):
        raise ConfigError(f"corpus must be float32, float16, int8 or uint8, got {corpus.dtype}")
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
    return SearchResult(*(part[0] for part in result)) if np.ndim(queries) == 1 else result


def _search_floats(queries: Floats, corpus: npt.NDArray[Any], k: int) -> SearchResult:
    # The products are numpy's: its BLAS is as fast as the machine. What it lacks is taking the
    # best of them without a pass that costs a quarter as much again (benchmarks/vector_ops.py).
    best = _empty(len(queries), k)
    for q in range(0, len(queries), _BLOCK_QUERIES):
        some = queries[q : q + _BLOCK_QUERIES]
        heaps = _empty(len(some), k)
        step = min(_BLOCK_ROWS, max(256, _BLOCK_SCORES // len(some)))
        for first in range(0, len(corpus), step):
            block = corpus[first : first + step].astype(np.float32, copy=False)
            _core.keep_best(some @ block.T, first, *heaps)
        best.scores[q : q + len(some)], best.indices[q : q + len(some)] = _sorted(*heaps)
    return best


def _search_codes(
    queries: Floats, corpus: npt.NDArray[Any], k: int, ranges: Ranges
) -> SearchResult:
    """With codes u >= 0 the row is starts + (u + 1/2) steps, so scores are q steps u + constant.

    `q steps` is rounded to as many bits as a 32-bit sum leaves it (15 for 384 dimensions of int8),
    far finer than the codes.
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
    # `binary` has the highest bit of each byte turned.
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
    """Heaps [parts, q, k] of parts of the corpus to the best k of the whole."""
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


def _describe(value: object) -> str:
    return (
        f"an array {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
    )
