"""Write an evaluation as one self-contained HTML file: tables, and plots as embedded SVG."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape

from mirror_rt.evaluation.bootstrap import CONFIDENCE
from mirror_rt.evaluation.plots import cosine_distributions_svg, intervals_figure, to_point, to_svg
from mirror_rt.evaluation.report import Header, describe_comparison, figure_cells, summaries
from mirror_rt.evaluation.run import Evaluation, Measure, Result

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
img { min-width: 36rem; max-width: 100%; margin: 1rem 0; background: #fff; }
"""
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
        rows.append([measure.set, measure.metric, better, str(some.n), *cells, some.note])
    header = ["set", "measure", "better", "n", *evaluation.models, *shown, "note"]
    parts = [_section(name, header, rows)]
    if plots:
        ranked = {m: row for m, row in table.items() if any(r.outcome.ranked for r in row.values())}
        if ranked:
            parts.append(_intervals(ranked, evaluation.models))
        parts += [_cosines(one, s, evaluation) for s, one in evaluation.cosines if s == name]
    return "\n".join(parts)


def _intervals(table: dict[Measure, dict[str, Result]], models: list[str]) -> str:
    values = {model: [to_point(row.get(model)) for row in table.values()] for model in models}
    rows = [f"{measure.set}: {measure.metric}" for measure in table]
    return _image(to_svg(intervals_figure(rows, values)), "values and intervals")


def _cosines(name: str, suite: str, evaluation: Evaluation) -> str:
    row = evaluation.cosines[suite, name]
    some = next(iter(row.values()))
    drawn = cosine_distributions_svg(
        {model: (samples.positives, samples.negatives) for model, samples in row.items()},
        (some.positive_label, some.negative_label),
    )
    return f"<h3>{escape(name)}: cosines</h3>" + _image(drawn, f"cosines of {name}")


def _section(title: str, header: list[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a heading and a table; nothing where there are no rows."""
    if not rows:
        return ""
    lines = [_line("th", header)] * bool(header) + [_line("td", row) for row in rows]
    table = f'<div class="wide"><table>{"".join(lines)}</table></div>'
    return f"<h2>{escape(title)}</h2>\n{table}"


def _line(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>\n"


def _image(svg: bytes, alt: str) -> str:
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode('ascii')}"
    return f'<div class="wide"><img alt="{escape(alt)}" src="{source}"></div>'
