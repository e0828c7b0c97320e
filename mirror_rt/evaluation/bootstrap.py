"""Compute bootstrap confidence intervals, paired if models answered the same items."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError, DataError

Floats = npt.NDArray[np.float64]
# Returns the value of a measure when item i is counted weights[i] times.
Statistic = Callable[[Floats], float]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A percentile interval with the confidence level `CONFIDENCE`."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class Difference:
    """The value of one model minus that of another, on the same items."""

    value: float  # difference over all items
    # Interval of the paired replicates; None if too few of them are defined.
    interval: Interval | None

    @property
    def shown(self) -> bool:
        """Return whether the interval excludes 0."""
        return self.interval is not None and 0.0 not in self.interval


def replicates(
    statistic: Statistic,
    n: int,
    *,
    samples: int,
    seed: int,
    name: str,
    groups: npt.NDArray[np.intp] | None = None,
) -> Floats:
    """Compute the statistic of `samples` random samples of n items, drawn with replacement.

    The items of a sample depend on seed, name (of the set), n and groups alone, so the replicates
    of two models on one set are paired. With `groups` ([n], the group of each item), a sample and
    the set have equal numbers of items of each group. The result is float64 [samples], NaN where
    the statistic of a sample is undefined.
    """
    if samples < 0:
        raise ConfigError(f"bootstrap samples must be at least 0, got {samples}")
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    groups = np.zeros(n, dtype=np.intp) if groups is None else groups
    members = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    values = np.full(samples, np.nan)
    for i in range(samples):
        drawn = np.concatenate([rows[rng.integers(len(rows), size=len(rows))] for rows in members])
        try:
            values[i] = statistic(np.bincount(drawn, minlength=n).astype(np.float64))
        except DataError:  # the sample has only one label or one value, as happens in tiny sets
            continue
    return values


def interval(values: Floats) -> Interval | None:
    """Return the percentile interval of the defined replicates; None if under half are defined."""
    defined = values[np.isfinite(values)]
    if len(defined) == 0 or 2 * len(defined) < len(values):
        return None
    low, high = np.quantile(defined, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high))


def difference(first: float, second: float, a: Floats, b: Floats) -> Difference:
    """Compare two models by their values and their paired replicates ([samples] each)."""
    return Difference(first - second, interval(a - b))
