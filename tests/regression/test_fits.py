import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import truing
from truing.regression.fits import SharedFeatures
from truing.regression.robust import fit_robust_sweep, trust_order

from .literal_lasso import literal_lasso

fits = pytest.mark.parametrize("fit", [truing.fit_direct, truing.fit_robust])
shapes = pytest.mark.parametrize(
    "shape", [{}, {"intercept": False}, {"components": 3}, {"intercept": False, "components": 3}]
)


def rows_with_outliers(rng, n=120, d=6):
    features = np.abs(rng.normal(1, 1, size=(n, d)))
    scores = features @ rng.normal(size=d) + 0.05 * rng.normal(size=n)
    scores[: n // 10] += rng.normal(0, 5, size=n // 10)
    return features, scores


def trusted_rows(features, scores, **shape):
    """Return which rows RLR trusts with the default `keep`."""
    trusted = np.zeros(len(scores), dtype=bool)
    trusted[trust_order(features, scores, **shape)[: int(0.8 * len(scores) + 1e-9)]] = True
    return trusted


def unit(features):
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(norm > 0, norm, 1)


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("components", [None, 2])
def test_rlr_trusts_the_same_rows_as_the_literal_lasso(rng, penalty, intercept, components):
    features, scores = rows_with_outliers(rng, n=40, d=4)
    features[3] = 0  # A row of zeros cannot be scaled to unit norm.
    rows = unit(features)
    if components is not None:
        centred = rows - rows.mean(axis=0)
        rows = centred @ np.linalg.svd(centred, full_matrices=False)[2][:components].T
    design = np.column_stack((rows, np.ones(40))) if intercept else rows
    gamma = literal_lasso(design, scores, penalty)
    residual = (scores - gamma) - design @ (np.linalg.pinv(design) @ (scores - gamma)) + gamma
    order = np.lexsort((np.abs(residual), np.round(np.abs(gamma), 9)))
    expected = np.zeros(40, dtype=bool)
    expected[order[:32]] = True
    found = trusted_rows(features, scores, penalty=penalty, intercept=intercept, components=components)
    np.testing.assert_array_equal(found, expected)


@shapes
def test_the_robust_fit_is_least_squares_on_the_trusted_rows(rng, shape):
    features, scores = rows_with_outliers(rng)
    trusted = trusted_rows(features, scores, **shape)
    fit = truing.fit_robust(features, scores, **shape)
    assert trusted.sum() == 96 == fit.rows
    design = features
    if "components" in shape:
        centred = features - features.mean(axis=0)  # Basis from all rows.
        design = centred @ np.linalg.svd(centred, full_matrices=False)[2][:3].T
    if shape.get("intercept", True):
        design = np.column_stack((design, np.ones(len(design))))
    expected = design @ np.linalg.lstsq(design[trusted], scores[trusted], rcond=None)[0]
    np.testing.assert_allclose(fit.predict(features), expected, atol=1e-9)


@shapes
def test_keeping_every_row_is_the_direct_fit(rng, shape):
    features, scores = rows_with_outliers(rng)
    np.testing.assert_allclose(
        truing.fit_robust(features, scores, keep=1.0, **shape).predict(features),
        truing.fit_direct(features, scores, **shape).predict(features),
        atol=1e-10,
    )


@shapes
def test_a_sweep_over_keep_returns_the_fit_of_every_share(rng, shape):
    features, scores = rows_with_outliers(rng)
    keeps = [0.8, 0.5, 1.0, 0.95, 0.5]
    for keep, fit in zip(keeps, fit_robust_sweep(features, scores, keeps, **shape), strict=True):
        alone = truing.fit_robust(features, scores, keep=keep, **shape)
        np.testing.assert_allclose(fit.coef, alone.coef, atol=1e-11)
        assert fit.rows == alone.rows == int(keep * 120 + 1e-9)


@fits
@given(data=st.data(), intercept=st.booleans())
@settings(max_examples=20, deadline=None)
def test_columns_many_powers_of_ten_below_the_components_have_no_effect(fit, data, intercept):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    large, small, n = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3)), data.draw(st.integers(8, 30))
    size = data.draw(st.integers(-60, 97))
    gaps = data.draw(st.lists(st.integers(12, 200), min_size=small, max_size=small))
    features = rng.normal(size=(n, large)) * 10.0**size
    tiny = rng.normal(size=(n, small)) * 10.0 ** np.maximum(size - np.array(gaps, dtype=float), -300)
    scores = rng.normal(size=n)
    order = rng.permutation(large + small)
    whole = np.column_stack((features, tiny))[:, order]
    found = fit(whole, scores, components=large, intercept=intercept)
    assert np.isfinite(found.coef).all()
    assert found.collinear == 0
    alone = fit(features, scores, components=large, intercept=intercept)
    assert found.rank == alone.rank
    # The robust regression has a unique solution only with an intercept and at least two large columns.
    if fit is truing.fit_direct or (intercept and large > 1):
        np.testing.assert_allclose(found.predict(whole), alone.predict(features), atol=1e-6)
    more = fit(whole, scores, components=large + small, intercept=intercept) if large + small <= n else found
    assert np.isfinite(more.coef).all()
    assert (more.rank, more.collinear) == (large, 0)


