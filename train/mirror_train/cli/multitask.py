"""mirror-rt multitask."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mirror_rt.cli.common import Subparsers, add_subparser, format_table
from mirror_train.cli.training_options import add_run_options, require_train, run_options

__all__ = ["add_parser"]

_TASKS = ("sentiment", "paraphrase", "similarity")
# Recipe field -> (type, help).
_RECIPE: dict[str, tuple[type, str]] = {
    "steps": (int, "optimiser steps, each with a batch of every task (default 5000)"),
    "evaluate_every": (int, "steps between evaluations; the best weights are kept (default 500)"),
    "learning_rate": (float, "of AdamW, constant (default 1e-5)"),
    "weight_decay": (float, "of AdamW (default .01)"),
    "dropout": (float, "rate of every dropout of the encoder (default .1)"),
    "max_length": (int, "most tokens of a text in training (default 128)"),
    "projection": (int, "length of the projected vectors of pairs (default 768)"),
}
# Recipe field -> (type, default for each task, help).
_BY_TASK: dict[str, tuple[type, str, str]] = {
    "weights": (float, "5,20,1", "factors of the losses"),
    "batch_sizes": (int, "32,96,32", "rows of a batch"),
    "dropouts": (float, ".3,0,.1", "rates of dropout before the heads"),
}


def add_parser(commands: Subparsers) -> None:
    """Add the command to the command line."""
    parser = add_subparser(
        commands,
        "multitask",
        help="fine-tune with labels: sentiment, paraphrase and similarity at once",
        description="Fine-tune an encoder on sentiment (softmax), paraphrases (cosine with a "
        "hinge) and\nsimilarity (cosine) at once, as BERT-CF does (its section 4.3), with a head "
        "for each task.\nThe folder is exported like any other, and the heads go with it: see "
        "'mirror-rt predict'.\nCtrl-C leaves nothing.",
        examples="""
mirror-rt multitask --data pairs --out tuned
mirror-rt multitask --data pairs --out tuned --steps 150 --learning-rate 5e-5
mirror-rt multitask --data pairs --tasks sentiment,similarity --model bert-base-uncased --out tuned
mirror-rt multitask --paraphrase train.csv dev.csv --tasks paraphrase --out tuned
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
    for task in _TASKS:
        data.add_argument(
            f"--{task}",
            nargs="+",
            type=Path,
            metavar="FILE",
            help=f"rows of {task} to train on, and perhaps a file to evaluate on",
        )
    data.add_argument(
        "--tasks", default=",".join(_TASKS), metavar="NAME,...", help="default: all three"
    )
    data.add_argument("--top", type=int, metavar="N", help="the first N rows of every file alone")
    add_run_options(parser)
    _add_recipe_options(parser)
    parser.set_defaults(run=run)


def _add_recipe_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("hyper-parameters (defaults: those of BERT-CF)")
    group.add_argument(
        "--pooling",
        choices=["auto", "cls", "max", "mean"],
        default="auto",
        help="auto: what the base model declares, else mean",
    )
    for name, (kind, text) in _RECIPE.items():
        group.add_argument("--" + name.replace("_", "-"), type=kind, help=text, dest=name)
    for name, (_, default, text) in _BY_TASK.items():
        group.add_argument(
            "--" + name.replace("_", "-"),
            metavar="S,P,S",
            dest=name,
            help=f"{text}, of sentiment, paraphrase and similarity (default {default})",
        )
    group.add_argument(
        "--hinges",
        metavar="P,S",
        help="least cosine of paraphrase and similarity (default .7,0)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    require_train("multitask")
    from mirror_train.pairs import MultitaskConfig, load_multitask_data, tune_multitask

    config = MultitaskConfig(
        recipe=_recipe(arguments), precision=arguments.precision, **run_options(arguments)
    )
    files = {task: found for task in _TASKS if (found := getattr(arguments, task))}
    data = load_multitask_data(
        arguments.data,
        files=files,
        tasks=[name.strip() for name in arguments.tasks.split(",")],
        top=arguments.top,
        seed=arguments.seed,
    )
    for name, part in data.tasks.items():
        print(
            f"{name}: {len(part.train)} rows to train on ({part.train.source}; "
            f"{part.train.left_out} without a label or a text left out), {len(part.dev)} to "
            f"evaluate on ({part.dev.source})"
        )
    report = tune_multitask(data, config)
    training = report.manifest.training or {}
    print(
        f"{report.out}: {training['steps']} steps in {training['seconds']} s "
        f"({training['precision']}), loss {training['loss_first']:.3f} -> "
        f"{training['loss_last']:.3f}; best after step {training['best_step']}"
    )
    print(_metrics(training["metrics"]))
    print(f"next: mirror-rt export {report.out} --out BUNDLE; mirror-rt predict BUNDLE --help")


def _metrics(metrics: dict[str, dict[str, float | None]]) -> str:
    rows = []
    for task, scores in metrics.items():
        name = next(name for name in scores if name != "majority")
        rows.append([task, name, _number(scores[name]), _number(scores.get("majority"))])
    return format_table(["task", "metric", "held out", "majority class"], rows)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _recipe(arguments: argparse.Namespace) -> Any:
    from mirror_train.pairs import MultitaskRecipe

    changes = {name: getattr(arguments, name) for name in _RECIPE}
    changes = {name: value for name, value in changes.items() if value is not None}
    for name, (kind, _, _) in _BY_TASK.items():
        if (text := getattr(arguments, name)) is not None:
            changes[name] = _by_task(name, text, kind, _TASKS)
    if arguments.hinges is not None:
        changes["hinges"] = _by_task("hinges", arguments.hinges, float, _TASKS[1:])
    return MultitaskRecipe(pooling=arguments.pooling, **changes)


def _by_task(name: str, text: str, kind: type, tasks: tuple[str, ...]) -> dict[str, Any]:
    from mirror_rt.errors import ConfigError

    try:
        return dict(zip(tasks, map(kind, text.split(",")), strict=True))
    except ValueError:
        raise ConfigError(
            f"--{name.replace('_', '-')} {text}: expected a number for each of {', '.join(tasks)}"
        ) from None
