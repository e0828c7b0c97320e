"""Compute rank statistics with numpy alone, plain or weighted (for bootstrap samples)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError

Floats = npt.NDArray[np.float64]


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Compute Spearman's rho of two lists [n]: the Pearson correlation of average ranks.

    Raises:
        DataError: there are fewer than two pairs, a value is not finite, or one side is constant,
            so that rho is undefined.
    """
    return RankCorrelation(a, b)()


def pearson(a: npt.ArrayLike, b: npt.ArrayLike) -> float | None:
    """Compute Pearson's correlation of two lists [n]; None if one is constant (undefined)."""
    x, y = _two_lists("a correlation", a, b)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / (np.linalg.norm(x) * np.linalg.norm(y)))


class RankCorrelation:
    """Spearman's rho of two lists, which are sorted once, for any weights of the pairs."""

    def __init__(self, a: npt.ArrayLike, b: npt.ArrayLike) -> None:
        self._x, self._y = map(_codes, _two_lists("Spearman's rho", a, b))

    def __call__(self, weights: Floats | None = None) -> float:
        """Return rho if pair i counts `weights[i]` times (float64 [n]; None for once)."""
        if weights is None:
            weights = np.ones(len(self._x))
        x, y = _average_ranks(self._x, weights), _average_ranks(self._y, weights)
        total = weights.sum()
        x -= weights @ x / total
        y -= weights @ y / total
        scale = float(np.sqrt((weights @ (x * x)) * (weights @ (y * y))))
        if scale == 0:
            raise DataError("Spearman's rho is undefined: all values of one side are equal")
        return float(weights @ (x * y)) / scale


class RocAuc:
    """The area under the ROC curve, for any weights of the items; scores are sorted once.

    The area is how often a positive (label True) scores above a negative, with ties as half.
    """

    def __init__(self, scores: npt.ArrayLike, labels: npt.ArrayLike) -> None:
        values, positive = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=bool)
        if values.shape != positive.shape or values.ndim != 1:
            raise DataError(
                f"the ROC curve needs a label for each score, got {values.shape}, {positive.shape}"
            )
        if not np.isfinite(values).all():
            raise DataError("the area under the ROC curve is undefined: a score is not finite")
        self._codes, self._positive = _codes(values), positive

    def __call__(self, weights: Floats | None = None) -> float:
        """Return the area if item i counts `weights[i]` times (float64 [n]; None for once)."""
        if weights is None:
            weights = np.ones(len(self._codes))
        positives = np.bincount(self._codes, weights * self._positive)
        negatives = np.bincount(self._codes, weights * ~self._positive)
        pairs = positives.sum() * negatives.sum()
        if pairs == 0:
            raise DataError(
                "the area under the ROC curve is undefined: all items have the same label"
            )
        below = np.cumsum(negatives) - negatives
        return float(positives @ (below + negatives / 2) / pairs)


def _two_lists(measure: str, a: npt.ArrayLike, b: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return both as float64 [n]; raise DataError where the measure is not defined for them."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise DataError(f"{measure} needs two equal lists of at least 2, got {x.shape}, {y.shape}")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise DataError(f"{measure} is undefined: a value is not finite")
    return x, y


def _codes(values: Floats) -> npt.NDArray[np.intp]:
    """Return the rank of each value among the distinct values, from 0."""
    return np.unique(values, return_inverse=True)[1]


def _average_ranks(codes: npt.NDArray[np.intp], weights: Floats) -> Floats:
    counts = np.bincount(codes, weights)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[codes])
