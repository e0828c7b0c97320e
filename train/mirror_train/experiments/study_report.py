"""Report the results of a study, means with intervals over the seeds, as a table and as JSON."""

from __future__ import annotations

import dataclasses
import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mirror_rt.errors import require
from mirror_train.experiments.kept_results import machine_facts, to_markdown, write_results
from mirror_train.experiments.studies import StudyConfig
from mirror_train.experiments.study_run import Run

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one setup: Spearman's rho of every run, their mean, and its interval.

    `low` and `high` are None where there is only one seed. `verdict` compares the setup with the
    reference; `x` is its position on the axis of a study of rates or sizes.
    """

    label: str
    values: list[float]
    mean: float
    low: float | None
    high: float | None
    verdict: str = ""
    x: float | None = None


def t_interval(values: list[float], *, level: float = LEVEL) -> tuple[float, float] | None:
    """Return Student's t interval of the mean of independent values; None for fewer than two."""
    if len(values) < 2:
        return None
    student = require("scipy.stats", extra="study", purpose="mirror-rt study").t
    quantile = float(student.ppf((1 + level) / 2, len(values) - 1))
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def summarize(config: StudyConfig, runs: list[Run]) -> list[Row]:
    """Return a row for every setup, in the order of the study.

    Each tuned setup is compared with the first tuned one. Where the two intervals overlap, no
    difference is reported, whatever the means are.
    """
    setups = config.study.setups(config.recipe, len(config.data))
    rows = []
    for setup in setups:
        values = [run.spearman for run in runs if run.label == setup.label]
        mean = statistics.fmean(values)
        low, high = t_interval(values) or ((None, None) if setup.tuned else (mean, mean))
        rows.append(Row(setup.label, values, mean, low, high, x=setup.x))
    reference = next(row for row, s in zip(rows, setups, strict=True) if s.tuned)
    return [dataclasses.replace(row, verdict=_verdict(row, reference)) for row in rows]


def _verdict(row: Row, reference: Row) -> str:
    if row is reference:
        return "reference"
    if row.low is None or row.high is None or reference.low is None or reference.high is None:
        return "one seed: no interval, no verdict"
    if row.high < reference.low:
        return "lower"
    if row.low > reference.high:
        return "higher"
    return "intervals overlap: no difference shown"


def markdown_table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table, rho with four decimals."""
    reference = next(row.label for row in rows if row.verdict == "reference")
    lines = []
    for row in rows:
        fixed = row.low == row.high  # a base model, or seeds that have no effect
        interval = "-" if row.low is None or fixed else f"{row.low:.4f} .. {row.high:.4f}"
        seeds = "-" if fixed and len(row.values) == 1 else str(len(row.values))
        lines.append([row.label, f"{row.mean:.4f}", interval, seeds, row.verdict])
    header = ["setup", "Spearman's rho", f"{LEVEL:.0%} interval", "seeds", f"against {reference}"]
    return to_markdown(header, lines)


def write_report(config: StudyConfig, runs: list[Run], rows: list[Row]) -> list[Path]:
    """Write NAME.md and NAME.json into the study's folder; return their paths."""
    about = _about(config)
    study = config.study
    text = (
        f"# {study.name}: {study.title}\n\n"
        f"After {study.source} of Mirror-BERT (Liu et al., EMNLP 2021).\n\n"
        f"{markdown_table(rows)}\n{_reading(config)}\n\n"
        + "".join(f"- {name}: {value}\n" for name, value in about.items() if name != "recipe")
        + f"- recipe: {', '.join(f'{k} {v}' for k, v in about['recipe'].items())}\n"
    )
    results = {
        "study": study.name,
        "source": study.source,
        "interval": f"Student's t over seeds, {LEVEL:.0%}",
        "rows": [dataclasses.asdict(row) for row in rows],
        "runs": [dataclasses.asdict(run) for run in runs],
    }
    return write_results(config.out, study.name, text, results | about)


def _reading(config: StudyConfig) -> str:
    if config.seeds == 1:
        return "One seed: nothing tells a difference between two setups from chance."
    return (
        f"Mean of {config.seeds} seeds, with Student's t interval of {LEVEL:.0%} over them. It "
        "covers the\nrandomness of tuning (order, masks, dropout), not the choice of the pairs or "
        "of the strings."
    )


def _about(config: StudyConfig) -> dict[str, Any]:
    return {
        "model": config.model,
        "strings": f"{config.data.source}, {len(config.data)}",
        "pairs": config.pairs.name,
        "recipe": dataclasses.asdict(config.recipe),
    } | machine_facts(precision=config.precision, device=config.device)
