"""Define the parts of suites: sets, their outcomes under a model, and how they are found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.evaluation.bootstrap import Statistic
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.readers.pairs import ScoredPairs, read_scored_pairs
from mirror_rt.evaluation.readers.scored import Reader
from mirror_rt.evaluation.similarity import cosines
from mirror_rt.evaluation.statistics import RankCorrelation

Floats = npt.NDArray[np.float64]
Groups = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class SuiteOptions:
    """Options of the suites.

    Attributes:
        geometry_texts: most texts of a file that geometry is measured on; 0 for all.
        labelled_pairs: most pairs of a file that the suite qnli is measured on; 0 for all.
        seed: of these samples, of masked spans and of random pairs.
    """

    geometry_texts: int = 2000
    labelled_pairs: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One measure of one set of n items under one model."""

    metric: str
    n: int
    value: float
    # The measure for any weights [n] of the items; None for no interval.
    statistic: Statistic | None = None
    # [n], group of each item, within which items are resampled; None for one group.
    groups: Groups | None = None
    ranked: bool = True  # whether models are ranked by the value; if so, higher is better
    note: str = ""  # a remark on the figure for its readers
    # The direction of better values: "higher", "lower", or such as "nearer to 0".
    better: str = "higher"

    @classmethod
    def of(
        cls, metric: str, n: int, statistic: Statistic, groups: Groups | None = None, note: str = ""
    ) -> Outcome:
        """Make an outcome whose value is its statistic with every item counted once."""
        return cls(metric, n, statistic(np.ones(n)), statistic, groups, note=note)


@dataclass(frozen=True, slots=True)
class CosineSamples:
    """The cosines of pairs that belong together and of pairs that do not, each float64 [any]."""

    positives: Floats
    negatives: Floats
    positive_label: str
    negative_label: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a set under a model: its measures, and cosines to draw, if there are any."""

    outcomes: list[Outcome]
    cosines: CosineSamples | None = None


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """A set of a suite that was found, by the file or folder `path`."""

    suite: str
    name: str
    path: Path
    languages: tuple[str | None, ...]  # language tags of its texts; None where unknown
    # Reads the set and evaluates a model on it; raises DataError if it cannot.
    measure: Callable[[EvaluatedModel], Measured]
    further: tuple[Path, ...] = ()  # other files that decide its figures
    # Whether models may have been trained on it, or chosen by it: it is measured where it is named.
    training: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The sets found in a folder, and the missing ones as `suite/name: where it was expected`.

    `left_out` has those that models may have been trained on or chosen by, which are measured only
    where they are named.
    """

    sets: list[EvaluationSet]
    missing: list[str]
    left_out: list[EvaluationSet] = field(default_factory=list)

    @classmethod
    def of(cls, suite: str, sets: list[EvaluationSet], expected: Mapping[str, str]) -> Found:
        """Say which of the sets that the paper reports are missing; `expected` maps to places."""
        names = {one.name for one in sets if not one.training}
        missing = [f"{suite}/{n}: {at}" for n, at in expected.items() if n not in names]
        left_out = [one for one in sets if one.training]
        return cls([one for one in sets if not one.training], missing, left_out)

    def __add__(self, other: Found) -> Found:
        left_out = self.left_out + other.left_out
        return Found(self.sets + other.sets, self.missing + other.missing, left_out)


def scored_set(
    suite: str,
    name: str,
    path: Path,
    languages: tuple[str | None, ...],
    read: Reader = read_scored_pairs,
    note: str = "",
    *,
    training: bool = False,
) -> EvaluationSet:
    """Make a set of pairs with human scores, in one language or across two."""

    def measure(model: EvaluatedModel) -> Measured:
        pairs = read(path)
        rho = correlation(model, pairs, languages)
        return Measured([Outcome.of("spearman", len(pairs.scores), rho, note=note)])

    return EvaluationSet(suite, name, path, languages, measure, training=training)


def correlation(
    model: EvaluatedModel, pairs: ScoredPairs, languages: tuple[str | None, ...]
) -> RankCorrelation:
    """Correlate the cosines of pairs in the first and last of `languages` with their scores."""
    first, second = languages[0], languages[-1]
    other = None if first == second else model.of(second)
    found = cosines(model.of(first), pairs.first, pairs.second, other)
    return RankCorrelation(found, pairs.scores)


def accuracy(metric: str, hits: Floats, note: str) -> Outcome:
    """Make the outcome whose value is the mean of `hits`, float64 [n] of 1 and 0."""

    def statistic(weights: Floats) -> float:
        return float(weights @ hits / weights.sum())

    return Outcome.of(metric, len(hits), statistic, note=note)


# Parts of the names of published sets (ws-sim, rg-65, mc-30, yp-130) that are no languages.
_SETS = frozenset({"ws", "rg", "mc", "yp"})


def language_of(path: Path) -> str | None:
    """Return the one part of a file name that looks like a tag (stsb-ru-test.tsv), or None."""
    parts = re.split(r"[-._]", path.stem)
    tags = [part for part in parts if re.fullmatch("[a-z]{2}", part) and part not in _SETS]
    return tags[0] if len(tags) == 1 else None


def in_training(paths: Iterable[Path]) -> list[tuple[Path, bool]]:
    """Say of each file whether models may have been trained on it, or chosen by it.

    That is so of NAME-train, and of NAME-dev where there is a NAME-test. The files are sorted.
    """
    paths = sorted(paths)
    names, found = {path.stem for path in paths}, []
    for path in paths:
        match = re.fullmatch(r"(.*)([-._])(train|dev|val|valid)", path.stem)
        trained = match and (match[3] == "train" or f"{match[1]}{match[2]}test" in names)
        found.append((path, bool(trained)))
    return found
