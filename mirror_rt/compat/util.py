"""Offer the functions of `sentence_transformers.util` that compare, search and store vectors.

They take arrays, and tensors as well: given tensors, they return tensors.
"""

from __future__ import annotations

import heapq
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import partial, wraps
from inspect import signature
from operator import itemgetter
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from mirror_rt.compat.arguments import F, arrays_or_tensors, as_array, as_tensor
from mirror_rt.compat.token_similarity import (
    maxsim,
    maxsim_pairwise,
    mean_maxsim,
    mean_maxsim_pairwise,
)
from mirror_rt.errors import ConfigError
from mirror_rt.vectors import quantization
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.quantization import EmbeddingPrecision, calibration_ranges
from mirror_rt.vectors.search import search

__all__ = [
    "SimilarityFunction",
    "community_detection",
    "cos_sim",
    "dot_score",
    "euclidean_sim",
    "manhattan_sim",
    "maxsim",
    "maxsim_pairwise",
    "mean_maxsim",
    "mean_maxsim_pairwise",
    "normalize_embeddings",
    "pairwise_cos_sim",
    "pairwise_dot_score",
    "pairwise_euclidean_sim",
    "pairwise_manhattan_sim",
    "paraphrase_mining",
    "paraphrase_mining_embeddings",
    "pytorch_cos_sim",
    "quantize_embeddings",
    "semantic_search",
    "truncate_embeddings",
]

Floats = npt.NDArray[np.float32]
Best = tuple[Floats, npt.NDArray[np.int64]]
Compare = Callable[..., Any]


class _Encodes(Protocol):
    """An encoder of sentences, such as `SentenceTransformer`."""

    @property
    def encode(self) -> Callable[..., Any]: ...


class SimilarityFunction(StrEnum):
    """The names of the functions that compare vectors."""

    COSINE = "cosine"
    DOT_PRODUCT = "dot"
    DOT = "dot"
    EUCLIDEAN = "euclidean"
    MANHATTAN = "manhattan"
    MAXSIM = "maxsim"
    MEAN_MAXSIM = "meanmaxsim"

    @classmethod
    def possible_values(cls) -> list[str]:
        """Return the names."""
        return [member.value for member in cls]

    @staticmethod
    def to_similarity_fn(similarity_function: object) -> Compare:
        """Return a function that compares all rows of [n, D] with all of [m, D]."""
        name = function_named(similarity_function)
        return _OF_TOKENS[name][0] if name in _OF_TOKENS else partial(similarity, name)

    @staticmethod
    def to_similarity_pairwise_fn(similarity_function: object) -> Compare:
        """Return a function that compares the rows of [n, D] with the same rows of [n, D]."""
        name = function_named(similarity_function)
        return _OF_TOKENS[name][1] if name in _OF_TOKENS else partial(pairwise_similarity, name)


def function_named(name: Any) -> SimilarityFunction:
    """Return the member of a name, or of a member of the original class."""
    value, known = getattr(name, "value", name), SimilarityFunction.possible_values()
    if value not in known:
        raise ConfigError(
            field="similarity_fn_name",
            expected=f"one of {', '.join(known)}",
            value=value,
        )
    return SimilarityFunction(value)


_OF_TOKENS = {
    SimilarityFunction.MAXSIM: (maxsim, maxsim_pairwise),
    SimilarityFunction.MEAN_MAXSIM: (mean_maxsim, mean_maxsim_pairwise),
}


def _as_the_original(function: F) -> F:
    """Let a function of arrays or tensors return a tensor wherever torch is imported."""
    call = arrays_or_tensors(function)

    @wraps(function)
    def compare(*args: Any) -> Any:
        found = call(*args)
        return (
            as_tensor(found) if "torch" in sys.modules and isinstance(found, np.ndarray) else found
        )

    return cast(F, compare)


@_as_the_original
def similarity(name: SimilarityFunction | str, a: Any, b: Any) -> Floats:
    """Compare all rows of `a` [n, D] with all rows of `b` [m, D]: float32 [n, m].

    Distances are negative: the larger the value, the closer the rows. Where torch is imported, the
    result is a tensor, as in the original, and else an array.
    """
    name, left, right = _rows(name, a, b)
    if name in ("cosine", "dot"):
        return np.asarray(left @ right.T)
    return -np.stack([_distances(name, row[None], right) for row in left])


