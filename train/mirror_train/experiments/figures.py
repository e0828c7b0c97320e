"""Summarise the runs of a row over their seeds, and judge what a paper claims of it."""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirror_rt.errors import require
from mirror_rt.evaluation.bootstrap import CONFIDENCE, Difference, Interval, difference
from mirror_rt.evaluation.run import Measure, Result
from mirror_rt.evaluation.suites.base import Outcome
from mirror_train.experiments.study import SLIGHT, Run
from mirror_train.experiments.trained_sets import SUITE
from mirror_train.systems.system import Claim

# The measures of geometry that allow comparing models of any scale.
_GEOMETRY = ("isotropy score normalized", "uniformity", "mean cosine")
_SHORT = {"spearman": "", "accuracy @1": " @1", "ROC AUC": " AUC"}


Figures = dict[Measure, Result]


def figures_of(runs: list[Run], *, average: bool = False) -> Figures:
    """Average the runs of one row over their seeds, in the order of the sets.

    With `average`, that of the sets of each run comes last.
    """
    found: dict[Measure, list[Result]] = {}
    for run in runs:
        more = [_over_sets(run.results)] if average and len(run.results) > 1 else []
        for result in [*run.results, *more]:
            found.setdefault(result.measure, []).append(result)
    return {measure: _average(results) for measure, results in found.items()}


def _over_sets(results: list[Result]) -> Result:
    """Return the average of the sets of one run, which has no interval."""
    values = [result.outcome.value for result in results]
    value, n = statistics.fmean(values), sum(result.outcome.n for result in results)
    measure = Measure(results[0].measure.suite, f"average of {len(values)}", "spearman")
    return Result(measure, results[0].model, Outcome("spearman", n, value), None, np.empty(0), 0.0)


def _average(results: list[Result]) -> Result:
    """Return the mean of several seeds with Student's t interval over them; of one, its result."""
    if len(results) == 1:
        return results[0]
    values = [result.outcome.value for result in results]
    return dataclasses.replace(
        results[0],
        outcome=dataclasses.replace(results[0].outcome, value=statistics.fmean(values)),
        interval=t_interval(values),
        replicates=np.mean([result.replicates for result in results], axis=0),
    )


def t_interval(values: list[float], *, level: float = CONFIDENCE) -> Interval | None:
    """Return Student's t interval of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    student = require("scipy.stats", extra="study", purpose="an interval over seeds").t
    quantile = float(student.ppf((1 + level) / 2, len(values) - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return Interval(mean - half, mean + half)


def column_title(measure: Measure, geometry: tuple[str, ...] = ()) -> str:
    """Return the title of a measure's column; "" for a measure that tables leave out.

    `geometry` is that of the `Study`.
    """
    if measure.suite == "geometry" and geometry:
        return f"{measure.metric}, {measure.set}" if measure.metric in geometry else ""
    if measure.suite == "geometry":
        shown = measure.metric in _GEOMETRY and measure.set.startswith("sentences")
        return f"{measure.metric}, sentences" if shown else ""
    if measure.suite == SUITE:
        return measure.metric
    short = _SHORT.get(measure.metric)
    return "" if short is None else measure.set + short


def compare(own: Interval | None, other: Interval | None) -> str:
    """Compare two rows in words by their intervals over the seeds.

    Where the intervals overlap, no difference is reported, whatever the means are.
    """
    if own is None or other is None:
        return "one seed: no interval, no verdict"
    if own.high < other.low:
        return "lower"
    return "higher" if own.low > other.high else "intervals overlap: no difference shown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for a claim of a row's paper on one set, and what it shows in words."""

    row: str
    claim: Claim
    set: str
    difference: Difference
    verdict: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        plain = dataclasses.asdict(self) | {"claim": str(self.claim), "against": self.claim.against}
        found = self.difference.interval
        return plain | {
            "difference": self.difference.value,
            "interval": None if found is None else [found.low, found.high],
        }


def judge(row: str, claim: Claim, own: Figures, other: Figures) -> list[Finding]:
    """Compare a row with the other one of a claim on all sets of it where both have figures."""
    findings = []
    for measure in sorted(own.keys() & other.keys(), key=lambda one: (one.set, one.metric)):
        a, b = own[measure], other[measure]
        if measure.suite in claim.suites and a.outcome.ranked:
            found = difference(a.outcome.value, b.outcome.value, a.replicates, b.replicates)
            name = f"{measure.set} {measure.metric}"
            findings.append(Finding(row, claim, name, found, _holds(claim, found)))
    return findings


def _holds(claim: Claim, found: Difference) -> str:
    if found.interval is None:
        return "no interval, no verdict"
    if claim.wanted == "on par":
        if max(-found.interval.low, found.interval.high) <= SLIGHT:
            return "holds"
        if found.interval.low > SLIGHT or found.interval.high < -SLIGHT:
            return "does not hold: it is " + ("higher" if found.value > 0 else "lower")
        return f"not shown: the interval is not within {SLIGHT:g}"
    if not found.shown:
        return "not shown: the interval holds 0"
    return "holds" if found.value > 0 else "does not hold: it is lower"
