"""Make the two views of each string (EMNLP 2021, sections 2.1 and 2.2)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.masking import mask_span
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.recipe import Recipe


@lru_cache(maxsize=1)  # needed at every step
def epoch_order(n: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the order of n strings in an epoch, which depends only on n, seed and epoch."""
    order = np.random.default_rng([seed, 0, epoch]).permutation(n)
    order.flags.writeable = False
    return order


def step_rng(*, seed: int, step: int) -> np.random.Generator:
    """Return a new generator for one step, so that a resumed run draws the same numbers."""
    return np.random.default_rng([seed, 1, step])


def dropout_seed(rng: np.random.Generator, *, rank: int) -> int:
    """Draw a step's seed for torch's generators, a different one for every process."""
    seed = int(rng.integers(2**63))
    return seed if rank == 0 else int(np.random.default_rng([seed, rank]).integers(2**63))


def make_views(
    data: TrainingData,
    rows: npt.NDArray[np.int64],
    recipe: Recipe,
    *,
    mask_token: str | None,
    rng: np.random.Generator,
) -> list[str]:
    """Return N chosen strings, their positives with a random span masked, and any hard negatives.

    Spans of tokens are masked later, after tokenisation. Dropout makes the views differ further
    inside the model.

    Raises:
        ConfigError: the recipe masks spans, but the tokenizer has no mask token.
    """
    first = [data.first[row] for row in rows]
    second = [data.second[row] for row in rows]
    hard = [] if data.hard_negatives is None else [data.hard_negatives[row] for row in rows]
    if recipe.span_length == 0:
        return first + second + hard
    if mask_token is None:
        raise ConfigError("this tokenizer has no mask token: pass --span-length 0")
    if recipe.span_mask == "tokens":
        return first + second + hard
    masked = [
        mask_span(
            text, length=recipe.span_length, mask_token=mask_token, rng=rng, method=recipe.span_mask
        )
        for text in second
    ]
    return first + masked + hard
