"""How many steps a run may take before the weights have moved too far from those of the base model.

An epoch is the wrong unit: a thesaurus of 10,000 pairs moves the weights five times as far as one
of 2,000, and what the base model knows about all other words wears off. AdamW moves every weight by
about the learning rate in a step, so the sum of the rates says how far. How far is too far depends
on the base model: in a narrow cone of vectors the same step is a larger part of what tells two
words apart. So the budget is a multiple of the room in the cone, 1 - the mean cosine of random
strings.
"""

from __future__ import annotations

import bisect

import numpy as np

from mirror_train.compute.processes import Processes
from mirror_train.data.training_data import TrainingData
from mirror_train.model.pooling_head import Head
from mirror_train.model.pretrained import Pretrained
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.loop import rate_factor
from mirror_train.training.whitening import sample_vectors

_SAMPLE = 1000


def movement_steps(
    base: Pretrained,
    data: TrainingData,
    recipe: Recipe,
    loss_batch: int,
    *,
    seed: int,
    processes: Processes,
) -> int | None:
    """Return the number of steps that `Recipe.movement` leaves of the epochs; None without one."""
    if recipe.movement is None or recipe.steps is not None:
        return None
    head = Head([recipe.fixed_pooling])
    vectors = sample_vectors(base, head, data, seed, processes.device, most=_SAMPLE)
    # All processes have to take the same number of steps, whatever the last digits of the vectors.
    room = processes.mean(1 - mean_cosine(vectors))
    most = recipe.epochs * (len(data) // loss_batch)
    return max(1, steps_within(recipe.movement * room, recipe, most=most))


def steps_within(budget: float, recipe: Recipe, *, most: int) -> int:
    """Return the largest number of steps, at most `most`, whose rates add up to the budget."""

    def moved(steps: int) -> float:
        factors = (
            rate_factor(step, steps, warm_up=recipe.warm_up, decay=recipe.decay)
            for step in range(steps)
        )
        return recipe.learning_rate * sum(factors)

    return bisect.bisect_right(range(1, most + 1), budget * (1 + 1e-9), key=moved)


def mean_cosine(vectors: np.ndarray) -> float:
    """Return the mean cosine of pairs of different rows of float32 [n, D], n at least 2."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    n = len(unit)
    return float((np.square(unit.sum(axis=0, dtype=np.float64)).sum() - n) / (n * (n - 1)))
