"""The two views of each string (EMNLP 2021, sections 2.1 and 2.2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import ConfigError
from mirror_rt.masking import mask_span
from mirror_train.data import TrainingData
from mirror_train.recipe import Recipe

__all__ = ["epoch_order", "make_views", "step_rng"]


def epoch_order(n: int, *, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Order of the n strings in an epoch; depends on nothing but the seed and the epoch."""
    return np.random.default_rng([seed, 0, epoch]).permutation(n)


def step_rng(*, seed: int, step: int) -> np.random.Generator:
    """Randomness of one step; made anew for each, so a resumed run draws the same numbers."""
    return np.random.default_rng([seed, 1, step])


def make_views(
    data: TrainingData,
    rows: npt.NDArray[np.int64],
    recipe: Recipe,
    *,
    mask_token: str | None,
    rng: np.random.Generator,
) -> list[str]:
    """2N strings: the chosen N, then their positives with a random span masked.

    Dropout makes the views differ further, inside the model.

    Raises:
        ConfigError: span masking with a tokenizer that has no mask token.
    """
    first = [data.first[row] for row in rows]
    second = [data.second[row] for row in rows]
    if recipe.span_length == 0:
        return first + second
    if mask_token is None:
        raise ConfigError("this tokenizer has no mask token: pass --span-length 0")
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
    return first + masked
