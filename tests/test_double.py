from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truing import Moments
from truing._double import two_product, two_product_outer, two_ratio, two_sum

numbers = st.floats(-1e60, 1e60).filter(lambda x: x == 0 or abs(x) > 1e-60)
vectors = arrays(np.float64, 4, elements=numbers)


@given(a=vectors, b=vectors)
def test_a_sum_and_its_error_are_exact(a, b):
    total, error = two_sum(a, b)
    for parts in zip(a, b, total, error, strict=True):
        x, y, high, low = map(Fraction, parts)
        assert x + y == high + low


@given(a=vectors, b=vectors, number=numbers)
def test_a_product_and_its_error_are_exact(a, b, number):
    product, error = two_product_outer(a, b)
    for i in range(4):
        for j in range(4):
            assert Fraction(a[i]) * Fraction(b[j]) == Fraction(product[i, j]) + Fraction(error[i, j])
    product, error = two_product(number, b)
    for j in range(4):
        assert Fraction(number) * Fraction(b[j]) == Fraction(product[j]) + Fraction(error[j])


@given(a=st.integers(1, 10**15), b=st.integers(1, 10**15))
def test_a_ratio_has_about_32_digits(a, b):
    high, low = map(Fraction, two_ratio(Fraction(a, b)))
    assert abs(high + low - Fraction(a, b)) <= Fraction(a, b) / 2**104


@pytest.mark.parametrize("mean", [0.0, 1e6])
@given(seed=st.integers(0, 10**6), cut=st.integers(1, 39))
def test_sums_and_differences_of_moments_are_those_of_fractions(mean, seed, cut):
    """From the moments of two parts, as they are, to those of both, in exact arithmetic."""
    rng = np.random.default_rng(seed)
    table = rng.normal(mean, 1, size=(40, 3)) * [1, 1e9, 1e-9]
    one, other = (Moments.of(part[:, :2], part[:, 2]) for part in (table[:cut], table[cut:]))
    both = one + other
    assert_exact(both, one, other, sign=1)
    assert_exact(both - other, both, other, sign=-1)


def assert_exact(found: Moments, one: Moments, other: Moments, sign: int) -> None:
    n1, n2 = Fraction(one.rows), Fraction(other.rows)
    n = n1 + sign * n2
    mean1, mean2, mean = (
        [Fraction(a) + Fraction(b) for a, b in zip(m.mean, m.mean_low, strict=True)] for m in (one, other, found)
    )
    step = [b - a for a, b in zip(mean1, mean2, strict=True)]
    size = [abs(a) + abs(b) for a, b in zip(mean1, mean2, strict=True)]
    for i in range(3):
        assert abs(mean[i] - (mean1[i] + sign * n2 / n * step[i])) <= size[i] * (1 + n2 / n) / 2**95
        for j in range(3):
            c1, c2, c = (Fraction(m.comoment[i, j]) + Fraction(m.comoment_low[i, j]) for m in (one, other, found))
            square = n1 * n2 / n * step[i] * step[j]
            from_means = n1 * n2 / n * (abs(step[i]) * size[j] + abs(step[j]) * size[i])
            assert abs(c - (c1 + sign * (c2 + square))) <= (abs(c1) + abs(c2) + abs(square) + from_means) / 2**95
