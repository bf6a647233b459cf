"""Figures of the distribution of scores: kernel densities and ROC curves."""

from typing import TYPE_CHECKING

import numpy as np

from ...report.figures import DENSITY_MARGINS, IN, INK, OUT, Panel, label_density, short_name, stroke, svg
from ..experiments.records import Row
from .terminal import per_cent

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def densities(rows: list[Row]) -> list[Panel]:
    """Return the kernel densities of the scores of one set on one setting, before and after truing."""
    return [_density(row) for row in rows if row.get("picture") == "densities"]


def roc_curves(rows: list[Row]) -> list[Panel]:
    """Return the ROC curves of each base score on one set, before and after truing."""
    return [_roc(row) for row in rows if row.get("picture") == "roc"]


def _density(row: Row) -> Panel:
    label = row["base"] if row["method"] == "none" else f"{row['base']} + {row['method']}"
    low, high = row["ends"]
    grid = np.linspace(low, high, len(row["density_in"]))

    def draw(axes: "Axes") -> None:
        for heights, colour in ((row["density_in"], IN), (row["density_out"], OUT)):
            axes.fill_between(grid, heights, facecolor=f"{colour}59", edgecolor=colour, linewidth=1)
        axes.axvline(row["threshold"], color=INK, linewidth=1, linestyle="dashed")
        label_density(axes, label, low, high)

    numbers = f"FPR95 {per_cent(row['fpr95'])}, AUROC {per_cent(row['auroc'])}"
    return Panel(
        svg(draw, _name(row, "density"), margins=DENSITY_MARGINS),
        f"{label}: {numbers}",
        f"{row['case']}, {row['setting']}, {row['outside']}: kernel densities of {label}, in- and out-of-distribution,"
        f" with the threshold that accepts 95 % of the in-distribution rows; {numbers}.",
    )


def _roc(row: Row) -> Panel:
    def draw(axes: "Axes") -> None:
        axes.axhline(0.95, color=INK, linewidth=0.8, linestyle="dotted")
        for method, points in row["curves"].items():
            colour, dashes = stroke(method)
            name = "base score" if method == "none" else method
            axes.plot(*points, color=colour, linestyle=dashes, label=name)
        axes.set(xlabel="out-of-distribution rows accepted", xlim=(-0.01, 1.01), ylim=(-0.01, 1.01))
        axes.set(ylabel="in-distribution rows accepted")
        axes.legend(loc="lower right")

    return Panel(
        svg(draw, _name(row, "roc")),
        f"{row['base']}: ROC curves; the best corner is the upper left",
        f"{row['case']}, {row['setting']}, {row['outside']}: ROC curves of {row['base']}, before and after truing.",
    )


def _name(row: Row, kind: str) -> str:
    names = (row[name] for name in ("conventions", "setting", "outside", "base"))
    return short_name(*names, row.get("method", ""), kind)
