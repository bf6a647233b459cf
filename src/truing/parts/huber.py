"""Huber regression of rows in parts: exact and certified, in a few passes and bounded memory.

1. Start from the fit of a sample of rows.
2. A pass evaluates the fit: its loss and gradient from all rows, and the rows near ±penalty, which may still cross it;
   a sample of them where they are too many.
3. Solve for the near rows, each of a sample standing for several. The other rows are a linear and a quadratic term, so
   the gradient at the start is that of all rows, and only what the step changes is taken from the sample (Jordan, Lee &
   Yang 2019). With every step fewer rows are near, until none has to be left out: then the step is exact.
4. Again from 2, until no other row crossed. A dual point certifies the fit, as in `truing.huber_regression`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np

from .._blas import one_thread
from .._check import Floats
from .._double import EPS
from ..huber_regression import check_solved
from ..huber_regression.certificate import (
    MAX_INLIERS_PER_UNKNOWN,
    ROUNDING_UNITS,
    SMALL_GRADIENT,
    TOLERANCE,
    adjustable_rows,
    corrected_dual,
    cost_of_infeasibility,
    duality_gap,
)
from ..huber_regression.continuation import (
    GRADIENT_TOLERANCE,
    INLIERS_PER_UNKNOWN,
    Subproblem,
    minimise_by_continuation,
)
from ..huber_regression.design import Design
from ..huber_regression.solver import NEAR_STANDARD_ERRORS, initial_fit, solvable_width
from ..io.npz import Arrays
from .evaluation import Band, Evaluation, Gap, rounding_of
from .summaries import LAST_PLACE, Summary, place_of_share, share_up_to, split
from .unit_rows import Residuals, UnitRows

# Numbers that are gathered of the rows of a sample, or of the near rows, at most; but so many rows for each unknown.
GATHERED_NUMBERS = 2**22
GATHERED_PER_UNKNOWN = 16

_MAX_ROUNDS = 60
_SAME_WIDTH = 2.0  # Factor by which the width may be off that the rounding of the residuals asks for.
_LATER_STANDARD_ERRORS = 2.5  # Within which rows are near after a step whose gradient was that of all rows.
_MAX_NEAR_SHARE = 0.5  # Of the near rows that are near at the next step, at most.
_FILLED_SHARE = 0.75  # Of the capacity that a sample is expected to fill.
_TRUST_GROWTH = 2.0  # Factor on the reach after a step that it cut short.
_LEAST_FILLED_SHARE = 0.5  # Of the capacity that near rows are to fill, if there are so many.
_SHORTER_STEP = 0.25  # A step that led up is tried again at this length.
_LOSS_ROUNDING = 1e-12  # Share of the loss by which rounding may raise it.
_MAX_PROOFS = 4  # Passes for a proof that the evaluation itself did not give.

Read = Callable[[Mapping[str, Summary]], dict[str, Arrays]]


def capacity_of(columns: int) -> int:
    """Return how many rows of so many columns are gathered, at most."""
    return max(GATHERED_NUMBERS // (columns + 1), GATHERED_PER_UNKNOWN * (columns + 1))


@dataclass(frozen=True, eq=False)
class Problem:
    """A regression of rows in parts: a design with a sample of its rows, their scaled scores, and how all are made."""

    design: Design
    target: Floats
    rows: UnitRows
    total: int
    penalty: float

    def residuals(self, theta: Floats) -> Residuals:
        """Return how residuals are made at `theta`, with the numbers that the caller is given."""
        units = self.design.units
        coef, shift = units.in_scaled_units(*self.design.in_callers_units(theta), self.design.mean)
        return Residuals(self.rows, self.design.mean, units.centre, units.score_exponent, coef, shift)

    def rounding_level(self, residuals: Residuals) -> float:
        """Return the size of what is added to every residual, as rounding has it."""
        about_mean = float(np.abs(self.design.mean) @ np.abs(residuals.coef))
        return 2 * abs(residuals.shift) + about_mean + self.design.units.scaled_centre

    def white(self, rows: Floats) -> Floats:
        """Return rows of W."""
        white: Floats = rows @ self.design.whitening[:-1] + self.design.whitening[-1]
        return white


@dataclass(frozen=True, eq=False)
class Evaluated:
    """A fit and what a pass found of it, gradient and Gram matrix in terms of W.

    `near` are the rows of W in the band, or a sample of this `share` of them; `near_rows` are these rows themselves.
    """

    theta: Floats
    band: Band
    loss: float
    terms: float
    norm: float
    inliers: int
    crossed: int
    gradient: Floats
    gram: Floats
    near: Floats
    near_rows: Floats
    near_target: Floats
    residual: Floats
    share: float

    @property
    def is_stationary(self) -> bool:
        """Whether the gradient is rounding."""
        return float(np.abs(self.gradient).sum()) <= GRADIENT_TOLERANCE * self.terms


@dataclass(frozen=True, eq=False)
class Proved:
    """A fit, the residuals that it has, and the share of its loss by which no other fit can be better."""

    theta: Floats
    residuals: Residuals
    gap: float


def solve_in_passes(problem: Problem, read: Read) -> Residuals:
    """Return how the residuals of the fit of least loss are made; ArithmeticError if it cannot be proved to be."""
    with one_thread(), np.errstate(over="ignore", invalid="ignore"):
        proved = _solved(problem, read)
        coef, constant = problem.design.in_callers_units(proved.theta)
    units = problem.design.units
    check_solved(proved.gap, coef, constant, float(np.ldexp(problem.penalty, units.score_exponent)))
    return proved.residuals


def _solved(problem: Problem, read: Read) -> Proved:
    """Return the fit of least loss, or the best found.

    Since WᵀW = n·I, a step moves residuals by its own length on the average. The reach is a trust region: no step is
    longer, and the next may be twice as long as one that had to be cut. A step that led up is tried again at a quarter
    of its length.
    """
    if problem.design.unknowns == 0:
        none = np.zeros(0)
        return Proved(none, problem.residuals(none), 0.0)
    theta, reach, expected = _start(problem)
    best: Evaluated | None = None
    is_exact = False
    proofs = 0
    proved: Proved | None = None
    for number in range(_MAX_ROUNDS):
        width = solvable_width(problem.design, problem.target, theta, problem.penalty)
        if best is not None and best.band.width / _SAME_WIDTH <= width <= _SAME_WIDTH * best.band.width:
            width = best.band.width
        elif best is not None:  # Losses of different widths are not compared.
            best = None
        found = _evaluated(problem, read, theta, Band(problem.residuals(theta), width, reach), expected, best)
        if best is not None and found.loss > (1 + _LOSS_ROUNDING) * best.loss:
            theta = best.theta + _SHORTER_STEP * (theta - best.theta)
            reach, expected = _band_after_step_up(best)
            is_exact = False
            continue
        if found.is_stationary or (is_exact and not found.crossed):
            proved = _proved(problem, read, found)
            proofs += 1
            if proved.gap <= TOLERANCE or proofs == _MAX_PROOFS:
                return proved
        best = found
        step = _step(found, first=len(found.near) // 4 if number == 0 else 0)
        length = min(1.0, reach / float(np.linalg.norm(step))) if step.any() else 0.0
        is_exact = found.share == length == 1.0
        theta = found.theta + length * step
        reach, expected = _next_band(problem, found, step, length)
    return proved or _proved(problem, read, found)


def _start(problem: Problem) -> tuple[Floats, float, float]:
    """Return the fit of the sample, the reach of the near rows, and how many there are of all rows."""
    design, target = problem.design, problem.target
    theta = initial_fit(design, target)
    rows = problem.white(design.rows.take(np.arange(len(target))))
    none = np.zeros((design.unknowns, design.unknowns))
    sample = Subproblem(rows, target - rows @ theta, none, none[0])
    few = INLIERS_PER_UNKNOWN * design.unknowns
    step = minimise_by_continuation(sample, problem.penalty, first=len(target) // 2, last=few)
    share = _near_share(design.unknowns, len(target), NEAR_STANDARD_ERRORS)
    distance = np.abs(np.abs(sample.residual - rows @ step) - problem.penalty)
    return theta + step, max(float(np.quantile(distance, share)), problem.penalty), share * problem.total


def _near_share(unknowns: int, sampled: int, standard_errors: float) -> float:
    """Return the share of rows near enough to cross ±penalty when the fit is off by a sample's standard errors."""
    return min(standard_errors * sqrt(unknowns / max(sampled, 1)), _MAX_NEAR_SHARE)


