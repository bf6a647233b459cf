"""Figures of metrics before and after truing.

Each line is a base score or a combination of sets, with a mark for each method.
"""

from collections.abc import Sequence
from math import ceil, nan
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from ...report.figures import INK, Panel, short_name, stroke, svg
from ..experiments.cases import CASES, CONTRAST, POOL, display_name, sets_of
from ..experiments.records import Row
from ..experiments.settings import Setting
from .curves import SMALL, Line, Metric, count, lines, metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKS: dict[str, dict[str, Any]] = {
    "none": {"marker": "o", "markerfacecolor": "none"},
    "DLR": {"marker": "o"},
    "RLR": {"marker": "s", "markersize": 5},
    "Online DLR": {"marker": "^"},
}
OTHER_MARK = {"marker": "D", "markersize": 4.5}
UNSEEN = {"marker": "|", "markersize": 9}
WIDTH, PITCH, HEAD, FOOT = 4.4, 0.2, 0.6, 0.5  # Inches. PITCH is the distance between lines; HEAD and FOOT are margins.
COLUMNS = 3  # Number of columns of the overview's legend.
BASE_SCORE = {"none": "base score"}
REFERENCE = "with reference"  # The line of the overview that shows contrast.
LETTER = 0.05  # Inches of height for each letter of a rotated name.

Marks = dict[tuple[str, str], list[float]]
"""The values of each method and kind of rows, one for each line of the figure. A missing value is NaN."""


def overview(rows: list[Row], contrasts: Sequence[Row] = ()) -> list[Panel]:
    """Return panels of the mean of both metrics, before and after truing, for every base score that is trued.

    Contrast has a line of its own, because it needs a reference. All means must be over the same sets, so base scores
    that lack a set are left out, and so is contrast if it lacks a set.
    """
    trued = dict.fromkeys(row["base"] for row in rows if row["method"] == "DLR")
    if not trued:
        return []
    sets = {base: {row["outside"] for row in rows if row["base"] == base} for base in trued}
    every = set.union(*sets.values())
    whole = [base for base in trued if sets[base] == every]
    contrast = [row for row in contrasts if row["method"] == CONTRAST]
    if {row["outside"] for row in contrast} != every:
        contrast = []
    return [_overview(rows, whole, contrast, metric) for metric in metrics(rows[0]["conventions"])]


def panels(rows: list[Row], setting: Setting) -> list[Panel]:
    """Return panels of both metrics for each base score on all combinations of sets.

    The rows are of one case, setting and convention. A case without combinations has no panels.
    """
    if CASES[rows[0]["case"]].sets != "subsets":
        return []
    return [
        _combined([row for row in rows if row["base"] == base], metric, setting)
        for base in dict.fromkeys(row["base"] for row in rows)
        for metric in metrics(rows[0]["conventions"])
    ]


def _overview(rows: list[Row], bases: list[str], contrast: list[Row], metric: Metric) -> Panel:
    fitted = [row for row in rows if row["scored"] == "fitted"]
    by_base: dict[str, list[Line]] = {
        base: lines([row for row in fitted if row["base"] == base], metric) for base in bases
    }
    means = {base: {line.method: fmean(line.mean().values()) for line in own} for base, own in by_base.items()}
    kinds = [(method, "fitted") for method in means[bases[0]]]
    if contrast:
        means[REFERENCE] = {CONTRAST: fmean(map(metric.of, contrast))}
        kinds.append((CONTRAST, "fitted"))
    marks: Marks = {kind: [own.get(kind[0], nan) for own in means.values()] for kind in kinds}
    case, setting, sets = CASES[rows[0]["case"]], rows[0]["setting"], count(by_base[bases[0]][0].averaged)

    def draw(axes: "Axes") -> None:
        _draw(axes, marks, of_fit=False)
        axes.set_yticks(range(len(means)), means)
        axes.tick_params(axis="y", length=0)
        axes.set(xlabel=metric.axis)
        spacing = {"borderaxespad": 0.2, "columnspacing": 1.0, "handlelength": 1.0}
        axes.legend(loc="lower left", bbox_to_anchor=(-0.45, 1), ncols=COLUMNS, fontsize=SMALL, **spacing)

    read = [
        f"{name} {', '.join(f'{BASE_SCORE.get(method, method)} {value:.1f}' for method, value in own.items())}"
        for name, own in means.items()
    ]
    return Panel(
        _svg(draw, rows, "overview", metric, len(means), 1.5 * PITCH, 0.15 + 0.15 * ceil(len(marks) / COLUMNS)),
        f"{setting}: {metric.name}, mean over {sets}",
        f"{case.title} ({case.name}, {setting}): mean {metric.name} in per cent over {sets}. {'; '.join(read)}.",
    )


