"""Plot results of evaluations. Needs matplotlib (extra `demo`)."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import require
from mirror_rt.io.atomic import new_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mirror_rt.evaluation.run import Result

Cosines = npt.NDArray[np.float64]
Point = tuple[float, float, float]  # a value with the ends of its interval
# They can be told apart by the colour-blind, and are dark enough for text on white (4.5:1).
COLOURS = ("#1f5fbf", "#b34a00", "#17713b", "#8a3d9c", "#5f6368", "#a3195b")


def plot_grades(path: Path, panels: dict[str, dict[str, Cosines]], *, title: str) -> None:
    """Plot the cosines of pairs by their grade, one panel per model, as PNG.

    `panels` maps a title to the cosines of each grade, from the least alike to the most.
    """
    figure = new_figure(5 * len(panels), 3.8)
    spread = np.random.default_rng(0)
    for (name, grades), axes in zip(panels.items(), _panels(figure, len(panels)), strict=True):
        for place, values in enumerate(grades.values()):
            around, mean = place + spread.uniform(-0.18, 0.18, len(values)), values.mean()
            colour = COLOURS[place % len(COLOURS)]
            axes.scatter(around, values, s=10, alpha=0.5, color=colour, linewidths=0)
            axes.hlines(mean, place - 0.3, place + 0.3, color="black", linewidth=1.5)
            axes.annotate(f"{mean:.2f}", (place + 0.32, mean), va="center", fontsize=9)
        axes.set_xticks(range(len(grades)), list(grades))
        axes.set_xlim(-0.5, len(grades) - 0.25)
        axes.set_title(name, fontsize=10)
    figure.axes[0].set_ylabel("cosine (bar: mean)")
    save_png(figure, path, title)


def cosines_figure(
    panels: dict[str, tuple[Cosines, Cosines]], labels: tuple[str, str], *, narrow: bool = False
) -> Figure:
    """Plot histograms of the cosines of positive and of negative pairs, one panel per model.

    The figure follows Figure 7 of Mirror-BERT (EMNLP 2021). `panels` maps a title to the cosines of
    both, and `labels` names them. A narrow figure is for phones: its panels stand one under the
    other.
    """
    figure = new_figure(4, 3 * len(panels)) if narrow else new_figure(5 * len(panels), 3.4)
    lowest = min((cosines.min() for pair in panels.values() for cosines in pair), default=0.0)
    bins = np.arange(np.floor(lowest * 40) / 40, 1.0251, 0.025).tolist()
    for (title, pair), axes in zip(
        panels.items(), _panels(figure, len(panels), narrow=narrow), strict=True
    ):
        for cosines, label, colour in zip(pair, labels, COLOURS, strict=False):
            axes.hist(cosines, bins, density=True, alpha=0.45, color=colour)
            axes.axvline(cosines.mean(), color=colour, linewidth=1)
            # Just above the panel, on the outer side of the means, where no bar is.
            outside = "left" if cosines.mean() == max(one.mean() for one in pair) else "right"
            axes.annotate(f" {label} {cosines.mean():.2f} ", (cosines.mean(), 1), color=colour,
                          xycoords=("data", "axes fraction"), ha=outside, fontsize=9)  # fmt: skip
        apart = pair[0].mean() - pair[1].mean()
        axes.set_title(f"{title}: means {apart:.2f} apart", fontsize=10, pad=18)
        axes.set_xlabel("cosine")
    figure.axes[0].set_ylabel("density")
    return figure


def roc_figure(models: dict[str, tuple[Cosines, Cosines]], *, narrow: bool = False) -> Figure:
    """Plot the ROC curves of models, by the cosines of positive and of negative pairs."""
    figure = new_figure(4 if narrow else 4.6, 4)
    (axes,) = _panels(figure, 1)
    for (model, pair), colour in zip(models.items(), itertools.cycle(COLOURS)):
        axes.plot(*roc_curve(*pair), label=model, color=colour)
    axes.plot([0, 1], [0, 1], color="0.8", linewidth=1)
    axes.set_xlabel("share of the negatives above the threshold")
    axes.set_ylabel("share of the positives")
    figure.legend(frameon=False, loc="outside upper left")
    return figure


def roc_curve(positives: Cosines, negatives: Cosines) -> tuple[Cosines, Cosines]:
    """Return the false and the true positive rates at every threshold, from (0, 0) to (1, 1)."""
    thresholds = np.unique(np.concatenate([positives, negatives]))
    rates = (
        np.append(0, 1 - np.searchsorted(np.sort(found), thresholds[::-1]) / len(found))
        for found in (negatives, positives)
    )
    false, true = rates
    return false, true


def intervals_figure(
    rows: list[str],
    values: dict[str, list[Point]],
    *,
    label: str = "value with its interval; further right is better",
    narrow: bool = False,
) -> Figure:
    """Plot values with confidence intervals one under the other, and each series in a colour.

    `values` maps a series, such as a model, to (value, low, high) of each row, NaN for no value.
    `label` is that of the axis. A narrow figure is for phones: its labels stand above their rows.
    """
    height = 1.1 + (0.34 + 0.2 * narrow) * len(rows) * max(1, len(values) * 0.6)
    figure = new_figure(4 if narrow else 8, height)
    (axes,) = _panels(figure, 1)
    for i, (model, points) in enumerate(values.items()):
        table = np.array(points)
        place = np.arange(len(rows)) + 0.22 * (i - (len(values) - 1) / 2)
        around = np.abs(table[:, 1:].T - table[:, 0])
        colour = COLOURS[i % len(COLOURS)]
        axes.errorbar(table[:, 0], place, xerr=around, fmt="o", ms=4, label=model, color=colour)
    for edge in np.arange(len(rows) - 1) + 0.5:
        axes.axhline(edge, color="0.9", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [""] * len(rows) if narrow else rows)
    for i, row in enumerate(rows if narrow else ()):
        axes.annotate(row, (0.01, i - 0.46), xycoords=("axes fraction", "data"), va="top",
                      fontsize=8)  # fmt: skip
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel(label)
    figure.legend(frameon=False, loc="outside upper left", ncols=2 if narrow else 4)
    return figure


def differences_figure(
    rows: list[str], values: dict[str, list[Point]], *, narrow: bool = False
) -> Figure:
    """Plot differences, such as "first - second", with their intervals and a line at 0."""
    what = "difference" if narrow else "difference on the same samples"
    figure = intervals_figure(
        rows, values, label=f"{what}; right of 0 the first is better", narrow=narrow
    )
    figure.axes[0].axvline(0, color="0.3", linewidth=1)
    return figure


def to_point(result: Result | None) -> Point:
    """Return value, low and high; all NaN without a result, all the value without an interval."""
    if result is None:
        return (np.nan, np.nan, np.nan)
    value, around = result.outcome.value, result.interval
    return (value, value, value) if around is None else (value, around.low, around.high)


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of this size in inches, which needs no screen."""
    require("matplotlib", extra="demo", purpose="plotting")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def label_lines(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write (y, text, colour) at the right ends of lines, apart from each other.

    The limits and the scale of the axes must be final.
    """
    low, high = axes.transData.inverted().transform(axes.transAxes.transform([(0, 0), (0, 1)]))[
        :, 1
    ]
    scale = axes.yaxis.get_transform()
    bottom, top = scale.transform(np.array([low, high]))
    least, gap = -np.inf, 0.055
    for y, text, colour in sorted(ends):
        least = max(least + gap, (scale.transform(np.array([y]))[0] - bottom) / (top - bottom))
        axes.annotate(f" {text}", (1, least), xycoords="axes fraction", color=colour, va="center",
                      fontsize=9)  # fmt: skip


def save_png(figure: Figure, path: Path, title: str) -> None:
    """Write a figure with a title as PNG, in place of an existing file."""
    figure.suptitle(title, fontsize=11)
    with new_file(path, overwrite=True) as file:
        figure.savefig(file, format="png", dpi=150)


def to_svg(figure: Figure) -> bytes:
    """Return a figure as SVG, the same bytes each time."""
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "mirror_rt"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _panels(figure: Figure, count: int, *, narrow: bool = False) -> list[Axes]:
    """Add panels, side by side if not narrow, which share their axes and have no frame."""
    shape = (count, 1) if narrow else (1, count)
    found = figure.subplots(*shape, sharex=True, sharey=True, squeeze=False).ravel().tolist()
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
    return list(found)
