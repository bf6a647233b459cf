"""The least Huber loss of rows that are few for their many unknowns, by the method of multipliers.

At a width of the penalty and σ more, x minimises Σ huber(rᵢ + σuᵢ − wᵢᵀx), and then u becomes the slope of each term
there, between −1 and 1 (Rockafellar 1976). It converges at any σ, the faster the smaller σ is. So:

1. start from a few hundred steps of the alternating direction method at a σ of the residuals' size: each is but two
   products with the rows,
2. take Newton steps to the minimum at a small σ, then at a fourth of it, down to none.

Since u tells the inliers of one width from those of the last, few rows change sides, where continuation would begin
with fewer inliers than unknowns at each width.
"""

import numpy as np

from .._check import Floats
from .continuation import GRADIENT_TOLERANCE, line_search
from .hessian import InlierHessian
from .products import fitted_values, weighted_sum

# With fewer unknowns a factor costs so little that continuation is faster.
MANY_UNKNOWNS = 256

_SPLITTING_STEPS = 200
_RELAXATION = 1.7  # Of the alternating direction method: between 1.5 and 1.8 (Boyd et al. 2011, 3.4.3).
_SIGMA_OVER_RESIDUAL = 1.5  # Times the median |residual| that σ is for that method,
_SIGMA_OVER_NEXT = 16.0  # times what it is at the first of Newton's widths,
_SIGMA_RATIO = 4.0  # and times the next from there on.
_MAX_STEPS = 200  # Of Newton at one width.


def minimise_by_multipliers(rows: Floats, residual: Floats, penalty: float) -> Floats:
    """Return the minimiser x of Σ huber(rᵢ − wᵢᵀx) for `rows` (n, k) whose Gram matrix is n times the identity."""
    sigma = _SIGMA_OVER_RESIDUAL * float(np.median(np.abs(residual)))
    x = np.zeros(rows.shape[1])
    slope = np.zeros(len(residual))
    if sigma > penalty:
        x, slope = _split(rows, residual, penalty, sigma)
    sigma /= _SIGMA_OVER_NEXT
    hessian = InlierHessian(rows)
    while True:
        sigma = sigma if sigma > penalty else 0.0
        width = penalty + sigma
        step, shifted = _newton(rows, residual - fitted_values(rows, x) + sigma * slope, width, hessian)
        x = x + step
        if sigma == 0:
            return x
        slope = np.clip(shifted / width, -1.0, 1.0)
        sigma /= _SIGMA_RATIO


def _split(rows: Floats, residual: Floats, penalty: float, sigma: float) -> tuple[Floats, Floats]:
    """Return x and the slopes u after some steps of the alternating direction method, in single precision.

    It splits the residual of x from a vector whose loss is taken: least absolute deviations in Boyd et al. 2011, 6.1.
    """
    narrow = rows.astype(np.float32)
    split = residual
    slope = np.clip(residual / (penalty + sigma), -1.0, 1.0)
    for _ in range(_SPLITTING_STEPS):
        x = weighted_sum((residual - split + sigma * slope).astype(np.float32), narrow) / np.float32(len(rows))
        own = residual - fitted_values(narrow, x)
        mixed = _RELAXATION * own + (1 - _RELAXATION) * split + sigma * slope
        slope = np.clip(mixed / (penalty + sigma), -1.0, 1.0)
        split = mixed - sigma * slope
    return x.astype(np.float64), slope


def _newton(rows: Floats, residual: Floats, width: float, hessian: InlierHessian) -> tuple[Floats, Floats]:
    """Return the minimiser x of the loss at one width, and its residual."""
    x = np.zeros(rows.shape[1])
    for _ in range(_MAX_STEPS):
        clipped = np.clip(residual, -width, width)
        gradient = weighted_sum(clipped, rows)
        if np.abs(gradient).sum() <= GRADIENT_TOLERANCE * np.abs(clipped).sum():
            break
        step = hessian.newton_step(np.abs(residual) < width, gradient)
        fitted = fitted_values(rows, step)
        length = line_search(residual, fitted, width)
        if length in (0.0, np.inf):
            break
        x = x + length * step
        residual = residual - length * fitted
    return x, residual
