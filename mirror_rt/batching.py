"""Batches by token budget over texts sorted by length, so that little padding is computed."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["plan_batches"]


def plan_batches(
    lengths: npt.NDArray[np.int64], *, token_budget: int
) -> Iterator[npt.NDArray[np.int64]]:
    """Group rows of similar length into batches of at most `token_budget` padded tokens.

    Longest first, so that the largest buffers are taken once, at the start. A row longer than
    the budget makes a batch of its own.

    Args:
        lengths: int64 [n], tokens of each row.
        token_budget: most padded tokens (rows times longest row) of a batch, at least 1.

    Yields:
        int64 [b], row indices of one batch; every row comes exactly once.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(1, int(lengths[order[start]]))
        rows = max(1, token_budget // longest)
        yield order[start : start + rows]
        start += rows
