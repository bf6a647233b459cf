"""The method of multipliers, for many unknowns, finds what continuation finds, and its Hessian is the Hessian."""

import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing.huber_regression import TOLERANCE, hessian, huber, solver
from truing.huber_regression.continuation import Subproblem, huber_loss, minimise_by_continuation
from truing.huber_regression.hessian import InlierHessian
from truing.huber_regression.multipliers import MANY_UNKNOWNS, minimise_by_multipliers
from truing.huber_regression.products import fitted_values, gram_of_chosen, weighted_sum

from .test_huber_regression import PENALTIES, either_intercept, every_hard_case, objective


def orthonormal(rng, n, k):
    """Return rows (n, k) whose Gram matrix is n times the identity."""
    return np.linalg.qr(rng.standard_normal((n, k)))[0] * n**0.5


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    changes=st.lists(st.sets(st.integers(0, 39), max_size=6), min_size=1, max_size=8),
    share=st.sampled_from([0.0, 0.3, 3.0]),
)
def test_a_newton_step_solves_with_the_hessian_of_the_inliers_whatever_they_were_before(seed, changes, share):
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((40, 5))
    inliers = np.ones(40, dtype=bool)
    kept = InlierHessian(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hessian, "_MAX_CHANGED_SHARE", share)
        for change in changes:
            inliers = inliers.copy()
            inliers[list(change)] ^= True
            gradient = rng.standard_normal(5)
            if np.count_nonzero(inliers) < 10:
                continue
            expected = np.linalg.solve(rows[inliers].T @ rows[inliers], gradient)
            np.testing.assert_allclose(kept.newton_step(inliers, gradient), expected, rtol=1e-7, atol=1e-9)


def test_a_newton_step_leads_down_where_the_rows_left_do_not_determine_it(rng):
    rows = rng.standard_normal((60, 48))
    kept = InlierHessian(rows)
    inliers = np.ones(60, dtype=bool)
    for row in range(40):
        inliers = inliers.copy()
        inliers[row] = False
        gradient = rng.standard_normal(48)
        assert gradient @ kept.newton_step(inliers, gradient) > 0


def test_few_changes_of_inliers_need_no_new_factor(rng, monkeypatch):
    factors = []
    factored = hessian.factored
    monkeypatch.setattr(hessian, "factored", lambda gram: factors.append(1) or factored(gram))
    rows = orthonormal(rng, 700, 300)
    minimise_by_multipliers(rows, rng.standard_t(3, 700), 1e-5)
    assert len(factors) <= 3


@pytest.mark.parametrize("penalty", [1e-7, 1e-3, 0.1, 1.0, 100.0])
@pytest.mark.parametrize(("n", "k"), [(40, 1), (60, 25), (300, 40), (200, 190), (50, 50)])
def test_multipliers_and_continuation_find_the_same_loss(rng, n, k, penalty):
    rows, residual = orthonormal(rng, n, k), rng.standard_t(2, n)
    x = minimise_by_multipliers(rows, residual, penalty)
    problem = Subproblem(rows, residual, np.zeros((k, k)), np.zeros(k))
    other = minimise_by_continuation(problem, penalty, first=n, last=0)
    assert huber_loss(residual - rows @ x, penalty) == pytest.approx(
        huber_loss(residual - rows @ other, penalty), rel=1e-8, abs=1e-12
    )


@every_hard_case
@either_intercept
@pytest.mark.parametrize("n", [1, 50, 600])
def test_every_penalty_is_certified_by_multipliers_too(rng, monkeypatch, case, intercept, n):
    features, scores = case(rng, n)
    scale = np.abs(scores).max()
    for penalty in PENALTIES:
        monkeypatch.setattr(solver, "MANY_UNKNOWNS", 1)
        fit = huber(features, scores, penalty * scale, intercept=intercept)
        assert 0 <= fit.gap <= TOLERANCE
        monkeypatch.setattr(solver, "MANY_UNKNOWNS", MANY_UNKNOWNS)
        other = huber(features, scores, penalty * scale, intercept=intercept)
        values = [objective(features, scores, penalty * scale, one.coef, one.intercept) for one in (fit, other)]
        assert values[0] == pytest.approx(values[1], rel=1e-8, abs=1e-14 * penalty * scale**2 * n)


@either_intercept
@pytest.mark.parametrize("penalty", [1e-5, 1e-2, 1.0])
def test_the_certificate_of_many_unknowns_can_be_recomputed_by_hand(rng, penalty, intercept):
    features = np.abs(rng.standard_normal((700, MANY_UNKNOWNS + 40)))
    scores = features[:, :5].sum(axis=1) + rng.standard_t(2, 700)
    fit = huber(features, scores, penalty, intercept=intercept)
    design = np.column_stack([features, np.ones(700)]) if intercept else features
    residual = scores - features @ fit.coef - fit.intercept
    dual = np.clip(residual, -penalty, penalty)
    dual -= design @ np.linalg.lstsq(design, dual, rcond=None)[0]
    dual *= min(1.0, penalty / np.abs(dual).max())
    upper = objective(features, scores, penalty, fit.coef, fit.intercept)
    assert upper - (scores @ dual - dual @ dual / 2) <= 1e-8 * upper


def test_products_with_many_rows_have_the_same_bits_on_any_number_of_threads(rng):
    rows, weights, x = rng.standard_normal((80_000, 8)), rng.standard_normal(80_000), rng.standard_normal(8)
    chosen = weights > 0
    found = []
    for count in (1, 2, 3, 8):
        truing.threads(count)
        found.append((fitted_values(rows, x), weighted_sum(weights, rows), gram_of_chosen(rows, chosen)))
    truing.threads(None)
    assert len({tuple(part.tobytes() for part in parts) for parts in found}) == 1
    expected = rows @ x, weights @ rows, rows[chosen].T @ rows[chosen]
    for one, other in zip(found[0], expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-8)


def test_a_weighted_sum_of_many_rows_lets_other_threads_run(rng):
    """`@` does not, where what it returns is short."""
    rows, weights = rng.standard_normal((200_000, 8)), rng.standard_normal(200_000)
    truing.threads(1)
    weighted_sum(weights, rows)  # The first call looks for BLAS libraries, in files.
    begins, has_run = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (begins.wait(), has_run.set()))
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # No thread is made to give way.
    try:
        begins.set()
        assert any(len(weighted_sum(weights, rows)) and has_run.is_set() for _ in range(1000))
    finally:
        sys.setswitchinterval(interval)
        truing.threads(None)
        other.join()


def test_many_unknowns_have_the_same_bits_on_any_number_of_threads(rng):
    features = rng.standard_normal((3000, MANY_UNKNOWNS))
    scores = features[:, 0] + rng.standard_t(2, 3000)
    found = []
    for count in (1, 2, 3, 8):
        truing.threads(count)
        fit = huber(features, scores, 1e-3)
        found.append((fit.coef.tobytes(), fit.residual.tobytes(), fit.intercept, fit.gap))
    truing.threads(None)
    assert len(set(found)) == 1


def test_where_multipliers_fail_continuation_goes_on(rng, monkeypatch):
    monkeypatch.setattr(solver, "MANY_UNKNOWNS", 1)
    monkeypatch.setattr(solver, "minimise_by_multipliers", lambda rows, residual, penalty: np.zeros(rows.shape[1]))
    features = rng.standard_normal((200, 8))
    assert huber(features, features.sum(axis=1) + rng.standard_t(2, 200), 1e-3).gap <= TOLERANCE
