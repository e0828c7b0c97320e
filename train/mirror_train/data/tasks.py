"""Read the data of fine-tuning: rows to train on and rows to evaluate on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mirror_rt.errors import ConfigError, DataError
from mirror_train.data.labelled_examples import Examples, held_out
from mirror_train.data.labelled_readers import (
    read_labelled,
    read_paraphrases,
    read_sentiment,
    read_similarity,
)

# The file names of the default project of Stanford's CS224N, which BERT-CF uses, and their readers.
_FILES: dict[str, tuple[str, Callable[[Path], Examples]]] = {
    "sentiment": ("ids-sst-{}.csv", read_sentiment),
    "paraphrase": ("quora-{}.csv", read_paraphrases),
    "similarity": ("sts-{}.csv", read_similarity),
}
TASKS = tuple(_FILES)
_HELD_OUT = 0.1  # share of a file to hold out, where there is no second file
_FEWEST = 2  # rows to evaluate on: a correlation needs two


@dataclass(frozen=True, slots=True)
class TaskData:
    """The rows of one task: to train on, to choose the weights by, and perhaps to test them on."""

    train: Examples
    dev: Examples
    test: Examples | None = None

    @property
    def parts(self) -> list[Examples]:
        """The rows of each part that there is."""
        return [one for one in (self.train, self.dev, self.test) if one is not None]


@dataclass(frozen=True, slots=True)
class MultitaskData:
    """The data of several tasks, by their names."""

    tasks: dict[str, TaskData]

    def summary(self) -> dict[str, Any]:
        """Return the record of the data in mirror.json."""
        tasks = {
            name: {
                use: rows.summary()
                for use, rows in zip(("train", "dev", "test"), part.parts, strict=False)
            }
            for name, part in self.tasks.items()
        }
        return {
            "source": ", ".join(part.train.source for part in self.tasks.values()),
            "strings": sum(len(part.train) for part in self.tasks.values()),
            "supervised_pairs": True,
            "tasks": tasks,
        }


def load_multitask_data(
    folder: Path, *, tasks: Sequence[str] = TASKS, top: int | None = None, seed: int = 11711
) -> MultitaskData:
    """Read the tasks' files.

    Args:
        folder: folder with ids-sst-train.csv, quora-train.csv and sts-train.csv, and the same with
            `dev` to evaluate on. Of a task with only one of the two files, a tenth of the rows is
            held out; rows that share a text stay together.
        tasks: names of the tasks to read, two or three; `TaskFiles` reads one.
        top: number of first rows to take of every file; None for all.
        seed: seed of the choice of the rows to hold out.

    Raises:
        ConfigError: a task is unknown, or only one is named.
        DataError: a file is missing, or cannot be used.
    """
    if unknown := [name for name in tasks if name not in TASKS]:
        raise ConfigError(f"no task {unknown[0]!r}: there are {', '.join(TASKS)}")
    if len(set(tasks)) < 2:
        raise ConfigError("several tasks are trained together; mirror-rt train finetune trains one")
    _check_top(top)
    return MultitaskData(
        {
            name: _divided([_FILES[name][1](path).top(top) for path in _files(folder, name)], seed)
            for name in TASKS
            if name in tasks
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """The files of a task for `finetune`: tables of texts, or of pairs, with labels.

    Attributes:
        data: a .csv or .tsv with a header, texts or pairs, and labels.
        dev: rows to choose the weights by (default: a tenth of `data`, held out).
        test: rows to test them on at the end.
        fields: column of the text, or of the two texts with a comma between them (default: text,
            sentence, sentence1 and sentence2, and other usual names).
        label_field: column of the label (default: label, score and other usual names). For files
            without a header, the columns of texts and labels are numbers, from 1 on.
        labels: the classes in order, with commas between them; for a cosine first that of unrelated
            pairs (default: those of `data`, sorted).
        top: the first N rows of every file alone.
    """

    data: Path
    dev: Path | None = None
    test: Path | None = None
    fields: str | None = None
    label_field: str | None = None
    labels: str | None = None
    top: int | None = None

    def load(self, *, layer: str = "softmax", seed: int = 11711) -> TaskData:
        """Read the files.

        `layer`, of `FinetuneRecipe`, decides whether labels are names of classes or values; a
        cosine takes values where their column is named as one of scores. `seed` decides which rows
        are held out.

        Raises:
            ConfigError: the layer does not go with the labels or the texts.
            DataError: a file is missing, or cannot be used.
        """
        top, labels = self.top, names_in(self.labels)
        _check_top(top)
        fields, label_field = names_in(self.fields), self.label_field
        read = partial(read_labelled, layer=layer, fields=fields, label_field=label_field)
        first = read(self.data, labels=labels)
        if len(first.labels) == 1:
            raise DataError(
                f"{self.data}: all rows have the label {first.labels[0]!r}, so none is learnt"
            )
        if layer == "cosine" and (first.second is None or len(first.labels) not in (0, 2)):
            raise ConfigError("a cosine takes pairs of texts, with two classes or with values")
        if layer == "cosine" and not labels and first.labels not in ((), ("0", "1")):
            raise ConfigError("a cosine needs the labels in order, those of unrelated pairs first")
        further = {
            use: read(path, labels=first.labels).top(top)
            for use, path in (("dev", self.dev), ("test", self.test))
            if path is not None
        }
        chosen = [first.top(top), *([further["dev"]] if self.dev else [])]
        return dataclasses.replace(_divided(chosen, seed), test=further.get("test"))


def names_in(given: str | None) -> list[str]:
    """Return the names in an option, which commas separate; none for None."""
    return [] if given is None else [name.strip() for name in given.split(",")]


def _check_top(top: int | None) -> None:
    if top is not None and top < _FEWEST:
        raise ConfigError(field="top", expected=f"at least {_FEWEST}", value=top)


def _files(folder: Path, task: str) -> list[Path]:
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder")
    names = [_FILES[task][0].format(part) for part in ("train", "dev")]
    paths = [folder / name for name in names if (folder / name).is_file()]
    if not paths:
        raise DataError(f"{folder} has neither {' nor '.join(names)}: leave the task out (--tasks)")
    return paths


def _divided(parts: list[Examples], seed: int) -> TaskData:
    if len(parts) == 1:
        parts = list(held_out(parts[0], _HELD_OUT, seed=seed))
    if len(parts[1]) < _FEWEST:
        raise DataError(f"{parts[1].source}: {len(parts[1])} rows to evaluate on are too few")
    return TaskData(*parts)
