"""Evaluate every model on every set, with intervals; an error in one set does not stop others."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mirror_rt.errors import DataError, InvalidTextError, MirrorError
from mirror_rt.evaluation.bootstrap import (
    Difference,
    Floats,
    Interval,
    difference,
    interval,
    replicates,
)
from mirror_rt.evaluation.models import EvaluatedModel
from mirror_rt.evaluation.suites import EvaluationSet, Outcome
from mirror_rt.evaluation.suites.base import CosineSamples
from mirror_rt.evaluation.suites.sentences import AVERAGED


@dataclass(frozen=True, slots=True)
class Measure:
    """The identity of a figure: a metric of a set of a suite."""

    suite: str
    set: str
    metric: str


@dataclass(frozen=True, slots=True)
class Result:
    """The figure of the model of that label on one measure."""

    measure: Measure
    model: str
    outcome: Outcome  # the value, and its statistic
    interval: Interval | None
    replicates: Floats  # float64 [samples], paired between models
    seconds: float  # seconds that the whole set took

    def to_json(self, *, replicates: bool = False) -> dict[str, Any]:
        """Return plain JSON values, with the replicates that `from_json` needs or without."""
        outcome, around = self.outcome, self.interval
        values = {
            **asdict(self.measure),
            "model": self.model,
            "value": outcome.value,
            "interval": None if around is None else [around.low, around.high],
            "n": outcome.n,
            "ranked": outcome.ranked,
            "better": outcome.better,
            "note": outcome.note,
            "seconds": round(self.seconds, 3),
        }
        if replicates:
            values["replicates"] = [None if np.isnan(v) else round(v, 6) for v in self.replicates]
        return values

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Result:
        """Return the result of the values of `to_json`, with its replicates.

        Other values raise KeyError or TypeError.
        """
        own = {name: found[name] for name in ("metric", "n", "value", "ranked", "better", "note")}
        drawn = [np.nan if value is None else value for value in found["replicates"]]
        return cls(
            Measure(found["suite"], found["set"], found["metric"]),
            found["model"],
            Outcome(**own),
            None if found["interval"] is None else Interval(*found["interval"]),
            np.array(drawn, dtype=np.float64),
            found["seconds"],
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """A set that could not be evaluated, and why; `skipped` if the model lacks its language."""

    suite: str
    set: str
    model: str
    reason: str
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models compared on one measure."""

    measure: Measure
    first: str
    second: str
    difference: Difference


@dataclass(slots=True)
class Evaluation:
    """The results so far."""

    models: list[str]  # labels of the models
    results: list[Result] = field(default_factory=list)  # figures, one model after the other
    failures: list[Failure] = field(default_factory=list)  # sets without a figure
    # Maps (suite, set), and then a model, to the cosines to draw.
    cosines: dict[tuple[str, str], dict[str, CosineSamples]] = field(default_factory=dict)

    def by_measure(self) -> dict[Measure, dict[str, Result]]:
        """Return a map from measure to model to figure, in the order of the suites."""
        table: dict[Measure, dict[str, Result]] = {}
        for result in self.results:
            table.setdefault(result.measure, {})[result.model] = result
        return table

    def comparisons(self) -> list[Comparison]:
        """Compare every two models on every measure that both have and that ranks models."""
        return [one for row in self.by_measure().values() for one in compare(row)]


def compare(row: dict[str, Result]) -> list[Comparison]:
    """Compare every two models on one measure; return none if it does not rank models."""
    results = [result for result in row.values() if result.outcome.ranked]
    found = []
    for a, b in itertools.combinations(results, 2):
        by = difference(a.outcome.value, b.outcome.value, a.replicates, b.replicates)
        found.append(Comparison(a.measure, a.model, b.model, by))
    return found


def evaluate_sets(
    models: list[EvaluatedModel],
    sets: list[EvaluationSet],
    *,
    samples: int = 1000,
    seed: int = 0,
    before: Callable[[EvaluatedModel, EvaluationSet], None] = lambda model, one: None,
    after: Callable[[Evaluation], None] = lambda evaluation: None,
) -> Evaluation:
    """Evaluate every model on every set.

    A set that cannot be read or measured is recorded as a failure, and the next one is tried. A
    model that cannot be loaded or run fails on all remaining sets. Each model is closed when its
    sets are done. `samples` and `seed` are those of the bootstrap; 0 samples give no intervals.
    `after` is called with all results so far, to save them.
    """
    evaluation = Evaluation([model.label for model in models])
    for model in models:
        broken = ""
        for one in sets:
            before(model, one)
            if broken:
                evaluation.failures.append(Failure(one.suite, one.name, model.label, broken))
            else:
                broken = _evaluate(evaluation, model, one, samples, seed)
            _average(evaluation, model.label, last=one is sets[-1])
            after(evaluation)
        model.close()
    return evaluation


def _evaluate(
    evaluation: Evaluation, model: EvaluatedModel, one: EvaluationSet, samples: int, seed: int
) -> str:
    """Add the figures of one set; return why the model cannot go on, or an empty string."""
    if lacking := model.lacks(one.languages):
        reason = f"no model for {' and '.join(lacking)}"
        evaluation.failures.append(Failure(one.suite, one.name, model.label, reason, skipped=True))
        return ""
    began = time.perf_counter()
    try:
        measured = one.measure(model)
    except (MirrorError, OSError) as error:
        reason = " ".join(str(error).split())
        evaluation.failures.append(Failure(one.suite, one.name, model.label, reason))
        return "" if isinstance(error, DataError | InvalidTextError) else reason
    seconds = time.perf_counter() - began
    for outcome in measured.outcomes:
        measure = Measure(one.suite, one.name, outcome.metric)
        drawn = np.empty(0)
        if outcome.statistic is not None:
            name, groups = f"{one.suite}/{one.name}", outcome.groups
            drawn = replicates(
                outcome.statistic, outcome.n, samples=samples, seed=seed, name=name, groups=groups
            )
        result = Result(measure, model.label, outcome, interval(drawn), drawn, seconds)
        evaluation.results.append(result)
    if measured.cosines is not None:
        evaluation.cosines.setdefault((one.suite, one.name), {})[model.label] = measured.cosines
    return ""


def _average(evaluation: Evaluation, model: str, *, last: bool) -> None:
    """Add the average of the seven English STS sets as soon as a model has them all.

    After its last set it is that of those which there are, under a name that says how many.
    """
    whole = f"average of {len(AVERAGED)}"
    if any(result.measure.set == whole and result.model == model for result in evaluation.results):
        return
    found = {
        result.measure.set: result
        for result in evaluation.results
        if result.model == model and result.measure.metric == "spearman"
        if result.measure.suite == "sentences" and result.measure.set in AVERAGED
    }
    if len(found) < (2 if last else len(AVERAGED)):
        return
    name = whole if len(found) == len(AVERAGED) else f"average of {len(found)} of {len(AVERAGED)}"
    parts = list(found.values())
    drawn = np.mean([part.replicates for part in parts], axis=0)
    outcome = Outcome(
        "spearman",
        sum(part.outcome.n for part in parts),
        float(np.mean([part.outcome.value for part in parts])),
        note="mean of " + ", ".join(found),
    )
    measure = Measure("sentences", name, "spearman")
    evaluation.results.append(Result(measure, model, outcome, interval(drawn), drawn, 0.0))