@_as_the_original
def pairwise_similarity(name: SimilarityFunction | str, a: Any, b: Any) -> Floats:
    """Compare the rows of `a` [n, D] with the same rows of `b` [n, D]: float32 [n]."""
    name, left, right = _rows(name, a, b)
    if len(left) != len(right):
        raise ConfigError(
            f"pairs need as many rows on both sides, got {len(left)} and {len(right)}"
        )
    if name in ("cosine", "dot"):
        return np.asarray(np.einsum("ij,ij->i", left, right))
    return -_distances(name, left, right)


def _named(compare: Callable[[Any, Any, Any], Any], name: SimilarityFunction) -> Compare:
    def call(a: Any, b: Any) -> Any:
        return compare(name, a, b)

    first, *_ = (compare.__doc__ or "").partition("\n")
    call.__doc__ = f"{first[:-1]}; the function is {name!s}."
    return call


cos_sim = pytorch_cos_sim = _named(similarity, SimilarityFunction.COSINE)
dot_score = _named(similarity, SimilarityFunction.DOT)
euclidean_sim = _named(similarity, SimilarityFunction.EUCLIDEAN)
manhattan_sim = _named(similarity, SimilarityFunction.MANHATTAN)
pairwise_cos_sim = _named(pairwise_similarity, SimilarityFunction.COSINE)
pairwise_dot_score = _named(pairwise_similarity, SimilarityFunction.DOT)
pairwise_euclidean_sim = _named(pairwise_similarity, SimilarityFunction.EUCLIDEAN)
pairwise_manhattan_sim = _named(pairwise_similarity, SimilarityFunction.MANHATTAN)


@arrays_or_tensors
def normalize_embeddings(embeddings: Any) -> Any:
    """Divide each row of [n, D], or one vector [D], by its length; zeros stay."""
    return normalize_rows(np.atleast_2d(embeddings)).reshape(np.shape(embeddings))


def truncate_embeddings(embeddings: Any, truncate_dim: int | None) -> Any:
    """Keep the first `truncate_dim` dimensions; all of them for None, or where there are fewer."""
    return embeddings[..., :truncate_dim]


def quantize_embeddings(
    embeddings: Any,
    precision: EmbeddingPrecision,
    ranges: npt.ArrayLike | None = None,
    calibration_embeddings: npt.ArrayLike | None = None,
) -> Any:
    """Convert as `mirror_rt.quantize_embeddings`, with ranges of the embeddings themselves.

    `int8` and `uint8` need ranges; without any, those of the embeddings are used, as the original
    does, so that the code of a vector depends on the others.
    """
    if isinstance(embeddings, list) and not embeddings:
        return embeddings
    vectors, sample = as_array(embeddings), as_array(calibration_embeddings)
    if ranges is None and precision in ("int8", "uint8"):
        ranges = calibration_ranges(vectors if sample is None else sample)
    return quantization.quantize_embeddings(vectors, precision, ranges)


def semantic_search(
    query_embeddings: Any,
    corpus_embeddings: Any,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500_000,
    top_k: int = 10,
    score_function: Compare = cos_sim,
) -> list[list[dict[str, int | float]]]:
    """Find the rows of the corpus [n, D] that are most like each query.

    Args:
        query_embeddings: [q, D], or one query [D].
        corpus_embeddings: [n, D].
        query_chunk_size: queries that a function of yours gets at a time.
        corpus_chunk_size: not needed, because the scores of one chunk of queries are few.
        top_k: most rows to find for a query.
        score_function: `cos_sim`, `dot_score`, or a function of [q, D] and [n, D] to [q, n].

    Returns:
        For each query, best first, `{"corpus_id": row, "score": score}`. Rows without a score, such
        as those of NaN, are left out.

    Raises:
        ConfigError: as `mirror_rt.search`, which gives arrays.
    """
    return [
        [{"corpus_id": int(i), "score": float(s)} for s, i in zip(*found, strict=True) if i >= 0]
        for best in _best(
            query_embeddings, corpus_embeddings, query_chunk_size, top_k, score_function
        )
        for found in zip(*best, strict=True)
    ]


