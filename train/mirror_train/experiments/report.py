"""Report a study: its table in Markdown, everything in JSON, and a plot as PNG."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mirror_rt.diagnostics.benchmarking import machine_name
from mirror_rt.evaluation.bootstrap import CONFIDENCE, Interval
from mirror_rt.evaluation.plots import (
    COLOURS,
    Point,
    intervals_figure,
    new_figure,
    save_png,
    to_point,
)
from mirror_rt.evaluation.report import describe_difference, describe_value
from mirror_rt.evaluation.run import Measure
from mirror_rt.io.atomic import new_file, write_json
from mirror_rt.io.tables import markdown_table
from mirror_rt.version import __version__
from mirror_train.compute.precision import resolve_device, resolve_precision
from mirror_train.experiments.figures import column_title, compare, figures_of, judge
from mirror_train.experiments.study import Row, Run, Study, StudyConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Report:
    """The results of a study's runs, as a report shows them.

    Attributes:
        figures: those of each row, in the order of the sets; none where the row failed.
        columns: the measures that the table shows, with their titles.
        findings: the results of the runs on the claims of the papers.
    """

    def __init__(self, study: Study, config: StudyConfig, runs: list[Run]) -> None:
        self._study, self._config = study, config
        self._runs = {row.label: [r for r in runs if r.label == row.label] for row in study.rows}
        self.figures = {
            label: figures_of(own, average=study.average) for label, own in self._runs.items()
        }
        found = dict.fromkeys(one for figures in self.figures.values() for one in figures)
        self.columns = {one: title for one in found if (title := column_title(one, study.geometry))}
        self.findings = [
            finding
            for row in study.rows
            for claim in row.claims
            for finding in judge(
                row.label, claim, self.figures[row.label], self.figures.get(claim.against, {})
            )
        ]

    def write(self) -> list[Path]:
        """Write NAME.md, NAME.json and NAME.png into the study's folder; return their paths."""
        name = self._study.name
        paths = [self._config.out / f"{name}.{suffix}" for suffix in ("md", "json", "png")]
        with new_file(paths[0], overwrite=True) as file:
            file.write(self.markdown().encode())
        write_json(paths[1], self.to_json())
        self._plot(paths[2])
        return paths

    def markdown(self) -> str:
        """Return the whole report as Markdown."""
        study = self._study
        notes = [
            *(f"{label}: {note}" for label, runs in self._runs.items() for note in _notes(runs)),
            *(f"left out, {name}: {reason}" for name, reason in study.left_out.items()),
            *(f"{name}: {_plain(value)}" for name, value in self._about().items()),
        ]
        parts = [
            f"# {study.name}: {study.title}",
            f"The question is that of {study.source}; base, data and sets are those named below."
            if study.source
            else "",
            self.table(),
            f"A column that names no measure has Spearman's rho. {self._reading()}",
            self._claims(),
            "\n".join(f"- {note}" for note in notes),
        ]
        return "\n\n".join(filter(None, parts)) + "\n"

    def table(self) -> str:
        """Return a table with a line for each row and a column for each measure."""
        study = self._study
        header = [
            "",
            *(["tuned on"] if study.isolated else []),
            *(cell for one in self.columns for cell in self._titles(one)),
            *(["against the paper"] if study.paper else []),
            *([] if study.reference is None else [f"against {study.reference}"]),
            *(["time", "memory"] if study.isolated else []),
        ]
        return markdown_table(header, map(self._line, study.rows))

    def _line(self, row: Row) -> list[str]:
        figures, runs = self.figures[row.label], self._runs[row.label]
        cells = []
        for one in self.columns:
            cells.append(describe_value(figures.get(one)))
            if one.set in self._study.paper:
                number = self._study.paper[one.set].get(row.label)
                cells.append("-" if number is None else f"{number:.3f}")
        if self._study.paper:
            cells.append(self._against_the_paper(row))
        if self._study.reference is not None:
            cells.append(self.verdict(row))
        if self._study.isolated:
            failed = next((f"failed: {run.error}" for run in runs if run.error), "")
            took = "-" if row.train is None or runs[0].error else f"{runs[0].seconds:.0f} s"
            cells = [failed or runs[0].data or "-", *cells, took, _memory(runs)]
        return [row.label, *cells]

    def _titles(self, measure: Measure) -> list[str]:
        title = self.columns[measure]
        return [title, f"{title}, paper"] if measure.set in self._study.paper else [title]

    def _against_the_paper(self, row: Row) -> str:
        """Say where a row differs from the paper's numbers by more than their spread.

        Means of three seeds of one system differ by less than twice the deviation in 98.6 % of all
        cases.
        """
        found = {
            title: result.outcome.value - number
            for one, title in self.columns.items()
            if (number := self._study.paper.get(one.set, {}).get(row.label)) is not None
            and (result := self.figures[row.label].get(one)) is not None
        }
        most = 2 * self._study.deviation
        outside = [f"{name} {by:+.3f}" for name, by in found.items() if abs(by) > most]
        if not outside:
            return f"within {most:g}" if found else "-"
        return f"not within {most:g}: {', '.join(outside)}"

    def verdict(self, row: Row) -> str:
        """Compare a row with the reference of the study on every measure of the table."""
        reference = next(one for one in self._study.rows if one.label == self._study.reference)
        if row is reference:
            return "reference"
        by_verdict: dict[str, list[str]] = {}
        for measure, title in self.columns.items():
            found = compare(self._interval(row, measure), self._interval(reference, measure))
            by_verdict.setdefault(found, []).append(title)
        if len(by_verdict) == 1:
            return next(iter(by_verdict))
        return "; ".join(f"{', '.join(on)}: {found}" for found, on in by_verdict.items())

    def _interval(self, row: Row, measure: Measure) -> Interval | None:
        """Return an interval over seeds: a base model's is its value, for nothing is random."""
        found = self.figures[row.label].get(measure)
        if found is not None and row.train is None:
            return Interval(found.outcome.value, found.outcome.value)
        return None if found is None or self._config.seeds == 1 else found.interval

    def _claims(self) -> str:
        if not self.findings:
            return ""
        lines = [
            [one.row, str(one.claim), one.set, describe_difference(one.difference), one.verdict]
            for one in self.findings
        ]
        return markdown_table(["", "its paper says", "on", "difference", ""], lines)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values, without the replicates of the bootstrap."""
        study = self._study
        rows = [
            {
                "label": row.label,
                "x": row.x,
                "verdict": None if study.reference is None else self.verdict(row),
                "figures": [one.to_json() for one in self.figures[row.label].values()],
            }
            for row in study.rows
        ]
        return {
            "study": study.name,
            "title": study.title,
            "source": study.source,
            "confidence": CONFIDENCE,
            "rows": rows,
            "runs": [run.to_json() for runs in self._runs.values() for run in runs],
            "claims": [finding.to_json() for finding in self.findings],
            "left_out": study.left_out,
        } | self._about()

    def _about(self) -> dict[str, Any]:
        kept = sum(run.kept for runs in self._runs.values() for run in runs)
        said = {"runs kept of earlier commands, with the same code": kept} if kept else {}
        facts = machine_facts(self._config)
        return {"model": self._config.model} | self._study.about | said | facts

    def _reading(self) -> str:
        if (seeds := self._config.seeds) > 1:
            return (
                f"Mean of {seeds} seeds, with Student's t interval of {CONFIDENCE:.0%} over them. "
                "It covers the randomness of tuning (order, masks, dropout), not the choice of "
                "the items or of the training data."
            )
        if self._config.samples:
            return (
                f"Intervals of {CONFIDENCE:.0%}: percentile bootstrap over the items of a set. "
                "They leave out the randomness of tuning: one seed was run."
            )
        return "One seed: nothing tells a difference between two setups from chance."

    def _plot(self, path: Path) -> None:
        """Plot the measures that rank the rows, along the study's axis or row by row.

        Where nothing ranks them, geometry is plotted.
        """
        study, seeds = self._study, self._config.seeds
        rows = [row for row in study.rows if self.figures[row.label]]
        series = {
            title: [to_point(self.figures[row.label].get(measure)) for row in rows]
            for measure, title in self.columns.items()
            if measure.suite != "geometry" or all(one.suite == "geometry" for one in self.columns)
        }
        if study.axis:
            figure = _axis_figure(study, rows, series)
        else:
            figure = intervals_figure([row.label for row in rows], series)
        intervals = f"mean and {CONFIDENCE:.0%} t interval of {seeds} seeds"
        shown = intervals if seeds > 1 else "one seed"
        save_png(figure, path, f"{study.title}\n({shown})")


def _axis_figure(study: Study, rows: list[Row], series: dict[str, list[Point]]) -> Figure:
    """Plot each series along the study's axis; rows without a place on it are lines across."""
    figure = new_figure(6.4, 3.6)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    placed = sorted((row.x, i) for i, row in enumerate(rows) if row.x is not None)
    for (title, points), colour in zip(series.items(), itertools.cycle(COLOURS)):
        table = np.array([points[i] for _, i in placed])
        axes.errorbar([x for x, _ in placed], table[:, 0], np.abs(table[:, 1:].T - table[:, 0]),
                      fmt="o-", capsize=3, label=title, color=colour)  # fmt: skip
        for row, (mean, _, _) in zip(rows, points, strict=True):
            if row.x is None:
                axes.axhline(mean, color=colour, linestyle="--", linewidth=1)
                axes.annotate(row.label, (0.01, mean), xycoords=("axes fraction", "data"),
                              va="bottom", fontsize=8, color=colour)  # fmt: skip
    if study.log:
        axes.set_xscale("log")
    axes.set_xlabel(study.axis)
    axes.legend(frameon=False)
    return figure


def machine_facts(config: StudyConfig) -> dict[str, Any]:
    """Return where and when a table was made, for its notes; `auto` is resolved."""
    device = resolve_device(config.device)
    return {
        "precision": resolve_precision(config.precision, device),
        "device": str(device),
        "machine": machine_name(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "mirror_rt": __version__,
    }


def _memory(runs: list[Run]) -> str:
    if runs[0].memory_mb is None:
        return "-"
    device = runs[0].device_mb
    return f"{runs[0].memory_mb:,.0f} MB" + (f", GPU {device:,.0f} MB" if device else "")


def _notes(runs: list[Run]) -> Iterable[str]:
    """Return the remarks of a row's runs on models and failures, each once."""
    return dict.fromkeys(
        note
        for run in runs
        for note in (run.about, *(f"failed, {failure}" for failure in run.failures))
        if note
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return str(value)
