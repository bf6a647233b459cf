"""Fits of fewer or more rows than columns, in any unit and with dependent columns, against 60-digit arithmetic."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truing.regression.least_squares import LinearFit, row_products
from truing.regression.moments import Moments

SEEDS = st.integers(0, 10**6)

HARD = {
    "ordinary": lambda z: z,
    "one row": lambda z: z[:1],
    "dead units": lambda z: z * (np.arange(z.shape[1]) % 3 > 0),
    "all dead": lambda z: z * 0,
    "constant columns": lambda z: np.where(np.arange(z.shape[1]) < 2, 0.1, z),
    "duplicated columns": lambda z: np.column_stack((z, z[:, :3])),
    "duplicated rows": lambda z: np.repeat(z[:3], 4, axis=0),
    "columns of different size": lambda z: z * np.logspace(-2, 2, z.shape[1]),
    "a large mean": lambda z: z + 1e3,
}


def expected_fit(features, scores, intercept):
    """Return the coefficients and rank of the pseudo-inverse of the (centred) rows, and the intercept."""
    shift, level = (features.mean(axis=0), scores.mean()) if intercept else (0.0 * features[0], 0.0)
    design = features - shift
    design[:, np.abs(design).max(axis=0) <= 1e-13 * np.abs(features).max(axis=0)] = 0.0
    sizes = np.linalg.svd(design, compute_uv=False)
    coef = np.linalg.pinv(design, rcond=1e-9) @ (scores - level)
    return coef, np.count_nonzero(sizes > 1e-9 * max(sizes[0], 1e-300)), level - shift @ coef


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("rows", [2, 7, 8, 9, 10, 40])
@pytest.mark.parametrize("make", HARD.values(), ids=HARD)
def test_solve_is_the_minimum_norm_least_squares_fit(rng, make, rows, intercept):
    features = make(rng.normal(size=(rows, 8)))
    scores = rng.normal(2, 1, size=len(features))
    coef, rank, constant = expected_fit(features, scores, intercept)
    half = len(scores) // 2
    added = Moments.of(features[half:], scores[half:])
    added = Moments.of(features[:half], scores[:half]) + added if half else added
    for moments in (Moments.of(features, scores), added):
        fit = moments.solve(intercept=intercept)
        assert fit.rank == rank
        np.testing.assert_allclose(fit.coef, coef, atol=1e-9 * max(1.0, np.abs(coef).max()))
        np.testing.assert_allclose(fit.predict(features), features @ coef + constant, atol=1e-9)
        left = np.sum((scores - fit.predict(features)) ** 2) / max(np.sum((scores - scores.mean()) ** 2), 1e-300)
        if len(scores) > 1:
            assert fit.explained == pytest.approx(1 - left, abs=1e-9)


def exact_minimum_norm(features, scores, intercept):
    """Return the coefficients and rank of the pseudo-inverse in arithmetic of 60 digits."""
    with mpmath.workdps(60):
        table, target = mpmath.matrix(features.tolist()), mpmath.matrix(scores.tolist())
        rows, columns = table.rows, table.cols
        if intercept:
            for j in range(columns):
                mean = mpmath.fsum(table[:, j]) / rows
                for i in range(rows):
                    table[i, j] -= mean
            target -= mpmath.fsum(target) / rows * mpmath.ones(rows, 1)
        turned = rows < columns
        left, sizes, right = mpmath.svd_r(table.T if turned else table)
        if turned:
            left, right = right.T, left.T
        least = mpmath.mpf(10) ** -40 * max(sizes[0], mpmath.mpf(10) ** -250)
        keep = [i for i in range(len(sizes)) if sizes[i] > least]
        coef = mpmath.zeros(columns, 1)
        for i in keep:
            coef += right[i, :].T * ((left[:, i].T * target)[0] / sizes[i])
        return np.array([float(value) for value in coef]), len(keep)


@settings(max_examples=150)
@given(
    rows=st.integers(2, 14),
    columns=st.integers(1, 6),
    copies=st.integers(0, 2),
    intercept=st.booleans(),
    powers=st.lists(st.integers(-12, 12), min_size=8, max_size=8),
    seed=SEEDS,
)
def test_whole_numbers_in_any_unit_agree_with_sixty_digits(rows, columns, copies, intercept, powers, seed):
    """Powers of two are exact units, so that dependences stay exact."""
    rng = np.random.default_rng(seed)
    features = rng.integers(-4, 5, size=(rows, columns)).astype(np.float64)
    for _ in range(copies):
        features = np.column_stack((features, features[:, rng.integers(columns)] + features[:, rng.integers(columns)]))
    features *= 2.0 ** (3 * np.array(powers[: features.shape[1]]))
    scores = rng.integers(-5, 6, size=rows).astype(np.float64)
    fit = Moments.of(features, scores).solve(intercept)
    expected, rank = exact_minimum_norm(features, scores, intercept)
    assert fit.rank == rank
    size = np.abs(features).max(axis=0) + np.where(features.any(axis=0), 0, 1)
    np.testing.assert_allclose(fit.coef * size, expected * size, atol=1e-7 * (1 + np.abs(expected * size).max()))


@pytest.mark.parametrize("rows", [3, 12])
@pytest.mark.parametrize("power", [1, 3, 5, 6])
def test_fits_of_nearly_collinear_columns_agree_with_sixty_digits(rows, power):
    """The sums resolve columns that differ by more than 1e-7 of their size."""
    rng = np.random.default_rng(power)
    features = rng.normal(size=(rows, 3))
    features[:, 2] = features[:, 0] + 10.0**-power * features[:, 2]
    scores = rng.normal(size=rows)
    expected, rank = exact_minimum_norm(features, scores, True)
    fit = Moments.of(features, scores).solve()
    assert fit.rank == rank == min(3, rows - 1)
    error = np.abs((features - features.mean(axis=0)) @ (fit.coef - expected)).max()
    assert error <= max(fit.rounding, 1e-13) * scores.std()
    assert fit.rounding <= 1e-11 * 100.0**power


def test_columns_collinear_beyond_the_precision_of_sums_are_reported(rng):
    features, scores = rng.normal(size=(200, 3)), rng.normal(size=200)
    features[:, 2] = features[:, 0] + 1e-9 * features[:, 2]
    fit = Moments.of(features, scores).solve()
    assert (fit.rank, fit.collinear) == (2, 1)
    few = Moments.of(features[:2], scores[:2]).solve()
    assert (few.rank, few.collinear) == (1, 0)  # The rank is limited by the number of rows.


def test_a_constant_column_replaces_the_intercept(rng):
    features, scores = rng.normal(1e4, 1, size=(200, 4)), rng.normal(5, 1, size=200)
    beside = np.column_stack((features, np.full(200, 3.0), np.zeros(200)))
    expected = np.linalg.lstsq(np.column_stack((features, np.ones(200))), scores, rcond=None)[0]
    fit = Moments.of(beside, scores).solve(intercept=False)
    assert fit.rank == 5
    np.testing.assert_allclose(fit.predict(beside), features @ expected[:-1] + expected[-1], atol=1e-6)


def test_a_fit_through_the_origin_reports_the_cost_of_cancelling_means():
    """With means of 5e5 standard deviations, float64 has few digits left for the differences between rows."""
    features = np.array(
        [
            [-345639539.328125, -4190223644.375, -222570878688.0, -7.8049607805442065],
            [-345638112.375, -4190203468.125, -222569867748.0, -7.804923199350014],
            [-345639036.578125, -4190216012.625, -222570505768.0, -7.804946565302089],
        ]
    )
    scores = np.array([-0.0570526123046875, 0.0425872802734375, -0.0153656005859375])
    fit = Moments.of(features, scores).solve(intercept=False)
    error = np.abs(fit.predict(features) - scores).max() / scores.std()
    assert error <= fit.rounding <= 0.01
    np.testing.assert_allclose(Moments.of(features, scores).solve().predict(features), scores, atol=1e-6)


@pytest.mark.parametrize("rows", [3, 60])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("copies", [1, 2])
def test_ridge_is_least_squares_with_extra_rows(rng, rows, intercept, copies):
    features = np.tile(rng.normal(2, 1, size=(rows, 6)), (1, copies))
    features[:, 0] = 4.0
    scores = rng.normal(size=rows)
    fit = Moments.of(features, scores).solve(intercept, ridge=2.5)
    centre, level = (features.mean(axis=0), scores.mean()) if intercept else (0.0, 0.0)
    padded = np.vstack((features - centre, np.sqrt(2.5) * np.eye(6 * copies)))
    expected = np.linalg.lstsq(padded, np.append(scores - level, np.zeros(6 * copies)), rcond=None)[0]
    np.testing.assert_allclose(fit.coef, expected, atol=1e-12)


@pytest.mark.parametrize("rows", [7, 200])
@pytest.mark.parametrize("components", [1, 3, 6])
@pytest.mark.parametrize("intercept", [True, False])
def test_components_are_pca_then_least_squares(rng, rows, components, intercept):
    features = rng.normal(2, 1, size=(rows, 8)) * np.arange(1, 9)
    scores = features @ rng.normal(size=8) + rng.normal(size=rows)
    fit = Moments.of(features, scores).solve(intercept=intercept, components=components)
    centred = features - features.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2]
    design = np.column_stack((centred @ axes[:components].T, np.ones(rows) * intercept))
    expected = design @ np.linalg.lstsq(design, scores, rcond=None)[0]
    np.testing.assert_allclose(fit.predict(features), expected, atol=1e-10)
    assert fit.rank == components


def test_solve_within_uses_the_principal_components_of_other_rows(rng):
    features, scores = rng.normal(3, 1, size=(100, 6)), rng.normal(2, 1, size=100)
    principal = Moments.of(features, scores).principal_components(2)
    fit = Moments.of(features[:30], scores[:30]).solve_within(principal)
    design = np.column_stack(((features - principal.origin) @ principal.basis, np.ones(100)))
    expected = design @ np.linalg.lstsq(design[:30], scores[:30], rcond=None)[0]
    np.testing.assert_allclose(fit.predict(features), expected, atol=1e-11)
    free, shifted = (Moments.of(features, scores).solve(intercept, components=2) for intercept in (True, False))
    np.testing.assert_allclose(free.predict(features) - shifted.predict(features), scores.mean(), atol=1e-11)
    np.testing.assert_allclose(
        Moments.of(features, scores).solve(components=6).coef, Moments.of(features, scores).solve().coef, atol=1e-11
    )


SPECTRA = {
    "well separated": lambda d: np.geomspace(1, 1e-4, d),
    "clustered at the cut": lambda d: np.where(np.arange(d) < 40, 1.0, 0.1) * (1 + 1e-9 * np.arange(d)),
    "repeated, leading": lambda d: np.where(np.arange(d) < 20, 1.0, 0.01),
    "repeated, all": lambda d: np.ones(d),
    "rank below k": lambda d: np.where(np.arange(d) < 7, 1.0, 0.0),
    "steep": lambda d: np.maximum(10.0 ** -np.arange(float(d)), 1e-30),
}


@pytest.mark.parametrize("rows", [300, 1600])
@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)
def test_leading_components_of_wide_features_capture_as_much_as_dense_eigenvectors(rng, spectrum, rows):
    """The components are orthonormal. Their variances agree with LAPACK's to 1e-9 of the largest variance."""
    d, k = 800, 20
    rank = min(rows - 1, d)
    left = np.linalg.qr(rng.normal(size=(rows, rank + 1)) - 0.0)[0]
    left = np.linalg.qr(left - left.mean(axis=0))[0][:, :rank]
    right = np.linalg.qr(rng.normal(size=(d, rank)))[0]
    features = left * np.sqrt(spectrum(rank)) @ right.T
    moments = Moments.of(features, rng.normal(size=rows))
    basis = moments.principal_components(k).basis
    centred = features - features.mean(axis=0)
    values = np.linalg.eigvalsh(centred.T @ centred)[::-1]
    used = np.count_nonzero(values[:k] > 1.4e-14 * values[0])
    assert abs(basis.shape[1] - used) <= (spectrum(rank)[13] == 1e-13)  # Close to the tolerance, rounding decides.
    used = basis.shape[1]
    np.testing.assert_allclose(basis.T @ basis, np.eye(used), atol=1e-12)
    variances = np.linalg.eigvalsh(basis.T @ (centred.T @ (centred @ basis)))[::-1]
    np.testing.assert_allclose(variances, values[:used], atol=1e-9 * values[0])


