"""Write the table of a study of systems as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mirror_rt.evaluation.bootstrap import CONFIDENCE
from mirror_rt.evaluation.run import Result
from mirror_train.experiments.kept_results import machine_facts, to_markdown, write_results
from mirror_train.experiments.systems.claims import Finding, judge
from mirror_train.experiments.systems.config import SystemsConfig
from mirror_train.experiments.systems.rows import Row, row_to_json
from mirror_train.experiments.systems.table import BASE, SYSTEMS

# The measures of geometry that allow comparing models of any scale.
_GEOMETRY = ("isotropy score normalized", "uniformity", "mean cosine")
_BEST = 1  # of the accuracies @1 and @5, the table shows @1


def find_claims(rows: list[Row]) -> list[Finding]:
    """Return what the rows show about the claims of the papers."""
    results = [result for row in rows for result in row.results]
    return [
        finding
        for row in rows
        if row.system in SYSTEMS
        for claim in SYSTEMS[row.system].claims
        for finding in judge(row.system, claim, results)
    ]


def figures_table(rows: list[Row]) -> str:
    """Return a table with each system's training data, figures with intervals, time and memory."""
    columns = _columns(rows)
    header = ["system", "tuned on", *(title for title, _ in columns), "time", "memory"]
    lines = []
    for row in rows:
        if row.tuned.error is not None:
            cells = [f"failed: {row.tuned.error}", *("-" for _ in columns)]
        else:
            by_key = {_key(result): result for result in row.results}
            cells = [row.tuned.data or "-", *(_cell(by_key.get(key)) for _, key in columns)]
        lines.append([row.system, *cells, _seconds(row), _memory(row)])
    return to_markdown(header, lines)


def claims_table(findings: list[Finding]) -> str:
    """Return a table with the difference, its interval and the verdict for each claim and set."""
    lines = []
    for one in findings:
        found = one.difference.interval
        around = "" if found is None else f" [{found.low:+.4f}, {found.high:+.4f}]"
        value = f"{one.difference.value:+.4f}{around}"
        lines.append([one.system, str(one.claim), one.set, value, one.verdict])
    return to_markdown(["system", "its paper says", "on", "difference", ""], lines)


def write_report(config: SystemsConfig, rows: list[Row], left_out: dict[str, str]) -> list[Path]:
    """Write systems.md and systems.json into the study's folder; return their paths."""
    findings, about = find_claims(rows), _about(config)
    text = (
        "# systems: every system from one base model, on the same sets\n\n"
        f"{figures_table(rows)}\n"
        f"Intervals of {CONFIDENCE:.0%}: percentile bootstrap over the items of a set. They leave "
        "out the\nrandomness of tuning: one seed was run.\n\n"
        + (f"{claims_table(findings)}\n" if findings else "")
        + "".join(f"- {row.system}: {note}\n" for row in rows for note in _notes(row))
        + "".join(f"- left out, {name}: {reason}\n" for name, reason in left_out.items())
        + "".join(f"- {name}: {value}\n" for name, value in about.items())
    )
    plain = [row_to_json(row) for row in rows]
    for row in plain:
        for result in row["results"]:
            del result["replicates"]
    values = {
        "confidence": CONFIDENCE,
        "rows": plain,
        "claims": [_plain(finding) for finding in findings],
        "left_out": left_out,
    }
    return write_results(config.out, "systems", text, about | values)


def _columns(rows: list[Row]) -> list[tuple[str, tuple[str, str, str]]]:
    """Return the title and the key of every measure to show, in the order of the suites."""
    keys = dict.fromkeys(_key(result) for row in rows for result in row.results)
    shown = []
    for suite, name, metric in keys:
        if suite == "geometry":
            if metric in _GEOMETRY and name.startswith("sentences"):
                shown.append((f"{metric}, sentences", (suite, name, metric)))
        elif metric in ("spearman", f"accuracy @{_BEST}"):
            title = name if metric == "spearman" else f"{name} @{_BEST}"
            shown.append((title, (suite, name, metric)))
    return shown


def _key(result: Result) -> tuple[str, str, str]:
    return (result.measure.suite, result.measure.set, result.measure.metric)


def _cell(result: Result | None) -> str:
    if result is None:
        return "-"
    if result.interval is None:
        return f"{result.outcome.value:.3f}"
    low, high = result.interval.low, result.interval.high
    return f"{result.outcome.value:.3f} [{low:.3f}, {high:.3f}]"


def _seconds(row: Row) -> str:
    return "-" if row.system == BASE or row.tuned.error else f"{row.tuned.seconds:.0f} s"


def _memory(row: Row) -> str:
    if row.tuned.memory_mb is None:
        return "-"
    device = row.tuned.device_mb
    gpu = "" if device is None else f", GPU {device:,.0f} MB"
    return f"{row.tuned.memory_mb:,.0f} MB{gpu}"


def _notes(row: Row) -> Iterable[str]:
    if row.about:
        yield row.about
    for failure in row.failures:
        yield f"failed, {failure}"


def _plain(finding: Finding) -> dict[str, Any]:
    found = finding.difference.interval
    return {
        "system": finding.system,
        "claim": str(finding.claim),
        "against": finding.claim.against,
        "set": finding.set,
        "difference": finding.difference.value,
        "interval": None if found is None else [found.low, found.high],
        "verdict": finding.verdict,
    }


def _about(config: SystemsConfig) -> dict[str, Any]:
    options = dataclasses.asdict(config)
    kept = ("model", "language", "top", "max_steps", "learning_rate", "seed", "samples")
    facts = machine_facts(precision=config.precision, device=config.device)
    return {name: options[name] for name in kept} | facts
