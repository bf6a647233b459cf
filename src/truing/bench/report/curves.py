"""Figures of the ablations: FPR95 and AUROC against the value that a case varies.

A bold line is the mean over the sets, and a thin line is one set. Lines of fitted rows are solid, lines of unseen rows
dashed, and the base score is dotted. A mean is over the same sets at every value.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ...report.figures import STROKES, Panel, short_name, stroke, svg
from ..experiments.cases import CASES, POOL, Axis
from ..experiments.records import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DASHES: dict[str, Any] = {"fitted": "solid", "unseen": (0, (4, 1.5))}
DOTS = (0, (1, 1.2))
NO_VALUE = inf  # Stands for the varied value in rows without one.
SMALL = 9.0  # Font size of legends.
SET_NAMES = 8.0  # Font size of the names of sets.
TENS = (0.01, 0.1, 1, 10, 100, 1000, 10000)

Curve = dict[float, float]


@dataclass(frozen=True)
class Metric:
    """A column of rows, its printed name, and whether low values are good."""

    column: str
    name: str
    low_is_good: bool

    def of(self, row: Row) -> float:
        """Return the metric of a row in per cent. Older rows have FPR95 under one convention only."""
        return 100 * float(row[self.column] if self.column in row else row["fpr95"])

    @property
    def axis(self) -> str:
        """Return the label of the axis, with the direction of better values."""
        return f"{self.name}, % ({'lower' if self.low_is_good else 'higher'} is better)"

    def best(self, curve: Curve) -> float:
        """Return the varied value at which a curve is best."""
        return (min if self.low_is_good else max)(curve, key=curve.__getitem__)


def metrics(conventions: str) -> tuple[Metric, Metric]:
    """Return the metrics that are drawn under the given conventions."""
    column = "fpr95_paper" if conventions == "authors" else "fpr95"
    return Metric(column, "FPR95", True), Metric("auroc", "AUROC", False)


@dataclass(frozen=True)
class Line:
    """One method on one kind of rows: a curve for each set, and the sets of the mean."""

    method: str
    scored: str
    sets: dict[str, Curve]
    averaged: tuple[str, ...]

    @property
    def label(self) -> str:
        """Return the name in the legend."""
        return "base score" if self.method == "none" else f"{self.method}, {self.scored}"

    @property
    def is_level(self) -> bool:
        """Return whether no row has a varied value, so that the line is horizontal."""
        return all(set(curve) == {NO_VALUE} for curve in self.sets.values())

    def mean(self) -> Curve:
        """Return the mean over the averaged sets.

        >>> Line("DLR", "fitted", {"a": {1.0: 10.0}, "b": {1.0: 20.0}, "all sets": {1.0: 0.0}}, ("a", "b")).mean()
        {1.0: 15.0}
        """
        own = [self.sets[name] for name in self.averaged]
        return {value: fmean(curve[value] for curve in own) for value in sorted(own[0])} if own else {}


def panels(rows: list[Row]) -> list[Panel]:
    """Return panels of both metrics for each base score, from the rows of one case, setting and convention.

    A case without an axis has no panels.
    """
    if CASES[rows[0]["case"]].axis is None:
        return []
    return [
        _panel([row for row in rows if row["base"] == base], metric)
        for base in dict.fromkeys(row["base"] for row in rows)
        for metric in metrics(rows[0]["conventions"])
    ]


def lines(rows: list[Row], metric: Metric) -> list[Line]:
    """Return a line for each method and kind of rows, from the rows of one base score.

    All means are over the single sets that have every value of every line. DLR equals Online DLR with
    all rows in one batch, so DLR is the last point of the line over batch sizes.
    """
    by_kind: dict[tuple[str, str], dict[str, Curve]] = {}
    order = list(STROKES)  # The same order as in the legends.
    for row in sorted(rows, key=lambda row: order.index(row["method"]) if row["method"] in order else len(order)):
        is_stream = _axis(row).scale == "ordinal" and row["method"] == "DLR"
        method = "Online DLR" if is_stream else row["method"]
        sets = by_kind.setdefault((method, row["scored"]), {})
        sets.setdefault(row["outside"], {})[row.get("value", NO_VALUE)] = metric.of(row)
    whole = [_whole(sets) for sets in by_kind.values()]
    averaged = tuple(name for name in whole[0] if all(name in names for names in whole))
    return [Line(*names, sets, averaged) for names, sets in by_kind.items()]


def count(sets: Sequence[str]) -> str:
    """Return the number of sets as text."""
    return "1 set" if len(sets) == 1 else f"{len(sets)} sets"


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return the places moved as little as possible so that they are `gap` apart, if they fit between low and high.

    >>> spread([1.0, 1.0, 5.0], 1.0, 0.0, 10.0)
    [1.0, 2.0, 5.0]
    """
    order = sorted(range(len(places)), key=places.__getitem__)
    gap = min(gap, (high - low) / max(len(places) - 1, 1))
    moved = list(places)
    for rank, index in enumerate(order):
        below = moved[order[rank - 1]] + gap if rank else low
        moved[index] = max(places[index], below)
    for rank, index in reversed(list(enumerate(order))):
        above = moved[order[rank + 1]] - gap if rank + 1 < len(order) else high
        moved[index] = min(moved[index], above)
    return moved


