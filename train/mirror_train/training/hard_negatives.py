"""Find the hard negatives of a run's pairs, by its guide or by the encoder before it is tuned."""

from __future__ import annotations

import numpy as np

from mirror_rt.vectors.normalization import normalize_rows
from mirror_train.data.batches import are_chained
from mirror_train.data.neighbours import Rows, distinct_texts, nearest_negatives
from mirror_train.data.training_data import TrainingData
from mirror_train.model.torch_encoder import TorchEncoder
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.guide import Guide
from mirror_train.training.kept_vectors import kept_vectors
from mirror_train.training.run import Run
from mirror_train.training.teacher import Teacher


def mined_negatives(
    run: Run,
    data: TrainingData,
    recipe: Recipe,
    untuned: TorchEncoder,
    teacher: Teacher | Guide | None,
) -> Rows | None:
    """Return the nearest negatives of each pair, int64 [n, k]; None where the recipe wants none.

    A guide finds them by its own vectors, and leaves out those that are likely to be false, by
    the margin that it has in the loss. The vectors of the encoder before tuning are kept in
    OUT.neighbours.
    """
    count = recipe.mined_negatives
    ids = None if data.group_ids is None or are_chained(data) else np.array(data.group_ids)

    def mine() -> Rows:
        if isinstance(teacher, Guide):
            units = normalize_rows(teacher.vectors.numpy())
            return nearest_negatives(
                units, teacher.rows, count, group_ids=ids, margin=recipe.guide_margin
            )
        texts, sides = distinct_texts(data.first, data.second)
        decides = {
            "weights": run.base.weights_sha256(),
            "pooling": untuned.head.pooling,
            "max_length": untuned.max_length,
            "device": run.device.type,
        }
        vectors = kept_vectors(run, "neighbours", untuned.encode, texts, decides)
        return nearest_negatives(normalize_rows(vectors), sides, count, group_ids=ids)

    return run.processes.in_first(mine) if count else None
