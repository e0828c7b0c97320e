"""The rows of a study of systems, and the files that keep them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirror_rt.evaluation.bootstrap import Interval
from mirror_rt.evaluation.run import Measure, Result
from mirror_rt.evaluation.suites import Outcome
from mirror_train.experiments.systems.worker import Tuned


@dataclass(frozen=True, slots=True)
class Row:
    """The results of a system that was tuned and evaluated, or of the base model, `untuned`.

    `failures` names the sets without a figure, and why; `about` remarks on the opened model.
    """

    system: str
    tuned: Tuned
    results: list[Result] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    about: str = ""


def row_to_json(row: Row) -> dict[str, Any]:
    """Return a row as plain JSON values, with the replicates that comparisons need."""
    results = [
        {
            **dataclasses.asdict(result.measure),
            "value": result.outcome.value,
            "n": result.outcome.n,
            "ranked": result.outcome.ranked,
            "note": result.outcome.note,
            "interval": None
            if result.interval is None
            else [result.interval.low, result.interval.high],
            "replicates": [None if np.isnan(v) else round(v, 6) for v in result.replicates],
            "seconds": round(result.seconds, 3),
        }
        for result in row.results
    ]
    return {
        "system": row.system,
        "tuned": dataclasses.asdict(row.tuned),
        "results": results,
        "failures": row.failures,
        "about": row.about,
    }


def row_from_json(found: dict[str, Any]) -> Row:
    """Return the row of the values of `row_to_json`.

    Other values raise ValueError, KeyError or TypeError.
    """
    results = [_result(found["system"], one) for one in found["results"]]
    return Row(found["system"], Tuned(**found["tuned"]), results, found["failures"], found["about"])


def _result(system: str, one: dict[str, Any]) -> Result:
    return Result(
        Measure(one["suite"], one["set"], one["metric"]),
        system,
        Outcome(one["metric"], one["n"], one["value"], ranked=one["ranked"], note=one["note"]),
        None if one["interval"] is None else Interval(*one["interval"]),
        np.array([np.nan if v is None else v for v in one["replicates"]], dtype=np.float64),
        one["seconds"],
    )
