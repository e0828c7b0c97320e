"""Make the batches of a run: the strings of each step, their views, and this process's share."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import DataError
from mirror_train.data.by_language import by_language, language_sets, numbered_languages
from mirror_train.data.neighbours import beside_neighbours
from mirror_train.data.training_data import TrainingData, connected_groups
from mirror_train.data.views import dropout_seed, epoch_order, make_views, step_rng
from mirror_train.recipes.recipe import Recipe

if TYPE_CHECKING:
    from mirror_train.compute.processes import Processes

# Synonyms and translations of many languages make chains that lead from nearly every word to every
# other. Where a group has more than this share of the pairs that fill batches together, which would
# be no negatives of each other, only the pairs of the batch itself make groups.
_MOST_CHAINED = 0.1
_LEAST = 2  # pairs of a batch


def check_loss_batch(
    data: TrainingData, recipe: Recipe, loss_batch: int, processes: Processes
) -> None:
    """Check that the processes can share a batch of `loss_batch` pairs, and that there is one."""
    cached = loss_batch != recipe.batch_size
    processes.own_rows(loss_batch, "--loss-batch" if cached else "--batch-size")
    if not batch_sizes(len(data), loss_batch, processes.count):
        raise DataError(
            f"{data.source} has too few different strings, {len(data)}: give at least "
            f"{max(_LEAST, processes.count)}, for a batch in which each has others to differ from"
        )


def are_chained(data: TrainingData) -> bool:
    """Tell whether a group has so large a part of all pairs, or of a language's, that it is none.

    A language with less than a tenth of all pairs is measured as if it had a tenth.
    """
    if data.group_ids is None:
        return False
    total = len(data)
    if max(Counter(data.group_ids).values()) > _MOST_CHAINED * total:
        return True
    languages = language_sets(data) or []
    pairs, shares = Counter(languages), Counter(zip(languages, data.group_ids, strict=False))
    return any(
        share > _MOST_CHAINED * max(pairs[one], _MOST_CHAINED * total)
        for (one, _), share in shares.items()
    )


def batch_sizes(pairs: int, batch: int, processes: int = 1) -> list[int]:
    """Return the numbers of pairs of an epoch's batches: the last one may be smaller.

    The last batch is cut to a number that divides among the processes, and is left out where it has
    no negatives, which a pair alone would not have.
    """
    last = pairs % batch // processes * processes
    return [batch] * (pairs // batch) + [last] * (last >= _LEAST)


class StepBatch(NamedTuple):
    """One process's share of a step: n of the N pairs that are contrasted with one another."""

    # V * n strings: n, then their positives and, where V is 3, their hard negatives.
    texts: list[str]
    views: int  # V, 2 or 3
    # int64 [n] (see `TrainingData`), with the same meaning in all processes.
    group_ids: npt.NDArray[np.int64] | None
    rows: npt.NDArray[np.int64]  # int64 [n], which pairs of the data these are
    # float64 [n, 2], the random numbers that choose the masked tokens of the positives (see
    # `mirror_train.data.views.mask_token_spans`); None to mask none.
    span_draws: npt.NDArray[np.float64] | None = None


class Batches:
    """The sequence of all steps' batches, each computed from the seed and the step alone.

    All processes draw the views of the whole batch, so that these do not depend on the number of
    processes, and each takes its slice: `share` of the `loss_batch` pairs of a step. Those that
    have `neighbours`, int64 [n, k], share a batch with them (see `beside_neighbours`). Where the
    languages of pairs are known, most batches have one of them (see `by_language`).
    """

    def __init__(
        self,
        data: TrainingData,
        recipe: Recipe,
        *,
        loss_batch: int,
        seed: int,
        mask_token: str | None,
        processes: Processes,
        steps: int | None = None,
        neighbours: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._data, self._recipe = data, recipe
        self.seed, self._mask_token = seed, mask_token
        self.loss_batch = loss_batch
        self.views = 2 if data.hard_negatives is None else 3
        self.share = loss_batch // processes.count
        self._processes = processes
        self._sizes = batch_sizes(len(data), loss_batch, processes.count)
        self._tiers = None if data.tiers is None else np.array(data.tiers)
        self._steps = steps or recipe.steps or recipe.epochs * len(self._sizes)
        self._chained = are_chained(data)
        self._neighbours = neighbours
        self._languages = numbered_languages(data, loss_batch)
        self._order = lru_cache(maxsize=1)(self._new_order)  # needed at every step

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: int) -> StepBatch:
        """Return the batch of a step; raise DataError where its pairs leave no negatives."""
        epoch, batch = divmod(step, len(self._sizes))
        order = self._order(epoch)
        rows = order[batch * self.loss_batch :][: self.size(step)]
        groups = self._found_groups(rows)
        if groups is not None and _one(groups) and self.loss_batch <= len(order):
            # The few pairs of a last batch may all share strings: those before them are negatives.
            rows = order[-self.loss_batch :]
            groups = self._found_groups(rows)
        if groups is not None and _one(groups):
            raise self._no_negatives(len(rows))
        size = len(rows)
        rng = step_rng(seed=self.seed, step=step)
        dropout_seed(rng, rank=0)  # a step's first number, which the loop draws again
        texts = make_views(self._data, rows, self._recipe, mask_token=self._mask_token, rng=rng)
        own = self._processes.own_rows(size)
        views = [texts[start : start + size][own] for start in range(0, len(texts), size)]
        tokens = (
            self._recipe.span_mask in ("tokens", "random-tokens") and self._recipe.span_length > 0
        )
        return StepBatch(
            [text for view in views for text in view],
            self.views,
            None if groups is None else groups[own],
            rows[own],
            rng.random((size, 2))[own] if tokens else None,
        )

    def size(self, step: int) -> int:
        """Return the number of pairs of a step's batch, those of all processes."""
        return self._sizes[step % len(self._sizes)]

    def seen(self, steps: int) -> int:
        """Return how many different pairs the first steps have: all in the end, or nearly all."""
        return sum(self._sizes[:steps])

    @property
    def tier_starts(self) -> tuple[int, ...]:
        """The steps of the first epoch before which a tier of pairs begins, but the first tier."""
        sizes = np.unique(self._data.tiers or [0], return_counts=True)[1]
        return tuple(int(end) // self.loss_batch for end in sizes.cumsum()[:-1])

    def _new_order(self, epoch: int) -> npt.NDArray[np.int64]:
        order = epoch_order(len(self._data), seed=self.seed, epoch=epoch)
        if self._languages is not None:
            rng = np.random.default_rng([self.seed, 2, epoch])
            order = by_language(order, self._languages, self.loss_batch, rng)
        if self._neighbours is not None:  # those in other languages, too
            order = beside_neighbours(order, self._neighbours)
        return order if self._tiers is None else order[self._tiers[order].argsort(kind="stable")]

    def _found_groups(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
        if self._data.group_ids is None:
            return None
        data = self._data
        if self._chained:
            found = connected_groups([(data.first[row], data.second[row]) for row in rows])
        else:
            found = [self._data.group_ids[row] for row in rows]
        return np.array(found, dtype=np.int64)

    def _no_negatives(self, pairs: int) -> DataError:
        option = "--batch-size" if self.loss_batch == self._recipe.batch_size else "--loss-batch"
        return DataError(
            f"{self._data.source}: the {pairs} pairs of a batch all share strings with one "
            "another, directly or through others, so none is a negative: give more pairs, or a "
            f"larger {option}"
        )


def _one(groups: npt.NDArray[np.int64]) -> bool:
    return bool((groups == groups[0]).all())
