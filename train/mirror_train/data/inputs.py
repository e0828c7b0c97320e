"""Find and read the inputs for tuning the systems in a folder of data."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mirror_rt.errors import DataError
from mirror_rt.evaluation import ScoredPairs
from mirror_rt.evaluation.readers.pairs import read_scored_pairs
from mirror_train.data.burt_tasks import BurtTasks
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.strings import load_training_data
from mirror_train.data.synonyms import read_synonyms
from mirror_train.data.tasks import MultitaskData, load_multitask_data
from mirror_train.data.training_data import TrainingData
from mirror_train.data.triplets import read_nli

# The patterns of each input's files in the folder; {} is the language, others are in English.
INPUTS: dict[str, tuple[str, ...]] = {
    "sentences": ("sentences/{}.txt",),
    "words": ("words/{}.txt",),
    "inference": ("pairs/snli*", "pairs/multinli*", "pairs/mnli*"),
    "synonyms": ("bel/*-train.tsv", "bel/*-dictionary.txt"),
    "sentiment": ("pairs/ids-sst-train.csv", "pairs/ids-sst-dev.csv"),
    "paraphrases": ("pairs/quora-train.csv", "pairs/quora-dev.csv"),
    "similarity": ("pairs/sts-train.csv", "pairs/sts-dev.csv"),
    "ppdb": ("pairs/ppdb*.txt", "pairs/ppdb*.gz", "ppdb/ppdb*.txt", "ppdb/ppdb*.gz"),
    # Scored pairs that systems are evaluated on, so they must not be trained on them.
    "evaluated": ("sts/stsb-en-test.tsv", "sts/sick-r-all.tsv"),
}
_OF_A_LANGUAGE = frozenset({"sentences", "words"})


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a folder, read when asked for.

    Each method raises DataError where a file is missing or cannot be read. Those that read take a
    seed, by which some divide their rows or draw from them.
    """

    data: Path  # the folder
    language: str = "en"  # language of its texts
    # Number of first strings, pairs or rows to take of each input; None for all.
    top: int | None = None
    # The fields of `TrainConfig` that choose the weights; none for those of each system.
    choice: dict[str, Any] = field(default_factory=dict)

    def find(self, name: str) -> list[Path]:
        """Return the files of an input; none where the folder or the language has none.

        Of files that differ only in their suffix (SNLI comes in two formats), the first is taken.
        Of inference pairs, development and test files are taken only where there is no training
        file.
        """
        if name not in _OF_A_LANGUAGE and self.language != "en":
            return []
        found: dict[str, Path] = {}
        for pattern in INPUTS[name]:
            for path in sorted(self.data.glob(pattern.format(self.language))):
                found.setdefault(path.stem, path)
        train = [path for path in found.values() if "train" in path.stem]
        return train if train and name == "inference" else list(found.values())

    def why_missing(self, name: str) -> str:
        """Say which files of an input were expected."""
        files = " or ".join(pattern.format(self.language) for pattern in INPUTS[name])
        where = "" if self.language == "en" else f" in {self.language}"
        return f"{self.data} has no {files}{where}"

    def files(self, name: str) -> list[Path]:
        """Return the files of an input, at least one."""
        if not (found := self.find(name)):
            raise DataError(self.why_missing(name))
        return found

    def sentences(self, seed: int) -> TrainingData:
        """Read the raw sentences."""
        return self._strings("sentences")

    def words(self, seed: int) -> TrainingData:
        """Read the frequent words."""
        return self._strings("words")

    def triplets(self, seed: int) -> TrainingData:
        """Read inference pairs as triplets with hard negatives."""
        return self._first([read_nli(path, language="en") for path in self.files("inference")])

    def synonyms(self, seed: int) -> TrainingData:
        """Read pairs of names of the same concept."""
        return self._first([read_synonyms(path, language="en") for path in self.files("synonyms")])

    def tasks(self, seed: int) -> MultitaskData:
        """Read sentiment, paraphrases and similarity, without pairs of the evaluation."""
        read = load_multitask_data(self.data / "pairs", top=self.top, seed=seed).tasks
        paths = self.find("evaluated")
        evaluated = [read_scored_pairs(path) for path in paths]
        similarity = read["similarity"]
        train = without(similarity.train, evaluated)
        tasks = read | {"similarity": dataclasses.replace(similarity, train=train)}
        return MultitaskData(tasks)

    def burt_tasks(self, seed: int) -> BurtTasks:
        """Read inference pairs and, where there are any, paraphrases of phrases."""
        return BurtTasks.load(
            nli=self.files("inference"),
            ppdb=self.find("ppdb"),
            paraphrases=self.find("paraphrases"),
            top=self.top,
            seed=seed,
        )

    def _strings(self, name: str) -> TrainingData:
        (path,) = self.files(name)
        data = load_training_data(path, data_format="text", language=self.language)
        strings = data.first[: self.top]
        return dataclasses.replace(data, first=strings, second=strings)

    def _first(self, parts: list[TrainingData]) -> TrainingData:
        """Join parts and cut them to `top`; groups of different parts stay different."""
        hard = [text for part in parts for text in part.hard_negatives or []]
        groups: list[int] = []
        for part in parts:
            start = max(groups, default=-1) + 1
            groups += [start + group for group in part.group_ids or range(len(part))]
        return dataclasses.replace(
            parts[0],
            first=[text for part in parts for text in part.first][: self.top],
            second=[text for part in parts for text in part.second][: self.top],
            group_ids=groups[: self.top],
            hard_negatives=hard[: self.top] or None,
            source=", ".join(part.source for part in parts),
            duplicates=sum(part.duplicates for part in parts),
        )


def without(examples: Examples, evaluated: list[ScoredPairs]) -> Examples:
    """Leave out evaluated pairs in either order, ignoring case and punctuation."""
    known = {
        frozenset((_plain(a), _plain(b)))
        for pairs in evaluated
        for a, b in zip(pairs.first, pairs.second, strict=True)
    }
    rows = [
        row
        for row, (a, b) in enumerate(examples.items())
        if frozenset((_plain(a), _plain(b))) not in known
    ]
    if not rows:
        raise DataError(
            f"{examples.source}: all of its pairs are evaluated on, and none is left to train on: "
            "give more pairs"
        )
    left_out = len(examples) - len(rows)
    source = f"{examples.source} without {left_out} pairs that are evaluated on"
    return dataclasses.replace(examples.take(rows), source=source if left_out else examples.source)


def _plain(text: str) -> str:
    return re.sub(r"[\W_]+", "", text.lower())
