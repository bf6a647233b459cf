"""Figures of a trial, each one panel of inline SVG; they read scores and features and nothing else.

A panel has no background, and its text and axes take the page's own colour, so it suits a light page and
a dark one. The two colours of the sets, and the dashes of the methods, are told apart without colour vision.
"""

import io
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .._check import Floats, Matrix
from ..threshold import threshold_at

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#808080"
IN, OUT = "#3b86c4", "#e07b1a"
STROKES = {
    "base": (_INK, (0, (1, 1))),
    "DLR": ("#1b9e77", (0, (5, 1.5))),
    "RLR": ("#d0569d", "solid"),
    "Online": ("#c2951c", (0, (5, 1.5, 1, 1.5))),
}
POINTS = 400
BINS = 48

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "legend.frameon": False,
    "legend.labelcolor": _INK,
    "svg.fonttype": "none",
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


def densities(scores_in: Floats, scores_out: Floats, *, name: str, label: str) -> str:
    """Return how many of each set's rows, in per cent, fall in equal bins, and the threshold that keeps 95 %."""
    low, high = np.quantile(np.concatenate([scores_in, scores_out]), [0.001, 0.999])
    edges = np.linspace(low, high, BINS + 1)
    threshold = threshold_at(scores_in, keep=0.95)

    def draw(axes: "Axes") -> None:
        for scores, colour in ((scores_in, IN), (scores_out, OUT)):
            bars = 100 * np.histogram(np.clip(scores, low, high), edges)[0] / len(scores)
            axes.stairs(bars, edges, fill=True, color=colour, alpha=0.35)
            axes.stairs(bars, edges, color=colour)
        axes.axvline(threshold, color=_INK, linewidth=1, linestyle="dashed")
        axes.locator_params(nbins=6)
        axes.set(xlabel=label, ylabel="% of the rows", xlim=(low, high), ylim=(0, None))

    return _svg(draw, name)


def roc(curves: dict[str, tuple[Floats, Floats]], *, name: str) -> str:
    """Return the ROC curve of every method's (scores_in, scores_out)."""

    def draw(axes: "Axes") -> None:
        axes.axhline(0.95, color=_INK, linewidth=0.8, linestyle="dotted")
        for method, (scores_in, scores_out) in curves.items():
            colour, dashes = STROKES[method]
            axes.plot(*roc_points(scores_in, scores_out), color=colour, linestyle=dashes, label=method)
        axes.set(xlabel="share of out accepted", ylabel="share of in accepted", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        axes.legend(loc="lower right")

    return _svg(draw, name)


def roc_points(scores_in: Floats, scores_out: Floats, points: int = 200) -> tuple[Floats, Floats]:
    """Return the shares of (out, in) rows accepted at thresholds spread evenly over the rows of both sets."""
    shares = np.linspace(0, 1, points)
    spread = [np.quantile(scores, shares, method="nearest") for scores in (scores_in, scores_out)]
    thresholds = np.unique(np.concatenate([*spread, [np.inf]]))
    accepted = [1 - np.searchsorted(np.sort(scores), thresholds) / len(scores) for scores in (scores_out, scores_in)]
    return accepted[0], accepted[1]


def scatter(features_in: Matrix, features_out: Matrix, *, name: str, rng: np.random.Generator) -> str:
    """Return at most 400 rows of each set on the first two principal components of all rows of both."""
    features = np.concatenate([features_in, features_out]).astype(np.float64)
    is_out = np.arange(len(features)) >= len(features_in)
    centred = features - features.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    places = centred @ vectors[:, :-3:-1]
    shares = values[:-3:-1] / values.sum()
    chosen = [rng.permutation(np.flatnonzero(side))[:POINTS] for side in (~is_out, is_out)]
    # In a random order, so that neither set is drawn over the other.
    shown = rng.permutation(np.concatenate(chosen))

    def draw(axes: "Axes") -> None:
        colours = np.where(is_out[shown], OUT, IN)
        axes.scatter(places[shown, 0], places[shown, 1], s=10, c=list(colours), alpha=0.6, linewidths=0, clip_on=False)
        axes.set(xlabel=f"component 1 ({shares[0]:.0%} of the variance)", ylabel=f"component 2 ({shares[1]:.0%})")

    return _svg(draw, name)


def figure_class() -> "type[Figure]":
    """Return matplotlib's Figure, or say how to install it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the report needs matplotlib: pip install 'truing[bench]'") from error
    return Figure


def _svg(draw: Callable[["Axes"], None], name: str) -> str:
    figure = figure_class()(figsize=(4.2, 3.1))
    figure.subplots_adjust(left=0.14, right=0.96, bottom=0.17, top=0.97)
    from matplotlib import rc_context

    with rc_context({**_STYLE, "svg.hashsalt": name}):
        draw(figure.add_subplot())
        stream = io.StringIO()
        figure.savefig(
            stream,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    return _inline(stream.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """Return the SVG fit for a page that holds many: its own ids, no rules of style for the page, its ink."""
    svg = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'aria-hidden="true"', svg, count=1)
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), svg)
    return svg.replace(_INK, "currentColor")