def _evaluated(
    problem: Problem, read: Read, theta: Floats, band: Band, expected: float, before: Evaluated | None
) -> Evaluated:
    """Return what a pass finds of a fit, in whose band so many rows are expected."""
    capacity = capacity_of(len(problem.design.mean))
    last = (
        place_of_share(_FILLED_SHARE * capacity / max(expected, 1))
        if expected > _FILLED_SHARE * capacity
        else LAST_PLACE
    )
    found = read({"evaluation": Evaluation(band, last, capacity, None if before is None else before.band)})[
        "evaluation"
    ]
    near = split(found, "near.")
    whitening = problem.design.whitening
    return Evaluated(
        theta=theta,
        band=band,
        loss=float(found["loss"]),
        terms=float(found["terms"]),
        norm=float(found["norm"]),
        inliers=int(found["inliers"]),
        crossed=int(found["crossed"]),
        gradient=found["gradient"] @ whitening,
        gram=whitening.T @ found["gram"] @ whitening,
        near=problem.white(near["rows"]),
        near_rows=near["rows"],
        near_target=near["target"],
        residual=near["residual"],
        share=share_up_to(int(near["last"])),
    )


def _step(found: Evaluated, first: int) -> Floats:
    """Return the step to the minimum if no row but the near ones crosses ±width, all times the sample's share."""
    width = found.band.width
    linear = found.share * found.gradient - np.clip(found.residual, -width, width) @ found.near
    near = Subproblem(found.near, found.residual, found.share * found.gram, linear)
    return minimise_by_continuation(near, width, first=first, last=0)


