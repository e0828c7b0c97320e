"""The steps of systems that rank documents for queries, by the other documents of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mirror_rt.errors import DataError
from mirror_rt.tokens.tokenization import TokenizedTexts
from mirror_train.data.batches import are_chained
from mirror_train.data.passes import Passes
from mirror_train.data.training_data import TrainingData, connected_groups
from mirror_train.training.loop import TrainingStats
from mirror_train.training.run import Run
from mirror_train.training.steps import Part, Steps

RankedLoss = Callable[[Tensor, Tensor, TokenizedTexts, int], Tensor]
"""From the vectors of a batch's n queries and their documents, float32, the groups of the queries
int64 [n], their tokens and the number of the step, to a scalar."""


def ranking_steps(
    run: Run,
    data: TrainingData,
    tokenize: Callable[[list[str], list[str]], TokenizedTexts],
    loss: RankedLoss,
) -> Steps:
    """Return the steps of a run on queries and their documents, with hard negatives where given.

    `tokenize` takes the n queries of a batch and their documents, n or, with hard negatives, 2n.
    Each of several processes contrasts its own share of a batch.
    """
    recipe = run.config.recipe
    if data.group_ids is None:
        raise DataError(
            f"{data.source} has single strings, expected pairs of a query and a document"
        )
    if len(data) < recipe.batch_size:
        raise DataError(
            f"{data.source} has {len(data)} pairs, expected a batch of {recipe.batch_size} at least"
        )
    run.processes.own_rows(recipe.batch_size)
    passes = Passes(len(data), recipe.batch_size, (run.config.seed,))
    sides = [data.second, *([] if data.hard_negatives is None else [data.hard_negatives])]
    groups = None if are_chained(data) else data.group_ids

    def of(ids: Tensor, tokens: TokenizedTexts, step: int, z: Tensor) -> Tensor:
        return loss(z.float(), ids.to(z.device), tokens, step)

    def parts(step: int) -> Iterator[Part]:
        rows = passes[step]
        rows = rows[run.processes.own_rows(len(rows))].tolist()
        queries = [data.first[row] for row in rows]
        tokens = tokenize(queries, [side[row] for side in sides for row in rows])
        if groups is None:
            ids = connected_groups([(data.first[row], data.second[row]) for row in rows])
        else:
            ids = [groups[row] for row in rows]
        bound = partial(of, torch.tensor(ids), tokens, step)
        yield Part(tokens.tokens, bound, sum(tokens.truncated))

    total = recipe.steps or math.ceil(recipe.epochs * len(data) / recipe.batch_size)
    return Steps(total, parts)


def ranking_loss(scores: Tensor, ids: Tensor) -> Tensor:
    """Return the cross-entropy of each query's document among those of the batch, a scalar.

    `scores` [n, m] are those of n queries with their n documents and, where m is 2n, n hard
    negatives. Documents of other queries with the same of `ids` [n] are no negatives.
    """
    n = len(scores)
    same = ids[:, None] == ids
    same.fill_diagonal_(False)
    scores = scores.masked_fill(same.repeat(1, scores.shape[1] // n), -math.inf)
    return functional.cross_entropy(scores, torch.arange(n, device=scores.device))


def course(stats: TrainingStats) -> dict[str, Any]:
    """Return the padding and the cuts of a run, for mirror.json."""
    names = ("padding_percent", "cut_percent")
    return {name: round(getattr(stats, name), 2) for name in names}
