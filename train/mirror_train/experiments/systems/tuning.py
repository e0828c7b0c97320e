"""Tune each system; torch is imported by the functions that tune, not by their table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mirror_train.compute.precision import Precision
from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.systems.inputs import Inputs
from mirror_train.recipes.recipe import Recipe
from mirror_train.recipes.systems import BurtRecipe, CfRecipe, FlowRecipe, MultitaskRecipe
from mirror_train.training.run_config import (
    BurtConfig,
    CfConfig,
    FlowConfig,
    MultitaskConfig,
    RunConfig,
    TuneConfig,
    TunedPooling,
)

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

# Tunes by a recipe on the inputs of a folder, with a pooling, a precision and settings of a run.
Tune = Callable[[Inputs, Any, TunedPooling, Precision, RunConfig], "TuneReport"]


def fitted(
    recipe: Any, *, max_steps: int | None, learning_rate: float | None, max_length: int
) -> Any:
    """Return the recipe with at most so many steps, and texts cut to what the base model can take.

    A learning rate is that of everything that moves the encoder, so not that of a flow, which
    learns vectors, however large the encoder is.
    """
    if isinstance(recipe, CfRecipe):
        limits: dict[str, Any] = {
            "max_steps": max_steps,
            "learning_rate": learning_rate,
            "max_length": max_length,
        }
        parts = {name: fitted(getattr(recipe, name), **limits) for name in ("mirror", "flow")}
        return dataclasses.replace(recipe, **parts)
    changes: dict[str, Any] = {}
    if not isinstance(recipe, FlowRecipe):
        changes["max_length"] = min(recipe.max_length, max_length)
        if learning_rate is not None:
            changes["learning_rate"] = learning_rate
    counts_steps = not isinstance(recipe, Recipe) or recipe.steps is not None
    if counts_steps and max_steps is not None:
        changes["steps"] = min(recipe.steps or max_steps, max_steps)
    return dataclasses.replace(recipe, **changes)


def tune_mirror(
    read: Callable[[Inputs], TrainingData],
    inputs: Inputs,
    recipe: Recipe,
    pooling: TunedPooling,
    precision: Precision,
    run: RunConfig,
) -> TuneReport:
    """Tune by a contrastive loss, with batches no larger than the data."""
    from mirror_train.training.tune import tune

    data = read(inputs)
    recipe = recipe.replace(batch_size=max(2, min(recipe.batch_size, len(data))))
    options = {"precision": precision, **run.run_options(), **inputs.choice}
    return tune(data, TuneConfig(recipe=recipe, pooling=pooling, **options))


def tune_flow(
    inputs: Inputs,
    recipe: FlowRecipe,
    pooling: TunedPooling,
    precision: Precision,
    run: RunConfig,
) -> TuneReport:
    """Fit a flow to the base model's vectors of the sentences, in float32."""
    from mirror_train.flow.likelihood import tune_flow as tune

    options = {"pooling": pooling, **run.run_options(), **inputs.choice}
    return tune(inputs.sentences(), FlowConfig(recipe=recipe, **options))


def cf_recipe(*, views: str = "mirror", joint: bool = False, regulariser: bool = True) -> CfRecipe:
    """Return the recipe of BERT-CF, or of an ablation of its section 6.1."""
    recipe = CfRecipe()
    mirror = recipe.mirror if views == "mirror" else recipe.mirror.replace(span_length=0)
    weight = recipe.mirror_weight if regulariser else 0.0
    return dataclasses.replace(recipe, mirror=mirror, joint=joint, mirror_weight=weight)


def tune_cf(
    inputs: Inputs, recipe: CfRecipe, pooling: TunedPooling, precision: Precision, run: RunConfig
) -> TuneReport:
    """Tune by Mirror-BERT on the sentences, then fit a flow with its loss as regulariser."""
    from mirror_train.flow.contrastive import tune_cf as tune

    options = {"pooling": pooling, "precision": precision, **run.run_options(), **inputs.choice}
    config = CfConfig(recipe=recipe, **options)
    return tune(inputs.sentences(), config)


def tune_burt(
    inputs: Inputs, recipe: BurtRecipe, pooling: TunedPooling, precision: Precision, run: RunConfig
) -> TuneReport:
    """Train on inference pairs and paraphrases, for at most an epoch of the inference pairs.

    The pooling is that of the recipe, which has one for every base model.
    """
    from mirror_train.pairs.burt import tune_burt as tune

    tasks = inputs.burt_tasks(run.seed)
    if recipe.steps is not None:
        turns = 1 if tasks.objectives == ("nli",) else 2  # every second batch is of inference
        pairs = 0 if tasks.nli is None else len(tasks.nli)
        epoch = max(1, turns * math.ceil(pairs / recipe.batch_size))
        recipe = dataclasses.replace(recipe, steps=min(recipe.steps, epoch))
    return tune(
        tasks, BurtConfig(recipe=recipe, precision=precision, **run.run_options(), **inputs.choice)
    )


def tune_multitask(
    inputs: Inputs,
    recipe: MultitaskRecipe,
    pooling: TunedPooling,
    precision: Precision,
    run: RunConfig,
) -> TuneReport:
    """Fine-tune on sentiment, paraphrases and similarity together."""
    from mirror_train.pairs.multitask import tune_multitask as tune

    recipe = recipe.replace(pooling="mean" if pooling == "paper" else pooling)
    config = MultitaskConfig(
        recipe=recipe, precision=precision, **run.run_options(), **inputs.choice
    )
    return tune(inputs.tasks(run.seed), config)
