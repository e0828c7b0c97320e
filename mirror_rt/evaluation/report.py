"""Write an evaluation as JSON values and as text."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mirror_rt.evaluation.bootstrap import CONFIDENCE, Difference
from mirror_rt.evaluation.run import Comparison, Evaluation, Result, compare

_FORMAT = "mirror_rt evaluation"
_VERSION = 1
_BINS = np.linspace(-1, 1, 81)
NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True, slots=True)
class Header:
    """The description of a run in its report.

    `generator` and `created` are as in a manifest, `samples` and `seed` those of the bootstrap.
    """

    generator: str
    created: str
    data: str  # folder of the sets
    models: dict[str, str]  # maps a label to the model's folder or name
    suites: list[str]  # names of the suites that were asked for
    missing: list[str]  # sets that were not found, with the places where they were expected
    samples: int
    seed: int
    geometry_texts: int  # most texts of a file; 0 for all


def to_json(header: Header, evaluation: Evaluation) -> dict[str, Any]:
    """Return the report as plain JSON values, without the replicates and the single cosines."""
    return {
        "format": _FORMAT,
        "format_version": _VERSION,
        **asdict(header),
        "confidence": CONFIDENCE,
        "results": [result.to_json() for result in evaluation.results],
        "comparisons": [_comparison(one) for one in evaluation.comparisons()],
        "failures": [asdict(failure) for failure in evaluation.failures],
        "histograms": _histograms(evaluation),
    }


def describe_value(result: Result | None) -> str:
    """Format a value and its interval: `.4861 [.4502, .5220]`; `-` for no result."""
    if result is None:
        return "-"
    value, around = _number(result.outcome.value), result.interval
    return value if around is None else f"{value} [{_number(around.low)}, {_number(around.high)}]"


def describe_difference(found: Difference) -> str:
    """Format a difference and its interval: `+.0210 [+.0101, +.0319]`."""
    around = found.interval
    return f"{found.value:+.4f}" + (f" [{around.low:+.4f}, {around.high:+.4f}]" if around else "")


def describe_comparison(one: Comparison) -> str:
    """Say in words whether a difference is shown, and in favour of which model.

    A difference is always the first model minus the second, as in JSON and in the plots.
    """
    better = one.first if one.difference.value > 0 else one.second
    found = f"{better} is better" if one.difference.shown else NO_DIFFERENCE
    return f"{found}: {one.first} - {one.second} = {describe_difference(one.difference)}"


def figure_cells(evaluation: Evaluation, row: dict[str, Result]) -> list[str]:
    """Return the cells of a measure: the figure of each model and, of several, the verdict."""
    cells = [describe_value(row.get(model)) for model in evaluation.models]
    return [*cells, verdict(row)] if len(cells) > 1 else cells


def verdict(row: dict[str, Result]) -> str:
    """Say which model is best on a measure, if the intervals of the differences show it.

    The phrase is empty if fewer than two models have the measure, or if it does not rank models.
    """
    compared = compare(row)
    if not compared:
        return ""
    best = max(row.values(), key=lambda result: result.outcome.value).model
    equal = [
        one.second if one.first == best else one.first
        for one in compared
        if best in (one.first, one.second) and not one.difference.shown
    ]
    if not equal:
        return f"{best} is best"
    if len(row) == 2:
        return NO_DIFFERENCE
    return f"{NO_DIFFERENCE} between {', '.join([best, *equal])}"


def summaries(evaluation: Evaluation) -> list[str]:
    """Say in a sentence for every two models which is better at what, and by how much.

    The differences are those whose intervals show them; the largest one of a model is named.
    """
    pairs: dict[tuple[str, str], list[Comparison]] = {}
    for one in evaluation.comparisons():
        pairs.setdefault((one.first, one.second), []).append(one)
    return [_summary(*models, compared) for models, compared in pairs.items()]


def _summary(first: str, second: str, compared: list[Comparison]) -> str:
    shown = [one for one in compared if one.difference.shown]
    ahead = [one for one in shown if one.difference.value > 0]
    behind = [one for one in shown if one.difference.value < 0]
    if len(behind) > len(ahead):  # name the model first that is better at more
        first, second, ahead, behind = second, first, behind, ahead
    total = len(compared)
    if not shown:
        return f"No difference between {first} and {second} is shown on {_measures(total)}."
    text = f"{first} is better than {second} on {len(ahead)} of {_measures(total)} ({_most(ahead)})"
    if behind:
        text += f", and worse on {len(behind)} ({_most(behind)})"
    level = total - len(shown)
    return text + (f"; no difference is shown on the other {level}." if level else ".")


def _measures(count: int) -> str:
    return f"{count} measure{'s' * (count != 1)}"


def _most(compared: list[Comparison]) -> str:
    """Describe the largest difference, as a gain of the better model."""
    one = max(compared, key=lambda one: abs(one.difference.value))
    value, found = abs(one.difference.value), one.difference.interval
    figures = f"by {value:.3f}"
    if found is not None:
        low, high = sorted((abs(found.low), abs(found.high)))
        figures += f", interval {low:.3f} to {high:.3f}"
    most = "most on " * (len(compared) > 1)
    return f"{most}{one.measure.set}, {one.measure.metric}: {figures}"


def _comparison(one: Comparison) -> dict[str, Any]:
    around = one.difference.interval
    return {
        **asdict(one.measure),
        "first": one.first,
        "second": one.second,
        "difference": one.difference.value,
        "interval": None if around is None else [around.low, around.high],
        "shown": one.difference.shown,
    }


def _histograms(evaluation: Evaluation) -> list[dict[str, Any]]:
    return [
        {
            "suite": suite,
            "set": name,
            "model": model,
            "edges": _BINS.round(6).tolist(),
            "positives": np.histogram(samples.positives.clip(-1, 1), _BINS)[0].tolist(),
            "negatives": np.histogram(samples.negatives.clip(-1, 1), _BINS)[0].tolist(),
            "positive_label": samples.positive_label,
            "negative_label": samples.negative_label,
        }
        for (suite, name), row in evaluation.cosines.items()
        for model, samples in row.items()
    ]


def _number(value: float) -> str:
    return "undefined" if math.isnan(value) else f"{value:.4f}"
