"""A guide: the model that says which strings of a batch are no negatives of one another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirror_train.data.batches import StepBatch
from mirror_train.data.neighbours import distinct_texts
from mirror_train.data.training_data import TrainingData
from mirror_train.loss import guided
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.run import Run
from mirror_train.training.teacher import Lesson, encoded


@dataclass(frozen=True, slots=True)
class Guide:
    """A guide's vectors of the strings of all pairs.

    Attributes:
        rows: int64 [2, n], the row of `vectors` for both strings of each pair.
        vectors: float32 [m, E].
        record: the entry of the guide in mirror.json.
    """

    rows: npt.NDArray[np.int64]
    vectors: Tensor
    record: dict[str, Any]

    def views_of(self, batch: StepBatch, recipe: Recipe) -> StepBatch:
        """Return the views that the loss needs: both."""
        return batch

    def loss(self, z: Tensor, batch: StepBatch, recipe: Recipe) -> Tensor:
        """Return the loss of the views z [2n, D] of a batch, a scalar; see `guided`."""
        by_guide = self.vectors[torch.from_numpy(self.rows[:, batch.rows])].to(z.device)
        ids = None if batch.group_ids is None else torch.from_numpy(batch.group_ids).to(z.device)
        return guided(
            *z.chunk(2),
            *by_guide,
            temperature=recipe.temperature,
            margin=recipe.guide_margin or 0.0,
            group_ids=ids,
        )


def read_guide(run: Run, data: TrainingData, lesson: Lesson) -> Guide:
    """Encode all strings by the guide of a lesson, which may be the base model itself.

    Raises:
        ModelError: a vector is not finite.
    """
    texts, rows = distinct_texts(data.first, data.second)
    vectors, record = encoded(run, lesson, texts)
    return Guide(rows, torch.from_numpy(vectors), record)
