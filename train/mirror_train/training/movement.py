"""End a run before its epochs do, when the weights have moved too far from the base model.

An epoch is the wrong unit: a thesaurus of 10,000 pairs moves the weights five times as far as one
of 2,000, and what the base model knows about all other words wears off. Two things say how far they
are. AdamW moves every weight by about the learning rate in a step, so the sum of the rates is a
budget. And words have other words near them than they had: the share of neighbours that are kept
needs no human scores, and falls the faster the less the pairs agree with the base model.
"""

from __future__ import annotations

import bisect
import logging
import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from mirror_rt.encoding.batch_encoder import EmbeddingModel
from mirror_rt.errors import ConfigError, MissingDependencyError
from mirror_train.data.strings import word_list
from mirror_train.data.training_data import TrainingData
from mirror_train.recipes.recipe import Recipe

logger = logging.getLogger("mirror_train")

# The reasons why a run ends: all steps of the recipe or its epochs; the budget of movement; or too
# few neighbours kept.
EndedBy = Literal["steps", "epochs", "movement", "neighbours"]

_WORDS, _NEAREST = 1000, 10
# A tier of pairs is begun only while less than this part of the allowed loss is lost. Pairs of
# rarer words made multilingual-e5-small worse after 92 %, and all-MiniLM-L6-v2 better after 45 %.
_TIER_LOSS = 0.85


def rate_factor(step: int, total: int, *, warm_up: float, decay: bool) -> float:
    """Return a factor that rises linearly to 1 over a share of the steps, then may fall to 0.

    The factor is above 0 in the first and the last step, so that these train too.
    """
    warm = math.ceil(warm_up * total)
    if step < warm:
        return (step + 1) / warm
    return (total - step) / max(1, total - warm) if decay else 1.0


def planned_steps(recipe: Recipe, per_epoch: int) -> tuple[int, EndedBy]:
    """Return the number of steps, and the reason: the recipe's steps, its epochs or its movement.

    An epoch has `per_epoch` steps.
    """
    if recipe.steps is not None:
        return recipe.steps, "steps"
    most = recipe.epochs * per_epoch
    if recipe.movement is None:
        return most, "epochs"

    def moved(steps: int) -> float:
        factors = (
            rate_factor(step, steps, warm_up=recipe.warm_up, decay=recipe.decay)
            for step in range(steps)
        )
        return recipe.learning_rate * sum(factors)

    budget = recipe.movement * (1 + 1e-9)  # sums of rates are rounded
    within = max(1, bisect.bisect_right(range(1, most + 1), budget, key=moved))
    return within, "movement" if within < most else "epochs"


@dataclass(slots=True)
class Neighbours:
    """The nearest of each of some words; a run ends when too few of the base model's are kept.

    It is made before the first step.
    """

    encoder: EmbeddingModel  # gives the vectors of the current weights
    words: list[str]
    least: float  # the share of neighbours to keep, 0 .. 1
    # The steps after which a further tier of pairs begins (see `TrainingData.tiers`).
    tier_starts: tuple[int, ...] = ()
    # The share that was kept when it was last measured.
    kept: float = field(init=False, default=1.0)
    _before: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self._before = self._nearest()

    def lost(self, done: int) -> bool:
        """Measure the weights after `done` steps, and tell whether too few are kept to go on.

        Fewer than `least` are too few. Before a tier of pairs begins, more have to be kept.
        """
        now = self._nearest()
        self.kept = float((now & self._before).sum() / now.sum())
        if done in self.tier_starts:
            return self.kept < 1 - _TIER_LOSS * (1 - self.least)
        return self.kept < self.least

    def _nearest(self) -> npt.NDArray[np.bool_]:
        """Return bool [n, n]: the ten words with the highest cosines of each, without the mean."""
        x = np.array(self.encoder.encode(self.words, normalize_embeddings=False), dtype=np.float32)
        x -= x.mean(axis=0)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        cosines = x @ x.T
        np.fill_diagonal(cosines, -np.inf)
        count = min(_NEAREST, len(x) - 1)
        found = np.zeros(cosines.shape, dtype=np.bool_)
        np.put_along_axis(found, np.argsort(-cosines, axis=1)[:, :count], values=True, axis=1)
        return found


def common_words(data: TrainingData) -> list[str]:
    """Return frequent words of the data's language; its strings where there is no list of them."""
    if data.language is not None:
        try:
            return word_list(data.language, top=_WORDS).first
        except (ConfigError, MissingDependencyError) as error:
            logger.warning("neighbours are looked for among the strings to tune on: %s", error)
    return list(dict.fromkeys(data.first))[:_WORDS]
