"""Offer the functions of `sentence_transformers.util` that compare and search vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirror_rt.compat.similarity import Floats, pairwise_similarity, similarity
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.search import search


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
