"""Merge similar token vectors of a document: hierarchical token pooling, as PyLate has it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError

Floats = npt.NDArray[np.float32]


def pool_tokens(vectors: Floats, factor: float, *, protected: int = 1) -> Floats:
    """Replace unit vectors [t, D] by the means of clusters, about one for `factor` vectors.

    The first `protected` stay as they are. The others are clustered by Ward's method on the cosine
    distance; the means, which are not normalised again, come in the order of their first vectors.
    (Clavié, Chaffin, Adams: Reducing the Footprint of Multi-Vector Retrieval, 2024.)

    Raises:
        ConfigError: `factor` is below 1, or `protected` below 0.
    """
    if not factor >= 1 or protected < 0:
        raise ConfigError(
            f"pool_factor must be at least 1 and protected_tokens at least 0, got {factor}, "
            f"{protected}"
        )
    others = vectors[protected:]
    count = max(int(len(others) // factor), 1)
    if count >= len(others):
        return vectors
    labels = _clusters(others, count)
    first = np.unique(labels)
    means = np.stack([others[labels == one].mean(axis=0) for one in first])
    return np.concatenate([vectors[:protected], means])


def _clusters(vectors: Floats, count: int) -> npt.NDArray[np.int64]:
    """Return for each vector the number of the first vector of its cluster."""
    distances = 1.0 - (vectors @ vectors.T).astype(np.float64)
    labels = np.arange(len(vectors))
    merges = sorted(_merges(distances), key=lambda merge: merge[0])
    for _, i, j in merges[: len(vectors) - count]:
        a, b = labels[i], labels[j]
        labels[labels == max(a, b)] = min(a, b)
    return labels


def _merges(distances: npt.NDArray[np.float64]) -> list[tuple[float, int, int]]:
    """Return the merges of Ward's method, with their heights, by chains of nearest neighbours.

    Each names a vector of both clusters (Müllner: Modern hierarchical, agglomerative clustering
    algorithms, 2011).
    """
    np.fill_diagonal(distances, np.inf)
    sizes, chain = np.ones(len(distances)), list[int]()
    merges = list[tuple[float, int, int]]()
    for _ in range(len(distances) - 1):
        while True:
            if not chain:
                chain.append(int(np.flatnonzero(sizes)[0]))
            i = chain[-1]
            j = int(distances[i].argmin())
            if len(chain) > 1 and distances[i, chain[-2]] <= distances[i, j]:
                j = chain[-2]
                break
            chain.append(j)
        del chain[-2:]
        merges.append((float(distances[i, j]), i, j))
        distances[j] = distances[:, j] = _updated(distances, sizes, i, j)
        distances[i] = distances[:, i] = np.inf
        sizes[j] += sizes[i]
        sizes[i] = 0
        distances[j, j] = np.inf
    return merges


def _updated(distances: npt.NDArray[np.float64], sizes: npt.NDArray[Any], i: int, j: int) -> Any:
    """Return the distances of all clusters from the union of two, by Lance and Williams."""
    total = sizes + sizes[i] + sizes[j]
    squares = (sizes + sizes[i]) * distances[i] ** 2 + (sizes + sizes[j]) * distances[j] ** 2
    with np.errstate(invalid="ignore"):  # of clusters that are no more
        made = np.sqrt(np.maximum(squares - sizes * distances[i, j] ** 2, 0) / total)
    made[sizes == 0] = np.inf
    return made
