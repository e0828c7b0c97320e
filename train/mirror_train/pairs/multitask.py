"""Fine-tune on labels: of one task, or of sentiment, paraphrase and similarity together.

Several at once is the fine-tuning of BERT-CF (section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from mirror_rt.errors import ConfigError
from mirror_rt.heads.predictor import score_predictions
from mirror_train.data.labelled_examples import Examples
from mirror_train.pairs.multitask_data import MultitaskData, TaskData
from mirror_train.pairs.passes import TaskBatch, TaskBatches
from mirror_train.pairs.task_layers import CosineLayer, RegressionLayer, SoftmaxLayer, TaskLayer
from mirror_train.pairs.task_run import TaskModel, open_model
from mirror_train.recipes.systems import TASKS, FinetuneRecipe, MultitaskRecipe
from mirror_train.training.loop import Selection
from mirror_train.training.run import TuneReport, begun
from mirror_train.training.run_config import FinetuneConfig, MultitaskConfig

_SIMILARITY_SCALE = (0.0, 5.0)
_MOST_NUMBERS = 1000  # of the scale of a regression, each of which is an output of its layer


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
    return _tune(
        "multitask",
        data,
        config,
        {name: partial(_layer, name, part.train, recipe) for name, part in data.tasks.items()},
        sizes={name: recipe.batch_sizes[name] for name in data.tasks},
        steps=recipe.steps,
        learning_rate=recipe.learning_rate,
        weights=recipe.weights,
    )


def finetune(data: TaskData, config: FinetuneConfig) -> TuneReport:
    """Fine-tune an encoder with one decoding layer, or the layer alone; write them as a folder.

    As `tune_multitask`, whose errors it raises, for one task of any kind (BURT, sections 3 and
    4.1). The weights are those with the best accuracy or Pearson's correlation on `data.dev`;
    mirror.json has the metrics on it, and on `data.test`.
    """
    recipe, rows = config.recipe, len(data.train)
    return _tune(
        "finetune",
        MultitaskData({config.task: data}),
        config,
        {config.task: partial(_decoding_layer, config.task, data.train, recipe)},
        sizes={config.task: recipe.batch_size},
        steps=recipe.steps or math.ceil(recipe.epochs * rows / recipe.batch_size),
        learning_rate=recipe.learning_rate or (1e-3 if recipe.frozen else 2e-5),
        frozen=recipe.frozen,
    )


def _tune(
    system: str,
    data: MultitaskData,
    config: FinetuneConfig | MultitaskConfig,
    make: Mapping[str, Callable[[int], TaskLayer]],
    *,
    sizes: Mapping[str, int],
    steps: int,
    learning_rate: float,
    weights: Mapping[str, float] | None = None,
    frozen: bool = False,
) -> TuneReport:
    tasks = data.tasks
    for part in tasks.values():
        part.train.check_classes()
    with begun(config, config.precision) as run:
        for size in sizes.values():
            run.processes.own_rows(
                size, "--batch-size" if system == "finetune" else "batch_sizes with"
            )
        hashes = {name: [one.sha256() for one in part.parts] for name, part in tasks.items()}
        model = open_model(run, config, make, data=hashes, frozen=frozen)
        held = {name: part.dev for name, part in tasks.items()}
        best = Selection(lambda: _score(model, held), config.evaluate_every)
        trainer = model.trainer(
            steps,
            step_batches(data, sizes, config.seed),
            torch.optim.AdamW(
                list(model.modules.parameters()),
                lr=learning_rate,
                weight_decay=config.recipe.weight_decay,
                fused=True,
            ),
            weights=weights,
            selection=best,
        )
        run.train(trainer, system, model.encoder())
        chosen = (trainer.selection or best).best
        metrics = chosen["record"]
        if metrics is None:  # chosen by `config.select`
            _, metrics = run.processes.in_first(lambda: _score(model, held))
        more = {}
        if tests := {name: part.test for name, part in tasks.items() if part.test is not None}:
            more["test"] = run.processes.in_first(lambda: evaluate_tasks(model, tests))
        return model.write(
            trainer.stats,
            system=system,
            data=data.summary(),
            metrics=metrics,
            best_step=chosen["step"],
            **more,
        )


def evaluate_tasks(
    model: TaskModel, held: Mapping[str, Examples]
) -> dict[str, dict[str, float | None]]:
    """Return the metrics that a bundle's heads would reach, by task and name of the metric."""
    view, scores = model.view(), {}
    for name, examples in held.items():
        head = model.layers[name].to_head()
        sides = (examples.first, *([] if examples.second is None else [examples.second]))
        found = head(*(view.encode(side, normalize_embeddings=False) for side in sides))
        scores[name] = score_predictions(head, found, examples.targets)
    return scores


def _score(model: TaskModel, held: Mapping[str, Examples]) -> tuple[float, dict[str, Any]]:
    """Return the mean of the tasks' metrics, which chooses the weights (section 5.3), and all."""
    metrics = evaluate_tasks(model, held)
    values = [scores.get("accuracy", scores.get("pearson")) for scores in metrics.values()]
    return sum(value or 0.0 for value in values) / len(values), metrics


def step_batches(
    data: MultitaskData, sizes: Mapping[str, int], seed: int
) -> Callable[[int], list[TaskBatch]]:
    """Return a function from a step to its batches, one of each task."""
    batches = [
        TaskBatches(
            name, part.train, sizes[name], (seed, TASKS.index(name) if name in TASKS else 0)
        )
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


def _decoding_layer(
    name: str, train: Examples, recipe: FinetuneRecipe, dimension: int
) -> TaskLayer:
    dropout, scale = recipe.layer_dropout, None if train.labels else train.scale()
    features = [] if train.second is None else recipe.features
    if recipe.layer == "cosine":
        return CosineLayer(
            name,
            dimension,
            recipe.projection,
            hinge=recipe.hinge,
            labels=train.labels,
            scale=scale,
            dropout=dropout,
        )
    if scale is None:
        return SoftmaxLayer(name, dimension, train.labels, features=features, dropout=dropout)
    if scale[1] - scale[0] >= _MOST_NUMBERS:
        raise ConfigError(
            f"the values of {train.source} are in {scale[0]:g} .. {scale[1]:g}: a regression has "
            f"an output for each whole number, {_MOST_NUMBERS} at most; divide them"
        )
    return RegressionLayer(name, dimension, scale, features=features, dropout=dropout)