@settings(max_examples=150)
@given(
    sizes=st.lists(st.sampled_from([-300, -150, -100, -10, 0, 30, 93, 99]), min_size=1, max_size=6),
    size_of_scores=st.sampled_from([-100, -20, 0, 20, 90]),
    rows=st.sampled_from([2, 4, 12]),
    is_constant=st.booleans(),
    intercept=st.booleans(),
    seed=SEEDS,
)
def test_columns_hundreds_of_powers_of_ten_apart_get_finite_coefficients(
    sizes, size_of_scores, rows, is_constant, intercept, seed
):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, len(sizes))).clip(-3, 3) * 10.0 ** np.array(sizes)
    if is_constant:
        features[:, 0] = 10.0 ** sizes[0]
    scores = rng.normal(size=rows) * 10.0**size_of_scores
    for components in (None, 1, len(sizes)):
        fit = Moments.of(features, scores).solve(intercept=intercept, components=components)
        assert np.isfinite([*fit.coef, fit.intercept, *fit.predict(features)]).all()
        assert fit.rank <= len(sizes)


@settings(max_examples=150)
@given(data=st.data())
def test_every_sequence_of_sums_and_differences_is_solved(data):
    rng = np.random.default_rng(data.draw(SEEDS))
    sizes = st.sampled_from([1.0, 1.0, 1e-9, 1e5, 1e9, 1e15])
    columns = data.draw(st.integers(1, 6))
    moments, parts = 0, []
    for _ in range(data.draw(st.integers(1, 8))):
        rows = data.draw(st.integers(1, 6))
        features = rng.normal(size=(rows, columns)) * data.draw(sizes) + data.draw(sizes)
        if data.draw(st.booleans()):
            features[:, 0] = data.draw(sizes)
        if columns > 1 and data.draw(st.booleans()):
            features[:, 1] = features[:, 0] * data.draw(sizes)
        parts.append(Moments.of(features, rng.normal(size=rows) * data.draw(sizes)))
        moments = moments + parts[-1]
        if len(parts) > 1 and data.draw(st.booleans()):
            moments = moments - parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        for intercept in (True, False):
            for ridge in (0.0, 1e-3):
                fit = moments.solve(intercept, ridge=ridge)
                assert np.isfinite(fit.coef).all()
                assert 0 <= fit.rank + fit.collinear <= columns
                assert 0 <= fit.rounding <= 1


