"""Write an evaluation as one self-contained HTML file: tables, and plots as embedded SVG."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from mirror_rt.evaluation.bootstrap import CONFIDENCE
from mirror_rt.evaluation.plots import (
    Point,
    cosines_figure,
    differences_figure,
    intervals_figure,
    roc_figure,
    to_point,
    to_svg,
)
from mirror_rt.evaluation.report import Header, describe_comparison, figure_cells, summaries
from mirror_rt.evaluation.run import Evaluation, Measure, Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; }
.verdict { background: #48c2; border-radius: .5rem; padding: .2rem 1.1rem; font-size: 1.1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid #8884;
  vertical-align: top; }
td:last-child { min-width: 10rem; }
img { max-width: 100%; margin: 1rem 0; background: #fff; }
@media (prefers-color-scheme: dark) { img { filter: invert(0.9) hue-rotate(180deg); } }
"""
_NOTHING = (math.nan, math.nan, math.nan)
_FEW = 50
_ARROWS = {"higher": "\u2191 higher", "lower": "\u2193 lower"}
_EXPLAINED = (
    f"Intervals are percentile bootstrap intervals of {CONFIDENCE:.0%} over the items of a set "
    "(pairs, mentions, test words); they say nothing of another seed of training. Models are "
    "compared on the same samples of items (paired). Where the interval of a difference holds 0, "
    "no difference is shown, and the models are not ranked. Differences are not corrected for the "
    "number of comparisons."
)


def to_html(header: Header, evaluation: Evaluation, *, plots: bool = True) -> str:
    """Return the report as HTML; plots need matplotlib."""
    measures = evaluation.by_measure()
    # On top stands which model is better at what, or that there is nothing to compare.
    found = summaries(evaluation) or [
        f"{', '.join(evaluation.models)}: {len(measures)} measures, and nothing to compare with."
    ]
    compared = [
        [one.measure.suite, one.measure.set, one.measure.metric, describe_comparison(one)]
        for one in evaluation.comparisons()
    ]
    failed = [
        [one.suite, one.set, one.model, "skipped: " * one.skipped + one.reason]
        for one in evaluation.failures
    ]
    settings = [
        *([f"model {label}", path] for label, path in header.models.items()),
        ["data", header.data],
        ["suites", ", ".join(header.suites)],
        ["bootstrap", f"{header.samples} samples, seed {header.seed}"],
        ["made", f"{header.created} by {header.generator}"],
    ]
    suites = dict.fromkeys(measure.suite for measure in measures)
    return "\n".join([
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Evaluation</title><style>{_STYLE}</style></head>\n<body>\n<h1>Evaluation</h1>",
        f'<div class="verdict">{"".join(f"<p>{escape(text)}</p>" for text in found)}</div>',
        *(_suite(name, evaluation, plots) for name in suites),
        _section("Models compared", ["suite", "set", "measure", "difference"], compared),
        _section("Without a figure", ["suite", "set", "model", "reason"], failed),
        _section("Sets that are not in the folder", [], [[one] for one in header.missing]),
        _section("How this was measured", [], settings),
        f"<p>{escape(_EXPLAINED)}</p>\n</body></html>\n",
    ])  # fmt: skip


def _suite(name: str, evaluation: Evaluation, plots: bool) -> str:
    table = {m: row for m, row in evaluation.by_measure().items() if m.suite == name}
    shown = ["shown"] * (len(evaluation.models) > 1)
    rows = []
    for measure, row in table.items():
        some = next(iter(row.values())).outcome
        better = _ARROWS.get(some.better, some.better)
        cells = figure_cells(evaluation, row)
        few = f"only {some.n} items: a hint, no result" if some.n < _FEW else ""
        note = "; ".join(filter(None, (some.note, few)))
        rows.append([measure.set, measure.metric, better, f"{some.n:,}", *cells, note])
    header = ["set", "measure", "better", "n", *evaluation.models, *shown, "note"]
    parts = [_section(name, header, rows)]
    if plots:
        ranked = {m: row for m, row in table.items() if any(r.outcome.ranked for r in row.values())}
        if ranked:
            parts += [_intervals(ranked, evaluation.models), *_differences(ranked, evaluation)]
        parts += [_cosines(one, s, evaluation) for s, one in evaluation.cosines if s == name]
    return "\n".join(parts)


def _intervals(table: dict[Measure, dict[str, Result]], models: list[str]) -> str:
    values = {model: [to_point(row.get(model)) for row in table.values()] for model in models}
    return _image("values and intervals", partial(intervals_figure, _labels(table), values))


def _differences(table: dict[Measure, dict[str, Result]], evaluation: Evaluation) -> list[str]:
    found: dict[str, dict[Measure, Point]] = {}
    for one in evaluation.comparisons():
        if one.measure in table:
            value, around = one.difference.value, one.difference.interval
            ends = (value, value) if around is None else (around.low, around.high)
            found.setdefault(f"{one.first} - {one.second}", {})[one.measure] = (value, *ends)
    if not found:
        return []
    values = {name: [points.get(measure, _NOTHING) for measure in table]
              for name, points in found.items()}  # fmt: skip
    draw = partial(differences_figure, _labels(table), values)
    return [_image("paired differences and their intervals", draw)]


def _labels(table: Iterable[Measure]) -> list[str]:
    return [f"{measure.set}: {measure.metric}" for measure in table]


def _cosines(name: str, suite: str, evaluation: Evaluation) -> str:
    row = evaluation.cosines[suite, name]
    some = next(iter(row.values()))
    panels = {model: (samples.positives, samples.negatives) for model, samples in row.items()}
    labels = (some.positive_label, some.negative_label)
    draw = partial(cosines_figure, panels, labels)
    shown = f"<h3>{escape(name)}: cosines</h3>" + _image(f"cosines of {name}", draw)
    if suite != "qnli":
        return shown
    title = f"<h3>{escape(name)}: ROC curves</h3>"
    return shown + title + _image(f"ROC curves of {name}", partial(roc_figure, panels))


def _section(title: str, header: list[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a heading and a table, without columns that are empty; nothing without rows."""
    if not rows:
        return ""
    kept = [i for i in range(len(rows[0])) if any(row[i] for row in rows)]
    lines = [_line("th", [header[i] for i in kept])] if header else []
    lines += [_line("td", [row[i] for i in kept]) for row in rows]
    table = f'<div class="wide"><table>{"".join(lines)}</table></div>'
    return f"<h2>{escape(title)}</h2>\n{table}"


def _line(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>\n"


def _image(alt: str, draw: Callable[..., Figure]) -> str:
    """Return a picture, which is drawn once more, narrow, for phones."""
    first, other = (
        f"data:image/svg+xml;base64,{base64.b64encode(to_svg(draw(narrow=small))).decode('ascii')}"
        for small in (False, True)
    )
    return (
        f'<picture><source media="(max-width: 40rem)" srcset="{other}">'
        f'<img alt="{escape(alt)}" src="{first}"></picture>'
    )
