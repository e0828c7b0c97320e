"""Make the batches of a task from shuffled passes over its rows, one after another."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_train.data.labelled_examples import Examples

if TYPE_CHECKING:
    from mirror_train.compute.processes import Processes

Rows = npt.NDArray[np.int64]


class TaskBatch(NamedTuple):
    """A batch of one task."""

    task: str  # name of the task
    texts: list[str]  # n texts; for pairs 2n texts, n and then their partners
    targets: npt.NDArray[Any]  # [n], int64 or float64

    def share(self, processes: Processes) -> TaskBatch:
        """Return the rows that this process takes."""
        own, n = processes.own_rows(len(self.targets)), len(self.targets)
        sides = [self.texts[start : start + n][own] for start in range(0, len(self.texts), n)]
        return TaskBatch(self.task, [text for side in sides for text in side], self.targets[own])


class Passes:
    """The sequence of a task's batches of rows, which depend on the seed alone.

    So that tasks of very different sizes can be trained together, a task whose rows are used up
    starts again in a new order. A batch may hold the end of one pass and the start of the next.
    `seed` holds numbers that give every task an order of its own.
    """

    def __init__(self, count: int, batch_size: int, seed: tuple[int, ...]) -> None:
        self._count, self._size = count, batch_size
        self._order = lru_cache(maxsize=1)(
            lambda epoch: np.random.default_rng([*seed, epoch]).permutation(count)
        )

    def __getitem__(self, batch: int) -> Rows:
        """Return the rows of a batch, int64 [batch_size]."""
        position, end, parts = batch * self._size, (batch + 1) * self._size, []
        while position < end:
            epoch, place = divmod(position, self._count)
            part = self._order(epoch)[place : place + end - position]
            parts.append(part)
            position += len(part)
        return np.concatenate(parts)


class TaskBatches:
    """The sequence of a task's batches, in the order of `Passes`."""

    def __init__(
        self, task: str, examples: Examples, batch_size: int, seed: tuple[int, ...]
    ) -> None:
        self._task, self._examples = task, examples
        self._passes = Passes(len(examples), batch_size, seed)

    def __len__(self) -> int:
        """Return the number of rows of a pass."""
        return len(self._examples)

    def __getitem__(self, batch: int) -> TaskBatch:
        chosen = self._examples.take(self._passes[batch])
        return TaskBatch(self._task, chosen.first + (chosen.second or []), chosen.targets)
