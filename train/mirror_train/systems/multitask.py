"""The fine-tuning of BERT-CF (section 4.3): sentiment, paraphrase and similarity together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from mirror_rt.bundle.manifest import PoolingMode
from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.errors import ConfigError
from mirror_rt.io.tables import text_table
from mirror_rt.schema import least
from mirror_train.compute.launch import is_first_process
from mirror_train.data.inputs import Inputs
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.tasks import TASKS, MultitaskData, load_multitask_data, names_in
from mirror_train.recipes.recipe import Hyperparameters, NotNegative, Positive, Rate
from mirror_train.systems.options import Training, print_result, run_options
from mirror_train.systems.system import Entry, System
from mirror_train.training.run_config import TrainConfig, TunedPooling

if TYPE_CHECKING:
    from mirror_train.model.task_layers import TaskLayer
    from mirror_train.training.run import TuneReport

_SIMILARITY_SCALE = (0.0, 5.0)


@dataclass(frozen=True, slots=True)
class MultitaskRecipe(Hyperparameters):
    """The hyper-parameters of multi-task fine-tuning; defaults as in BERT-CF (sections 4.3, 5.3).

    Attributes:
        steps: number of optimiser steps; each takes a batch of every task.
        pooling: `auto` takes that of the base model, else the mean (section 5.3).
        projection: e, length of the projected vectors of the tasks of pairs.
        weights: the factor of each task's loss.
        batch_sizes: the number of rows in a batch of each task.
        dropouts: the rate of dropout before the head of each task.
        hinges: the least similarity of each task of pairs.
    """

    steps: Annotated[int, least(1)] = 5000
    learning_rate: Positive = 1e-5
    weight_decay: NotNegative = 0.01
    warm_up: Rate = 0.0
    decay: bool = False
    dropout: Rate = 0.1
    max_length: Annotated[int, least(3)] = 128
    pooling: PoolingMode | Literal["auto"] = "auto"
    projection: Annotated[int, least(1)] = 768
    weights: Mapping[str, float] = field(
        default_factory=lambda: {"sentiment": 5.0, "paraphrase": 20.0, "similarity": 1.0}
    )
    batch_sizes: Mapping[str, int] = field(
        default_factory=lambda: {"sentiment": 32, "paraphrase": 96, "similarity": 32}
    )
    dropouts: Mapping[str, float] = field(
        default_factory=lambda: {"sentiment": 0.3, "paraphrase": 0.0, "similarity": 0.1}
    )
    hinges: Mapping[str, float] = field(
        default_factory=lambda: {"paraphrase": 0.7, "similarity": 0.0}
    )

    default_seed = 11711

    def __post_init__(self) -> None:
        Hyperparameters.__post_init__(self)
        checks = [
            (f"hinge of {name}", hinge, -1 <= hinge < 1, "in -1 .. 1, below 1")
            for name, hinge in self.hinges.items()
        ]
        for name in TASKS:
            weight, size, rate = self.weights[name], self.batch_sizes[name], self.dropouts[name]
            checks += [
                (f"weight of {name}", weight, weight > 0, "above 0"),
                (f"batch size of {name}", size, size >= 1, "at least 1"),
                (f"dropout of {name}", rate, 0 <= rate < 1, "at least 0 and less than 1"),
            ]
        for name, value, holds, expected in checks:
            if not holds:
                raise ConfigError(f"{name} must be {expected}, got {value}")


# The fields of the recipe with a number for each task, which Python sets.
_BY_TASK = ("weights", "batch_sizes", "dropouts", "hinges")


@dataclass(frozen=True, kw_only=True)
class _Data:
    """The rows to train on."""

    data: Annotated[
        Path,
        Help("folder with ids-sst-train.csv, quora-train.csv and sts-train.csv, and the same with "
             "dev to evaluate on; of a task with one file alone a tenth is held out", "DIR"),
    ]  # fmt: skip
    tasks: Annotated[str, Help("two of the three", "NAME,NAME")] = ",".join(TASKS)
    top: Annotated[int | None, Help("the first N rows of every file alone")] = None


@dataclass(frozen=True, kw_only=True)
class TrainMultitask(Training):
    """Fine-tune an encoder on sentiment, paraphrases and similarity at once.

    As BERT-CF does (its section 4.3): sentiment by softmax, paraphrases by a cosine with a hinge,
    similarity by a cosine, with a head for each task. The folder is exported like any other, and
    the heads go with it: see 'mirror-rt predict'. Ctrl-C writes a checkpoint.

    Examples:
        mirror-rt train multitask --data pairs --out tuned
        mirror-rt train multitask --data pairs --out tuned --steps 150 --learning-rate 5e-5
        mirror-rt train multitask --data pairs --tasks sentiment,similarity --out tuned
    """

    data: Annotated[_Data, Group("data")]
    config: Annotated[Given[TrainConfig], run_options("precision")]
    recipe: Annotated[
        Given[MultitaskRecipe],
        Group("hyper-parameters (defaults: those of BERT-CF)", leave_out=_BY_TASK),
    ]

    def run(self) -> None:
        from mirror_train.systems import train

        config = self.settings("multitask", self.config, self.recipe.make())
        names, top = names_in(self.data.tasks), self.data.top
        data = load_multitask_data(self.data.data, tasks=names, top=top, seed=config.seed)
        print_rows(data)
        print_metrics(train("multitask", data, config))


def print_rows(data: MultitaskData) -> None:
    """Print how many rows each task has, and their files."""
    for name, part in data.tasks.items() if is_first_process() else ():
        tested = "" if part.test is None else f", {len(part.test)} to test on ({part.test.source})"
        print(
            f"{name}: {len(part.train)} rows to train on ({part.train.source}; "
            f"{part.train.left_out} without a label or a text left out), {len(part.dev)} to "
            f"evaluate on ({part.dev.source}){tested}"
        )


def print_metrics(report: TuneReport) -> None:
    """Print the folder of a run, and how well its heads predict rows that were held out."""
    training = report.manifest.training or {}
    print_result(report, f"; best after step {training['best_step']}")
    if not is_first_process():
        return
    print(_metrics(training["metrics"]))
    if "test" in training:
        print(f"test:\n{_metrics(training['test'])}")
    print("then: mirror-rt predict BUNDLE --help")


def _metrics(metrics: dict[str, dict[str, float | None]]) -> str:
    rows = []
    for task, scores in metrics.items():
        for name in sorted({*scores} - {"majority"}):
            rows.append([task, name, _number(scores[name]), _number(scores.get("majority"))])
    return text_table(["task", "metric", "held out", "majority class"], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _run(data: MultitaskData, config: TrainConfig) -> TuneReport:
    from mirror_train.training.labelled import train_tasks

    recipe: MultitaskRecipe = config.recipe
    return train_tasks(
        "multitask",
        data,
        config,
        {name: partial(_layer, name, part.train, recipe) for name, part in data.tasks.items()},
        sizes={name: recipe.batch_sizes[name] for name in data.tasks},
        steps=recipe.steps,
        learning_rate=recipe.learning_rate,
        weights=recipe.weights,
    )


def _layer(name: str, train: Examples, recipe: MultitaskRecipe, dimension: int) -> TaskLayer:
    from mirror_train.model.task_layers import CosineLayer, SoftmaxLayer

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


def _fitted(recipe: MultitaskRecipe, data: MultitaskData, pooling: TunedPooling) -> MultitaskRecipe:
    """Return the recipe with the pooling of a study."""
    return recipe.replace(pooling="mean" if pooling == "paper" else pooling)


SYSTEM = System(
    name="multitask",
    title="fine-tune on labels of sentiment, paraphrase and similarity at once",
    paper="the multi-task fine-tuning of BERT-CF",
    recipe=MultitaskRecipe,
    run=_run,
    command=f"{__name__}:TrainMultitask",
    labelled=True,
    fitted=_fitted,
    entries=(
        Entry("multitask", "sentiment, paraphrases and similarity at once", "BERT-CF, 4.3",
              ("sentiment", "paraphrases", "similarity"), MultitaskRecipe, Inputs.tasks,
              optional=("evaluated",)),
    ),
)  # fmt: skip
