"""The four steps: start from a sample, solve near rows, check that the others stayed, certify."""

from math import log2

import numpy as np
from numpy.typing import NDArray

from .._check import Floats
from .._double import EPS
from ..rows import low_discrepancy_sample
from .certificate import TOLERANCE, Certificate, certify
from .continuation import INLIERS_PER_UNKNOWN, MAX_ROUNDING_SHARE, Subproblem, huber_loss, minimise_by_continuation
from .design import ROWS_PER_GATHER, Design, Point
from .multipliers import MANY_UNKNOWNS, minimise_by_multipliers

NEAR_STANDARD_ERRORS = 5.0  # Standard errors of the sample's fit within which a row is near.
_FEW_CROSSED = 1 / 8  # Share of the near rows up to which others may cross, and as many near rows do for a second time.
_MAX_ROUNDS_OF_ALL_ROWS = 8
_MIN_WIDTH_OVER_ROUNDING = 2.0**12  # Times the residuals' rounding: narrower, and that decides which rows are inliers.
_CONTAMINATION_RATIO = 1e8  # Times the scores that the residuals of least squares are when a few rows are absurd.


def solve(design: Design, target: Floats, penalty: float) -> tuple[Certificate, int]:
    """Return the best certificate found, and how often all rows were read.

    A round has twice the near rows of the one before, or for once as many. Once they are all rows, each goes on from
    the last point.
    """
    n = len(target)
    theta, near_rows = _start_from_sample(design, target, penalty)
    width = solvable_width(design, target, theta, penalty)
    point = design.point(target, theta, width)
    best = Certificate(point, np.inf)
    first = near_rows // 4
    is_wide = near_rows >= n / 2 and design.unknowns >= MANY_UNKNOWNS
    is_repeated = False
    passes = 2
    for _ in range(2 * int(log2(n)) + 1 + _MAX_ROUNDS_OF_ALL_ROWS):
        near = _nearest(point.residual, width, near_rows if near_rows < n / 2 else n)
        if is_wide:
            step = minimise_by_multipliers(design.take(near), point.residual, width)
        else:
            step = _step_over_near_rows(design, point, near, width, first)
        after = design.point(target, point.theta + step, width)
        passes += 2
        crossed = _others_that_crossed(point, after, near, width)
        if not crossed:
            certificate = certify(design, target, after, penalty, width)
            passes += 1
            best = certificate if certificate.gap <= best.gap else best
            if certificate.gap <= TOLERANCE and _rounding_is_negligible(design, target, point, after, penalty):
                break
            point = after
        elif huber_loss(after.residual, width) <= huber_loss(point.residual, width):
            point = after
        # Again, once with as many near rows where few others crossed, then with twice as many; should all rows fail,
        # once more from the widest loss, by continuation.
        is_wide = False
        first = n if len(near) == n else INLIERS_PER_UNKNOWN * design.unknowns
        is_repeated = not is_repeated and 0 < crossed <= _FEW_CROSSED * len(near)
        near_rows *= 1 if is_repeated else 2
        wanted = solvable_width(design, target, point.theta, penalty)
        if wanted != width or design.stored is not None:  # The rows have what a stored design lost by rounding.
            width = wanted
            point = design.point_of_rows(target, point.theta, width)
            passes += 1
    return best, passes


def _rounding_is_negligible(design: Design, target: Floats, before: Point, after: Point, penalty: float) -> bool:
    """Return whether rounding the residuals before, which may have been far larger, is not felt in those after."""
    rounded_off = EPS * _median_size(before.residual)
    return rounded_off <= MAX_ROUNDING_SHARE * solvable_width(design, target, after.theta, penalty)


def _start_from_sample(design: Design, target: Floats, penalty: float) -> tuple[Floats, int]:
    """Return the fit of a sample, and how many rows may be on the other side of ±penalty for all rows."""
    n = len(target)
    size = design.unknowns
    theta = initial_fit(design, target)
    sampled = int((n * size) ** (2 / 3) / 2)  # Balances sampled and near rows: Portnoy & Koenker 1997.
    if n <= ROWS_PER_GATHER or not 0 < sampled < n / 2:
        return theta, n
    index = low_discrepancy_sample(n, sampled)
    rows = design.take(index)
    none = np.zeros((size, size))
    problem = Subproblem(rows, target[index] - rows @ theta, none, none.sum(axis=0))
    step = minimise_by_continuation(problem, penalty, first=sampled // 2, last=INLIERS_PER_UNKNOWN * size)
    return theta + step, int(NEAR_STANDARD_ERRORS * n * (size / sampled) ** 0.5)


def initial_fit(design: Design, target: Floats) -> Floats:
    """Return the fit of least squares, or none where absurd scores have carried it far away from all other rows."""
    index = _few_rows(len(target))
    residual = target[index] - design.take(index) @ design.least_squares
    usual = float(np.median(np.abs(target[index])))
    if 0 < _CONTAMINATION_RATIO * usual < np.median(np.abs(residual)):
        return np.zeros(design.unknowns)
    return design.least_squares


def solvable_width(design: Design, target: Floats, theta: Floats, penalty: float) -> float:
    """Return the penalty, or what is well above the rounding of the residuals where that is more."""
    return max(
        penalty, _MIN_WIDTH_OVER_ROUNDING * float(np.median(design.rounding(target, theta, _few_rows(len(target)))))
    )


def _nearest(residual: Floats, width: float, count: int) -> NDArray[np.intp]:
    """Return the `count` rows whose |residual| is nearest to the width, in order."""
    if count >= len(residual):
        return np.arange(len(residual))
    return np.sort(np.argpartition(np.abs(np.abs(residual) - width), count - 1)[:count])


def _step_over_near_rows(design: Design, point: Point, near: NDArray[np.intp], width: float, first: int) -> Floats:
    """Return the step to the minimum if no row but the near ones crosses ±width.

    The others are then a quadratic and a linear term.
    """
    rows = design.take(near)
    residual = point.residual[near]
    inliers = np.abs(point.residual) <= width
    inliers[near] = False
    linear = point.gradient - np.clip(residual, -width, width) @ rows
    problem = Subproblem(rows, residual, design.gram(inliers), linear)
    return minimise_by_continuation(problem, width, first=first, last=0)


def _others_that_crossed(before: Point, after: Point, near: NDArray[np.intp], width: float) -> int:
    """Return how many rows but the near ones crossed ±width."""
    far = np.ones(len(before.residual), dtype=np.bool_)
    far[near] = False
    return int(np.count_nonzero(_side(before.residual[far], width) != _side(after.residual[far], width)))


def _side(residual: Floats, width: float) -> Floats:
    """Return 0 for inliers, and the sign of the residual for outliers."""
    side: Floats = np.where(np.abs(residual) <= width, 0.0, np.sign(residual))
    return side


def _median_size(values: Floats) -> float:
    return float(np.median(np.abs(values[_few_rows(len(values))])))


def _few_rows(n: int) -> NDArray[np.intp]:
    """Return a few rows' indices, or those of all if they are few."""
    return np.arange(n) if n <= ROWS_PER_GATHER else low_discrepancy_sample(n, ROWS_PER_GATHER)
