"""Figures of one detection: score densities, and the rows in feature space."""

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from .._check import Floats
from ..detection import Detection
from ..outputs import Outputs
from .figures import DENSITY_MARGINS, IN, INK, OUT, Panel, dots, label_density, svg
from .shapes import GRID, kernel_density, principal_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TAIL = 0.001  # Share of rows at either end that a density omits.
SMOOTHED = 50_000  # Largest number of random rows for a density.
PROJECTED = 10_000  # Largest number of random test rows, and of reference rows, for the principal components.
DOTS = 600  # Largest number of random rows for a scatter plot.
SEED = 0


def densities(detection: Detection) -> Iterator[Panel]:
    """Yield the densities of the scores and of the reference scores, and of the base scores by decision."""
    if detection.method != "online":  # Scores of a stream come from different fits and are not comparable.
        yield _scores(detection)
    if detection.method != "none":
        yield _base_scores(detection)


def plane(detection: Detection, outputs: Outputs, reference: Outputs | None) -> list[Panel]:
    """Return a scatter plot on the two leading principal components, or no plot if the features have fewer than two."""
    rng = np.random.default_rng(SEED)
    rows = _some(len(outputs), PROJECTED, rng)
    drawn = None if reference is None else reference.features[_some(len(reference), PROJECTED, rng)]
    parts = [outputs.features[rows], *([] if drawn is None else [drawn])]
    features = np.concatenate(parts).astype(np.float64)
    if features.shape[1] < 2 or not np.ptp(features, axis=0).any():
        return []
    places, shares = principal_axes(features, 2)
    test_rows, reference_rows = rows[:DOTS], np.arange(len(rows), len(places))[:DOTS]
    colours = _colours(detection)[test_rows]

    def draw(axes: "Axes") -> None:
        dots(axes, places[reference_rows], np.full(len(reference_rows), f"{INK}80"), 1)
        dots(axes, places[: len(test_rows)], colours, 2)
        axes.set(xlabel=f"component 1 ({shares[0]:.0%} of the variance)", ylabel=f"component 2 ({shares[1]:.0%})")
        axes.set(xticks=[], yticks=[])

    words = f"{len(test_rows):,} of {len(outputs):,} rows"
    if reference is not None:
        words += f" and {len(reference_rows):,} of {len(reference):,} reference rows (grey)"
    caption = f"Features on two principal components: {words}"
    return [Panel(svg(draw, "plane"), caption, f"{caption}; scatter.")]


def _scores(detection: Detection) -> Panel:
    rng = np.random.default_rng(SEED)
    rows = _some(len(detection.scores), SMOOTHED, rng)
    scores, colours = detection.scores[rows], _colours(detection)[rows]
    scores_in = detection.scores_in
    scores_in = None if scores_in is None else scores_in[_some(len(scores_in), SMOOTHED, rng)]
    threshold = detection.threshold if detection.threshold is not None and isfinite(detection.threshold) else None
    ends = [part for part in (scores, scores_in) if part is not None]
    grid = _grid([np.quantile(part, (TAIL, 1 - TAIL)) for part in ends], threshold)
    heights = kernel_density(scores, grid)
    label = detection.base if detection.method == "none" else f"{detection.base} + {detection.method}"

    def draw(axes: "Axes") -> None:
        if threshold is None:
            _fill_by_colour(axes, grid, scores, colours)
        else:
            at = float(np.interp(threshold, grid, heights))
            for side, colour in ((grid < threshold, OUT), (grid > threshold, IN)):
                places = np.sort(np.append(grid[side], threshold))
                _fill(axes, places, np.interp(places, grid, np.where(grid == threshold, at, heights)), colour)
            axes.axvline(threshold, color=INK, linewidth=1, linestyle="dashed")
        if scores_in is not None:
            axes.plot(grid, kernel_density(scores_in, grid), color=INK, linewidth=1.6)
        label_density(axes, label, grid[0], grid[-1])

    caption = f"Scores ({label})"
    caption += "" if scores_in is None else "; solid line: reference"
    caption += "" if threshold is None else f"; dashed line: threshold {threshold:.6g}"
    return Panel(svg(draw, "scores", margins=DENSITY_MARGINS), caption, f"{caption}; density.")


def _base_scores(detection: Detection) -> Panel:
    rows = _some(len(detection.base_scores), SMOOTHED, np.random.default_rng(SEED))
    scores, colours = detection.base_scores[rows], _colours(detection)[rows]
    grid = _grid([np.quantile(scores, (TAIL, 1 - TAIL))], None)

    def draw(axes: "Axes") -> None:
        _fill_by_colour(axes, grid, scores, colours)
        label_density(axes, detection.base, grid[0], grid[-1])

    caption = f"Base scores ({detection.base})"
    caption += "" if detection.is_out is None else " of accepted and refused rows"
    return Panel(svg(draw, "base-scores", margins=DENSITY_MARGINS), caption, f"{caption}; density.")


def _some(rows: int, most: int, rng: np.random.Generator) -> Any:
    """Return the indices of at most `most` rows in random order."""
    return rng.permutation(rows)[:most]


def _colours(detection: Detection) -> Any:
    if detection.is_out is None:
        return np.full(len(detection.scores), IN)
    return np.where(detection.is_out, OUT, IN)


def _grid(ends: list[Any], threshold: float | None) -> Floats:
    places = [*(float(end) for pair in ends for end in pair), *([] if threshold is None else [threshold])]
    margin = 0.03 * (max(places) - min(places)) or 0.5
    return np.linspace(min(places) - margin, max(places) + margin, GRID)


def _fill_by_colour(axes: "Axes", grid: Floats, scores: Floats, colours: Any) -> None:
    for colour in sorted(set(colours.tolist())):
        own = scores[colours == colour]
        _fill(axes, grid, kernel_density(own, grid) * len(own) / len(scores), colour)


def _fill(axes: "Axes", grid: Floats, heights: Floats, colour: str) -> None:
    axes.fill_between(grid, heights, facecolor=f"{colour}59", edgecolor=colour, linewidth=1)