def _panel(rows: list[Row], metric: Metric) -> Panel:
    base, case, axis, drawn = rows[0]["base"], rows[0]["case"], _axis(rows[0]), lines(rows, metric)
    values = sorted({row["value"] for row in rows if "value" in row})
    named = [line for line in drawn if line.scored == "fitted" and line.method != "none" and not line.is_level]

    def draw(axes: "Axes") -> None:
        for line in drawn:
            _draw(axes, line, values if axis.scale == "ordinal" else None)
        if axis.scale == "ordinal":
            axes.set_xticks(range(len(values) + 1), [*(f"{value:g}" for value in values), "all"])
        if axis.scale == "log":
            axes.set_xscale("log")
            tens = [ten for ten in TENS if values[0] <= ten <= values[-1]]
            axes.set_xticks(tens, map(_short, tens))
            axes.set_xticks([value for value in values if value not in tens], minor=True)
            axes.tick_params(axis="x", which="minor", labelbottom=False)
        axes.margins(x=0.03)
        axes.set(xlabel=axis.name, ylabel=metric.axis)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.03, 1), ncols=2, fontsize=SMALL, borderaxespad=0.2)
        if len(named) == 1:
            _name_sets(axes, named[0])

    names = (rows[0]["conventions"], rows[0]["setting"], case, base, metric.name.lower())
    right, top = (0.69, 0.87) if len(named) == 1 else (0.97, 0.77)
    margins = {"left": 0.15, "right": right, "bottom": 0.15, "top": top}
    sets = count(drawn[0].averaged)
    return Panel(
        svg(draw, short_name(*names), size=(4.4, 3.5), margins=margins),
        f"{base}: {metric.name}; bold is the mean over {sets}",
        f"{CASES[case].title} ({case}, {rows[0]['setting']}): {metric.name} of {base} in per cent against"
        f" {axis.name}, mean over {sets}. {'; '.join(_read_out(line, metric) for line in drawn)}.",
    )


def _axis(row: Row) -> Axis:
    return CASES[row["case"]].axis or Axis("")


def _whole(sets: dict[str, Curve]) -> list[str]:
    """Return the single sets that have every value."""
    values = {value for curve in sets.values() for value in curve}
    return [name for name, curve in sets.items() if name != POOL and len(curve) == len(values)]


def _draw(axes: "Axes", line: Line, batches: list[float] | None) -> None:
    """Draw the mean of a line, and a thin line for each set. Batch sizes are spaced evenly."""

    def points(curve: Curve) -> tuple[list[float], list[float]]:
        values = sorted(curve)
        places = values if batches is None else [float([*batches, NO_VALUE].index(value)) for value in values]
        return places, [curve[value] for value in values]

    mean, colour = line.mean(), stroke(line.method)[0]
    is_base = line.method == "none"
    style: dict[str, Any] = {"color": colour, "linestyle": DOTS if is_base else DASHES[line.scored]}
    style |= {"label": line.label, "linewidth": 1.4 if is_base or line.is_level else 2.2}
    if line.is_level:
        axes.axhline(mean[NO_VALUE], **style)
    else:
        if line.scored == "fitted" and not is_base:
            for curve in line.sets.values():
                axes.plot(*points(curve), color=colour, linewidth=0.8, alpha=0.5)
        axes.plot(*points(mean), **style)


def _name_sets(axes: "Axes", line: Line) -> None:
    """Write the name of each set beside the end of its curve."""
    low, high = axes.get_ylim()
    ends = [curve[max(curve)] for curve in line.sets.values()]
    edge = axes.get_yaxis_transform()
    for name, end, place in zip(line.sets, ends, spread(ends, (high - low) / 17, low, high), strict=True):
        leader: dict[str, Any] = {"color": stroke(line.method)[0], "linewidth": 0.5, "alpha": 0.6, "clip_on": False}
        axes.plot([1.0, 1.04], [end, place], transform=edge, **leader)
        axes.text(1.05, place, name, transform=edge, fontsize=SET_NAMES, va="center")


def _read_out(line: Line, metric: Metric) -> str:
    mean = line.mean()
    if not mean:
        return f"{line.label}: no set has every value"
    if len(set(mean.values())) == 1:
        return f"{line.label} {next(iter(mean.values())):.1f}"
    first, best, last = min(mean), metric.best(mean), max(mean)
    ends = f"{mean[first]:.1f} at {_short(first)} to {mean[last]:.1f} at {_short(last)}"
    return f"{line.label} from {ends}, best {mean[best]:.1f} at {_short(best)}"


def _short(value: float) -> str:
    if value == NO_VALUE:
        return "all rows"
    return f"{value / 1000:g}k" if value >= 1000 and value % 1000 == 0 else f"{value:g}"
