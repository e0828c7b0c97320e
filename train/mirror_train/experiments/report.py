"""Report a study: its table in Markdown, everything in JSON, and a plot as PNG."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mirror_rt.evaluation.bootstrap import CONFIDENCE, Interval
from mirror_rt.evaluation.plots import new_figure, save_png
from mirror_rt.evaluation.report import describe_difference
from mirror_rt.evaluation.run import Measure
from mirror_rt.io.atomic import new_file, write_json
from mirror_train.experiments.figures import Figure, column_title, compare, figures_of, judge
from mirror_train.experiments.kept_results import machine_facts
from mirror_train.experiments.study import Row, Run, Study, StudyConfig


class Report:
    """What the runs of a study show.

    Attributes:
        figures: those of each row, in the order of the sets; none where the row failed.
        columns: the measures that the table shows, with their titles.
        findings: what the runs show about the claims of the papers.
    """

    def __init__(self, study: Study, config: StudyConfig, runs: list[Run]) -> None:
        self._study, self._config = study, config
        self._runs = {row.label: [r for r in runs if r.label == row.label] for row in study.rows}
        self.figures = {label: figures_of(own) for label, own in self._runs.items()}
        found = dict.fromkeys(one for figures in self.figures.values() for one in figures)
        self.columns = {one: title for one in found if (title := column_title(one))}
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
            f"After {study.source}." if study.source else "",
            self.table().rstrip(),
            self._reading(),
            self._claims().rstrip(),
            "\n".join(f"- {note}" for note in notes),
        ]
        return "\n\n".join(filter(None, parts)) + "\n"

    def table(self) -> str:
        """Return a table with a line for each row and a column for each measure."""
        study = self._study
        header = [
            "",
            *(["tuned on"] if study.isolated else []),
            *self.columns.values(),
            *([] if study.reference is None else [f"against {study.reference}"]),
            *(["time", "memory"] if study.isolated else []),
        ]
        return _to_markdown(header, map(self._line, study.rows))

    def _line(self, row: Row) -> list[str]:
        figures, runs = self.figures[row.label], self._runs[row.label]
        cells = [str(figures[one]) if one in figures else "-" for one in self.columns]
        if self._study.reference is not None:
            cells.append(self.verdict(row))
        if self._study.isolated:
            failed = next((f"failed: {run.error}" for run in runs if run.error), "")
            cells = [failed or runs[0].data or "-", *cells, _seconds(row, runs), _memory(runs)]
        return [row.label.replace("|", "\\|"), *cells]

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
        figure = self.figures[row.label].get(measure)
        if figure is not None and row.train is None:
            return Interval(figure.mean, figure.mean)
        return None if figure is None or self._config.seeds == 1 else figure.interval

    def _claims(self) -> str:
        if not self.findings:
            return ""
        lines = [
            [one.row, str(one.claim), one.set, describe_difference(one.difference), one.verdict]
            for one in self.findings
        ]
        return _to_markdown(["", "its paper says", "on", "difference", ""], lines)

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain JSON values, without the replicates of the bootstrap."""
        study = self._study
        rows = [
            {
                "label": row.label,
                "x": row.x,
                "verdict": None if study.reference is None else self.verdict(row),
                "figures": [
                    dataclasses.asdict(measure) | figure.to_json()
                    for measure, figure in self.figures[row.label].items()
                ],
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
        return {"model": self._config.model} | self._study.about | machine_facts(self._config)

    def _reading(self) -> str:
        if (seeds := self._config.seeds) > 1:
            return (
                f"Mean of {seeds} seeds, with Student's t interval of {CONFIDENCE:.0%} over them. "
                "It covers the\nrandomness of tuning (order, masks, dropout), not the choice of "
                "the items or of the training data."
            )
        if self._config.samples:
            return (
                f"Intervals of {CONFIDENCE:.0%}: percentile bootstrap over the items of a set. "
                "They leave out the\nrandomness of tuning: one seed was run."
            )
        return "One seed: nothing tells a difference between two setups from chance."

    def _plot(self, path: Path) -> None:
        """Plot each column along the study's axis, or with the rows one under the other."""
        study, rows = self._study, [row for row in self._study.rows if self.figures[row.label]]
        height = 3.6 if study.axis else 1.2 + 0.4 * len(rows)
        figure = new_figure(3.4 + 3 * len(self.columns), height)
        panels = figure.subplots(1, len(self.columns), sharey=not study.axis, squeeze=False)[0]
        for axes, (measure, title) in zip(panels, self.columns.items(), strict=True):
            found = [(row, one) for row in rows if (one := self.figures[row.label].get(measure))]
            axes.spines[["top", "right"]].set_visible(False)
            if study.axis:
                _along_axis(axes, study, found)
                axes.set_ylabel(title)
            else:
                places = [rows.index(row) for row, _ in found]
                means, errors = _points([one for _, one in found])
                axes.errorbar(means, places, xerr=errors, fmt="o", capsize=3)
                axes.set_xlabel(title)
        if not study.axis:
            panels[0].set_yticks(range(len(rows)), [row.label for row in rows])
            panels[0].invert_yaxis()
        intervals = f"{CONFIDENCE:.0%} intervals" if self._config.samples else "no intervals"
        several = f"mean and {CONFIDENCE:.0%} t interval of {self._config.seeds} seeds"
        seeds = several if self._config.seeds > 1 else f"one seed, {intervals}"
        save_png(figure, path, f"{study.title}\n({seeds})", overwrite=True)


def _along_axis(axes: Any, study: Study, found: list[tuple[Row, Figure]]) -> None:
    placed = sorted((row.x, i) for i, (row, _) in enumerate(found) if row.x is not None)
    means, errors = _points([found[i][1] for _, i in placed])
    axes.errorbar([x for x, _ in placed], means, errors, fmt="o-", capsize=3)
    for row, figure in found:
        if row.x is None:
            axes.axhline(figure.mean, color="tab:gray", linestyle="--", linewidth=1)
            axes.annotate(row.label, (0.01, figure.mean), xycoords=("axes fraction", "data"),
                          va="bottom", fontsize=8, color="tab:gray")  # fmt: skip
    if study.log:
        axes.set_xscale("log")
    axes.set_xlabel(study.axis)


def _points(figures: list[Figure]) -> tuple[list[float], list[list[float]]]:
    """Return the means, and how far the intervals go below and above them."""
    around = [one.interval or Interval(one.mean, one.mean) for one in figures]
    below = [one.mean - each.low for one, each in zip(figures, around, strict=True)]
    above = [each.high - one.mean for one, each in zip(figures, around, strict=True)]
    return [one.mean for one in figures], [below, above]


def _to_markdown(header: list[str], rows: Iterable[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |\n" for cells in (header, *rows)]
    return "".join([lines[0], "|", "---|" * len(header), "\n", *lines[1:]])


def _seconds(row: Row, runs: list[Run]) -> str:
    return "-" if row.train is None or runs[0].error else f"{runs[0].seconds:.0f} s"


def _memory(runs: list[Run]) -> str:
    if runs[0].memory_mb is None:
        return "-"
    device = runs[0].device_mb
    return f"{runs[0].memory_mb:,.0f} MB" + (f", GPU {device:,.0f} MB" if device else "")


def _notes(runs: list[Run]) -> Iterable[str]:
    """Return once what the runs of a row say of their models and failures."""
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
