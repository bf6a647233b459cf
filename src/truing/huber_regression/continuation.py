"""The least Huber loss of rows that fit in memory, by Newton steps and continuation in the width of the loss.

At a small width few rows are inliers and Newton from afar goes astray; from the minimum at four times the width it
does not (Madsen & Nielsen 1993). The loss of width w is r²/2 up to w and w|r| − w²/2 beyond.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .. import _kernels, _linalg
from .._check import Bools, Floats
from .._double import EPS
from .hessian import RIDGE, InlierGram
from .products import are_few, fitted_values, gram_of_chosen, moved_residual, weighted_sum

# Inliers for each unknown that a width must have for its Hessian to be sound.
INLIERS_PER_UNKNOWN = 3

# Share of a width that rounding, of earlier and larger residuals too, may come to.
MAX_ROUNDING_SHARE = 2.0**-10

# Gradient, as a share of the terms it sums, at which Newton has arrived.
GRADIENT_TOLERANCE = 1e-13

_WIDTH_RATIO = 4.0  # Each width over the next, on the way down to the penalty.
_MAX_WIDTHS = 1024  # More than there are from the largest double to the smallest.
_WORKING_SET_PER_UNKNOWN = 16  # Rows for each unknown in Newton's working set, at least,
_WORKING_SET_WIDTHS = 6.0  # and every row whose residual is within so many widths.
_NEAR_WIDTHS = 24.0  # Residuals of so many widths are small, and other rows are left out of all narrower widths.
_WORKING_SET_GROWTH = 4.0  # Factor on that reach when a row outside of the set turned out to matter.
_SLOPE_TOLERANCE = 0.5  # Slope along a step, as a share of that at its start, which ends the line search.
_UNBOUNDED_RATIO = 1e3  # Times their own size that a step moves the residuals when too few rows hold it back.
_MAX_TRIALS = 200  # Of a line search: it doubles or halves at each.


@dataclass(frozen=True, eq=False)
class Subproblem:
    """The problem min over x of Σ huber(rᵢ − wᵢᵀx) + xᵀ `quadratic` x / 2 − `linear`ᵀ x.

    The sum is over `rows` (m, k) with residual r (m,); the other two terms are what all other rows come to for as
    long as none of them crosses ±penalty.
    """

    rows: Floats
    residual: Floats
    quadratic: Floats
    linear: Floats

    def shifted(self, step: Floats, fitted: Floats) -> "Subproblem":
        """Return the problem about x = `step`, whose fitted values are rows @ step."""
        return Subproblem(self.rows, self.residual - fitted, self.quadratic, self.linear - self.quadratic @ step)

    def gradient(self, width: float) -> Floats:
        """Return the direction of steepest descent at x = 0."""
        return self.linear + weighted_sum(np.clip(self.residual, -width, width), self.rows)

    def within(self, working_set: Bools, signs: Floats, width: float) -> "Subproblem":
        """Return the problem on the working set, the other rows taken to stay outliers.

        `signs` is the sum of all rows times the signs of their residuals.
        """
        rows = self.rows.compress(working_set, axis=0)
        residual = self.residual[working_set]
        outliers = signs - weighted_sum(np.sign(residual), rows)
        return Subproblem(rows, residual, self.quadratic, self.linear + width * outliers)


def minimise_by_continuation(problem: Subproblem, penalty: float, *, first: int, last: int) -> Floats:
    """Return the minimiser x at width `penalty`, by way of wider losses.

    The widest loss has `first` inliers. One that has fewer than `last` ends the descent to the penalty, and so does a
    problem that too few rows leave unbounded, or a width that rounding hides.
    """
    width = penalty
    if not problem.quadratic.any():
        count = min(max(first, INLIERS_PER_UNKNOWN * len(problem.linear)), len(problem.residual))
        width = max(width, _smallest(np.abs(problem.residual), count))
    return _descend(problem, penalty, width, 0.0, last)[0]


def _descend(problem: Subproblem, penalty: float, width: float, wider: float, last: int) -> tuple[Floats, bool]:
    """Return the minimiser at width `penalty`, by way of `width` and narrower ones, and whether all were bounded.

    The problem is about the minimiser at the `wider` one, if there is one.
    """
    x = np.zeros(len(problem.linear))
    largest = 0.0
    here = problem
    signs = weighted_sum(np.sign(problem.residual), problem.rows)
    all_rows_are_needed = bool(problem.quadratic.any())
    for _ in range(_MAX_WIDTHS):
        # Outliers that are not among these rows have a gradient in proportion to the width.
        linear = problem.linear * (width / penalty) - problem.quadratic @ x
        step = _minimise_at_width(replace(here, linear=linear), signs, width, wider, rough=width > penalty)
        if step is None:
            return x, False
        x = x + step.x
        moved, signs = step.residual, step.signs
        largest = max(largest, float(np.abs(x).max(initial=0.0)))
        if EPS * largest > MAX_ROUNDING_SHARE * width:  # Steps that were large leave rounding errors that matter here.
            moved, signs = moved_residual(problem.rows, problem.residual, x)
        here = replace(problem, residual=moved)
        if width == penalty or np.count_nonzero(np.abs(here.residual) < width) < last:
            break
        if width < EPS * np.abs(x).max(initial=0.0):  # Rounding alone decides what is within a narrower width.
            break
        wider = width
        width = max(penalty, width / _WIDTH_RATIO)
        if all_rows_are_needed or EPS * largest > MAX_ROUNDING_SHARE * penalty:
            continue
        near = _rows_of_small_residuals(here, width)
        if np.count_nonzero(near) < len(near) / 2:
            rest = _descend_without_far_rows(here, near, signs, penalty, width, wider, last)
            if rest is not None:
                return x + rest, True
            all_rows_are_needed = True
    return x, True


def _rows_of_small_residuals(problem: Subproblem, width: float) -> Bools:
    size = np.abs(problem.residual)
    few = 2 * _WORKING_SET_PER_UNKNOWN * len(problem.linear)
    return np.asarray(size <= max(_NEAR_WIDTHS * width, _smallest(size, few)))


def _descend_without_far_rows(
    problem: Subproblem, near: Bools, signs: Floats, penalty: float, width: float, wider: float, last: int
) -> Floats | None:
    """Return the minimiser that `_descend` finds of the near rows, the others being taken to stay outliers.

    None if one of them did not, or where nothing bounds the near ones.
    """
    x, is_bounded = _descend(problem.within(near, signs, penalty), penalty, width, wider, last)
    if not is_bounded:
        return None
    moved = problem.residual - fitted_values(problem.rows, x)
    return None if _others_became_inliers(problem.residual, moved, near, penalty) else x


def huber_loss(residual: Floats, width: float) -> float:
    """Return Σ huber(rᵢ) / width: over the width, because the product of two small numbers may underflow."""
    size = np.abs(residual)
    share = np.minimum(size / width, 1.0)
    return float(share @ (size - np.minimum(size, width) / 2))


class _Step(NamedTuple):
    """A step `x`, the `residual` after it, and the sum of all rows times the `signs` of that."""

    x: Floats
    residual: Floats
    signs: Floats


def _minimise_at_width(problem: Subproblem, signs: Floats, width: float, wider: float, *, rough: bool) -> _Step | None:
    """Return the step to the minimum at one width, by way of a working set of rows; None where nothing bounds it."""
    size = np.abs(problem.residual)
    least = _WORKING_SET_PER_UNKNOWN * len(problem.linear)
    reach = _WORKING_SET_WIDTHS * width
    if np.count_nonzero(size <= reach) < least:
        reach = _smallest(size, least)
    for _ in range(_MAX_WIDTHS):
        working_set = size <= reach
        if np.count_nonzero(working_set) > len(size) / 2:  # A copy of most rows saves nothing.
            break
        x = _newton(problem.within(working_set, signs, width), width, wider, rough=rough)
        if x is not None:
            step = _Step(x, *moved_residual(problem.rows, problem.residual, x))
            if not _others_became_inliers(problem.residual, step.residual, working_set, width):
                return step
        reach = _WORKING_SET_GROWTH * max(reach, width)
    x = _newton(problem, width, wider, rough=rough)
    return None if x is None else _Step(x, *moved_residual(problem.rows, problem.residual, x))


def _others_became_inliers(before: Floats, after: Floats, some: Bools, width: float) -> bool:
    """Return whether a row that is not one of `some` became an inlier, or changed its sign."""
    return bool(np.any(~some & ((np.abs(after) < width) | (after * np.sign(before) < 0))))


def _newton(problem: Subproblem, width: float, wider: float, *, rough: bool) -> Floats | None:
    """Return the minimiser at one width, or what the first whole step gives if `rough`; None where nothing bounds it.

    As the width falls the minimum moves along a line for as long as the inliers stay the same. Where they are few, a
    step with those of the `wider` loss comes first, if it leads down.
    """
    if _kernels.kernels is not None and problem.rows.size and are_few(problem.rows):
        return _newton_in_one_call(_kernels.kernels, problem, width, wider, rough)
    unknowns = len(problem.linear)
    terms = float(np.abs(problem.linear).sum())
    x = _extrapolated(problem, width, wider)
    if x.any():
        problem = problem.shifted(x, fitted_values(problem.rows, x))
    length = 0.0
    gram = InlierGram(problem.rows)
    for attempt in range(50 + 4 * unknowns):
        gradient = problem.gradient(width)
        terms_here = terms + float(np.minimum(np.abs(problem.residual), width).sum())
        if np.abs(gradient).sum() <= GRADIENT_TOLERANCE * terms_here:
            break
        if attempt > 0 and (length == 0 or (rough and length == 1)):
            break
        step = _newton_step(gram.of(np.abs(problem.residual) < width) + problem.quadratic, gradient)
        fitted = fitted_values(problem.rows, step)
        along = float(step @ problem.linear), float(step @ problem.quadratic @ step)
        length = line_search(problem.residual, fitted, width, *along)
        if length == np.inf:
            return None
        x = x + length * step
        problem = problem.shifted(length * step, length * fitted)
    return x


def _newton_in_one_call(
    kernels: _kernels.Kernels, problem: Subproblem, width: float, wider: float, rough: bool
) -> Floats | None:
    """Return what `_newton` does."""
    m, k = problem.rows.shape
    x = np.zeros(k)
    scratch = np.empty(m * (k + 3) + 2 * k * (k + 1))
    is_bounded = np.empty(1)
    kernels.with_blas(
        "huber_newton",
        np.ascontiguousarray(problem.rows, dtype=np.float64),
        problem.residual.copy(),
        np.ascontiguousarray(problem.quadratic, dtype=np.float64),
        problem.linear.copy(),
        float(width),
        float(wider),
        int(rough),
        x,
        scratch,
        is_bounded,
    )
    return x if is_bounded[0] else None


def _extrapolated(problem: Subproblem, width: float, wider: float) -> Floats:
    """Return the step on which the inliers of the wider loss stay inliers; none if they are many, or it leads up."""
    nothing = np.zeros(len(problem.linear))
    inliers = np.abs(problem.residual) < wider
    if not len(nothing) <= np.count_nonzero(inliers) < 2 * len(nothing):
        return nothing
    clipped = np.where(inliers, problem.residual, np.clip(problem.residual, -width, width))
    gradient = problem.linear + weighted_sum(clipped, problem.rows)
    step = _newton_step(gram_of_chosen(problem.rows, inliers) + problem.quadratic, gradient)
    other_rows = float(step @ (problem.quadratic @ (step / width) / 2 - problem.linear / width))
    moved = problem.residual - fitted_values(problem.rows, step)
    return step if huber_loss(moved, width) + other_rows < huber_loss(problem.residual, width) else nothing


def _newton_step(hessian: Floats, gradient: Floats) -> Floats:
    """Return Newton's step, and the gradient itself, which leads down too, if rounding forbids it."""
    hessian.flat[:: len(gradient) + 1] += RIDGE * (np.trace(hessian) + len(gradient))
    return np.asarray(_linalg.lapack.dposv(hessian, gradient)[1])


