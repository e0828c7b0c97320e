"""Summarise the runs of a row over their seeds, and judge the claims of its paper."""

from __future__ import annotations

import dataclasses
import math
import re
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
# Averages of sets by their names, as in BURT's Table 4: no accuracy, and words apart.
_AVERAGES = {"STS*": "sts1[2-6]", "words": "(?!sts|sick|phrases).*"}
_SHORT = {"spearman": "", "accuracy @1": " @1", "ROC AUC": " AUC"}


Figures = dict[Measure, Result]


def figures_of(runs: list[Run], *, average: bool = False) -> Figures:
    """Average the runs of one row over their seeds, in the order of the sets.

    With `average`, the averages of `_AVERAGES` over the sets of each run come last.
    """
    found: dict[Measure, list[Result]] = {}
    for run in runs:
        for result in [*run.results, *(_over_sets(run.results) if average else [])]:
            found.setdefault(result.measure, []).append(result)
    return {measure: _average(results) for measure, results in found.items()}


def _over_sets(results: list[Result]) -> list[Result]:
    """Return the averages of the correlations of one run, which have no interval."""
    rhos = [one for one in results if one.measure.metric == "spearman"]
    found = []
    for name, sets in _AVERAGES.items():
        own = [one for one in rhos if re.fullmatch(sets, one.measure.set)]
        if len(own) > 1:
            n = sum(one.outcome.n for one in own)
            outcome = Outcome("spearman", n, statistics.fmean(one.outcome.value for one in own))
            measure = Measure(own[0].measure.suite, f"{name} of {len(own)}", "spearman")
            found.append(Result(measure, own[0].model, outcome, None, np.empty(0), 0.0))
    return found


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
    """The result for a claim of a row's paper on one set, and the verdict in words."""

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
