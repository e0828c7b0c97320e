"""Plot results of evaluations. Needs matplotlib (extra `demo`)."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import require
from mirror_rt.io.atomic import new_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cosine_distributions_svg", "intervals_svg", "new_figure", "plot_cosine_distributions"]

Cosines = npt.NDArray[np.float64]


def plot_cosine_distributions(
    path: Path, panels: dict[str, tuple[Cosines, Cosines]], *, overwrite: bool = True
) -> None:
    """Plot histograms of the cosines of positive and of random pairs, one panel per model, as PNG.

    The figure follows Figure 7 of Mirror-BERT (EMNLP 2021). `panels` maps a title to (cosines of
    positive pairs, cosines of negative pairs).
    """
    figure = _cosine_figure(panels, ("synonyms", "random"))
    with new_file(path, overwrite=overwrite) as file:
        figure.savefig(file, format="png", dpi=150)


def cosine_distributions_svg(
    panels: dict[str, tuple[Cosines, Cosines]], labels: tuple[str, str]
) -> bytes:
    """Return the same figure as SVG, with these labels of the positive and the negative pairs."""
    return _svg(_cosine_figure(panels, labels))


def intervals_svg(rows: list[str], values: dict[str, list[tuple[float, float, float]]]) -> bytes:
    """Plot values with confidence intervals, one row per measure, one colour per model, as SVG.

    `values` maps a model to (value, low, high) of each row, NaN where it has no value.
    """
    figure = new_figure(8, 1 + 0.3 * len(rows) * max(1, len(values) * 0.6))
    axes = figure.add_subplot()
    for i, (model, points) in enumerate(values.items()):
        table = np.array(points)
        height = np.arange(len(rows)) + 0.18 * (i - (len(values) - 1) / 2)
        around = np.abs(table[:, 1:].T - table[:, 0])
        axes.errorbar(table[:, 0], height, xerr=around, fmt="o", markersize=4, label=model)
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return _svg(figure)


def new_figure(width: float, height: float) -> Figure:
    """Make a figure of this size in inches, which needs no screen."""
    require("matplotlib", extra="demo", purpose="plotting")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _svg(figure: Figure) -> bytes:
    import matplotlib

    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "mirror_rt"}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def _cosine_figure(panels: dict[str, tuple[Cosines, Cosines]], labels: tuple[str, str]) -> Figure:
    figure = new_figure(5 * len(panels), 3.4)
    bins = np.linspace(-0.4, 1, 57).tolist()
    first = None
    for i, (title, (positives, negatives)) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), i, sharex=first, sharey=first)
        first = first or axes
        axes.hist(negatives, bins, density=True, alpha=0.65, color="tab:orange", label=labels[1])
        axes.hist(positives, bins, density=True, alpha=0.65, color="tab:blue", label=labels[0])
        gap = positives.mean() - negatives.mean()
        axes.set_title(f"{title}: means {gap:.2f} apart", fontsize=10)
        axes.set_xlabel("cosine")
        axes.spines[["top", "right"]].set_visible(False)
    if first is not None:
        first.set_ylabel("density")
        first.legend(frameon=False, loc="upper left", fontsize=8)
    return figure