HARD_TIES = {
    "interpolated": lambda rng: (rng.normal(size=(30, 40)), rng.normal(size=30)),
    "one column fewer than rows": lambda rng: (rng.normal(size=(30, 29)), rng.normal(size=30)),
    "exactly linear": lambda rng: (lambda z: (z, unit(z) @ np.ones(5)))(rng.normal(size=(60, 5))),
    "whole numbers": lambda rng: (rng.integers(0, 3, (80, 4)).astype(float), rng.integers(0, 3, 80).astype(float)),
    "repeated rows": lambda rng: (np.repeat(rng.normal(size=(12, 4)), 5, axis=0), np.repeat(rng.normal(size=12), 5)),
}


def zeros_among(rng):
    features = np.abs(rng.normal(1, 1, size=(80, 4)))
    features[rng.random(80) < 0.3] = 0
    return features, features.sum(axis=1) + rng.standard_t(2, 80)


def beside_an_id(rng):
    features, scores = rows_with_outliers(rng, n=80, d=4)
    return np.column_stack([features, rng.integers(0, 10**9, 80)]), scores


def with_an_absurd_score(rng):
    features, scores = rows_with_outliers(rng, n=80, d=4)
    scores[7] = 1e60
    return features, scores


HARD_ORDERS = {
    "zero rows": zeros_among,
    "an id beside ordinary features": beside_an_id,
    "an absurd score": with_an_absurd_score,
    **HARD_TIES,
}
hard_orders = pytest.mark.parametrize("make", HARD_ORDERS.values(), ids=HARD_ORDERS)


@hard_orders
@pytest.mark.parametrize("shape", [{}, {"intercept": False}], ids=["intercept", "no-intercept"])
def test_shuffled_rows_are_trusted_in_the_same_order(rng, make, shape):
    features, scores = make(rng)
    rows = np.column_stack([features, scores])
    one = rows[trust_order(features, scores, **shape)]
    for _ in range(5):
        shuffled = rng.permutation(len(scores))
        other = rows[shuffled][trust_order(features[shuffled], scores[shuffled], **shape)]
        np.testing.assert_array_equal(other, one)


def test_of_rows_with_equal_residuals_the_row_with_the_higher_score_is_trusted_more():
    assert trust_order(np.ones((3, 1)), [-1.0, 1.0, 0.0]).tolist() == [2, 1, 0]


@hard_orders
@pytest.mark.parametrize("exponent", [-200, -90, 30])
def test_the_order_of_trust_does_not_depend_on_the_scale_of_features_or_of_scores_and_penalty(rng, make, exponent):
    features, scores = make(rng)
    factor = 2.0 ** round(exponent * np.log2(10))
    one, other = trust_order(features, scores), trust_order(features, scores * factor, penalty=1e-5 * factor)
    np.testing.assert_array_equal(other, one)
    np.testing.assert_array_equal(trust_order(features * factor, scores), one)