def paraphrase_mining(
    model: _Encodes,
    sentences: list[str],
    show_progress_bar: bool = False,
    batch_size: int = 32,
    *mining: Any,
    **options: Any,
) -> list[list[float | int]]:
    """Encode sentences, and find the pairs most alike: see `paraphrase_mining_embeddings`.

    Its parameters follow `batch_size`, or are given by their names; further options are those of
    `encode`.
    """
    names = signature(paraphrase_mining_embeddings).parameters
    chosen = {name: options.pop(name) for name in names if name in options}
    options |= {"show_progress_bar": show_progress_bar, "batch_size": batch_size}
    return paraphrase_mining_embeddings(model.encode(sentences, **options), *mining, **chosen)


def paraphrase_mining_embeddings(
    embeddings: Any,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100_000,
    max_pairs: int = 500_000,
    top_k: int = 100,
    score_function: Compare = cos_sim,
) -> list[list[float | int]]:
    """Find the pairs of rows of [n, D] that are most alike.

    Returns:
        At most `max_pairs` of `[score, i, j]` with i < j, best first; of each row its `top_k`
        nearest.
    """
    pairs: dict[tuple[int, int], float] = {}
    row = 0
    for best in _best(embeddings, embeddings, query_chunk_size, top_k + 1, score_function):
        for scores, others in zip(*best, strict=True):
            found = zip(scores, others, strict=True)
            near = [(int(j), float(s)) for s, j in found if j not in (row, -1)]
            for other, score in near[:top_k]:
                pairs.setdefault((min(row, other), max(row, other)), score)
            row += 1
        pairs = dict(heapq.nlargest(max_pairs, pairs.items(), key=itemgetter(1)))
    return [[score, i, j] for (i, j), score in pairs.items()]


def community_detection(
    embeddings: Any,
    threshold: float = 0.75,
    min_community_size: int = 10,
    batch_size: int = 1024,
    show_progress_bar: bool = False,
) -> list[list[int]]:
    """Find groups of rows of [n, D] whose cosine with a central row is `threshold` or more.

    Returns:
        The rows of each group, the central one first and the largest group first. A row is in one
        group at most, and a group has `min_community_size` rows or more.
    """
    if len(embeddings) == 0:
        return []
    rows = normalize_rows(np.atleast_2d(np.asarray(as_array(embeddings), np.float32)))
    found = []
    for first in range(0, len(rows), batch_size):
        for center, scores in enumerate(rows[first : first + batch_size] @ rows.T, first):
            near = np.flatnonzero(scores >= np.float32(threshold))
            if len(near) >= min_community_size:
                found.append((center, near[np.argsort(-scores[near], kind="stable")]))
    groups, free = [], np.ones(len(rows), np.bool_)
    for center, near in sorted(found, key=lambda pair: -len(pair[1])):
        left = near[free[near]]
        if free[center] and len(left) >= min_community_size:
            groups.append([center, *left[left != center].tolist()])
            free[groups[-1]] = False
    return sorted(groups, key=len, reverse=True)


def _best(queries: Any, corpus: Any, chunk: int, top_k: int, compare: Compare) -> Iterator[Best]:
    """Yield the scores and the indices of the best rows for chunk after chunk of queries."""
    queries, corpus = (
        np.asarray(as_array(side)) if isinstance(side, list) else side for side in (queries, corpus)
    )
    queries = queries[None] if queries.ndim == 1 else queries
    if top_k == 0 or len(corpus) == 0:
        yield np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        return
    if compare in (cos_sim, dot_score):
        rows = [np.asarray(as_array(side), np.float32) for side in (queries, corpus)]
        left, right = map(normalize_rows, rows) if compare is cos_sim else rows
        for first in range(0, len(left), chunk):
            yield search(left[first : first + chunk], right, top_k)
        return
    for first in range(0, len(queries), chunk):
        scores = np.asarray(as_array(compare(queries[first : first + chunk], corpus)), np.float32)
        indices = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
        yield np.take_along_axis(scores, indices, 1), indices


def _rows(name: Any, a: Any, b: Any) -> tuple[SimilarityFunction, Floats, Floats]:
    name = function_named(name)
    left, right = (np.atleast_2d(np.asarray(rows, dtype=np.float32)) for rows in (a, b))
    if left.shape[1] != right.shape[1]:
        raise ConfigError(f"vectors of {left.shape[1]} and {right.shape[1]} dimensions differ")
    if name == "cosine":
        left, right = normalize_rows(left), normalize_rows(right)
    return name, left, right


def _distances(name: SimilarityFunction, a: Floats, b: Floats) -> Floats:
    order = 1 if name == "manhattan" else 2
    return np.asarray(np.linalg.norm(a - b, ord=order, axis=1), dtype=np.float32)
