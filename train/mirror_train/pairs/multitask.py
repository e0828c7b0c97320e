"""Fine-tune on sentiment, paraphrase and similarity together (BERT-CF, section 4.3)."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from mirror_rt.heads.predictor import Predictor, score_predictions
from mirror_train.data.labelled_examples import Examples
from mirror_train.pairs.multitask_data import MultitaskData
from mirror_train.pairs.passes import Passes, TaskBatch, batch_of
from mirror_train.pairs.recipe import TASKS, MultitaskConfig, MultitaskRecipe
from mirror_train.pairs.task_layers import CosineLayer, SoftmaxLayer, TaskLayer
from mirror_train.pairs.task_session import Session, open_session
from mirror_train.pairs.training import TaskTrainer
from mirror_train.training.output_folder import TuneReport
from mirror_train.training.step_bar import step_bar

_SIMILARITY_SCALE = (0.0, 5.0)


def tune_multitask(data: MultitaskData, config: MultitaskConfig) -> TuneReport:
    """Fine-tune an encoder and a head for each task, and write them to `config.out`.

    The folder is an ordinary one that `mirror-rt export` takes; it contains the heads, which go
    into the bundle too. Its mirror.json has the metrics on the rows that were held out.

    Raises:
        ConfigError: an option cannot be used.
        DataError: a class has no training rows.
        ModelError: the base model cannot be loaded, or the loss diverges.
        OutputExistsError: `config.out` exists.
        KeyboardInterrupt: Ctrl-C; nothing is written.
    """
    recipe = config.recipe
    for part in data.tasks.values():
        part.train.check_classes()
    session = open_session(config)
    layers = session.layers(
        {name: partial(_layer, name, part.train, recipe) for name, part in data.tasks.items()}
    )
    return _train(session, data, recipe, layers)


def evaluate_tasks(
    session: Session, layers: Mapping[str, TaskLayer], held: Mapping[str, Examples]
) -> dict[str, dict[str, float | None]]:
    """Return the metrics that a bundle's heads would reach, by task and name of the metric."""
    predictor = Predictor(session.encoder(), session.heads(layers))
    scores = {}
    for name, examples in held.items():
        head = predictor.heads.get(name)
        found = predictor.predict(name, examples.items())
        scores[name] = score_predictions(head, found, examples.targets)
    return scores


def _train(
    session: Session, data: MultitaskData, recipe: MultitaskRecipe, layers: dict[str, TaskLayer]
) -> TuneReport:
    config = session.config
    trainer = TaskTrainer(
        session=session,
        layers=layers,
        batches=_Batches(data, recipe, config.seed),
        weights=recipe.weights,
        optimizer=torch.optim.AdamW(
            session.parameters(layers),
            lr=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            fused=True,
        ),
    )
    best = _Best(session, layers, {name: part.dev for name, part in data.tasks.items()})
    with step_bar(recipe.steps, config.show_progress_bar, "multitask") as show:

        def on_step(done: int, loss: float) -> None:
            show(loss)
            if done % recipe.evaluate_every == 0 or done == recipe.steps:
                best.evaluate(done, last=done == recipe.steps)

        stats = trainer.run(recipe.steps, on_step=on_step)
    return session.save(
        layers,
        stats,
        system="multitask",
        data=data.summary(),
        training={"metrics": best.metrics, "best_step": best.step},
    )


class _Batches:
    """The batches of every step, one of each task."""

    def __init__(self, data: MultitaskData, recipe: MultitaskRecipe, seed: int) -> None:
        self._train = {name: part.train for name, part in data.tasks.items()}
        self._passes = {
            name: Passes(len(examples), recipe.batch_sizes[name], (seed, TASKS.index(name)))
            for name, examples in self._train.items()
        }

    def __call__(self, step: int) -> list[TaskBatch]:
        return [
            batch_of(name, examples, self._passes[name][step])
            for name, examples in self._train.items()
        ]


class _Best:
    """The weights of the evaluation with the highest mean metric (BERT-CF, section 5.3)."""

    def __init__(
        self, session: Session, layers: dict[str, TaskLayer], held: Mapping[str, Examples]
    ) -> None:
        self._session, self._layers, self._held = session, layers, held
        self._modules = [session.base.model, *layers.values()]
        self._states: list[dict[str, Any]] = []
        self._mean = float("-inf")
        self.step = 0
        self.metrics: dict[str, dict[str, float | None]] = {}

    def evaluate(self, step: int, *, last: bool) -> None:
        """Evaluate the weights after `step` steps; after the last step, restore the best ones."""
        metrics = evaluate_tasks(self._session, self._layers, self._held)
        values = [scores.get("accuracy", scores.get("pearson")) for scores in metrics.values()]
        mean = sum(value or 0.0 for value in values) / len(values)
        if mean > self._mean:
            self._mean, self.metrics, self.step = mean, metrics, step
            self._states = []  # freed before copying, so that only one set is in memory
            if not last:
                self._states = [copy.deepcopy(module.state_dict()) for module in self._modules]
        elif last:
            for module, state in zip(self._modules, self._states, strict=True):
                module.load_state_dict(state)


def _layer(name: str, train: Examples, recipe: MultitaskRecipe, dimension: int) -> TaskLayer:
    dropout = recipe.dropouts[name]
    if name == "sentiment":
        return SoftmaxLayer(name, dimension, train.labels, dropout=dropout)
    return CosineLayer(
        name,
        dimension,
        recipe.projection,
        hinge=recipe.hinges[name],
        labels=train.labels,
        scale=None if train.labels else _SIMILARITY_SCALE,
        dropout=dropout,
    )
