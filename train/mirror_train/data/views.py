"""The two views of each string (EMNLP 2021, sections 2.1 and 2.2)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.masking import mask_span
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.recipe import Recipe

__all__ = ["dropout_seed", "epoch_order", "make_views", "step_rng"]


@lru_cache(maxsize=1)  # asked for at every step
def epoch_order(n: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Order of the n strings in an epoch; depends on nothing but the seed and the epoch."""
    order = np.random.default_rng([seed, 0, epoch]).permutation(n)
    order.flags.writeable = False
    return order


def step_rng(*, seed: int, step: int) -> np.random.Generator:
    """Randomness of one step; made anew for each, so a resumed run draws the same numbers."""
    return np.random.default_rng([seed, 1, step])


def dropout_seed(rng: np.random.Generator, *, rank: int) -> int:
    """Draw a step's seed for torch's generators: dropout differs in every process."""
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
    """The chosen N strings, their positives with a random span masked, their hard negatives if any.

    Dropout makes the views differ further, inside the model; spans of tokens are masked later.

    Raises:
        ConfigError: span masking with a tokenizer that has no mask token.
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
            text,
            length=recipe.span_length,
            mask_token=mask_token,
            rng=rng,
            method=recipe.span_mask,
        )
        for text in second
    ]
    return first + masked + hard
