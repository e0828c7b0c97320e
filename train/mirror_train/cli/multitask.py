"""The command `mirror-rt train multitask`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mirror_rt.cli.parsing.options import Given, Group, Help
from mirror_rt.io.tables import text_table
from mirror_train.cli.training_options import RUN, Training, print_result
from mirror_train.compute.launch import is_first_process
from mirror_train.pairs.multitask_data import MultitaskData, load_multitask_data
from mirror_train.recipes.systems import TASKS, MultitaskRecipe
from mirror_train.training.run_config import MultitaskConfig

if TYPE_CHECKING:
    from mirror_train.training.run import TuneReport

# The fields of the recipe with a number for each task, which Python sets.
_BY_TASK = ("weights", "batch_sizes", "dropouts", "hinges")


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Which rows to train on."""

    data: Annotated[
        Path,
        Help("folder with ids-sst-train.csv, quora-train.csv and sts-train.csv, and the same with "
             "dev to evaluate on; of a task with one file alone a tenth is held out", "DIR"),
    ]  # fmt: skip
    tasks: Annotated[str, Help("two of the three", "NAME,NAME")] = ",".join(TASKS)
    top: Annotated[int | None, Help("the first N rows of every file alone")] = None


@dataclass(frozen=True, kw_only=True)
class Multitask(Training):
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
    config: Annotated[Given[MultitaskConfig], RUN]
    recipe: Annotated[
        Given[MultitaskRecipe],
        Group("hyper-parameters (defaults: those of BERT-CF)", leave_out=_BY_TASK),
    ]

    def run(self) -> None:
        from mirror_train.pairs.multitask import tune_multitask

        config = self.config.make(recipe=self.recipe.make(), show_progress_bar=not self.quiet)
        data = load_multitask_data(
            self.data.data,
            tasks=[name.strip() for name in self.data.tasks.split(",")],
            top=self.data.top,
            seed=config.seed,
        )
        print_rows(data)
        report = tune_multitask(data, config)
        if is_first_process():
            print_metrics(report)


def print_rows(data: MultitaskData) -> None:
    """Print how many rows each task has, and what they come from."""
    for name, part in data.tasks.items() if is_first_process() else ():
        tested = "" if part.test is None else f", {len(part.test)} to test on ({part.test.source})"
        print(
            f"{name}: {len(part.train)} rows to train on ({part.train.source}; "
            f"{part.train.left_out} without a label or a text left out), {len(part.dev)} to "
            f"evaluate on ({part.dev.source}){tested}"
        )


def print_metrics(report: TuneReport) -> None:
    """Print what a run has written, and how well its heads predict rows that were held out."""
    training = report.manifest.training or {}
    print_result(report, f"; best after step {training['best_step']}")
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
