"""Double-double arithmetic: numbers as unevaluated sums high + low, of about 32 digits.

The error of a floating-point sum or product is itself a floating-point number, and a few operations give it (Dekker
1971; Knuth 1969).
"""

from fractions import Fraction

import numpy as np

from ._check import Floats

EPS = float(np.finfo(np.float64).eps)
"""The distance from 1 to the next double: twice what rounding may change in a number, as a share of it."""

_SPLITTER = 2.0**27 + 1


def two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return a + b and its rounding error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def two_product_outer(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return the outer product of two vectors and its rounding errors."""
    product = np.outer(a, b)
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = np.outer(a_high, b_high)
    error -= product
    error += np.outer(a_high, b_low)
    error += np.outer(a_low, b_high)
    error += np.outer(a_low, b_low)
    return product, error


def two_product(a: float, b: Floats) -> tuple[Floats, Floats]:
    """Return a number times a vector and its rounding errors."""
    product, error = two_product_outer(np.array([a]), b)
    return product[0], error[0]


def two_ratio(ratio: Fraction) -> tuple[float, float]:
    """Return an exact number as high + low."""
    high = float(ratio)
    return high, float(ratio - Fraction(high))


def _halves(a: Floats) -> tuple[Floats, Floats]:
    """Return numbers of 26 digits each, so that their products are exact."""
    large = _SPLITTER * a
    high = large - (large - a)
    return high, a - high
