"""Compare vectors by the functions that sentence-transformers knows: larger means closer."""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.vectors.normalization import normalize_rows

SimilarityName = Literal["cosine", "dot", "euclidean", "manhattan"]
Floats = npt.NDArray[np.float32]


def similarity(name: SimilarityName, a: Any, b: Any) -> Floats:
    """Compare all rows of `a` [n, D] with all rows of `b` [m, D]: float32 [n, m].

    Distances are negative: the larger the value, the closer the rows.

    Raises:
        ConfigError: there is no such function, or the vectors do not fit together.
    """
    left, right = _rows(name, a, b)
    if name in ("cosine", "dot"):
        return np.asarray(left @ right.T)
    return -np.stack([_distances(name, row[None], right) for row in left])


def pairwise_similarity(name: SimilarityName, a: Any, b: Any) -> Floats:
    """Compare the rows of `a` [n, D] with the same rows of `b` [n, D]: float32 [n].

    Raises:
        ConfigError: as `similarity`, or the numbers of rows differ.
    """
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
            f"similarity_fn_name must be one of {', '.join(get_args(SimilarityName))}, got {name!r}"
        )
    left, right = (np.atleast_2d(np.asarray(rows, dtype=np.float32)) for rows in (a, b))
    if left.shape[1] != right.shape[1]:
        raise ConfigError(f"vectors of {left.shape[1]} and {right.shape[1]} dimensions differ")
    return (normalize_rows(left), normalize_rows(right)) if name == "cosine" else (left, right)


def _distances(name: SimilarityName, a: Floats, b: Floats) -> Floats:
    order = 1 if name == "manhattan" else 2
    return np.asarray(np.linalg.norm(a - b, ord=order, axis=1), dtype=np.float32)
