"""Figures of a trial, each one panel of inline SVG; they read scores and features and nothing else.

A panel has no background, and its text and axes take the page's own colour, so it suits a light page and
a dark one. The two colours of the sets, and the dashes of the methods, are told apart without colour vision.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike

from ..._check import Floats, Matrix
from ...threshold import threshold_at
from ..experiments.scatter_rows import binned, principal_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#808080"
IN, OUT = "#3b86c4", "#e07b1a"
STROKES = {
    "base": (INK, (0, (1, 1))),
    "DLR": ("#1b9e77", (0, (5, 1.5))),
    "RLR": ("#d0569d", "solid"),
    "Online": ("#c2951c", (0, (5, 1.5, 1, 1.5))),
}
POINTS = 400
BINS = 48
SIZE = (4.2, 3.1)
MARGINS = {"left": 0.14, "right": 0.96, "bottom": 0.17, "top": 0.97}

_STYLE: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Panel:
    """A figure, what is written below it, and what is read out in its place."""

    svg: str
    caption: str
    alternative: str


def densities(scores_in: Floats, scores_out: Floats, *, name: str, label: str) -> str:
    """Return how many of each set's rows, in per cent, fall in equal bins, and the threshold that keeps 95 %."""
    ends, shares = binned(scores_in, scores_out, BINS)
    return histogram(ends, *shares, threshold=threshold_at(scores_in, keep=0.95), name=name, label=label)


def histogram(
    ends: ArrayLike,
    shares_in: ArrayLike,
    shares_out: ArrayLike,
    *,
    threshold: float,
    name: str,
    label: str,
) -> str:
    """Return the shares of each set's rows in equal bins from end to end, in per cent, and a threshold."""
    low, high = np.asarray(ends)
    parts = np.asarray(shares_in), np.asarray(shares_out)

    def draw(axes: "Axes") -> None:
        for shares, colour in zip(parts, (IN, OUT), strict=True):
            bars, edges = 100 * shares, np.linspace(low, high, len(shares) + 1)
            axes.stairs(bars, edges, fill=True, facecolor=f"{colour}59", edgecolor=colour, linewidth=1)
        axes.axvline(threshold, color=INK, linewidth=1, linestyle="dashed")
        axes.locator_params(nbins=6)
        axes.set(xlabel=label, ylabel="% of the rows", xlim=(low, high), ylim=(0, None))

    return svg(draw, name)


def roc(curves: dict[str, tuple[Floats, Floats]], *, name: str) -> str:
    """Return the ROC curve of every method's (scores_in, scores_out)."""

    def draw(axes: "Axes") -> None:
        axes.axhline(0.95, color=INK, linewidth=0.8, linestyle="dotted")
        for method, (scores_in, scores_out) in curves.items():
            colour, dashes = STROKES[method]
            axes.plot(*roc_points(scores_in, scores_out), color=colour, linestyle=dashes, label=method)
        axes.set(xlabel="share of out accepted", ylabel="share of in accepted", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        axes.legend(loc="lower right")

    return svg(draw, name)


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
    places, shares = principal_axes(features, 2)
    chosen = [rng.permutation(np.flatnonzero(side))[:POINTS] for side in (~is_out, is_out)]
    # In a random order, so that neither set is drawn over the other.
    shown = rng.permutation(np.concatenate(chosen))

    def draw(axes: "Axes") -> None:
        colours = np.where(is_out[shown], OUT, IN)
        axes.scatter(places[shown, 0], places[shown, 1], s=10, c=list(colours), alpha=0.6, linewidths=0, clip_on=False)
        axes.set(xlabel=f"component 1 ({shares[0]:.0%} of the variance)", ylabel=f"component 2 ({shares[1]:.0%})")

    return svg(draw, name)


def short_name(*names: str) -> str:
    """Return a name for a figure's ids that is as good as its own.

    >>> short_name("truing", "cifar10-resnet56", "rate", "msp")
    'faf08bb8b'
    """
    return f"f{crc32('/'.join(names).encode()):08x}"


def figure_class() -> "type[Figure]":
    """Return matplotlib's Figure, or say how to install it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("the report needs matplotlib: pip install 'truing[bench]'") from error
    return Figure


def svg(
    draw: Callable[["Axes"], None],
    name: str,
    *,
    size: tuple[float, float] = SIZE,
    margins: dict[str, float] = MARGINS,
    projection: str | None = None,
) -> str:
    """Return what `draw` puts on one pair of axes, or three, as inline SVG whose ids begin with `name`."""
    figure = figure_class()(figsize=size)
    figure.subplots_adjust(**margins)
    from matplotlib import rc_context

    with rc_context({**_STYLE, "svg.hashsalt": name}):
        draw(figure.add_subplot(projection=projection))
        stream = io.StringIO()
        figure.savefig(
            stream,
            format="svg",
            transparent=True,
            metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")),
        )
    return _inline(stream.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """Return the SVG fit for a page that holds many: its own ids, no rules for the page, its ink, few bytes."""
    svg = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'<g id="(?![xyz]tick)[^"]*"', "<g", svg)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'aria-hidden="true"', svg, count=1)
    svg = re.sub(r"<[^>]*>", lambda tag: _short(tag[0]), svg)
    return re.sub(r">\s+<", "><", svg).replace(INK, "currentColor")


def _short(tag: str) -> str:
    """Return a tag without what no eye can see: far decimals, turns by nothing, letters that SVG implies."""
    tag = re.sub(r' transform="rotate\(-0 [^"]*"| font-family: [^;]*;', "", re.sub(r"\s+", " ", tag))
    tag = re.sub(r"(\d\d\.\d|\.\d\d)\d+", r"\1", tag)
    # A line without length is a dot where it has round ends.
    return re.sub(r"M (\S+ \S+) L \1(?= [M\"]|\")", r"M \1 h0", tag).replace(" L ", " ")
