"""BURT: train one encoder for words, phrases and sentences on pairs (Li and Zhao 2020)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial

import torch

from mirror_rt.errors import ConfigError
from mirror_train.pairs.burt_data import IDENTIFICATION_LABELS, BurtTasks, batches_of, turns
from mirror_train.pairs.passes import TaskBatch
from mirror_train.pairs.recipe import BurtConfig, BurtRecipe
from mirror_train.pairs.task_layers import SoftmaxLayer, TaskLayer
from mirror_train.pairs.task_session import Session, open_session
from mirror_train.pairs.training import TaskTrainer, warm_up_then_decay
from mirror_train.training.output_folder import TuneReport
from mirror_train.training.step_bar import step_bar
from mirror_train.training.trainer import TrainingStats


def tune_burt(tasks: BurtTasks, config: BurtConfig) -> TuneReport:
    """Train an encoder on pairs and write it, with the heads of its objectives, to `config.out`.

    Raises:
        ConfigError: an option cannot be used, or an objective has no data.
        DataError: a class never occurs, or there are no negatives.
        ModelError: the base model cannot be loaded, or the loss diverges.
        OutputExistsError: `config.out` exists.
        KeyboardInterrupt: Ctrl-C; nothing is written.
    """
    objectives = config.recipe.objectives or tasks.objectives
    if not objectives:
        raise ConfigError("there are no data: pass --nli FILE, --ppdb FILE or --paraphrases FILE")
    recipe = dataclasses.replace(config.recipe, objectives=objectives)
    for name in objectives:
        if name != "pi":
            tasks.of(name).check_classes()
    batches = _Batches(tasks, recipe, config.seed)
    session = open_session(dataclasses.replace(config, recipe=recipe))
    layers = session.layers({name: partial(_layer, name, tasks, recipe) for name in objectives})
    stats = _train(session, layers, batches, recipe)
    return session.save(layers, stats, system="burt", data=tasks.summary(objectives), training={})


def _train(
    session: Session, layers: Mapping[str, TaskLayer], batches: _Batches, recipe: BurtRecipe
) -> TrainingStats:
    config = session.config
    trainer = TaskTrainer(
        session=session,
        layers=layers,
        batches=batches,
        weights=dict.fromkeys(layers, 1.0),
        optimizer=torch.optim.Adam(
            session.parameters(layers),
            lr=recipe.learning_rate,
            betas=(0.9, 0.98),
            eps=1e-9,
            fused=True,
        ),
        schedule=partial(warm_up_then_decay, share=recipe.warm_up),
    )
    with step_bar(len(batches), config.show_progress_bar, "burt") as on_step:
        return trainer.run(len(batches), on_step=lambda done, loss: on_step(loss))


class _Batches:
    """The batch of every step, from the objective whose turn it is."""

    def __init__(self, tasks: BurtTasks, recipe: BurtRecipe, seed: int) -> None:
        self._turns = turns(recipe.objectives)
        self._size = recipe.batch_size
        self._of = batches_of(
            tasks,
            recipe.objectives,
            batch_size=recipe.batch_size,
            negatives=recipe.negatives,
            seed=seed,
        )
        self._steps = recipe.steps or math.ceil(recipe.epochs * self._longest())

    def __len__(self) -> int:
        """Return the number of steps of the run."""
        return self._steps

    def __call__(self, step: int) -> list[TaskBatch]:
        round_, place = divmod(step, len(self._turns))
        name = self._turns[place]
        number = round_ * self._turns.count(name) + self._turns[:place].count(name)
        make: Callable[[int], TaskBatch] = self._of[name][1]
        return [make(number)]

    def _longest(self) -> float:
        """Return the steps of a pass over the sentence pairs or, without them, the largest task."""
        names = ["nli"] if "nli" in self._of else list(self._of)
        share = len(self._turns)
        return max(
            math.ceil(self._of[name][0] / self._size) * share / self._turns.count(name)
            for name in names
        )


def _layer(name: str, tasks: BurtTasks, recipe: BurtRecipe, dimension: int) -> TaskLayer:
    labels = IDENTIFICATION_LABELS if name == "pi" else tasks.of(name).labels
    return SoftmaxLayer(name, dimension, labels, features=recipe.concatenation.split(","))