def _next_band(problem: Problem, found: Evaluated, step: Floats, length: float) -> tuple[float, float]:
    """Return the reach of the rows that are near after a step of some length, and how many there are.

    After a whole step from a sample they are fewer, if that is more than can be gathered. After one that was cut they
    are more, and so they are when near rows bound no step. All inliers are among them unless these are many.
    """
    width, unknowns = found.band.width, problem.design.unknowns
    capacity = capacity_of(len(problem.design.mean))
    rows = len(found.residual) / found.share
    reach = found.band.reach
    if length < 1:
        reach, rows = _TRUST_GROWTH * reach, _TRUST_GROWTH * rows
    elif found.share < 1:
        share = _near_share(unknowns, len(found.residual), _LATER_STANDARD_ERRORS)
        share = min(1.0, max(share, _LEAST_FILLED_SHARE * capacity / max(rows, 1)))
        distance = np.abs(np.abs(found.residual - found.near @ step) - width)
        reach, rows = float(np.quantile(distance, share)) if len(distance) else reach, share * rows
    if found.inliers <= capacity / 4:
        reach = max(reach, width)
    return reach, rows


def _band_after_step_up(best: Evaluated) -> tuple[float, float]:
    """Return the reach of the rows that are near, and how many there are, after a step from `best` that led up.

    Of fewer rows a sample has more; if it had all of them, others have crossed.
    """
    factor = 1.0 if best.share == 1.0 else _SHORTER_STEP
    return factor * best.band.reach, factor * len(best.residual) / best.share


def _proved(problem: Problem, read: Read, found: Evaluated) -> Proved:
    """Return the fit with the gap of a dual point; a pass more where that of the near rows alone does not do."""
    proved = Proved(found.theta, found.band.residuals, np.inf)
    if problem.penalty == found.band.width:
        proved = _proved_by_near_rows(problem, found)
    return proved if proved.gap <= TOLERANCE else _proved_by_all_rows(problem, read, found)


