"""Plot the means and intervals of a study over its seeds as PNG, with matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mirror_rt.evaluation.plots import new_figure, save_png
from mirror_train.experiments.studies import Study
from mirror_train.experiments.study_report import LEVEL, Row


def plot_study(path: Path, study: Study, rows: list[Row]) -> None:
    """Plot the rows of `summarize` as a PNG file, along the study's axis or one under the other."""
    figure = new_figure(6.4, 3.6 if study.axis else 1.2 + 0.4 * len(rows))
    axes = figure.add_subplot()
    if study.axis:
        _along_axis(axes, study, rows)
    else:
        _one_under_the_other(axes, rows)
    seeds = max(len(row.values) for row in rows)
    interval = f"mean and {LEVEL:.0%} t interval of {seeds} seeds" if seeds > 1 else "one seed"
    axes.spines[["top", "right"]].set_visible(False)
    save_png(figure, path, f"{study.title}\n({interval})", overwrite=True)


def _along_axis(axes: Any, study: Study, rows: list[Row]) -> None:
    tuned = sorted((row for row in rows if row.x is not None), key=lambda row: row.x or 0.0)
    x = [row.x for row in tuned]
    means = [row.mean for row in tuned]
    axes.errorbar(x, means, [_error(row) for row in tuned], fmt="o-", capsize=3)
    for row in rows:
        if row.x is None:
            axes.axhline(row.mean, color="tab:gray", linestyle="--", linewidth=1)
            axes.annotate(row.label, (0.01, row.mean), xycoords=("axes fraction", "data"),
                          va="bottom", fontsize=8, color="tab:gray")  # fmt: skip
    if study.log:
        axes.set_xscale("log")
    axes.set_xlabel(study.axis)
    axes.set_ylabel("Spearman's rho")


def _one_under_the_other(axes: Any, rows: list[Row]) -> None:
    y = range(len(rows))
    means = [row.mean for row in rows]
    axes.errorbar(means, y, xerr=[_error(row) for row in rows], fmt="o", capsize=3)
    axes.set_yticks(list(y), [row.label for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel("Spearman's rho")


def _error(row: Row) -> float:
    """Return half the width of the interval; 0 where there is none."""
    return 0.0 if row.low is None or row.high is None else (row.high - row.low) / 2