@pytest.mark.parametrize("size", [1e30, 1e90])
def test_scores_far_above_the_penalty_are_ordered_by_least_absolute_deviation_residuals(rng, size):
    features, scores = rows_with_outliers(rng)
    design = np.column_stack((unit(features), np.ones(len(scores))))
    free, error = design.shape[1], np.eye(len(scores))
    program = linprog(
        np.append(np.zeros(free), np.ones(2 * len(scores))),
        A_eq=np.hstack([design, error, -error]),
        b_eq=scores,
        bounds=[(None, None)] * free + [(0, None)] * 2 * len(scores),
    )
    residual = np.round(np.abs(scores - design @ program.x[:free]), 9)
    order = trust_order(features, scores * size)
    assert set(order[:free]) == set(np.flatnonzero(residual == 0))  # At a vertex, as many rows as unknowns fit exactly.
    np.testing.assert_array_equal(order[free:], np.argsort(residual)[free:])


@pytest.mark.parametrize(
    ("fit", "base", "network", "outside", "shape", "fpr95", "auroc"),
    [
        (truing.fit_direct, "msp", "cifar10-resnet56", "svhn", {}, 9.4, 97.6),
        (truing.fit_robust, "msp", "cifar10-resnet56", "svhn", {}, 2.2, 99.5),
        (truing.fit_direct, "energy", "cifar10-resnet56", "svhn", {"intercept": False}, 5.6, 98.9),
        (truing.fit_direct, "energy", "imagenet-efficientnet-lite0", "dtd10", {"components": 64}, 19.2, 95.5),
        (truing.fit_direct, "energy", "imagenet-efficientnet-lite0", "dtd10", {}, 45.1, 86.8),
    ],
)
def test_fits_of_real_features_have_the_stored_metrics(bank, fit, base, network, outside, shape, fpr95, auroc):
    name = "cifar10-test" if network.startswith("cifar10") else "imagenet-val-5000"
    rows_in, rows_out = bank(network, name), bank(network, outside)
    score = truing.SCORES[base]
    found = fit(
        np.concatenate((rows_in.features, rows_out.features)),
        np.concatenate((score(rows_in), score(rows_out))),
        **shape,
    )
    report = truing.evaluate(found.predict(rows_in.features), found.predict(rows_out.features))
    assert 100 * report.fpr95 == pytest.approx(fpr95, abs=0.15)
    assert 100 * report.auroc == pytest.approx(auroc, abs=0.06)


@pytest.mark.parametrize("shape", [(20_000, 8), (1500, 300)])
def test_components_of_rows_in_several_blocks_are_the_components_of_all_rows(rng, shape):
    features = rng.standard_normal(shape) * np.geomspace(3, 0.1, shape[1]) + 0.5
    scores = features[:, 0] + rng.standard_normal(shape[0])
    coef, constant = SharedFeatures(features, 3).robust_coefficients(scores, penalty=0.1, intercept=True)
    rows = unit(features)
    centred = rows - rows.mean(axis=0)
    basis = np.linalg.eigh(centred.T @ centred)[1][:, -3:]
    fit = truing.huber(centred @ basis, scores, 0.1)
    np.testing.assert_allclose(coef, basis @ fit.coef, atol=1e-8)
    np.testing.assert_allclose(rows @ coef + constant, centred @ coef + fit.intercept, atol=1e-8)


@pytest.mark.parametrize(("columns", "components"), [(64, 3), (128, 16), (256, 1)])
def test_components_of_equally_frequent_categories_are_all_used(rng, columns, components):
    """All variances are equal. LAPACK's routine for some eigenvectors returns too few of them, or none."""
    features = np.eye(columns)[np.repeat(np.arange(columns), 7)]
    assert truing.fit_direct(features, rng.normal(size=len(features)), components=components).rank == components


def test_too_many_components_or_too_small_a_share_to_keep_is_rejected():
    for fit in (truing.fit_direct, truing.fit_robust):
        with pytest.raises(ValueError, match="components must be at most 3 for features of shape"):
            fit(np.eye(3, 8), [1, 2, 3], components=4)
    with pytest.raises(ValueError, match=r"keep must keep at least one of 3 rows, got 0.2"):
        truing.fit_robust(np.eye(3), [1, 2, 3], keep=0.2)


def test_identical_feature_rows_have_no_components_and_are_trusted_by_their_scores():
    fit = truing.fit_robust(np.ones((5, 2)), [1.0, 2.0, 3.0, 4.0, 50.0], components=1)
    assert fit.rank == 0
    assert fit.rows == 4
    assert fit.intercept == pytest.approx(2.5)
