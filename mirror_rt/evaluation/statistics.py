"""Rank correlation with numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError

__all__ = ["spearman"]


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Spearman's rho: the Pearson correlation of average ranks, ties included.

    Args:
        a: [n] numbers.
        b: [n] numbers.

    Raises:
        DataError: fewer than two pairs, a value that is not finite, or a constant side (rho is
            then undefined).
    """
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise DataError(
            f"Spearman's rho needs two equal lists of at least 2, got {x.shape}, {y.shape}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DataError("Spearman's rho is undefined: a value is not finite")
    rank_x, rank_y = _average_ranks(x), _average_ranks(y)
    rank_x -= rank_x.mean()
    rank_y -= rank_y.mean()
    scale = float(np.sqrt((rank_x @ rank_x) * (rank_y @ rank_y)))
    if scale == 0:
        raise DataError("Spearman's rho is undefined: all values of one side are equal")
    return float(rank_x @ rank_y) / scale


def _average_ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
