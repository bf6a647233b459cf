"""Scatter plots of features and scores: on two axes, and in three dimensions with a plane."""

from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._check import Floats
from ...report.figures import IN, INK, OUT, Panel, dots, short_name, svg
from ..experiments.records import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ELEVATION = 14.0
TILT = 0.25  # Wanted tilt of the plane towards the viewer: 0 is edge-on, 1 is face-on.
# Azimuths to choose from. A view along an axis would hide another axis.
TURNS: tuple[int, ...] = (*range(-70, -15, 5), *range(20, 75, 5))
BOX = {"left": 0.06, "right": 0.94, "bottom": 0.02, "top": 1.1}


def points(rows: list[Row]) -> list[Panel]:
    """Return scatter plots of one set on one setting: in three dimensions with each plane, and on two pairs of axes."""
    return [
        panel
        for row in rows
        if row.get("picture") == "points"
        for panel in (_plane(row, "regression"), _plane(row, "svm"), _principal(row), _discriminant(row))
    ]


def plane_in_box(plane: Floats, low: Floats, high: Floats) -> Floats:
    """Return the corners, in order, of the intersection of a box with the plane w·x + b = 0, given as (w, b).

    >>> plane_in_box(np.array([0.0, 0.0, 1.0, -0.5]), np.zeros(3), np.ones(3))[:, 2]
    array([0.5, 0.5, 0.5, 0.5])
    """
    corners = np.array(list(product(*zip(low, high, strict=True))))
    crossings = []
    for one, other in combinations(corners, 2):
        if np.count_nonzero(one != other) == 1:
            ends = one @ plane[:3] + plane[3], other @ plane[:3] + plane[3]
            if ends[0] * ends[1] < 0:
                crossings.append(one + (other - one) * ends[0] / (ends[0] - ends[1]))
    if not crossings:
        return np.empty((0, 3))
    unit = (np.array(crossings) - low) / (high - low)
    normal = plane[:3] * (high - low)
    across = np.linalg.svd(normal[None])[2][1:]
    angles = np.arctan2(*((unit - unit.mean(axis=0)) @ across.T).T)
    corners_in_order: Floats = np.array(crossings)[np.argsort(angles)]
    return corners_in_order


def view_direction(azimuth: float, elevation: float = ELEVATION) -> Floats:
    """Return the unit vector from the centre of a box to the viewer."""
    turn, rise = np.radians([azimuth, elevation])
    return np.array([np.cos(turn) * np.cos(rise), np.sin(turn) * np.cos(rise), np.sin(rise)])


def _plane(row: Row, kind: str) -> Panel:
    """Draw the points behind the plane, then the plane, then the points in front of it."""
    places, colours = np.array(row["points"])[:, :3], np.where(row["is_out"], OUT, IN)
    plane, words = _plane_of(row, kind)
    low, high = places.min(axis=0), places.max(axis=0)
    normal = plane[:3] * (high - low)
    azimuth = _azimuth(normal / np.linalg.norm(normal))
    side = (places @ plane[:3] + plane[3]) * np.sign(normal @ view_direction(azimuth))

    def draw(axes: Any) -> None:
        from mpl_toolkits.mplot3d.art3d import Poly3DCollection

        axes.computed_zorder = False
        axes.set_proj_type("ortho")
        axes.view_init(ELEVATION, azimuth)
        dots(axes, places[side < 0], colours[side < 0], 1)
        sheet = plane_in_box(plane, low, high)
        axes.add_collection3d(Poly3DCollection([sheet], facecolor=INK, edgecolor=INK, alpha=0.3, zorder=2))
        dots(axes, places[side >= 0], colours[side >= 0], 3)
        _set_box(axes, low, high, row["base"])

    return Panel(
        svg(draw, _name(row, kind), size=(4.2, 3.3), margins=BOX, projection="3d"),
        words[0].upper() + words[1:],
        f"{row['case']}, {row['setting']}, {row['outside']}: two principal components and {row['base']} in three"
        f" dimensions, with the {words}.",
    )


def _plane_of(row: Row, kind: str) -> tuple[Floats, str]:
    """Return the plane w·x + b = 0 of one kind, as (w, b), and its description."""
    if kind == "svm":
        return np.array(row["svm"]), f"plane of an SVM trained on the labels, balanced accuracy {row['svm_right']:.0%}"
    a, b, c = row["plane"]
    words = f"regression plane, which explains {row['explained']:.0%} of the variance of {row['base']}"
    return np.array([a, b, -1.0, c]), words


def _set_box(axes: Any, low: Floats, high: Floats, base: str) -> None:
    """Set the labels, the limits and the style of three axes."""
    axes.set_box_aspect((1.25, 1.25, 1), zoom=1.05)
    axes.set(xlabel="component 1", ylabel="component 2", zlabel=base)
    axes.set(**{f"{name}lim": ends for name, ends in zip("xyz", zip(low, high, strict=True), strict=True)})
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.pane.set_visible(False)
        axis._axinfo["grid"] |= {"color": "#80808040", "linewidth": 0.6}
        axis.set_major_locator(_few())
        axis.set_tick_params(labelsize=8, pad=-2)
        axis.labelpad = -4


def _principal(row: Row) -> Panel:
    shares = row["variance"]
    labels = f"component 1 ({shares[0]:.0%} of the variance)", f"component 2 ({shares[1]:.0%})"
    return _scatter(row, (0, 1), labels, "pca", "Features on their first two principal components")


def _discriminant(row: Row) -> Panel:
    labels = "Fisher's discriminant", "first component of the remainder"
    return _scatter(row, (3, 4), labels, "lda", "Features on the direction that separates the sets (LDA)")


def _scatter(row: Row, columns: tuple[int, int], labels: tuple[str, str], kind: str, words: str) -> Panel:
    places, colours = np.array(row["points"])[:, columns], np.where(row["is_out"], OUT, IN)

    def draw(axes: "Axes") -> None:
        dots(axes, places, colours, 1)
        axes.set(xlabel=labels[0], ylabel=labels[1])

    return Panel(
        svg(draw, _name(row, kind)),
        words,
        f"{row['case']}, {row['setting']}, {row['outside']}: {words.lower()}; scatter.",
    )


def _azimuth(normal: Floats) -> int:
    misses = [abs(abs(normal @ view_direction(azimuth)) - TILT) for azimuth in TURNS]
    return TURNS[int(np.argmin(misses))]


def _few() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(4)


def _name(row: Row, kind: str) -> str:
    names = (row[name] for name in ("conventions", "setting", "outside", "base"))
    return short_name(*names, row.get("method", ""), kind)
