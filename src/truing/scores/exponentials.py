r"""Sums of exponentials of logits, $\sum_j e^{f_j / T}$, from which softmax and free energy are computed in float64.

The largest logit of a row is subtracted first, so its exponential is 1. The exponentials of the other logits are summed
separately, so that no digits are lost if the largest logit dominates:
$\log \sum_j e^{f_j / T} = \max_j f_j / T + \log(1 + \mathrm{others})$.
These functions reject logits that are not finite, so callers need not check the logits first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._check import LARGEST, Floats, Matrix, reject, row_blocks
from .._kernels import KERNEL_NUMBERS, kernels, readable
from .._threads import map_blocks

# Degree of the polynomial for (1 - p)^gamma, as in compiled.c.
_DEGREE = 18

# Smaller sums of exponentials have lost digits to underflow.
_UNDERFLOWING = 1e-290


class SoftmaxSums(NamedTuple):
    """The largest logit (n,) of every row, and `others` (n,), the sum over the other classes.

    With $x_j = (f_j - max f) / T$, `others` is the sum of $e^{x_j}$ over all classes but one with the largest logit.
    `mean` (n,) is the mean of $x_j$, and `distance` (n,) the L1 distance of the softmax from uniform; they are empty
    unless requested.
    """

    largest: Floats
    others: Floats
    mean: Floats
    distance: Floats


def softmax_scores(
    formula: Callable[[SoftmaxSums], Floats],
    logits: Matrix,
    temperature: float,
    *,
    with_mean: bool = False,
    with_distance: bool = False,
) -> Floats:
    """Return `formula` of the sums of exponentials of every row of logits (n, c), one block of rows at a time."""
    scores = np.empty(len(logits))

    def fill(block: Matrix, rows: slice) -> bool:
        largest, others = np.empty((2, len(block)))
        mean, distance = np.empty(len(block) * with_mean), np.empty(len(block) * with_distance)
        optional = (values if len(values) else None for values in (mean, distance))
        valid: bool = kernels.softmax_sums(block, temperature, LARGEST, largest, others, *optional)
        if valid:
            scores[rows] = formula(SoftmaxSums(largest, others, mean, distance))
        return valid

    _by_blocks(fill, logits)
    return scores


def generalised_entropies(logits: Matrix, temperature: float, gamma: float, top: int) -> Floats:
    r"""Return $\sum_j p_j^\gamma (1 - p_j)^\gamma$ over the `top` largest probabilities of every row, negated (n,)."""
    scores = np.empty(len(logits))
    power = power_of_rest(gamma)
    has_more = top < logits.shape[1]

    def fill(block: Matrix, rows: slice) -> bool:
        largest, others, equal, powers = np.empty((4, len(block)))
        valid: bool = True
        selected = block
        if has_more:
            valid = kernels.softmax_sums(block, temperature, LARGEST, largest, others, None, None)
            selected = readable(np.partition(block, -top, axis=1)[:, -top:])
        valid &= kernels.entropy_sums(selected, temperature, LARGEST, gamma, *power, has_more, others, equal, powers)
        if valid:
            log_sum = np.log1p(others)
            # For the largest logit, p = 1 / (1 + others) and 1 - p = others / (1 + others).
            of_largest = np.exp(gamma * (_log_of_others(block, temperature, others) - 2 * log_sum))
            scores[rows] = -(equal * of_largest + np.exp(-gamma * log_sum) * powers)
        return valid

    _by_blocks(fill, logits)
    return scores


def log_sum_exp(rows: ArrayLike) -> Floats:
    """Return the logarithm of the sum of exponentials of every row (n,), accurate also near 0."""
    f = np.ascontiguousarray(rows, dtype=np.float64)
    place = np.arange(len(f)), f.argmax(axis=1)
    largest = f[place]
    others = np.exp(f - largest[:, None])
    others[place] = 0.0
    return np.asarray(largest + np.log1p(others.sum(axis=1)))


def _by_blocks(fill: Callable[[Matrix, slice], bool], logits: Matrix) -> None:
    """Call `fill` for every block of rows on all cores. Reject logits that are not finite."""

    def checked(rows: slice) -> None:
        if not fill(readable(logits[rows]), rows):
            reject(logits, "logits")

    map_blocks(checked, row_blocks(logits, most=KERNEL_NUMBERS), uses_blas=False)


def _log_of_others(logits: Matrix, temperature: float, others: Floats) -> Floats:
    """Return the logarithm of `others` (n,), computed from the logits where `others` underflows."""
    tiny = np.flatnonzero(others < _UNDERFLOWING)
    if not len(tiny):
        return np.log(others)
    f = logits[tiny].astype(np.float64)
    place = np.arange(len(f)), f.argmax(axis=1)
    x = (f - f[place][:, None]) / temperature
    x[place] = -np.inf
    log_others = np.log(np.maximum(others, _UNDERFLOWING))
    log_others[tiny] = log_sum_exp(x)
    return log_others


@lru_cache(maxsize=16)
def power_of_rest(gamma: float) -> tuple[Floats, int]:
    r"""Return a polynomial for $(1 - p)^{\gamma / 2^k}$ and k, the smallest k >= 0 for which the exponent is at most 1.

    The polynomial is in $t = 4 p - 1$, for p from 0 to 1/2, the range of all probabilities but the largest. It is
    interpolated at Chebyshev points, to rounding error. The coefficient of the highest power comes first.
    """
    squarings = max(0, ceil(log2(gamma)))
    exponent = gamma / 2.0**squarings
    series: Any = np.polynomial.chebyshev.chebinterpolate(lambda t: (0.75 - t / 4) ** exponent, _DEGREE)
    coefficients = np.zeros(_DEGREE + 1)
    polynomial = np.polynomial.chebyshev.cheb2poly(series)[::-1]
    coefficients[_DEGREE + 1 - len(polynomial) :] = polynomial
    coefficients.flags.writeable = False
    return coefficients, squarings
