"""Compute the loss that a recipe trains with from the embeddings of one step."""

from __future__ import annotations

import torch
from torch import Tensor

from mirror_rt.errors import ConfigError
from mirror_train.data.batches import StepBatch
from mirror_train.loss import first_view, infonce, multi_similarity
from mirror_train.recipes.recipe import Recipe


def contrast(
    z: Tensor,
    batch: StepBatch,
    recipe: Recipe,
    *,
    process_group: torch.distributed.ProcessGroup | None = None,
) -> Tensor:
    """Return the loss of this process's share of a step, a scalar; see `infonce`.

    `z` [V * n, D] are the embeddings of `batch.texts`: strings, positives and, where V is 3, hard
    negatives. They are also contrasted with the rows of the other processes of `process_group`.
    """
    z1, z2, *hard = z.chunk(batch.views)
    ids = None if batch.group_ids is None else torch.from_numpy(batch.group_ids).to(z.device)
    if recipe.loss == "multi_similarity":
        return multi_similarity(
            z1,
            z2,
            alpha=recipe.ms_alpha,
            beta=recipe.ms_beta,
            base=recipe.ms_base,
            margin=recipe.triplet_margin,
            group_ids=ids,
            process_group=process_group,
        )
    if recipe.loss == "first_view":
        if process_group is not None or hard:
            raise ConfigError(
                "the loss first_view is for one process and no hard negatives: choose ntxent"
            )
        return first_view(z1, z2, temperature=recipe.temperature, group_ids=ids)
    return infonce(
        z1,
        z2,
        temperature=recipe.temperature,
        variant=recipe.loss,
        group_ids=ids,
        hard_negatives=hard[0] if hard else None,
        process_group=process_group,
    )
