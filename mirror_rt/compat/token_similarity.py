"""Offer the functions of `sentence_transformers.util` that score vectors of tokens.

Results are tensors where torch is imported, as in the original, and else arrays.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from mirror_rt.compat.arguments import as_array, as_tensor
from mirror_rt.vectors import maxsim as scoring


def maxsim(
    a: Any, b: Any, a_mask: Any = None, b_mask: Any = None, chunk_elements: int | None = None,
    length_normalize: bool = False, device: object = None,
) -> Any:  # fmt: skip
    """Score documents with queries by MaxSim: float32 [n, m].

    Args:
        a: the queries: a list of [t, D], one alone, or padded ones [n, t, D].
        b: the documents, in the same forms.
        a_mask: bool [n, t], the vectors of padded queries; None for those that are not 0.
        b_mask: bool [m, t], those of padded documents.
        chunk_elements: not needed, because no matrix of tokens is held.
        length_normalize: divide by the number of vectors of the query.
        device: without effect.
    """
    queries, documents = _of_texts(a, a_mask), _of_texts(b, b_mask)
    return _found(_scores(queries, documents, mean=length_normalize))


def maxsim_pairwise(
    a: Any, b: Any, a_mask: Any = None, b_mask: Any = None, chunk_elements: int | None = None,
    length_normalize: bool = False, device: object = None,
) -> Any:  # fmt: skip
    """Score each document with the query of the same number: float32 [n]; see `maxsim`."""
    pairs = zip(_of_texts(a, a_mask), _of_texts(b, b_mask), strict=True)
    scores = [_scores([query], [one], mean=length_normalize)[0, 0] for query, one in pairs]
    return _found(np.array(scores, np.float32))


def mean_maxsim(
    a: Any, b: Any, a_mask: Any = None, b_mask: Any = None, chunk_elements: int | None = None,
    length_normalize: bool = True, device: object = None,
) -> Any:  # fmt: skip
    """Call `maxsim` with `length_normalize`."""
    return maxsim(a, b, a_mask, b_mask, chunk_elements, length_normalize, device)


def mean_maxsim_pairwise(
    a: Any, b: Any, a_mask: Any = None, b_mask: Any = None, chunk_elements: int | None = None,
    length_normalize: bool = True, device: object = None,
) -> Any:  # fmt: skip
    """Call `maxsim_pairwise` with `length_normalize`."""
    return maxsim_pairwise(a, b, a_mask, b_mask, chunk_elements, length_normalize, device)


def _scores(queries: list[Any], documents: list[Any], *, mean: bool) -> Any:
    scores = scoring.maxsim(queries, documents)
    counts = np.array([max(1, len(one)) for one in queries], np.float32)
    return scores / counts[:, None] if mean else scores


def _of_texts(embeddings: Any, mask: Any) -> list[Any]:
    """Return the vectors of each text: of a list, of one text [t, D], or of padded [n, t, D]."""
    if isinstance(embeddings, list | tuple):
        return [as_array(vectors) for vectors in embeddings]
    vectors = as_array(embeddings)
    if vectors.ndim == 2:
        return [vectors]
    kept = vectors.any(axis=2) if mask is None else np.asarray(as_array(mask), bool)
    return [one[rows] for one, rows in zip(vectors, kept, strict=True)]


def _found(scores: Any) -> Any:
    return as_tensor(scores) if "torch" in sys.modules else scores
