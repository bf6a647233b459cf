import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import truing
from tests.conftest import without_kernels
from truing import least_squares
from truing.incremental import IncrementalMoments
from truing.interpolation import Interpolation


def streamed(features, scores, sizes):
    """Return the moments after a first batch and after each that follows."""
    sums, start = None, 0
    for size in sizes:
        part = slice(start, start + size)
        if sums is None:
            sums = IncrementalMoments.of_rows(features[part], scores[part])
        else:
            sums = sums.updated(features[part], scores[part], 1.0)
        start += size
        yield sums, start


def made(seed, rows, d, mean=3.0):
    """Return rows of units of different size, some of them dead or constant."""
    rng = np.random.default_rng(seed)
    scale = np.where(rng.random(d) < 0.2, 0.0, np.exp(rng.normal(size=d)))
    features = rng.normal(mean, 1, size=(rows, d)) * scale
    features[:, rng.random(d) < 0.1] = 0.1
    return features, rng.normal(5, 2, size=rows)


def assert_interpolates(known, features, scores):
    """The coefficients fit every row and lie in the rows' span, and L⁻¹ inverts the rows' coordinates in its basis."""
    rows, ones = features[1:] - features[0], np.eye(len(features) - 1)
    np.testing.assert_allclose(rows @ known.coef, scores[1:] - scores[0], atol=1e-9)
    np.testing.assert_allclose(known.basis @ known.basis.T, ones, atol=1e-12)
    np.testing.assert_allclose(known.basis.T @ (known.basis @ known.coef), known.coef, atol=1e-12)
    np.testing.assert_allclose(known.inverse @ (rows @ known.basis.T), ones, atol=1e-9)
    eigenvalues = np.linalg.eigvalsh(np.cov(features @ known.basis.T, rowvar=False) * len(rows))
    assert known.inverse_trace == pytest.approx((1 / eigenvalues).sum())


sizes_of_batches = st.lists(st.integers(1, 9), min_size=1, max_size=12)


@given(seed=st.integers(0, 10**6), sizes=sizes_of_batches, mean=st.sampled_from([0.0, 3.0, 1e4]))
def test_few_rows_get_the_shortest_coefficients_that_fit_them(seed, sizes, mean):
    features, scores = made(seed, sum(sizes), 40, mean)
    for sums, n in streamed(features, scores, sizes):
        fit = sums.solve(True, None)
        centred = features[:n] - features[:n].mean(axis=0)
        expected = np.linalg.pinv(centred, rcond=1e-9) @ (scores[:n] - scores[:n].mean())
        np.testing.assert_allclose(fit.coef, expected, atol=1e-6 * (1 + np.abs(expected).max()))
        plain = truing.Moments.of(features[:n], scores[:n]).solve()
        assert (fit.rank, fit.collinear, fit.rows) == (plain.rank, plain.collinear, plain.rows)
        assert fit.explained == pytest.approx(plain.explained, abs=1e-8)


@given(seed=st.integers(0, 10**6), sizes=sizes_of_batches)
def test_no_eigenvalue_of_the_rows_is_below_the_bound(seed, sizes):
    features, scores = made(seed, sum(sizes), 40)
    for sums, n in streamed(features, scores, sizes):
        if not isinstance(sums.known, Interpolation) or n < 2:
            continue
        squares = sums.moments.comoment.diagonal()[:-1][sums.live]
        correlations = np.corrcoef(features[:n, sums.live], rowvar=False).reshape(len(squares), -1)
        smallest = np.sort(np.linalg.eigvalsh(correlations))[-(n - 1)]
        bound = 1 / (sums.known.inverse_trace * squares.max())
        assert 0 < bound <= smallest * (1 + 1e-6)


