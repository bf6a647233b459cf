"""Matplotlib figures of scores: densities before and after truing, threshold, ROC curve and lowest-scoring rows."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np

from .._check import Bools, Floats
from ..data.extras import install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Figure

# Distinguishable without colour vision.
IN, OUT, INK = "#3b86c4", "#e07b1a", "#606060"

# Number of lowest-scoring rows to show.
MOST = 10

# Number of histogram bins.
_BINS = 60

# Size of one panel in inches.
_WIDTH, _HEIGHT = 4.0, 3.0


def figure_of_detection(
    base: str, base_scores: Floats, scores: Floats, is_out: Bools | None, threshold: float | None
) -> Figure:
    """Return a figure of base and trued score densities, with the threshold, and of the lowest-scoring rows."""
    figure, (before, after, lowest) = _panels(3)
    sets = {"rows": slice(None)} if is_out is None else {"accepted": ~is_out, "refused": is_out}
    _densities(before, {name: base_scores[rows] for name, rows in sets.items()})
    before.set(title="before", xlabel=base, ylabel="density")
    _densities(after, {name: scores[rows] for name, rows in sets.items()})
    after.set(title="after", xlabel=f"{base}, trued")
    _mark(after, threshold)
    _lowest_rows(lowest, scores)
    lowest.set(title="lowest scores" if is_out is None else "most likely out", xlabel="trued score")
    _mark(lowest, threshold)
    return figure


def figure_of_report(scores_in: Floats, scores_out: Floats, threshold: float, auroc: float) -> Figure:
    """Return a figure of the densities of in- and out-of-distribution scores, with a threshold, and the ROC curve."""
    figure, (densities, roc) = _panels(2)
    _densities(densities, {"in": scores_in, "out": scores_out})
    densities.set(title="scores", xlabel="score", ylabel="density")
    _mark(densities, threshold)
    accepted_out, accepted_in = roc_curve(scores_in, scores_out)
    roc.plot(accepted_out, accepted_in, color=IN)
    roc.plot([0, 1], [0, 1], color=INK, linewidth=0.8, linestyle="dotted")
    roc.set(title=f"ROC, AUROC {auroc:.2%}", xlabel="share of out accepted", ylabel="share of in accepted")
    return figure


def roc_curve(scores_in: Floats, scores_out: Floats) -> tuple[Floats, Floats]:
    """Return the share of out rows and the share of in rows accepted at every threshold, in ascending order.

    >>> roc_curve(np.array([1.0, 3.0]), np.array([2.0]))
    (array([0., 0., 1., 1.]), array([0. , 0.5, 0.5, 1. ]))
    """
    thresholds = np.unique(np.concatenate((scores_in, scores_out)))[::-1]
    shares = [1 - np.searchsorted(np.sort(scores), thresholds) / len(scores) for scores in (scores_out, scores_in)]
    return np.append(0.0, shares[0]), np.append(0.0, shares[1])


def _panels(number: int) -> tuple[Figure, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"a figure needs matplotlib: {install('plot')}") from error

    class Shown(Figure):
        """A figure that notebooks display regardless of the matplotlib backend."""

        def _repr_png_(self) -> bytes:
            file = BytesIO()
            self.savefig(file, format="png")
            return file.getvalue()

    figure = Shown(figsize=(_WIDTH * number, _HEIGHT), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, number)
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _densities(axes: Axes, sets: dict[str, Floats]) -> None:
    """Draw a histogram of each set. The areas of all histograms sum to 1."""
    every = np.concatenate(list(sets.values()))
    edges = _edges(float(every.min()), float(every.max()))
    for (name, scores), colour in zip(sets.items(), (IN, OUT), strict=False):
        weights = np.full(len(scores), 1 / (len(every) * (edges[1] - edges[0])))
        axes.hist(scores, edges.tolist(), weights=weights, color=colour, alpha=0.6, label=f"{name}, {len(scores):,}")
    axes.legend(frameon=False)


def _edges(lowest: float, highest: float) -> Floats:
    """Return bin edges from `lowest` to `highest`. A range too small for distinct float64 edges is widened."""
    least = 4 * _BINS * float(np.spacing(max(abs(lowest), abs(highest))))
    if highest - lowest < least:
        middle, half = lowest / 2 + highest / 2, max(0.5, least)
        lowest, highest = middle - half, middle + half
    return np.linspace(lowest, highest, _BINS + 1)


def _lowest_rows(axes: Axes, scores: Floats) -> None:
    """Draw the lowest-scoring rows as points, the lowest on top."""
    rows = np.argsort(scores, kind="stable")[:MOST]
    axes.plot(scores[rows], np.arange(len(rows)), "o", color=OUT)
    axes.set_yticks(np.arange(len(rows)), [f"row {row}" for row in rows])
    axes.invert_yaxis()


def _mark(axes: Axes, threshold: float | None) -> None:
    if threshold is not None and np.isfinite(threshold):
        axes.axvline(threshold, color=INK, linewidth=1, linestyle="dashed")
