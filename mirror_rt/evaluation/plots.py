"""Plots for people who would rather look than read. Needs matplotlib (extra `demo`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from mirror_rt.errors import require
from mirror_rt.files import new_file

__all__ = ["plot_cosine_distributions"]

Cosines = npt.NDArray[np.float64]


def plot_cosine_distributions(
    path: Path, panels: dict[str, tuple[Cosines, Cosines]], *, overwrite: bool = True
) -> None:
    """Histograms of the cosines of positive and of random pairs, a panel a model, as PNG.

    After Figure 7 of Mirror-BERT (EMNLP 2021).

    Args:
        path: the PNG file.
        panels: title -> (cosines of positive pairs, cosines of negative pairs).
        overwrite: replace an existing file.
    """
    require("matplotlib", extra="demo", purpose="plotting")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(panels), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    bins = np.linspace(-0.4, 1, 57).tolist()
    first = None
    for i, (title, (positives, negatives)) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), i, sharex=first, sharey=first)
        first = first or axes
        axes.hist(negatives, bins, density=True, alpha=0.65, color="tab:orange", label="random")
        axes.hist(positives, bins, density=True, alpha=0.65, color="tab:blue", label="synonyms")
        gap = positives.mean() - negatives.mean()
        axes.set_title(f"{title}: means {gap:.2f} apart", fontsize=10)
        axes.set_xlabel("cosine")
        axes.spines[["top", "right"]].set_visible(False)
    if first is not None:
        first.set_ylabel("density")
        first.legend(frameon=False)
    with new_file(path, overwrite=overwrite) as file:
        figure.savefig(file, format="png", dpi=150)
