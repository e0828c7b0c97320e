"""BURT: one encoder for words, phrases and sentences, from pairs (Li and Zhao 2020)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import torch

from mirror_rt.errors import ConfigError
from mirror_train.pairs.burt_data import (
    IDENTIFICATION_LABELS,
    OBJECTIVES,
    BurtTasks,
    batches_of,
    turns,
)
from mirror_train.pairs.passes import TaskBatch
from mirror_train.pairs.session import Session, TaskConfig, check_numbers, open_session
from mirror_train.pairs.task_layers import SoftmaxLayer, TaskLayer
from mirror_train.pairs.training import TaskTrainer, bar_of, warm_up_then_decay
from mirror_train.training.trainer import TrainingStats
from mirror_train.training.tune import TuneReport

__all__ = ["CONCATENATIONS", "BurtConfig", "BurtPooling", "BurtRecipe", "tune_burt"]

BurtPooling = Literal["cls", "max", "mean"]
# The seven of table 4; parts are those of `mirror_rt.heads.task_heads.FEATURES`.
CONCATENATIONS = (
    "u,v",
    "|u-v|",
    "u*v",
    "u,v,|u-v|",
    "u,v,u*v",
    "|u-v|,u*v",
    "u,v,|u-v|,u*v",
)


@dataclass(frozen=True, slots=True)
class BurtRecipe:
    """Hyper-parameters of BURT (sections 3.2 and 3.3); the paper does not give the learning rate.

    Attributes:
        objectives: of `OBJECTIVES`, in the order of their batches; none for all that there are
            data for.
        pooling: cls, max or mean, whatever the base model declares.
        concatenation: of the two vectors of a pair, of `CONCATENATIONS`.
        negatives: k, random pairs for each pair of paraphrases.
        batch_size: pairs in a batch.
        learning_rate: of Adam, at its highest.
        warm_up: share of the steps over which it rises; it falls to 0 over the others.
        dropout: rate of every dropout of the encoder.
        epochs: passes over the sentence pairs; without them, over the largest task. Smaller tasks
            begin again, larger ones are not finished.
        steps: optimiser steps, in the place of epochs.
        max_length: most tokens of a text in training.
    """

    objectives: tuple[str, ...] = ()
    pooling: BurtPooling = "mean"
    concatenation: str = "u,v,|u-v|"
    negatives: int = 3
    batch_size: int = 16
    learning_rate: float = 2e-5
    warm_up: float = 0.1
    dropout: float = 0.1
    epochs: float = 1
    steps: int | None = None
    max_length: int = 128

    def __post_init__(self) -> None:
        if unknown := [name for name in self.objectives if name not in OBJECTIVES]:
            raise ConfigError(f"objectives must be of {', '.join(OBJECTIVES)}, got {unknown[0]!r}")
        if len(set(self.objectives)) < len(self.objectives):
            raise ConfigError(f"an objective is given twice: {', '.join(self.objectives)}")
        poolings = get_args(BurtPooling)
        rate = "at least 0 and less than 1"
        check_numbers(
            [
                ("pooling", self.pooling, self.pooling in poolings, f"of {', '.join(poolings)}"),
                (
                    "concatenation",
                    repr(self.concatenation),
                    self.concatenation in CONCATENATIONS,
                    "one of " + " ".join(map(repr, CONCATENATIONS)),
                ),
                ("negatives", self.negatives, self.negatives >= 1, "at least 1"),
                ("batch_size", self.batch_size, self.batch_size >= 1, "at least 1"),
                ("learning_rate", self.learning_rate, self.learning_rate > 0, "greater than 0"),
                ("warm_up", self.warm_up, 0 <= self.warm_up < 1, rate),
                ("dropout", self.dropout, 0 <= self.dropout < 1, rate),
                ("epochs", self.epochs, self.epochs > 0, "greater than 0"),
                ("steps", self.steps, self.steps is None or self.steps >= 1, "at least 1"),
                ("max_length", self.max_length, self.max_length >= 3, "at least 3"),
            ]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BurtConfig(TaskConfig):
    """A run of `tune_burt`; see `TaskConfig`.

    Attributes:
        recipe: hyper-parameters.
    """

    recipe: BurtRecipe = field(default_factory=BurtRecipe)


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
    recipe = dataclasses.replace(config.recipe, objectives=tuple(objectives))
    for name in objectives:
        if name != "pi":
            tasks.of(name).check_classes()
    batches = _Batches(tasks, recipe, config.seed)
    session = open_session(
        config,
        pooling=recipe.pooling,
        otherwise=recipe.pooling,
        dropout=recipe.dropout,
        max_length=recipe.max_length,
    )
    layers = session.layers({name: partial(_layer, name, tasks, recipe) for name in objectives})
    stats = _train(session, layers, batches, recipe)
    return session.save(
        layers,
        stats,
        recipe={"system": "burt"} | dataclasses.asdict(recipe),
        data=tasks.summary(objectives),
        training={},
    )


def _train(
    session: Session, layers: Mapping[str, TaskLayer], batches: _Batches, recipe: BurtRecipe
) -> TrainingStats:
    config = session.config
    parameters = [p for layer in layers.values() for p in layer.parameters()]
    trainer = TaskTrainer(
        session.base,
        layers,
        batches,
        dict.fromkeys(layers, 1.0),
        torch.optim.Adam(
            [*session.base.model.parameters(), *parameters],
            lr=recipe.learning_rate,
            betas=(0.9, 0.98),
            eps=1e-9,
            fused=True,
        ),
        partial(warm_up_then_decay, share=recipe.warm_up),
        session.pooling,
        session.layer,
        recipe.max_length,
        session.precision,
        session.device,
        config.seed,
    )
    bar = bar_of(len(batches), config.show_progress_bar, "burt")

    def on_step(done: int, loss: float) -> None:
        bar.set_postfix_str(f"loss {loss:.3f}")
        bar.update(1)

    stats = trainer.run(len(batches), on_step=on_step)
    bar.close()
    return stats


class _Batches:
    """Every step's batch: one of the objective whose turn it is."""

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
        """Steps of the run."""
        return self._steps

    def __call__(self, step: int) -> list[TaskBatch]:
        round_, place = divmod(step, len(self._turns))
        name = self._turns[place]
        number = round_ * self._turns.count(name) + self._turns[:place].count(name)
        make: Callable[[int], TaskBatch] = self._of[name][1]
        return [make(number)]

    def _longest(self) -> float:
        """Steps of one pass over the sentence pairs, or over the largest task without them."""
        names = ["nli"] if "nli" in self._of else list(self._of)
        share = len(self._turns)
        return max(
            math.ceil(self._of[name][0] / self._size) * share / self._turns.count(name)
            for name in names
        )


def _layer(name: str, tasks: BurtTasks, recipe: BurtRecipe, dimension: int) -> TaskLayer:
    labels = IDENTIFICATION_LABELS if name == "pi" else tasks.of(name).labels
    return SoftmaxLayer(name, dimension, labels, features=recipe.concatenation.split(","))
