"""The Huber regression against other solvers, its duality gap, and inputs without a unique or exact solution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from truing.regression.huber import TOLERANCE, check_solved, huber


def objective(features, scores, penalty, coef, intercept):
    size = np.abs(scores - features @ coef - intercept)
    within = np.minimum(size, penalty)
    return float((within * (size - within / 2)).sum())


def made_rows(seed, rows, columns, *, rounded, repeated, outliers):
    """Return features and scores of a linear model with noise. Rounding to integers creates many ties."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, columns))
    features = features[rng.integers(0, rows, rows)] if repeated else features
    scores = features @ rng.normal(size=columns) + rng.normal(size=rows)
    scores[: rows // 5] += outliers
    return (np.round(features), np.round(scores)) if rounded else (features, scores)


ROWS = {
    "seed": st.integers(0, 10**6),
    "rows": st.integers(1, 60),
    "columns": st.integers(1, 30),
    "rounded": st.booleans(),
    "repeated": st.booleans(),
    "outliers": st.sampled_from([0.0, 50.0, 1e8]),
}


@settings(max_examples=200)
@given(**ROWS, penalty=st.sampled_from([1e-5, 1e-2, 1.0, 1e3]), intercept=st.booleans())
def test_no_other_solver_finds_a_lower_objective(penalty, intercept, **made):
    features, scores = made_rows(**made)
    fit = huber(features, scores, penalty, intercept=intercept)
    design = np.column_stack((features, np.full(len(scores), float(intercept))))

    def loss(theta):
        residual = scores - design @ theta
        gradient = -np.clip(residual, -penalty, penalty) @ design
        return objective(design, scores, penalty, theta, 0.0) / penalty, gradient / penalty

    other = minimize(loss, np.zeros(design.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 2000})
    ours = objective(features, scores, penalty, fit.coef, fit.intercept)
    rounding = 1e-14 * penalty * len(scores) * np.abs(scores).max()
    assert ours <= penalty * other.fun * (1 + 2 * TOLERANCE) + rounding
    assert 0 <= fit.gap <= TOLERANCE
    residual = scores - features @ fit.coef - fit.intercept
    tolerance = 1e-12 * max(1.0, np.abs(scores).max(), (np.abs(features) @ np.abs(fit.coef)).max())
    np.testing.assert_allclose(fit.residual, residual, atol=tolerance)
    np.testing.assert_allclose(fit.gamma, residual - np.clip(residual, -penalty, penalty), atol=tolerance)


@settings(max_examples=100)
@given(**ROWS, intercept=st.booleans())
def test_a_small_penalty_reaches_the_least_sum_of_absolute_deviations(intercept, **made):
    """A linear program has the least sum. Huber's loss over the penalty is lower by at most half a penalty a row."""
    features, scores = made_rows(**made)
    penalty = 1e-9
    fit = huber(features, scores, penalty, intercept=intercept)
    n, one = len(scores), np.eye(len(scores))
    design = np.column_stack((features, np.full(n, float(intercept))))
    cost = np.concatenate((np.zeros(design.shape[1]), np.ones(2 * n)))
    bounds = [(None, None)] * design.shape[1] + [(0, None)] * (2 * n)
    program = linprog(cost, A_eq=np.hstack((design, one, -one)), b_eq=scores, bounds=bounds)
    least = np.abs(scores - design @ program.x[: design.shape[1]]).sum()
    ours = np.abs(scores - features @ fit.coef - fit.intercept).sum()
    assert ours <= least * (1 + 1e-8) + n * penalty + 1e-13 * n * np.abs(scores).max()


@pytest.mark.parametrize("penalty", [1e-12, 1e-8, 1e-5])
@pytest.mark.parametrize("columns", [1, 5, 20])
@pytest.mark.parametrize("size", [1e3, 1e12])
def test_outliers_beside_an_exact_fit_leave_the_fit_exact(rng, penalty, columns, size):
    """Inlier residuals are at rounding level, but must still balance the gradient of the outliers."""
    features, coef = rng.normal(size=(600, columns)), rng.normal(size=columns)
    scores = features @ coef
    scores[rng.choice(600, 120, replace=False)] += size
    fit = huber(features, scores, penalty)
    np.testing.assert_allclose(fit.coef, coef, atol=max(1e-15 * size, penalty))
    assert fit.gap <= TOLERANCE


@pytest.mark.parametrize("rows", [50, 2000])
@pytest.mark.parametrize("intercept", [True, False])
def test_columns_of_zeros_get_zero_coefficients(rows, intercept):
    scores = np.arange(rows, dtype=np.float64)
    fit = huber(np.zeros((rows, 2)), scores, 1e-3, intercept=intercept)
    np.testing.assert_array_equal(fit.coef, 0.0)
    assert fit.intercept == pytest.approx((rows - 1) / 2 if intercept else 0.0, abs=0.5)


@pytest.mark.parametrize("penalty", [1e-5, 0.1])
def test_many_rows_are_read_at_most_25_times(rng, penalty):
    features = rng.normal(size=(100_000, 32)).astype(np.float32)
    scores = features @ rng.normal(size=32) + rng.standard_cauchy(100_000)
    assert huber(features, scores, penalty).passes <= 25


def test_a_gap_above_the_tolerance_is_an_error():
    with pytest.raises(ArithmeticError, match=r"a relative duality gap of 1\.0e-06, expected at most 1e-09"):
        check_solved(1e-6, np.ones(2), 0.0)
    with pytest.raises(ArithmeticError, match="a relative duality gap of nan"):
        check_solved(np.nan, np.ones(2), 0.0)


def test_coefficients_beyond_the_largest_float64_number_are_an_error():
    with pytest.raises(ArithmeticError, match="coefficients beyond the largest float64 number"):
        huber([[0.0], [1e-300], [2e-300]], [0.0, 1e90, 2e90], 1e-3)
