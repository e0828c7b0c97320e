"""Tune each system; torch is imported by the functions that tune, not by their table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from mirror_train.data.training_data import TrainingData
from mirror_train.experiments.systems.config import SystemJob, fitted
from mirror_train.experiments.systems.inputs import Inputs
from mirror_train.flow.recipe import CfConfig, CfRecipe, FlowConfig, FlowRecipe
from mirror_train.pairs.recipe import BurtConfig, BurtRecipe, MultitaskConfig, MultitaskRecipe
from mirror_train.recipes.recipe import Recipe
from mirror_train.training.run_config import TuneConfig

if TYPE_CHECKING:
    from mirror_train.training.output_folder import TuneReport


def _steps(own: int, job: SystemJob) -> int:
    return own if job.max_steps is None else min(own, job.max_steps)


def tune_mirror(
    read: Callable[[Inputs], TrainingData], recipe: Recipe, job: SystemJob
) -> TuneReport:
    """Tune by a contrastive loss, with batches no larger than the data."""
    from mirror_train.training.tune import tune

    data, recipe = read(job.inputs), fitted(recipe, job)
    recipe = recipe.replace(batch_size=max(2, min(recipe.batch_size, len(data))))
    return tune(data, TuneConfig(recipe=recipe, precision=job.precision, **job.run_options()))


def tune_flow(recipe: FlowRecipe, job: SystemJob) -> TuneReport:
    """Fit a flow to the base model's mean vectors of the sentences."""
    from mirror_train.flow.likelihood import tune_flow as run

    recipe = dataclasses.replace(recipe, steps=_steps(recipe.steps, job))
    config = FlowConfig(recipe=recipe, **job.run_options())
    return run(job.inputs.sentences(), config)


def cf_recipe(*, views: str = "mirror", joint: bool = False, regulariser: bool = True) -> CfRecipe:
    """Return the recipe of BERT-CF, or of an ablation of its section 6.1."""
    recipe = CfRecipe()
    mirror = recipe.mirror if views == "mirror" else recipe.mirror.replace(span_length=0)
    weight = recipe.mirror_weight if regulariser else 0.0
    return dataclasses.replace(recipe, mirror=mirror, joint=joint, mirror_weight=weight)


def tune_cf(recipe: CfRecipe, job: SystemJob) -> TuneReport:
    """Tune by Mirror-BERT on the sentences, then fit a flow with its loss as regulariser."""
    from mirror_train.flow.contrastive import tune_cf as run

    flow = dataclasses.replace(recipe.flow, steps=_steps(recipe.flow.steps, job))
    recipe = dataclasses.replace(recipe, mirror=fitted(recipe.mirror, job), flow=flow)
    config = CfConfig(recipe=recipe, precision=job.precision, **job.run_options())
    return run(job.inputs.sentences(), config)


def tune_burt(recipe: BurtRecipe, job: SystemJob) -> TuneReport:
    """Train on inference pairs and paraphrases, for an epoch of the inference pairs."""
    from mirror_train.pairs.burt import tune_burt as run

    tasks, recipe = job.inputs.burt_tasks(job.seed), fitted(recipe, job)
    if job.max_steps is not None:
        turns = 1 if tasks.objectives == ("nli",) else 2  # every second batch is of inference
        pairs = 0 if tasks.nli is None else len(tasks.nli)
        epoch = max(1, turns * math.ceil(pairs / recipe.batch_size))
        recipe = dataclasses.replace(recipe, steps=_steps(epoch, job))
    config = BurtConfig(recipe=recipe, precision=job.precision, **job.run_options())
    return run(tasks, config)


def tune_multitask(recipe: MultitaskRecipe, job: SystemJob) -> TuneReport:
    """Fine-tune on sentiment, paraphrases and similarity together."""
    from mirror_train.pairs.multitask import tune_multitask as run

    recipe = fitted(recipe, job)
    recipe = dataclasses.replace(recipe, steps=_steps(recipe.steps, job))
    config = MultitaskConfig(recipe=recipe, precision=job.precision, **job.run_options())
    return run(job.inputs.tasks(job.seed), config)
