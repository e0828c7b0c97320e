"""The command `mirror-rt train multitask`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirror_rt.cli.common import format_table
from mirror_rt.cli.options import add_options, build, from_arguments
from mirror_rt.cli.parser import Subparsers, add_subparser
from mirror_rt.errors import ConfigError
from mirror_train.cli.training_options import (
    add_base_options,
    add_run_options,
    given_config,
    print_result,
)
from mirror_train.pairs.multitask_data import load_multitask_data
from mirror_train.pairs.recipe import TASKS, MultitaskConfig, MultitaskRecipe

# The options for fields with a number for each task, with their help.
_BY_TASK: Mapping[str, str] = {
    "weights": "factors of the losses",
    "batch_sizes": "rows of a batch",
    "dropouts": "rates of dropout before the heads",
    "hinges": "least cosines",
}


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "multitask",
        description="Fine-tune an encoder on sentiment (softmax), paraphrases (cosine with a "
        "hinge) and\nsimilarity (cosine) at once, as BERT-CF does (its section 4.3), with a head "
        "for each task.\nThe folder is exported like any other, and the heads go with it: see "
        "'mirror-rt predict'.\nCtrl-C leaves nothing.",
        examples="""
mirror-rt train multitask --data pairs --out tuned
mirror-rt train multitask --data pairs --out tuned --steps 150 --learning-rate 5e-5
mirror-rt train multitask --data pairs --tasks sentiment,similarity --out tuned
mirror-rt train multitask --paraphrase train.csv dev.csv --tasks paraphrase --out tuned
""",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with ids-sst-train.csv, quora-train.csv and sts-train.csv, and the same "
        "with dev to evaluate on; of a task with one file alone a tenth is held out",
    )
    for task in TASKS:
        data.add_argument(
            f"--{task}",
            nargs="+",
            type=Path,
            metavar="FILE",
            help=f"rows of {task} to train on, and perhaps a file to evaluate on",
        )
    data.add_argument(
        "--tasks", default=",".join(TASKS), metavar="NAME,...", help="default: all three"
    )
    data.add_argument("--top", type=int, metavar="N", help="the first N rows of every file alone")
    add_base_options(parser)
    add_run_options(parser, MultitaskConfig)
    _add_recipe_options(parser)
    parser.set_defaults(run=run)


def _add_recipe_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hyper-parameters (defaults: those of BERT-CF)")
    add_options(group, MultitaskRecipe, leave_out=_BY_TASK)
    for name, text in _BY_TASK.items():
        numbers = getattr(MultitaskRecipe(), name)
        group.add_argument(
            "--" + name.replace("_", "-"),
            metavar=",".join(task[0].upper() for task in numbers),
            help=f"{text}, of {', '.join(numbers)} (default "
            f"{','.join(f'{number:g}' for number in numbers.values())})",
        )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from mirror_train.pairs.multitask import tune_multitask

    config = given_config(arguments, MultitaskConfig, recipe=_recipe(arguments))
    files = {task: found for task in TASKS if (found := getattr(arguments, task))}
    data = load_multitask_data(
        arguments.data,
        files=files,
        tasks=[name.strip() for name in arguments.tasks.split(",")],
        top=arguments.top,
        seed=config.seed,
    )
    for name, part in data.tasks.items():
        print(
            f"{name}: {len(part.train)} rows to train on ({part.train.source}; "
            f"{part.train.left_out} without a label or a text left out), {len(part.dev)} to "
            f"evaluate on ({part.dev.source})"
        )
    report = tune_multitask(data, config)
    training = report.manifest.training or {}
    print_result(report, f"; best after step {training['best_step']}")
    print(_metrics(training["metrics"]))
    print("then: mirror-rt predict BUNDLE --help")


def _metrics(metrics: dict[str, dict[str, float | None]]) -> str:
    rows = []
    for task, scores in metrics.items():
        name = next(name for name in scores if name != "majority")
        rows.append([task, name, _number(scores[name]), _number(scores.get("majority"))])
    return format_table(["task", "metric", "held out", "majority class"], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _recipe(arguments: argparse.Namespace) -> MultitaskRecipe:
    given = {name: text for name in _BY_TASK if (text := getattr(arguments, name)) is not None}
    numbers = {
        name: _by_task(name, text, getattr(MultitaskRecipe(), name)) for name, text in given.items()
    }
    left = {name: getattr(MultitaskRecipe(), name) for name in _BY_TASK if name not in numbers}
    return build(MultitaskRecipe, from_arguments(arguments), **numbers, **left)


def _by_task(name: str, text: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return a number for each task, of the type that its default has."""
    kinds = [type(number) for number in defaults.values()]
    try:
        numbers = [kind(word) for kind, word in zip(kinds, text.split(","), strict=True)]
    except ValueError:
        raise ConfigError(
            f"--{name.replace('_', '-')} {text}: expected a number for each of "
            f"{', '.join(defaults)}"
        ) from None
    return dict(zip(defaults, numbers, strict=True))
