"""Which rows of a task a batch takes: shuffled passes, one after another."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_train.data.labelled_examples import Examples

__all__ = ["Passes", "TaskBatch", "batch_of"]

Rows = npt.NDArray[np.int64]


class TaskBatch(NamedTuple):
    """A batch of one task.

    Attributes:
        task: its name.
        texts: n texts; of pairs 2n, n and then their partners.
        targets: [n], int64 or float64.
    """

    task: str
    texts: list[str]
    targets: npt.NDArray[Any]


class Passes:
    """Batches of rows that follow from the seed alone.

    A task that is through before the others begins again, in a new order: that is how tasks of
    very different sizes go together. A batch may hold the end of a pass and the start of the next.

    Args:
        count: n, rows.
        batch_size: rows of a batch.
        seed: any numbers that tell one task's order from another's.
    """

    def __init__(self, count: int, batch_size: int, seed: tuple[int, ...]) -> None:
        self._count, self._size, self._seed = count, batch_size, seed
        self._kept: tuple[int, Rows] = (-1, np.empty(0, np.int64))

    def __getitem__(self, batch: int) -> Rows:
        """Rows, int64 [batch_size], of a batch."""
        position, end, parts = batch * self._size, (batch + 1) * self._size, []
        while position < end:
            epoch, place = divmod(position, self._count)
            part = self._order(epoch)[place : place + end - position]
            parts.append(part)
            position += len(part)
        return np.concatenate(parts)

    def _order(self, epoch: int) -> Rows:
        if self._kept[0] != epoch:
            rng = np.random.default_rng([*self._seed, epoch])
            self._kept = epoch, rng.permutation(self._count)
        return self._kept[1]


def batch_of(task: str, examples: Examples, rows: Rows) -> TaskBatch:
    """The batch of those rows."""
    chosen = examples.take(rows)
    return TaskBatch(task, chosen.first + (chosen.second or []), chosen.targets)
