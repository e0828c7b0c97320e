"""Write an evaluation as one self-contained HTML file: tables, and plots as embedded SVG."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape

from mirror_rt.evaluation.bootstrap import CONFIDENCE
from mirror_rt.evaluation.plots import cosine_distributions_svg, intervals_svg
from mirror_rt.evaluation.report import (
    Header,
    describe_comparison,
    describe_value,
    summaries,
    verdict,
)
from mirror_rt.evaluation.run import Evaluation, Measure, Result

_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b2530; --quiet: #5b6877; --line: #dfe3e8;
  --card: #eef4fc; }
@media (prefers-color-scheme: dark) {
  :root { --page: #12161b; --text: #e6eaef; --quiet: #9aa7b5; --line: #303943; --card: #1b2a3d; }
}
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--text); background: var(--page); }
h2 { margin-top: 2.5rem; }
.verdict { background: var(--card); border-radius: .5rem; padding: .8rem 1.1rem;
  font-size: 1.1rem; }
.verdict p { margin: .3rem 0; }
.quiet, td.note { color: var(--quiet); font-size: .87rem; }
.wide { overflow-x: auto; }
td:last-child { min-width: 10rem; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
img { min-width: 36rem; max-width: 100%; display: block; margin: 1rem 0; padding: .6rem;
  background: #fff; border-radius: .5rem; box-sizing: border-box; }
"""
_ARROWS = {"higher": "\u2191 higher", "lower": "\u2193 lower"}
_EXPLAINED = f"""
Intervals are percentile bootstrap intervals of {CONFIDENCE:.0%} over the items of a set (pairs,
mentions, test words); they say nothing of another seed of training. Models are compared on the same
samples of items (paired). Where the interval of a difference holds 0, no difference is shown, and
the models are not ranked. Differences are not corrected for the number of comparisons.
"""


def to_html(header: Header, evaluation: Evaluation, *, plots: bool = True) -> str:
    """Return the report as HTML; plots need matplotlib."""
    suites = dict.fromkeys(measure.suite for measure in evaluation.by_measure())
    body = [
        "<h1>Evaluation</h1>",
        _verdict(evaluation),
        *(_suite(name, evaluation, plots) for name in suites),
        _comparisons(evaluation),
        _failures(evaluation),
        _missing(header),
        "<h2>How this was measured</h2>",
        _settings(header),
        _sentence(_EXPLAINED),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Evaluation</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body></html>\n"
    )


def _verdict(evaluation: Evaluation) -> str:
    """Say on top which model is better at what, or that there is nothing to compare."""
    found = summaries(evaluation)
    if not found:
        count = len(evaluation.by_measure())
        found = [f"{', '.join(evaluation.models)}: {count} measures, and nothing to compare with."]
    return f'<div class="verdict">{"".join(map(_sentence, found))}</div>'


def _settings(header: Header) -> str:
    rows = [
        *((f"model {label}", path) for label, path in header.models.items()),
        ("data", header.data),
        ("suites", ", ".join(header.suites)),
        ("bootstrap", f"{header.samples} samples, seed {header.seed}"),
        ("made", f"{header.created} by {header.generator}"),
    ]
    return _table([], rows)


def _suite(name: str, evaluation: Evaluation, plots: bool) -> str:
    table = {m: row for m, row in evaluation.by_measure().items() if m.suite == name}
    ranked = [m for m, row in table.items() if any(r.outcome.ranked for r in row.values())]
    several = len(evaluation.models) > 1
    rows = []
    for measure, row in table.items():
        some = next(iter(row.values())).outcome
        values = [
            describe_value(row[m].outcome.value, row[m].interval) if m in row else ""
            for m in evaluation.models
        ]
        verdicts = [verdict(row)] if several else []
        rows.append([
            measure.set, measure.metric, _ARROWS.get(some.better, some.better), str(some.n),
            *values, *verdicts, some.note,
        ])  # fmt: skip
    header = [
        "set",
        "measure",
        "better",
        "n",
        *evaluation.models,
        *(["shown"] if several else []),
        "note",
    ]
    parts = [_section(name, header, rows)]
    if plots and ranked:
        parts.append(_intervals(ranked, evaluation))
    if plots:
        parts += [_cosines(one, s, evaluation) for s, one in evaluation.cosines if s == name]
    return "\n".join(parts)


def _intervals(measures: list[Measure], evaluation: Evaluation) -> str:
    table = evaluation.by_measure()
    values = {
        model: [_point(table[measure].get(model)) for measure in measures]
        for model in evaluation.models
    }
    rows = [f"{measure.set}: {measure.metric}" for measure in measures]
    return _image(intervals_svg(rows, values), "values and intervals")


def _point(result: Result | None) -> tuple[float, float, float]:
    """Return value, low and high; all NaN without a result, all the value without an interval."""
    if result is None:
        return (math.nan, math.nan, math.nan)
    value, around = result.outcome.value, result.interval
    return (value, value, value) if around is None else (value, around.low, around.high)


def _cosines(name: str, suite: str, evaluation: Evaluation) -> str:
    row = evaluation.cosines[suite, name]
    some = next(iter(row.values()))
    drawn = cosine_distributions_svg(
        {model: (samples.positives, samples.negatives) for model, samples in row.items()},
        (some.positive_label, some.negative_label),
    )
    return f"<h3>{escape(name)}: cosines</h3>" + _image(drawn, f"cosines of {name}")


def _comparisons(evaluation: Evaluation) -> str:
    rows = [
        [one.measure.suite, one.measure.set, one.measure.metric, describe_comparison(one)]
        for one in evaluation.comparisons()
    ]
    return _section("Models compared", ["suite", "set", "measure", "difference"], rows)


def _failures(evaluation: Evaluation) -> str:
    rows = [
        [one.suite, one.set, one.model, "skipped: " * one.skipped + one.reason]
        for one in evaluation.failures
    ]
    return _section("Without a figure", ["suite", "set", "model", "reason"], rows)


def _missing(header: Header) -> str:
    if not header.missing:
        return ""
    items = "".join(f"<li>{escape(one)}</li>" for one in header.missing)
    return f"<h2>Sets that are not in the folder</h2>\n<ul>{items}</ul>"


def _sentence(text: str) -> str:
    return f"<p>{escape(' '.join(text.split()))}</p>"


def _section(title: str, header: list[str], rows: Sequence[Sequence[str]]) -> str:
    return f"<h2>{escape(title)}</h2>\n{_table(header, rows)}" if rows else ""


def _table(header: list[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    lines = ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows]
    first = f"<tr>{head}</tr>" if head else ""
    return f'<div class="wide"><table>{first}\n' + "\n".join(lines) + "</table></div>"


def _cell(text: str) -> str:
    """Give cells that begin with a number digits of one width."""
    style = ' class="number"' if text[:1].isdigit() or text[:2] in ("-0", "-1") else ""
    return f"<td{style}>{escape(text)}</td>"


def _image(svg: bytes, alt: str) -> str:
    data = base64.b64encode(svg).decode("ascii")
    source = f"data:image/svg+xml;base64,{data}"
    return f'<div class="wide"><img alt="{escape(alt)}" src="{source}"></div>'