@given(
    d=st.sampled_from([1, 2, 3, 7, 8, 63, 64, 65, 1000, 4097, 8193]),
    others=st.integers(0, 20),
    dtype=st.sampled_from([np.float64, np.float32, np.float16]),
    seed=SEEDS,
)
def test_equal_rows_get_equal_scores_in_any_layout(d, others, dtype, seed):
    """Conformal p-values count ties, so the last bit matters."""
    rng = np.random.default_rng(seed)
    fit = LinearFit(rng.normal(size=d), 0.3, 10.0, d, 0.5)
    row = rng.normal(size=d).astype(dtype)
    features = rng.normal(size=(others + 3, d)).astype(dtype)
    places = rng.integers(0, len(features), size=3)
    features[places] = row
    alone = fit.predict(row[None])[0]
    terms = row.astype(np.float64) * fit.coef
    assert alone == pytest.approx(math.fsum(terms) + 0.3, abs=1e-15 * d * (1 + np.abs(terms).max()))
    spread = np.repeat(features, 2, axis=1)[:, ::2]
    for layout in (features, np.asfortranarray(features), spread, features.astype(np.float64)):
        assert (fit.predict(layout)[places] == alone).all()


def test_rows_that_cannot_be_scored_are_rejected(rng):
    fit = Moments.of(rng.normal(size=(40, 9)), np.arange(40.0)).solve()
    rows = rng.normal(size=(40, 9))
    rows[7, 3] = np.nan
    with pytest.raises(ValueError, match=r"features must be finite .* in row 7"):
        fit.predict(rows)
    with pytest.raises(ValueError, match="features must have 9 columns for this fit, got 3"):
        fit.predict(rows[:, :3])
    with pytest.raises(ValueError, match="a score that overflows in row 0"):
        LinearFit(np.full(9, 1e300), 0.0, 1.0, 1, 0.0).predict(np.full((1, 9), 1e90))
    np.testing.assert_allclose(row_products(rows[:2], fit.coef, 2.0), rows[:2] @ fit.coef + 2)


def test_notes_name_the_limits_of_a_fit():
    assert LinearFit(np.zeros(9), 0.0, 100.0, 9, 0.5).notes(9) == []
    assert "leaves 7 out" in LinearFit(np.zeros(9), 0.0, 100.0, 2, 0.5, collinear=7).notes()[0]
    assert "nearly collinear" in LinearFit(np.zeros(9), 0.0, 100.0, 9, 0.5, rounding=1e-3).notes()[0]
    assert "only 3 of 9 components" in LinearFit(np.zeros(9), 0.0, 100.0, 3, 0.5).notes(9)[0]
