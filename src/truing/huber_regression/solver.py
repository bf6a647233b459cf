"""The four steps: start from a sample, solve near rows, check that the others stayed, certify."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log2

import numpy as np
from numpy.typing import NDArray

from .. import _kernels
from .._check import Floats
from .._double import EPS
from ..rows import low_discrepancy_sample
from .certificate import TOLERANCE, Certificate, certify
from .continuation import INLIERS_PER_UNKNOWN, MAX_ROUNDING_SHARE, Subproblem, huber_loss, minimise_by_continuation
from .design import ROWS_PER_GATHER, Design, Point
from .multipliers import MANY_UNKNOWNS, minimise_by_multipliers
from .products import weighted_sum

NEAR_STANDARD_ERRORS = 5.0  # Standard errors of the sample's fit within which a row is near.
_FEW_CROSSED = 1 / 8  # Share of the near rows up to which others may cross, and as many near rows do for a second time.
_FEW_ROWS = 512
_MAX_ROUNDS_OF_ALL_ROWS = 8
_MIN_WIDTH_OVER_ROUNDING = 2.0**12  # Times the residuals' rounding: narrower, and that decides which rows are inliers.
_CONTAMINATION_RATIO = 1e8  # Times the scores that the residuals of least squares are when a few rows are absurd.


def solve(design: Design, target: Floats, penalty: float) -> tuple[Certificate, int]:
    """Return the best certificate found, and how often all rows were read.

    Each round goes on from the last point.
    """
    theta, near_rows = _start_from_sample(design, target, penalty)
    this_round = _Round.first(near_rows, len(target), design.unknowns)
    width = solvable_width(design, target, theta, penalty)
    point = design.point(target, theta, width)
    best = Certificate(point, np.inf)
    passes = 2
    for _ in range(2 * int(log2(len(target))) + 1 + _MAX_ROUNDS_OF_ALL_ROWS):
        near = _nearest(point.residual, width, this_round.near_rows)
        after = design.point(target, point.theta + _step(design, point, near, width, this_round), width)
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
        this_round = this_round.next(crossed)
        wanted = solvable_width(design, target, point.theta, penalty)
        if wanted != width or design.stored is not None:  # The rows have what a stored design lost by rounding.
            width = wanted
            point = design.point_of_rows(target, point.theta, width)
            passes += 1
    return best, passes


@dataclass(frozen=True)
class _Round:
    """How a round is solved: for so many near rows, by continuation from a loss of `inliers`, or by multipliers.

    A round has twice the near rows of the one before, or for once as many where few others crossed; half of the rows
    are all of them. Should all rows fail, they are solved once more from the widest loss, by continuation.
    """

    rows: int
    unknowns: int
    near_rows: int
    inliers: int
    by_multipliers: bool
    is_repeated: bool = False

    @classmethod
    def first(cls, near_rows: int, rows: int, unknowns: int) -> _Round:
        by_multipliers = near_rows >= rows / 2 and unknowns >= MANY_UNKNOWNS
        return cls(rows, unknowns, _all_if_half(near_rows, rows), near_rows // 4, by_multipliers)

    def next(self, crossed: int) -> _Round:
        """Return the round that follows when so many of the other rows crossed."""
        is_repeated = not self.is_repeated and 0 < crossed <= _FEW_CROSSED * self.near_rows
        return replace(
            self,
            near_rows=self.near_rows if is_repeated else _all_if_half(2 * self.near_rows, self.rows),
            inliers=self.rows if self.near_rows == self.rows else INLIERS_PER_UNKNOWN * self.unknowns,
            by_multipliers=False,
            is_repeated=is_repeated,
        )


def _all_if_half(count: int, rows: int) -> int:
    return count if count < rows / 2 else rows


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


def _step(design: Design, point: Point, near: NDArray[np.intp], width: float, this_round: _Round) -> Floats:
    """Return the step to the minimum of this round."""
    if this_round.by_multipliers:
        return minimise_by_multipliers(design.take(near), point.residual, width)
    return _step_over_near_rows(design, point, near, width, this_round.inliers)


def _step_over_near_rows(design: Design, point: Point, near: NDArray[np.intp], width: float, first: int) -> Floats:
    """Return the step to the minimum if no row but the near ones crosses ±width.

    The others are then a quadratic and a linear term.
    """
    rows = design.take(near)
    residual = point.residual[near]
    inliers = np.abs(point.residual) <= width
    inliers[near] = False
    # Of all rows nothing is left but rounding.
    linear = np.zeros(design.unknowns)
    if len(near) < len(inliers):
        linear = point.gradient - weighted_sum(np.clip(residual, -width, width), rows)
    problem = Subproblem(rows, residual, design.gram(inliers), linear)
    return minimise_by_continuation(problem, width, first=first, last=0)


def _others_that_crossed(before: Point, after: Point, near: NDArray[np.intp], width: float) -> int:
    """Return how many rows but the near ones crossed ±width."""
    if len(near) == len(before.residual):
        return 0
    near_ones = _count_crossed(before.residual[near], after.residual[near], width)
    return _count_crossed(before.residual, after.residual, width) - near_ones


def _count_crossed(before: Floats, after: Floats, width: float) -> int:
    if _kernels.kernels is None:
        return int(np.count_nonzero(_side(before, width) != _side(after, width)))
    count = np.empty(1)
    _kernels.kernels("huber_count_crossed", before, after, len(before), width, count)
    return int(count[0])


def _side(residual: Floats, width: float) -> Floats:
    """Return 0 for inliers, and the sign of the residual for outliers."""
    side: Floats = np.where(np.abs(residual) <= width, 0.0, np.sign(residual))
    return side


def _median_size(values: Floats) -> float:
    return float(np.median(np.abs(values[_few_rows(len(values))])))


def _few_rows(n: int) -> NDArray[np.intp]:
    """Return a few rows' indices, or those of all if they are few: enough for a median."""
    return np.arange(n) if n <= _FEW_ROWS else low_discrepancy_sample(n, _FEW_ROWS)