def test_a_start_needs_no_eigenvectors(rng, monkeypatch):
    monkeypatch.setattr(least_squares._Standardised, "by_eigenvectors", None)
    features, scores = rng.normal(size=(60, 40)), rng.normal(size=60)
    for sums, n in streamed(features, scores, [1] * 25 + [7] * 5):
        fitted = sums.solve(True, None).predict(features[:n])
        if n <= 41:
            np.testing.assert_allclose(fitted, scores[:n], atol=1e-9)
    design = np.column_stack((features, np.ones(60)))
    expected = np.linalg.lstsq(design, scores, rcond=None)[0]
    np.testing.assert_allclose(sums.solve(True, None).coef, expected[:-1], atol=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_nor_do_as_many_rows_as_columns_that_are_nearly_dependent(seed, monkeypatch):
    monkeypatch.setattr(least_squares._Standardised, "by_eigenvectors", None)
    rng = np.random.default_rng(seed)
    directions, _ = np.linalg.qr(rng.normal(size=(200, 200)))
    features, scores = rng.normal(size=(200, 200)) * np.geomspace(1, 1e-3, 200) @ directions, rng.normal(size=200)
    for sums, n in streamed(features, scores, [50] * 4):
        np.testing.assert_allclose(sums.solve(True, None).predict(features[:n]), scores[:n], atol=1e-7)


@pytest.mark.parametrize("make", ["repeated", "nearly repeated", "in the span", "nearly in the span"])
def test_rows_that_depend_on_one_another_are_left_to_the_sums(rng, make):
    features, scores = rng.normal(size=(20, 30)), rng.normal(size=20)
    noise = 1e-9 * rng.normal(size=30) * make.startswith("nearly")
    features[12] = (features[3] if "repeated" in make else 0.5 * (features[3] + features[4])) + noise
    for sums, n in streamed(features, scores, [5, 5, 5, 5]):
        plain = truing.Moments.of(features[:n], scores[:n]).solve()
        fit = sums.solve(True, None)
        if n < 12:
            assert_interpolates(sums.known, features[:n], scores[:n])
        else:
            assert sums.known is None
        independent = np.linalg.matrix_rank(features[:n] - features[:n].mean(axis=0), tol=1e-6)
        assert fit.rank == plain.rank == independent == (n - 1 if n < 12 else n - 2)
        np.testing.assert_allclose(fit.coef, plain.coef, atol=1e-9)


def test_decayed_rows_are_left_to_the_sums(rng):
    features, scores = rng.normal(size=(20, 30)), rng.normal(size=20)
    sums = IncrementalMoments.of_rows(features[:10], scores[:10])
    assert_interpolates(sums.known, features[:10], scores[:10])
    assert sums.updated(features[10:], scores[10:], 0.9).known is None


def test_real_features_are_fitted_from_the_first_row_on(bank):
    outputs = bank("cifar10-wrn40-2", "cifar10-test")
    scores = truing.energy(outputs.logits)
    for sums, n in streamed(outputs.features, scores, [1] * 10 + [20] * 10):
        fit = sums.solve(True, None)
        plain = truing.Moments.of(outputs.features[:n], scores[:n]).solve()
        assert fit.rank == plain.rank
        np.testing.assert_allclose(fit.predict(outputs.features), plain.predict(outputs.features), atol=1e-6)


@given(
    seed=st.integers(0, 10**6),
    d=st.integers(2, 40),
    size=st.sampled_from([1, 2, 5, 16]),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_batches_interpolate_with_and_without_kernels(seed, d, size, dtype):
    features, scores = made(seed, d, d, mean=1.0)
    features = features.astype(dtype)
    compiled = plain = Interpolation.of(features[:1], scores[:1])
    for start in range(1, d, size):
        batch = features[start : start + size], scores[start : start + size]
        compiled = compiled.with_rows(*batch)
        with without_kernels():
            plain = plain.with_rows(*batch)
        if plain is None or plain.inverse_trace > 1e6:  # The rows depend on one another, all but for rounding.
            break
        np.testing.assert_array_equal(compiled.varied, plain.varied)
        signs = np.sign((compiled.basis * plain.basis).sum(axis=1))  # A direction is as good as its opposite.
        pairs = [
            (compiled.coef, plain.coef),
            (signs[:, None] * compiled.basis, plain.basis),
            (signs[:, None] * compiled.inverse, plain.inverse),
            (compiled.inverse_trace, plain.inverse_trace),
        ]
        for one, other in pairs:
            np.testing.assert_allclose(one, other, atol=1e-8 * (1 + np.abs(other).max()))


def test_a_row_that_is_the_origin_again_is_dependent(rng):
    features, scores = rng.normal(size=(4, 9)), rng.normal(size=4)
    known = Interpolation.of(features, scores)
    assert known.with_rows(features[:1], scores[:1]) is None
