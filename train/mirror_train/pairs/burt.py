"""BURT: train one encoder for words, phrases and sentences on pairs (Li and Zhao 2020)."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import torch

from mirror_rt.errors import ConfigError
from mirror_train.pairs.burt_data import IDENTIFICATION_LABELS, BurtTasks, batches_of, turns
from mirror_train.pairs.passes import TaskBatch
from mirror_train.pairs.task_layers import SoftmaxLayer, TaskLayer
from mirror_train.pairs.task_run import open_model
from mirror_train.recipes.systems import BurtRecipe
from mirror_train.training.run import TuneReport, begun
from mirror_train.training.run_config import BurtConfig


def tune_burt(tasks: BurtTasks, config: BurtConfig) -> TuneReport:
    """Train an encoder on pairs and write it, with the heads of its objectives, to `config.out`.

    Raises:
        ConfigError: an option cannot be used, or an objective has no data.
        DataError: a class never occurs, or there are no negatives.
        ModelError: the base model cannot be loaded, or the loss diverges.
        OutputExistsError: `config.out` or a checkpoint of an earlier run exists.
        Interrupted: training was stopped by Ctrl-C or SIGTERM; a checkpoint was written.
    """
    objectives = config.recipe.objectives or tasks.objectives
    if not objectives:
        raise ConfigError("there are no data: pass --nli FILE, --ppdb FILE or --paraphrases FILE")
    recipe = config.recipe.replace(objectives=objectives)
    for name in objectives:
        if name != "pi":
            tasks.of(name).check_classes()
    batches = _Batches(tasks, recipe, config.seed)
    config = dataclasses.replace(config, recipe=recipe)
    with begun(config, config.precision) as run:
        run.processes.own_rows(recipe.batch_size)
        names: tuple[str, ...] = objectives
        make = {name: partial(_layer, name, tasks, recipe) for name in names}
        hashes = {name: tasks.of(name).sha256() for name in names}
        model = open_model(run, config, make, data=hashes)
        trainer = model.trainer(
            len(batches),
            batches,
            torch.optim.Adam(
                list(model.modules.parameters()),
                lr=recipe.learning_rate,
                betas=(0.9, 0.98),
                eps=1e-9,
                fused=True,
            ),
        )
        run.train(trainer, "burt", model.encoder())
        return model.write(trainer.stats, system="burt", data=tasks.summary(objectives))


class _Batches:
    """The batch of every step, from the objective whose turn it is."""

    def __init__(self, tasks: BurtTasks, recipe: BurtRecipe, seed: int) -> None:
        self._turns = turns(recipe.objectives)
        self._size = recipe.batch_size
        self._of = batches_of(tasks, recipe, seed)
        self._steps = recipe.steps or math.ceil(recipe.epochs * self._longest())

    def __len__(self) -> int:
        """Return the number of steps of the run."""
        return self._steps

    def __call__(self, step: int) -> list[TaskBatch]:
        round_, place = divmod(step, len(self._turns))
        name = self._turns[place]
        number = round_ * self._turns.count(name) + self._turns[:place].count(name)
        return [self._of[name][number]]

    def _longest(self) -> float:
        """Return the steps of a pass over the sentence pairs or, without them, the largest task."""
        names = ["nli"] if "nli" in self._of else list(self._of)
        share = len(self._turns)
        return max(
            math.ceil(len(self._of[name]) / self._size) * share / self._turns.count(name)
            for name in names
        )


def _layer(name: str, tasks: BurtTasks, recipe: BurtRecipe, dimension: int) -> TaskLayer:
    labels = IDENTIFICATION_LABELS if name == "pi" else tasks.of(name).labels
    return SoftmaxLayer(name, dimension, labels, features=recipe.concatenation.split(","))
