"""Offer the functions of `sentence_transformers.util` that compare and search vectors."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.search import search

__all__ = ["cos_sim", "dot_score", "pairwise_cos_sim", "semantic_search"]

SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan"]
Floats = npt.NDArray[np.float32]


def cos_sim(a: Any, b: Any) -> Floats:
    """Return the cosines of all rows of `a` [n, D] with all rows of `b` [m, D]: float32 [n, m]."""
    return similarity("cosine", a, b)


def dot_score(a: Any, b: Any) -> Floats:
    """Return the dot products of all rows of `a` with all rows of `b`: float32 [n, m]."""
    return similarity("dot", a, b)


def pairwise_cos_sim(a: Any, b: Any) -> Floats:
    """Return the cosines of the rows of `a` [n, D] with the same rows of `b`: float32 [n]."""
    return pairwise_similarity("cosine", a, b)


def semantic_search(
    query_embeddings: Any,
    corpus_embeddings: Any,
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500_000,
    top_k: int = 10,
) -> list[list[dict[str, int | float]]]:
    """Find the rows of the corpus [n, D] with the largest cosines with each query.

    Args:
        query_embeddings: [q, D], or one query [D].
        corpus_embeddings: [n, D].
        query_chunk_size: not needed, because nothing is copied as a whole.
        corpus_chunk_size: not needed, either.
        top_k: most rows to find for a query.

    Returns:
        For each query, best first, `{"corpus_id": row, "score": cosine}`.

    Raises:
        ConfigError: as `mirror_rt.search`, which gives arrays, and takes vectors as they are.
    """
    queries, corpus = (
        normalize_rows(np.atleast_2d(np.asarray(rows, np.float32)))
        for rows in (query_embeddings, corpus_embeddings)
    )
    found = search(queries, corpus, top_k)
    return [
        [{"corpus_id": int(i), "score": float(s)} for i, s in zip(rows, scores, strict=True)]
        for rows, scores in zip(found.indices, found.scores, strict=True)
    ]


def similarity(name: SimilarityName, a: Any, b: Any) -> Floats:
    """Compare all rows of `a` [n, D] with all rows of `b` [m, D]: float32 [n, m].

    Distances are negative: the larger the value, the closer the rows.
    """
    left, right = _rows(name, a, b)
    if name in ("cosine", "dot"):
        return np.asarray(left @ right.T)
    return -np.stack([_distances(name, row[None], right) for row in left])


def pairwise_similarity(name: SimilarityName, a: Any, b: Any) -> Floats:
    """Compare the rows of `a` [n, D] with the same rows of `b` [n, D]: float32 [n]."""
    left, right = _rows(name, a, b)
    if len(left) != len(right):
        raise ConfigError(
            f"pairs need as many rows on both sides, got {len(left)} and {len(right)}"
        )
    if name in ("cosine", "dot"):
        return np.asarray(np.einsum("ij,ij->i", left, right))
    return -_distances(name, left, right)


def _rows(name: SimilarityName, a: Any, b: Any) -> tuple[Floats, Floats]:
    if name not in get_args(SimilarityName):
        raise ConfigError(
            field="similarity_fn_name",
            expected=f"one of {', '.join(get_args(SimilarityName))}",
            value=name,
        )
    left, right = (np.atleast_2d(np.asarray(rows, dtype=np.float32)) for rows in (a, b))
    if left.shape[1] != right.shape[1]:
        raise ConfigError(f"vectors of {left.shape[1]} and {right.shape[1]} dimensions differ")
    return (normalize_rows(left), normalize_rows(right)) if name == "cosine" else (left, right)


def _distances(name: SimilarityName, a: Floats, b: Floats) -> Floats:
    order = 1 if name == "manhattan" else 2
    return np.asarray(np.linalg.norm(a - b, ord=order, axis=1), dtype=np.float32)
