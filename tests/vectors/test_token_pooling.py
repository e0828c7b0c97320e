"""Hierarchical token pooling: the clusters of scipy's Ward linkage, as PyLate makes them."""

from __future__ import annotations

import numpy as np
import pytest

from mirror_rt import ConfigError
from mirror_rt.vectors.normalization import normalize_rows
from mirror_rt.vectors.token_pooling import pool_tokens


def by_scipy(vectors: np.ndarray, factor: float, protected: int) -> np.ndarray:
    from scipy.cluster import hierarchy

    others = vectors[protected:]
    count = max(int(len(others) // factor), 1)
    if count >= len(others):
        return vectors
    distances = 1 - others @ others.T
    condensed = distances[np.triu_indices(len(others), k=1)]
    labels = hierarchy.fcluster(hierarchy.linkage(condensed, "ward"), count, criterion="maxclust")
    means = [others[labels == one].mean(axis=0) for one in dict.fromkeys(labels.tolist())]
    return np.concatenate([vectors[:protected], means])


@pytest.mark.parametrize("factor", [1, 1.5, 2, 3, 7, 1000])
@pytest.mark.parametrize("protected", [0, 1, 3])
def test_clusters_are_those_of_scipy(rng, factor, protected):
    for length in (1, 2, 3, 4, 5, 37, 120):
        vectors = normalize_rows(rng.normal(size=(length, 16)).astype(np.float32))
        found = pool_tokens(vectors, factor, protected=protected)
        np.testing.assert_array_equal(found, by_scipy(vectors, factor, protected))


def test_equal_vectors_are_merged_first(rng):
    some = normalize_rows(rng.normal(size=(4, 16)).astype(np.float32))
    found = pool_tokens(np.repeat(some, 3, axis=0), 3, protected=0)
    np.testing.assert_allclose(found, some, rtol=0, atol=1e-6)


def test_wrong_numbers_are_refused(rng):
    with pytest.raises(ConfigError, match="at least 1"):
        pool_tokens(np.zeros((3, 2), np.float32), 0.5)
    with pytest.raises(ConfigError, match="at least 0"):
        pool_tokens(np.zeros((3, 2), np.float32), 2, protected=-1)
    assert pool_tokens(np.zeros((0, 2), np.float32), 2).shape == (0, 2)
