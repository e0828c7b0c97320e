"""Read the data of BURT: inference between sentences, and paraphrases of phrases and words."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from mirror_rt.errors import ConfigError, DataError
from mirror_train.data.labelled_examples import Examples
from mirror_train.data.labelled_readers import PARAPHRASE_LABELS, read_nli, read_paraphrases
from mirror_train.data.passes import Passes, TaskBatch
from mirror_train.data.ppdb import balanced, read_ppdb
from mirror_train.data.strings import load_training_data

# The names in section 5.1 of the paper: natural language inference, paraphrase identification and
# pairwise text classification.
Objective = Literal["nli", "pi", "ptc"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)
IDENTIFICATION_LABELS = ("not paraphrase", "paraphrase")


@dataclass(frozen=True, slots=True)
class BurtTasks:
    """The training data of BURT; None for data that are not given.

    Attributes:
        nli: premises and hypotheses with their label.
        paraphrases: phrases or words and a paraphrase of each; the targets are not used.
        relations: pairs of phrases or words, labelled equivalent, entailing or independent.
    """

    nli: Examples | None = None
    paraphrases: Examples | None = None
    relations: Examples | None = None

    @classmethod
    def load(
        cls,
        *,
        nli: Sequence[Path] = (),
        ppdb: Sequence[Path] = (),
        paraphrases: Sequence[Path] = (),
        per_relation: int | None = None,
        top: int | None = None,
        seed: int = 11711,
        without: Path | None = None,
    ) -> BurtTasks:
        """Read the files of the tasks.

        Args:
            nli: files of SNLI or MultiNLI, which are joined (section 3.1).
            ppdb: files of PPDB 2.0; equally many pairs of each relation are drawn from them.
            paraphrases: files of more pairs for paraphrase identification: two-column TSV,
                `text||text`, or Quora's table, of which only the duplicates are taken.
            per_relation: number of pairs of each relation; None for that of the rarest one.
            top: number of first rows to take of every file except those of PPDB; None for all.
            seed: seed of the draw.
            without: a file of PPDB to test on, whose pairs are left out in either order.

        Raises:
            DataError: a file is missing or cannot be used.
        """
        sentences = _join([read_nli(path).top(top) for path in nli])
        tested = (
            {frozenset(pair) for pair in read_ppdb(without).pairs.items()} if without else set()
        )
        relations = _join([_apart(read_ppdb(path).pairs, tested) for path in ppdb])
        if relations is not None:
            relations = balanced(relations, seed=seed, per_relation=per_relation)
        phrases = [_apart(_read_paraphrases(path), tested).top(top) for path in paraphrases]
        return cls(sentences, _join([*([relations] if relations else []), *phrases]), relations)

    def of(self, objective: str) -> Examples:
        """Return the rows of an objective of `OBJECTIVES`."""
        rows = {"nli": self.nli, "pi": self.paraphrases, "ptc": self.relations}[objective]
        if rows is None:
            needed = {
                "nli": "--nli FILE (SNLI or MultiNLI)",
                "pi": "--ppdb FILE or --paraphrases FILE",
                "ptc": "--ppdb FILE",
            }[objective]
            raise ConfigError(
                f"the objective {objective!r} has no data: pass {needed}, or leave it out of "
                "--objectives"
            )
        return rows

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives that there are data for."""
        given = zip(OBJECTIVES, (self.nli, self.paraphrases, self.relations), strict=True)
        return tuple(name for name, rows in given if rows is not None)

    def summary(self, objectives: Sequence[str]) -> dict[str, Any]:
        """Return the record in mirror.json of the data of some objectives."""
        parts = {name: self.of(name) for name in objectives}
        return {
            "source": ", ".join(dict.fromkeys(part.source for part in parts.values())),
            "strings": sum(len(part) for part in parts.values()),
            "supervised_pairs": True,
            "tasks": {name: part.summary() for name, part in parts.items()},
        }


class NegativeSampling:
    """Batches for paraphrase identification: every pair, and k random negatives for each.

    Li and Zhao 2020, section 3.2: for each target, k sequences are drawn from the data set and
    labelled as not its paraphrases. A sequence that is the target itself or listed as one of its
    paraphrases is drawn again. The seed decides the order and the draws.
    """

    def __init__(self, pairs: Examples, negatives: int, batch_size: int, seed: int) -> None:
        self._first, self._second = pairs.first, pairs.second or []
        self._negatives, self._seed = negatives, seed
        self._pool = list(dict.fromkeys(self._first + self._second))
        self._known: dict[str, set[str]] = {}
        for a, b in zip(self._first, self._second, strict=True):
            self._known.setdefault(a, {a}).add(b)
            self._known.setdefault(b, {b}).add(a)
        most = max(len(known) for known in self._known.values())
        if negatives and most >= len(self._pool):
            raise DataError(
                f"{pairs.source}: a phrase has all {len(self._pool)} others as paraphrases, so "
                "there is no negative for it: give more pairs"
            )
        self._passes = Passes(len(self), batch_size, (seed, OBJECTIVES.index("pi")))

    def __len__(self) -> int:
        """Return the number of rows of a pass."""
        return len(self._first) * (1 + self._negatives)

    def __getitem__(self, batch: int) -> TaskBatch:
        rng = np.random.default_rng([self._seed, 5, batch])
        first, second, targets = [], [], []
        for row in self._passes[batch].tolist():
            pair, place = divmod(row, 1 + self._negatives)
            first.append(self._first[pair])
            second.append(self._second[pair] if place == 0 else self._other(first[-1], rng))
            targets.append(int(place == 0))
        return TaskBatch("pi", first + second, np.array(targets, dtype=np.int64))

    def _other(self, phrase: str, rng: np.random.Generator) -> str:
        known = self._known[phrase]
        while (drawn := self._pool[int(rng.integers(len(self._pool)))]) in known:
            pass
        return drawn


def turns(objectives: Sequence[str]) -> list[str]:
    """Return the order in which objectives take turns; inference is every second (section 3.3)."""
    others = [name for name in objectives if name != "nli"]
    if "nli" not in objectives or not others:
        return list(objectives)
    return [name for other in others for name in ("nli", other)]


def _read_paraphrases(path: Path) -> Examples:
    if path.suffix == ".csv":
        rows = read_paraphrases(path)
        duplicate = PARAPHRASE_LABELS.index("duplicate")
        return rows.take(np.flatnonzero(rows.targets == duplicate))
    data = load_training_data(path)
    if data.first is data.second:
        raise DataError(f"{path} has one text a line: expected two, with a tab or || between them")
    ones = np.ones(len(data), dtype=np.int64)
    return Examples(data.first, data.second, ones, (), path.name, data.blank + data.duplicates)


def _apart(pairs: Examples, tested: set[frozenset[str]]) -> Examples:
    """Leave out the pairs to test on, and count them among the lines that are left out."""
    kept = [row for row, pair in enumerate(pairs.items()) if frozenset(pair) not in tested]
    if not kept:
        raise DataError(f"{pairs.source}: all its {len(pairs)} pairs are to be tested on")
    left_out = pairs.left_out + len(pairs) - len(kept)
    return dataclasses.replace(pairs.take(kept), left_out=left_out)


def _join(parts: Sequence[Examples]) -> Examples | None:
    return functools.reduce(operator.add, parts) if parts else None
