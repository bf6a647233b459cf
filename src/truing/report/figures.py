"""Figures as panels of inline SVG, with a caption and an alternative text.

A panel has no background, and its text and axes use the text colour of the page, so it works in light and dark mode.
The colours of the two sets and the dashes of the methods can be distinguished without colour vision.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np

from .._check import Floats
from .._display.plots import IN as IN
from .._display.plots import OUT as OUT
from ..data.extras import install

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#808080"
RUN = 42  # Dots drawn at a time, so that no set hides another. Matplotlib would simplify 128 or more.
STROKES: dict[str, tuple[str, Any]] = {
    "none": (INK, (0, (1, 1))),
    "DLR": ("#1b9e77", (0, (5, 1.5))),
    "RLR": ("#d0569d", "solid"),
    "Online DLR": ("#c2951c", (0, (5, 1.5, 1, 1.5))),
    "ReAct": ("#7f78c4", "solid"),
    "ReAct + DLR, raw": ("#c2951c", (0, (5, 1.5))),
    "ReAct + DLR, clipped": ("#d0569d", (0, (5, 1.5))),
    "contrast": ("#3b6fb6", "solid"),
}
"""The colour and dashes of the line of each method."""
OTHER_COLOURS = ("#7a5195", "#6b8e23", "#a3502d", "#2f8f9d")
SIZE = (4.2, 3.1)
MARGINS = {"left": 0.17, "right": 0.96, "bottom": 0.17, "top": 0.97}
DENSITY_MARGINS = MARGINS | {"left": 0.08}  # Without tick labels on the vertical axis.

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
    """A figure, its caption, and its alternative text for screen readers."""

    svg: str
    caption: str
    alternative: str


def dots(axes: Any, places: Floats, colours: Any, order: int, size: float = 3.4) -> None:
    """Draw points as lines of zero length with round ends, which need a quarter of the bytes of markers."""
    gap = np.full(places.shape[1], np.nan)
    for start in range(0, len(places), RUN):
        some = slice(start, start + RUN)
        for colour in sorted(set(colours.tolist())):
            own = places[some][colours[some] == colour]
            strokes = np.array([line for place in own for line in (place, place, gap)]).reshape(-1, places.shape[1])
            axes.plot(*strokes.T, color=colour, alpha=0.65, linewidth=size, solid_capstyle="round", zorder=order)


def label_density(axes: "Axes", label: str, low: float, high: float) -> None:
    """Label a density of scores. The heights depend on the unit of the score, so the vertical axis has no numbers."""
    axes.locator_params(axis="x", nbins=5)
    axes.set(
        xlabel=f"{label} (higher = in-distribution)", ylabel="density", xlim=(low, high), ylim=(0, None), yticks=[]
    )


def short_name(*names: str) -> str:
    """Return a short, deterministic prefix for the ids in a figure.

    >>> short_name("truing", "cifar10-resnet56", "rate", "msp")
    'faf08bb8b'
    """
    return f"f{crc32('/'.join(names).encode()):08x}"


def stroke(method: str) -> tuple[str, Any]:
    """Return the colour and dashes of a method. Methods not in STROKES get a colour from the hash of their name."""
    return STROKES.get(method, (OTHER_COLOURS[crc32(method.encode()) % len(OTHER_COLOURS)], (0, (3, 1))))


def figure_class() -> "type[Figure]":
    """Return the Figure class of matplotlib. The error says how to install matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(f"the report needs matplotlib: {install('bench')}") from error
    return Figure


def svg(
    draw: Callable[["Axes"], None],
    name: str,
    *,
    size: tuple[float, float] = SIZE,
    margins: dict[str, float] = MARGINS,
    projection: str | None = None,
) -> str:
    """Return the drawing of `draw` on 2-D or 3-D axes as inline SVG whose ids begin with `name`."""
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
    """Return SVG to embed in a page: with unique ids, without global styles, in the text colour, and compact."""
    svg = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'<g id="(?![xyz]tick)[^"]*"', "<g", svg)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'aria-hidden="true"', svg, count=1)
    svg = re.sub(r"<[^>]*>", lambda tag: _short(tag[0]), svg)
    return re.sub(r">\s+<", "><", svg).replace(INK, "currentColor")


def _short(tag: str) -> str:
    """Return a tag without invisible details: extra decimals, rotations by zero, implied path commands."""
    tag = re.sub(r' transform="rotate\(-0 [^"]*"| font-family: [^;]*;', "", re.sub(r"\s+", " ", tag))
    tag = re.sub(r"(\d\d\.\d|\.\d\d)\d+", r"\1", tag)
    # A zero-length line with round ends is a dot.
    return re.sub(r"M (\S+ \S+) L \1(?= [M\"]|\")", r"M \1 h0", tag).replace(" L ", " ")
