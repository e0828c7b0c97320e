"""Mine hard negatives: find the nearest pairs of each pair, and put them into its batch.

They need no further columns of the loss, so each string is encoded as often as without them, and
whatever a loss does with the negatives of a batch it does with these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mirror_rt.vectors.search import search

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

_MORE = 50  # pairs that are looked at beside those wanted, because some are no negatives
_BLOCK = 256  # pairs whose neighbours are looked at together


def distinct_texts(first: Sequence[str], second: Sequence[str]) -> tuple[list[str], Rows]:
    """Return the different strings of n pairs, and their numbers among these, int64 [2, n]."""
    rows: dict[str, int] = {}
    sides = [[rows.setdefault(text, len(rows)) for text in side] for side in (first, second)]
    return list(rows), np.array(sides, dtype=np.int64)


def nearest_negatives(
    units: Floats,
    sides: Rows,
    count: int,
    *,
    group_ids: Rows | None = None,
    margin: float | None = None,
) -> Rows:
    """Return the nearest negatives of each of n pairs, best first; -1 where there are no more.

    Near are pairs whose strings have a high cosine on average over the four. Those that share a
    string or a group are no negatives. Nor, with a margin, are those of which a string's cosine
    with one of the pair is at least that of the pair's own two, less the margin: a negative that is
    nearer than the positive is likely to be false (Moreira et al. 2024, arXiv 2407.15831).

    Args:
        units: float32 [m, E], unit vectors of strings.
        sides: int64 [2, n], the rows of `units` of both strings of each pair.
        count: number of negatives of a pair.
        group_ids: int64 [n], equal for pairs that are no negatives of each other.
        margin: at least 0.

    Returns:
        int64 [n, count].
    """
    total = sides.shape[1]
    sums = units[sides].sum(axis=0)
    near = search(sums, sums, count + _MORE).indices
    found = np.full((total, count), -1, dtype=np.int64)
    for start in range(0, total, _BLOCK):
        rows = slice(start, start + _BLOCK)
        wrong = _are_alike(units, sides[:, rows], sides[:, near[rows]], margin)
        if group_ids is not None:
            wrong |= group_ids[rows, None] == group_ids[near[rows]]
        best = wrong.argsort(axis=1, kind="stable")[:, :count]
        chosen = np.take_along_axis(near[rows], best, axis=1)
        right = ~np.take_along_axis(wrong, best, axis=1)
        found[rows, : best.shape[1]] = np.where(right, chosen, -1)
    return found


def _are_alike(
    units: Floats, own: Rows, others: Rows, margin: float | None
) -> npt.NDArray[np.bool_]:
    """Tell which of the pairs `others`, [2, b, k], are no negatives of the pairs `own`, [2, b]."""
    alike = (own[:, None, :, None] == others).any(axis=(0, 1))
    if margin is not None:
        pair = units[own]  # [2, b, E]
        cosines = units[others] @ pair.transpose(1, 2, 0)  # [2, b, k, 2]
        least = np.einsum("be,be->b", *pair) - margin
        alike |= cosines.max(axis=(0, 3)) >= least[:, None]
    return np.asarray(alike)


def beside_neighbours(order: Rows, neighbours: Rows) -> Rows:
    """Return the order in which each pair is followed by its neighbours, [n, count].

    A pair that follows another has its place there, and no neighbours of its own after it. -1
    stands for no neighbour.
    """
    placed = np.zeros(len(order) + 1, dtype=np.bool_)
    placed[-1] = True  # where -1 points
    found: list[int] = []
    for row in order.tolist():
        if not placed[row]:
            own = [row, *(one for one in neighbours[row].tolist() if not placed[one])]
            placed[own] = True
            found += own
    return np.array(found, dtype=np.int64)
