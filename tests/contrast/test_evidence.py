"""The regression problem of a contrast, made of sums, against the same made of rows."""

import numpy as np
import pytest

from truing.contrast.evidence import _problem
from truing.contrast.sums import PlainSums

CLASSES, COLUMNS = 4, 7


def sums_of(X, members):
    centred = X - X.mean(axis=0)
    return PlainSums(float(len(X)), X.mean(axis=0), centred.T @ centred, members.sum(axis=0), members.T @ X)


@pytest.fixture
def rows(rng):
    """Return columns (n, p) of unlike sizes, the last of them constant, and class memberships (n, c)."""
    X = rng.normal(size=(120, COLUMNS)) * 10.0 ** rng.integers(-3, 4, COLUMNS) + rng.normal(size=COLUMNS)
    X[:, -1] = 5.0
    return X, np.eye(CLASSES)[rng.integers(CLASSES, size=120)]


@pytest.mark.parametrize("shifted", [False, True])
def test_the_products_are_those_of_rows_less_their_classes_shift_and_of_unit_variance(rows, rng, shifted):
    X, members = rows
    is_known = np.arange(len(X)) < 50
    shift = shifted * X.std(axis=0) * rng.normal(size=(CLASSES, COLUMNS))
    shift[:, -1] = 0.0
    known, others = (sums_of(X[some], members[some]) for some in (is_known, ~is_known))
    problem, scale = _problem(known, others, shift, rounding=np.full(COLUMNS, 1e-10))

    moved = X - X.mean(axis=0) - members @ shift
    deviation = moved.std(axis=0)
    np.testing.assert_allclose(scale[:-1], 1 / deviation[:-1])
    assert scale[-1] == 0
    E = np.column_stack((np.ones(len(X)), moved * scale, is_known))
    np.testing.assert_allclose(problem.products, E.T @ E, atol=1e-8)
    np.testing.assert_allclose(problem.class_sums, members.T @ E, atol=1e-8)
    np.testing.assert_array_equal(problem.counts, members.sum(axis=0))


def test_the_products_are_symmetric_to_the_bit(rows, rng):
    X, members = rows
    shift = rng.normal(size=(CLASSES, COLUMNS))
    problem, _ = _problem(sums_of(X[:50], members[:50]), sums_of(X[50:], members[50:]), shift, np.zeros(COLUMNS))
    np.testing.assert_array_equal(problem.products, problem.products.T)
