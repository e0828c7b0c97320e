"""Read the data of multi-task fine-tuning: rows to train on and rows to evaluate on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror_rt.errors import ConfigError, DataError
from mirror_train.data.labelled_examples import Examples, held_out
from mirror_train.data.labelled_readers import read_paraphrases, read_sentiment, read_similarity
from mirror_train.recipes.systems import TASKS

_READERS: dict[str, Callable[[Path], Examples]] = {
    "sentiment": read_sentiment,
    "paraphrase": read_paraphrases,
    "similarity": read_similarity,
}
# The file names of the default project of Stanford's CS224N, which BERT-CF uses.
_FILES = {"sentiment": "ids-sst-{}.csv", "paraphrase": "quora-{}.csv", "similarity": "sts-{}.csv"}
_HELD_OUT = 0.1  # share of a file to hold out, where there is no second file
_FEWEST = 2  # rows to evaluate on: a correlation needs two


@dataclass(frozen=True, slots=True)
class TaskData:
    """The rows of one task to train on, and those to evaluate on."""

    train: Examples
    dev: Examples


@dataclass(frozen=True, slots=True)
class MultitaskData:
    """The data of several tasks, by their names in `TASKS`."""

    tasks: dict[str, TaskData]

    def __post_init__(self) -> None:
        if not self.tasks or set(self.tasks) - set(TASKS):
            raise ConfigError(f"tasks are {', '.join(TASKS)}, got {', '.join(self.tasks) or None}")

    def summary(self) -> dict[str, Any]:
        """Return what mirror.json records of the data."""
        tasks = {
            name: {"train": part.train.summary(), "dev": part.dev.summary()}
            for name, part in self.tasks.items()
        }
        return {
            "source": ", ".join(part.train.source for part in self.tasks.values()),
            "strings": sum(len(part.train) for part in self.tasks.values()),
            "supervised_pairs": True,
            "tasks": tasks,
        }


def load_multitask_data(
    folder: Path | None = None,
    *,
    files: Mapping[str, Sequence[Path]] | None = None,
    tasks: Sequence[str] = TASKS,
    top: int | None = None,
    seed: int = 11711,
) -> MultitaskData:
    """Read the tasks' files.

    Args:
        folder: folder with ids-sst-train.csv, quora-train.csv and sts-train.csv, and the same with
            `dev` to evaluate on. Of a task with only one of the two files, a tenth of the rows is
            held out; rows that share a text stay together.
        files: for a task, the file to train on and optionally one to evaluate on, used instead of
            those in the folder.
        tasks: names of the tasks to read.
        top: number of first rows to take of every file; None for all.
        seed: seed of the choice of the rows to hold out.

    Raises:
        ConfigError: a task is unknown, or has neither a folder nor files.
        DataError: a file is missing, or cannot be used.
    """
    given = dict(files or {})
    if unknown := [name for name in (*tasks, *given) if name not in TASKS]:
        raise ConfigError(f"no task {unknown[0]!r}: there are {', '.join(TASKS)}")
    if top is not None and top < _FEWEST:
        raise ConfigError(field="top", expected=f"at least {_FEWEST}", value=top)
    found = {}
    for name in TASKS:
        if name in tasks:
            paths = list(given[name]) if name in given else _in_folder(folder, name)
            found[name] = _load(name, paths, top, seed)
    return MultitaskData(found)


def _in_folder(folder: Path | None, task: str) -> list[Path]:
    if folder is None:
        raise ConfigError(f"no file for the task {task!r}: pass --data DIR, or --{task} FILE")
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    names = [_FILES[task].format(part) for part in ("train", "dev")]
    paths = [folder / name for name in names if (folder / name).is_file()]
    if not paths:
        raise DataError(
            f"{folder} has neither {' nor '.join(names)}: pass --{task} FILE, or leave the task "
            "out (--tasks)"
        )
    return paths


def _load(task: str, paths: list[Path], top: int | None, seed: int) -> TaskData:
    if not 1 <= len(paths) <= 2:
        raise ConfigError(f"--{task} takes a file to train on and one to evaluate on")
    parts = [_READERS[task](path).top(top) for path in paths]
    if len(parts) == 1:
        parts = list(held_out(parts[0], _HELD_OUT, seed=seed))
    if len(parts[1]) < _FEWEST:
        raise DataError(f"{parts[1].source}: {len(parts[1])} rows to evaluate on are too few")
    return TaskData(*parts)