def _combined(rows: list[Row], metric: Metric, setting: Setting) -> Panel:
    base, case = rows[0]["base"], CASES[rows[0]["case"]]
    cells = {(row["outside"], row["method"], row["scored"]): metric.of(row) for row in rows}
    present = {row["outside"] for row in rows}
    mixes = [mix for mix in (display_name(setting, files) for files in sets_of(case, setting)) if mix in present]
    single = [mix for mix in mixes if " + " not in mix and mix != POOL]
    kinds = dict.fromkeys((row["method"], row["scored"]) for row in rows)
    marks: Marks = {kind: [cells[mix, *kind] for mix in mixes] for kind in kinds}

    def draw(axes: "Axes") -> None:
        _draw(axes, marks)
        axes.set(xlabel=f"{base}: {metric.axis}", yticks=[])
        axes.legend(loc="lower right", bbox_to_anchor=(1.02, 1), fontsize=SMALL, borderaxespad=0.2)
        _members(axes, mixes, single)

    before, after = marks["none", "fitted"], marks["DLR", "fitted"]
    better = sum(new < old if metric.low_is_good else new > old for old, new in zip(before, after, strict=True))
    means = ", ".join(f"{_label(*kind)} {fmean(values):.1f}" for kind, values in marks.items())
    return Panel(
        _svg(draw, rows, base, metric, len(mixes), PITCH, max(HEAD, 0.3 + LETTER * max(map(len, single)))),
        f"{base}: {metric.name} on every combination of {len(single)} sets",
        f"{case.title} ({case.name}, {setting.name}): {metric.name} of {base} in per cent. DLR is"
        f" better on {better} of {len(mixes)} combinations; means: {means}.",
    )


def _draw(axes: "Axes", marks: Marks, *, of_fit: bool = True) -> None:
    """Draw the marks of every line. With `of_fit`, the legend says whether rows are fitted or unseen."""
    places = range(len(marks["none", "fitted"]))
    numbers = np.array(list(marks.values()))
    axes.hlines(places, np.nanmin(numbers, axis=0), np.nanmax(numbers, axis=0), color=INK, alpha=0.4)
    for (method, scored), values in marks.items():
        style = MARKS.get(method, OTHER_MARK) if scored == "fitted" else UNSEEN
        axes.plot(
            values,
            places,
            color=stroke(method)[0],
            linestyle="none",
            label=_label(method, scored if of_fit else ""),
            **style,
        )
    axes.set_ylim(len(places) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)


def _members(axes: "Axes", mixes: list[str], single: list[str]) -> None:
    """Draw a column of dots for each set, left of the axes. Full dots mark the combinations that contain the set."""
    edge = axes.get_yaxis_transform()
    for column, name in enumerate(single):
        x = -0.05 - 0.1 * (len(single) - 1 - column)
        for is_in, alpha in ((True, 1.0), (False, 0.2)):
            places = [place for place, mix in enumerate(mixes) if (mix == POOL or name in mix.split(" + ")) == is_in]
            style: dict[str, Any] = {"color": INK, "markersize": 5, "alpha": alpha, "transform": edge, "clip_on": False}
            axes.plot([x] * len(places), places, "o", **style)
        turned: dict[str, Any] = {"rotation": 45, "ha": "left", "va": "bottom", "rotation_mode": "anchor"}
        axes.text(x, -0.8, name, transform=edge, fontsize=SMALL, **turned)


def _svg(draw: Any, rows: list[Row], what: str, metric: Metric, count: int, pitch: float, head: float) -> str:
    height = head + FOOT + pitch * count
    margins = {"left": 0.3, "right": 0.96, "bottom": FOOT / height, "top": 1 - head / height}
    names = (*(rows[0][name] for name in ("conventions", "setting", "case")), what, metric.name)
    return svg(draw, short_name(*names), size=(WIDTH, height), margins=margins)


def _label(method: str, scored: str) -> str:
    if method in BASE_SCORE or not scored:
        return BASE_SCORE.get(method, method)
    return f"{method}, {scored}"
