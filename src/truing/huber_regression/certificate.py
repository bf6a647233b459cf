"""A proof that a fit is optimal: a dual point, and how far its objective is below the fit's.

For any u with |uᵢ| ≤ 1 and Wᵀu = 0 no fit has a loss, over the penalty λ, below Σ sᵢuᵢ − λuᵢ²/2. At the minimum
u = clip(r / λ, ±1) reaches it. Away from it, the infeasibility Wᵀu ≠ 0 is taken off first.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from .. import _linalg
from .._check import Floats
from .._double import EPS
from .continuation import huber_loss
from .design import Design, Point

# A fit is returned when its duality gap is at most this share of the objective.
TOLERANCE = 1e-9
# Up to so many inliers for each unknown, a dual point is made feasible on them alone.
MAX_INLIERS_PER_UNKNOWN = 20

ROUNDING_UNITS = 8  # Units in the last place that the terms of a residual may be off by, altogether.
_MAX_CORRECTIONS = 20
SMALL_GRADIENT = 1e-12  # For each row: spread over all rows it costs less than the tolerance.
_WELL_CONDITIONED = 1e-12  # Reciprocal condition number of a Gram matrix from which on its Cholesky factor is sound.
_ADJUSTABLE_SHARE = 1e-2  # Share of the tolerance that rows just beyond the width may cost together.


@dataclass(frozen=True, eq=False)
class Certificate:
    """A point, and the share of its loss by which no other fit can be better."""

    point: Point
    gap: float


def certify(design: Design, target: Floats, point: Point, penalty: float, solved: float) -> Certificate:
    """Return the certificate of the point that minimises the loss at width `solved`, for a `penalty` of at most that.

    Inliers are told by their residual alone, and where that does not do, with what rounding may have added to it.
    """
    read = point if design.stored is None else design.point_of_rows(target, point.theta, solved)
    certificate = Certificate(read, np.inf)
    if penalty == solved:
        certificate = _certified(design, target, read, penalty, solved, np.zeros(1))
    if not certificate.gap <= TOLERANCE:  # NaN fails this comparison too.
        certificate = _certified(design, target, read, penalty, solved, design.rounding(target, read.theta))
    return certificate


def _certified(
    design: Design, target: Floats, point: Point, penalty: float, solved: float, rounding: Floats
) -> Certificate:
    """Return the certificate, rows within `rounding` of the width solved being inliers.

    A penalty below the width solved is below the rounding of the residuals, and so their signs decide alone. The fit is
    then moved to where the inliers have a residual of the penalty times their dual.
    """
    beyond = np.abs(point.residual) - solved
    inliers = np.flatnonzero(beyond <= rounding)
    adjustable = adjustable_rows(beyond, inliers, huber_loss(point.residual, solved), design.unknowns, len(beyond))
    dual, infeasibility = _dual_point(design, point, adjustable, solved)
    if penalty < solved:
        excess = point.residual[inliers] - penalty * dual[inliers]
        step = np.linalg.lstsq(design.take(inliers), excess, rcond=None)[0]
        point = design.point_of_rows(target, point.theta + step, penalty)
    loss = huber_loss(point.residual, penalty)
    gap = duality_gap(point.residual, dual, penalty)
    gap += cost_of_infeasibility(infeasibility, norm(point.residual), len(dual), loss, penalty)
    gap = min(gap, loss)  # The gap of u = 0.
    if gap > TOLERANCE * loss:
        slope = np.maximum(np.minimum(np.abs(point.residual) / penalty, 1.0), np.abs(dual))
        loss = max(loss, ROUNDING_UNITS / TOLERANCE * float(slope @ design.rounding(target, point.theta)))
    return Certificate(point, gap / loss if gap > 0 else 0.0)


def duality_gap(residual: Floats, dual: Floats, penalty: float) -> float:
    """Return Σ h(rᵢ)/λ − rᵢuᵢ + λuᵢ²/2, row by row: no term is negative, so nothing cancels."""
    size = np.abs(residual)
    within = np.minimum(size, penalty)
    same_side = dual * np.sign(residual)
    return float(penalty / 2 * np.square(within / penalty - same_side).sum() + (size - within) @ (1 - same_side))


def cost_of_infeasibility(infeasibility: Floats, own: float, rows: int, loss: float, penalty: float) -> float:
    """Return how much lower a better fit θ′ may be because Wᵀu is not quite zero: ‖Wᵀu‖ times a bound on ‖θ′ − θ‖.

    √n ‖θ′ − θ‖ = ‖r − r′‖ ≤ ‖r‖ + ‖r′‖, and a loss of at most P means that ‖r′‖ ≤ √(2λP) for inliers, 2P for the rest.
    `own` is ‖r‖.
    """
    better = sqrt(2 * penalty * loss) + 2 * loss
    return float(np.linalg.norm(infeasibility)) * (own + better) / sqrt(rows)


def norm(residual: Floats) -> float:
    """Return ‖r‖, of numbers whose squares may underflow too."""
    largest = float(np.abs(residual).max(initial=0.0))
    return largest * float(np.linalg.norm(residual / largest)) if largest > 0 else 0.0


def adjustable_rows(
    beyond: Floats, inliers: NDArray[np.intp], loss: float, unknowns: int, rows: int
) -> NDArray[np.intp]:
    """Return the inliers and, if few, the rows so little beyond them that their dual may be anything at little cost."""
    cheap = np.flatnonzero(beyond <= _ADJUSTABLE_SHARE * TOLERANCE * loss / rows)
    return inliers if len(cheap) > MAX_INLIERS_PER_UNKNOWN * unknowns else np.union1d(cheap, inliers)


def _dual_point(design: Design, point: Point, near: NDArray[np.intp], width: float) -> tuple[Floats, Floats]:
    """Return u near clip(r / λ) with |u| ≤ 1 and Wᵀu = 0, and its infeasibility Wᵀu.

    Where inliers are few, or Wᵀu is not small, it is taken off these alone, so that the others stay at ±1 to the last
    bit. What they cannot take is spread over all rows. Last, all is shrunk to at most 1.
    """
    dual = np.clip(point.residual / width, -1.0, 1.0)
    infeasibility = point.gradient / width
    enough = EPS * float(np.abs(dual).sum())
    few = len(near) <= MAX_INLIERS_PER_UNKNOWN * design.unknowns
    if few or np.abs(infeasibility).sum() > SMALL_GRADIENT * len(dual):
        dual[near], infeasibility = corrected_dual(design.take(near), dual[near], infeasibility, enough)
    if np.abs(infeasibility).sum() > enough:
        spread = design.whitening @ (infeasibility / len(dual))
        dual -= spread[-1]
        infeasibility = design.descend(dual, spread[:-1], np.inf)
    shrink = max(float(np.abs(dual).max()), 1.0)
    return dual / shrink, infeasibility / shrink


def corrected_dual(rows: Floats, dual: Floats, infeasibility: Floats, enough: float) -> tuple[Floats, Floats]:
    """Return the dual of some rows, changed until the `infeasibility`, Wᵀu of all rows, is at most `enough`, and Wᵀu.

    A projection at a time: rows that it takes beyond ±1 stay there, and the others are projected again.
    """
    free = np.ones(len(dual), dtype=np.bool_)
    for _ in range(_MAX_CORRECTIONS):
        if not free.any() or np.abs(infeasibility).sum() <= enough:
            break
        change = np.zeros(len(dual))
        some = rows.compress(free, axis=0)
        change[free] = some @ _solved(some.T @ some, infeasibility)
        moved = np.clip(dual - change, -1.0, 1.0)
        left = infeasibility + (moved - dual) @ rows
        still_free = free & (np.abs(moved) < 1)
        is_rounding = np.array_equal(still_free, free) and np.abs(left).sum() > np.abs(infeasibility).sum() / 2
        dual, infeasibility, free = moved, left, still_free
        if is_rounding:
            break
    return dual, infeasibility


def _solved(gram: Floats, vector: Floats) -> Floats:
    """Return the shortest x with least ‖gram x − vector‖, by Cholesky where the condition number allows it."""
    factor, failed = _linalg.lapack.dpotrf(gram, lower=1)
    if not failed and _linalg.lapack.dpocon(factor, np.abs(gram).sum(axis=0).max(), uplo="L")[0] > _WELL_CONDITIONED:
        return np.asarray(_linalg.lapack.dpotrs(factor, vector, lower=1)[0])
    return np.asarray(np.linalg.lstsq(gram, vector, rcond=None)[0], dtype=np.float64)