def _proved_by_near_rows(problem: Problem, found: Evaluated) -> Proved:
    """Return the fit with the gap of the dual clip(r / λ, ±1), changed on inliers alone until it is feasible."""
    near, dual, infeasibility = _dual_of_near_rows(problem, found, np.zeros(1))
    gap = duality_gap(found.residual[near], dual[near], problem.penalty)
    gap += cost_of_infeasibility(infeasibility, found.norm, problem.total, found.loss, problem.penalty)
    gap = min(gap, found.loss)  # The gap of u = 0.
    return Proved(found.theta, found.band.residuals, gap / found.loss if gap > 0 else 0.0)


def _dual_of_near_rows(problem: Problem, found: Evaluated, rounding: Floats) -> tuple[np.ndarray, Floats, Floats]:
    """Return which near rows' dual was changed, the dual of all near rows, and what is left of Wᵀu.

    Rows within `rounding` of the width are inliers. Of a sample none is changed.
    """
    width = found.band.width
    dual = np.clip(found.residual / width, -1.0, 1.0)
    infeasibility = found.gradient / width
    beyond = np.abs(found.residual) - width
    inliers = np.flatnonzero(beyond <= rounding)
    if found.share < 1:
        return inliers[:0], dual, infeasibility
    near = adjustable_rows(beyond, inliers, found.loss, problem.design.unknowns, problem.total)
    few = len(near) <= MAX_INLIERS_PER_UNKNOWN * problem.design.unknowns
    if few or np.abs(infeasibility).sum() > SMALL_GRADIENT * problem.total:
        enough = EPS * found.terms / width
        dual[near], infeasibility = corrected_dual(found.near[near], dual[near], infeasibility, enough)
    return near, dual, infeasibility


def _proved_by_all_rows(problem: Problem, read: Read, found: Evaluated) -> Proved:
    """Return the fit with the gap of a dual point that all rows have a part in, from a pass over them.

    Inliers are told with what rounding may have added to their residuals. Where the penalty is below the width solved,
    the fit is moved to where the inliers have a residual of the penalty times their dual.
    """
    residuals, penalty = found.band.residuals, problem.penalty
    rounding = rounding_of(found.near_rows, found.near_target, residuals.coef, problem.rounding_level(residuals))
    _, dual, infeasibility = _dual_of_near_rows(problem, found, rounding)
    theta = found.theta
    if penalty < found.band.width:
        inliers = np.flatnonzero(np.abs(found.residual) - found.band.width <= rounding)
        excess = found.residual[inliers] - penalty * dual[inliers]
        theta = theta + np.linalg.lstsq(found.near[inliers], excess, rcond=None)[0]
    gap = _gap_of(problem, found, theta, infeasibility)
    sums = read({"gap": gap})["gap"]
    own = gap.spread_dual(found.near_rows, dual) if gap.skips_band else dual[:0]
    rows = found.near if gap.skips_band else found.near[:0]
    residual = gap.residuals.of_rows(found.near_rows, found.near_target) if gap.skips_band else dual[:0]
    left = sums["infeasibility"] @ problem.design.whitening + own @ rows
    loss = float(sums["loss"])
    total = float(sums["gap"]) + duality_gap(residual, own, penalty)
    total += cost_of_infeasibility(left, float(sums["norm"]), problem.total, loss, penalty)
    total = min(total, loss)
    if total > TOLERANCE * loss:
        loss = max(loss, ROUNDING_UNITS / TOLERANCE * float(sums["rounding"]))
    return Proved(theta, gap.residuals, total / loss if total > 0 else 0.0)


def _gap_of(problem: Problem, found: Evaluated, theta: Floats, infeasibility: Floats) -> Gap:
    """Return the pass that spreads what a dual lacks of feasibility over all rows, and sums up the gap."""
    residuals = problem.residuals(theta)
    spread = problem.design.whitening @ (infeasibility / problem.total)
    # No column of the rows has numbers above 2, so no dual is above this.
    shrink = 1.0 + float((2 + np.abs(problem.design.mean)) @ np.abs(spread[:-1])) + abs(float(spread[-1]))
    return Gap(
        solved=found.band,
        residuals=residuals,
        penalty=problem.penalty,
        spread=spread[:-1],
        spread_level=float(spread[-1]),
        shrink=shrink,
        rounding_level=problem.rounding_level(residuals),
        skips_band=found.share == 1.0,
    )
