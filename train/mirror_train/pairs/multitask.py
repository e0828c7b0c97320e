"""Fine-tune on sentiment, paraphrase and similarity together (BERT-CF, section 4.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from mirror_rt.heads.predictor import Predictor, score_predictions
from mirror_train.data.labelled_examples import Examples
from mirror_train.pairs.multitask_data import MultitaskData
from mirror_train.pairs.passes import TaskBatch, TaskBatches
from mirror_train.pairs.task_layers import CosineLayer, SoftmaxLayer, TaskLayer
from mirror_train.pairs.task_run import TaskModel, open_model
from mirror_train.recipes.systems import TASKS, MultitaskRecipe
from mirror_train.training.loop import Selection
from mirror_train.training.run import TuneReport, begun
from mirror_train.training.run_config import MultitaskConfig

_SIMILARITY_SCALE = (0.0, 5.0)


def tune_multitask(data: MultitaskData, config: MultitaskConfig) -> TuneReport:
    """Fine-tune an encoder and a head for each task, and write them to `config.out`.

    The folder is an ordinary one that `mirror-rt export` takes; it contains the heads, which go
    into the bundle too. Its mirror.json has the metrics on the rows that were held out.

    Raises:
        ConfigError: an option cannot be used.
        DataError: a class has no training rows.
        ModelError: the base model cannot be loaded, or the loss diverges.
        OutputExistsError: `config.out` or a checkpoint of an earlier run exists.
        Interrupted: training was stopped by Ctrl-C or SIGTERM; a checkpoint was written.
    """
    recipe = config.recipe
    for part in data.tasks.values():
        part.train.check_classes()
    with begun(config, config.precision) as run:
        for name in data.tasks:
            run.processes.own_rows(recipe.batch_sizes[name], "--batch-sizes with")
        make = {
            name: partial(_layer, name, part.train, recipe) for name, part in data.tasks.items()
        }
        hashes = {
            name: [part.train.sha256(), part.dev.sha256()] for name, part in data.tasks.items()
        }
        model = open_model(run, config, make, data=hashes)
        held = {name: part.dev for name, part in data.tasks.items()}
        best = Selection(lambda: _score(model, held), config.evaluate_every)
        trainer = model.trainer(
            recipe.steps,
            step_batches(data, recipe, config.seed),
            torch.optim.AdamW(
                list(model.modules.parameters()),
                lr=recipe.learning_rate,
                weight_decay=recipe.weight_decay,
                fused=True,
            ),
            weights=recipe.weights,
            selection=best,
        )
        run.train(trainer, "multitask", model.encoder())
        chosen = (trainer.selection or best).best
        if (metrics := chosen["record"]) is None:  # chosen by `config.select`
            _, metrics = run.processes.in_first(lambda: _score(model, held))
        return model.write(
            trainer.stats,
            system="multitask",
            data=data.summary(),
            metrics=metrics,
            best_step=chosen["step"],
        )


def evaluate_tasks(
    model: TaskModel, held: Mapping[str, Examples]
) -> dict[str, dict[str, float | None]]:
    """Return the metrics that a bundle's heads would reach, by task and name of the metric."""
    predictor = Predictor(model.encoder(), model.heads())
    scores = {}
    for name, examples in held.items():
        head = predictor.heads.get(name)
        found = predictor.predict(name, examples.items())
        scores[name] = score_predictions(head, found, examples.targets)
    return scores


def _score(model: TaskModel, held: Mapping[str, Examples]) -> tuple[float, dict[str, Any]]:
    """Return the mean of the tasks' metrics, which chooses the weights (section 5.3), and all."""
    metrics = evaluate_tasks(model, held)
    values = [scores.get("accuracy", scores.get("pearson")) for scores in metrics.values()]
    return sum(value or 0.0 for value in values) / len(values), metrics


def step_batches(
    data: MultitaskData, recipe: MultitaskRecipe, seed: int
) -> Callable[[int], list[TaskBatch]]:
    """Return a function from a step to its batches, one of each task."""
    batches = [
        TaskBatches(name, part.train, recipe.batch_sizes[name], (seed, TASKS.index(name)))
        for name, part in data.tasks.items()
    ]
    return lambda step: [of_task[step] for of_task in batches]


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
