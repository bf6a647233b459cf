"""Robust linear regression: the exact minimiser of the Huber loss, with a certificate.

Minimising the lasso of RLR (Eq. 14) over γ leaves Σᵢ huber_λ(rᵢ), r the residual and γᵢ = soft(rᵢ, λ): d unknowns
in place of n, and no n×n matrix. Rows whose |rᵢ| stays clear of λ enter only through sums. So:

1. start from the fit of a sample of rows,
2. solve for the rows near ±λ, the others taken to stay where they are,
3. check on all rows that the others stayed, and if not solve for more,
4. certify the fit by a dual point.

`docs/huber.md` has the mathematics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .._blas import one_thread
from .._check import Floats, as_matrix, as_number, as_truth, as_vector, check_same_rows
from .._threads import kept_helpers
from ..rows import Rows
from .certificate import TOLERANCE
from .design import Design
from .solver import solve

__all__ = ["TOLERANCE", "HuberFit", "huber", "huber_rows"]

_MIN_PENALTY = 2.0**-960  # Of the largest score: the least absolute deviations, and still a normal number.
_MAX_PENALTY = 2.0**100  # Of the largest score: for far less already, the fit is that of least squares.


@dataclass(frozen=True, eq=False)
class HuberFit:
    """A robust fit and its certificate: no fit has an objective lower by more than the share `gap`.

    The share is of the objective or, where that is more, of 1e9 times what rounding may have added to it, scores and
    coefficients being known to about 1e-15 of the largest of them. The fits are those without a part in directions
    that the rows vary in no more than rounding them does. `residual` is scores − features @ coef − intercept, `gamma`
    its excess over the penalty, and `passes` counts the times that all rows were read.
    """

    coef: Floats
    intercept: float
    gamma: Floats
    residual: Floats
    gap: float
    passes: int


def huber(features: ArrayLike, scores: ArrayLike, penalty: float, *, intercept: bool = True) -> HuberFit:
    r"""Return the minimiser of $\sum_i h_\lambda(s_i - z_i^\top \beta - a)$, λ being the penalty.

    That is RLR's regression (Eq. 13, 14) with its γ minimised out. $h_\lambda(r)$ is $r^2/2$ up to λ and
    $\lambda|r| - \lambda^2/2$ beyond it. Directions in which the rows vary no more than rounding does get no
    coefficient. Where more than one fit is least, as for centred features without an intercept when all scores have
    one sign, it is any of them. A gap that stays above `TOLERANCE` is an ArithmeticError, and so are coefficients that
    no double can hold.

    >>> huber([[0.0], [1.0], [2.0], [3.0], [4.0]], [1.0, 3.0, 5.0, 7.0, -9.0], 1e-3).coef.round(2)
    array([2.])
    """
    matrix = as_matrix(features, "features")
    vector = as_vector(scores, "scores")
    check_same_rows(features=matrix, scores=vector)
    return huber_rows(Rows(matrix), vector, penalty, intercept=intercept)


def huber_rows(rows: Rows, scores: Floats, penalty: float, *, intercept: bool = True) -> HuberFit:
    """Return `huber` of rows that are made as they are read."""
    penalty = as_number(penalty, "penalty", above=0.0)
    intercept = as_truth(intercept, "intercept")
    centre = middle(scores) if intercept else 0.0
    target = scores - centre
    exponent = int(np.frexp(np.abs(target).max())[1])
    target = np.ldexp(target, -exponent)
    scaled = scaled_penalty(penalty, exponent)
    # What is not finite is refused below.
    with one_thread(), kept_helpers(), np.errstate(over="ignore", invalid="ignore"):
        design = Design.of(rows, target, centre, exponent, intercept)
        certificate, passes = solve(design, target, scaled)
        coef, constant = design.in_callers_units(certificate.point.theta)
    check_solved(certificate.gap, coef, constant, penalty)
    residual = np.ldexp(certificate.point.residual, exponent)
    gamma = residual - np.clip(residual, -penalty, penalty)
    return HuberFit(coef, constant, gamma, residual, certificate.gap, passes)


def middle(scores: Floats) -> float:
    """Return a median: of the two middle scores the smaller in size, since one may be absurd."""
    half = len(scores) // 2
    middles = np.partition(scores, [half, len(scores) - 1 - half])[[half, len(scores) - 1 - half]]
    return float(middles[np.argmin(np.abs(middles))])


def scaled_penalty(penalty: float, exponent: int) -> float:
    """Return the penalty in units of the scores' size, between bounds beyond which it makes no difference."""
    with np.errstate(over="ignore", under="ignore"):
        return min(max(float(np.ldexp(penalty, -exponent)), _MIN_PENALTY), _MAX_PENALTY)


def check_solved(gap: float, coef: Floats, constant: float, penalty: float) -> None:
    """Refuse coefficients that no double holds, and a duality gap above the tolerance."""
    if not (np.isfinite(coef).all() and np.isfinite(constant)):
        raise ArithmeticError("huber needs coefficients beyond the largest double: scale the features up")
    if gap <= TOLERANCE:  # NaN fails this comparison too.
        return
    subnormal = (coef != 0) & (np.abs(coef) < np.finfo(np.float64).tiny)
    if subnormal.any() or not coef.any():
        raise ArithmeticError("huber needs coefficients below the smallest double: scale the features down")
    reached = f"huber reached a relative duality gap of {gap:.1e}, wanted {TOLERANCE:g}"
    raise ArithmeticError(f"{reached}: the penalty {penalty:g} may be too small for scores of this size")