def line_search(residual: Floats, fitted: Floats, width: float, linear: float = 0.0, quadratic: float = 0.0) -> float:
    """Return the length at which the slope along a step is small: 0 if it leads up, infinite if it never ends.

    The step has these fitted values; along it other terms fall by `linear` t − `quadratic` t² / 2.
    """
    if _kernels.kernels is not None:
        length = np.empty(1)
        _kernels.kernels("huber_line_search", residual, fitted, len(residual), float(width), linear, quadratic, length)
        return float(length[0])
    start = linear + float(np.clip(residual, -width, width) @ fitted)
    size = float(np.abs(residual).max(initial=0.0)) + width
    moves = float(np.abs(fitted).max(initial=0.0))
    if start <= 0:
        return 0.0
    low, high = 0.0, np.inf
    slope_low, slope_high = start, -np.inf
    trial = min(1.0, 10 * size / moves) if moves > 0 else 1.0
    for _ in range(_MAX_TRIALS):
        if low * moves >= _UNBOUNDED_RATIO * size or (moves == 0 and quadratic == 0):
            return np.inf
        slope = linear - trial * quadratic + float(np.clip(residual - trial * fitted, -width, width) @ fitted)
        if abs(slope) <= _SLOPE_TOLERANCE * start or high - low < EPS * high:
            return trial
        # The secant, with the slope at the end that stays halved: else one end may never move (Dowell & Jarratt 1971).
        if slope > 0:
            low, slope_low, slope_high = trial, slope, slope_high / 2
        else:
            high, slope_high, slope_low = trial, slope, slope_low / 2
        trial = 4 * low if high == np.inf else low + (high - low) * slope_low / (slope_low - slope_high)
    return low


def _smallest(values: Floats, count: int) -> float:
    """Return the value that `count` values do not exceed, infinity where there are fewer."""
    return float(np.partition(values, count - 1)[count - 1]) if count <= len(values) else np.inf
