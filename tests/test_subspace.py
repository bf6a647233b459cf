"""Principal components that are followed: the scores' difference from the exact ones never exceeds the bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import hadamard

import truing
from truing import subspace as module
from truing.incremental import IncrementalMoments
from truing.subspace import LeadingSubspace

K = 4


@pytest.fixture(autouse=True)
def _few_columns_too(monkeypatch):
    """Follow the components of few columns as well."""
    monkeypatch.setattr(module, "_MIN_COLUMNS", 0)


def difference(sums, components=K):
    """Return how far the rows' scores are from the exact ones, in root mean square over the scores' spread."""
    fit, exact = sums.solve(True, components), sums.moments.solve(True, components)
    off = fit.coef - exact.coef
    square = off @ sums.moments.comoment[:-1, :-1] @ off
    return np.sqrt(max(square, 0.0) / sums.moments.comoment[-1, -1])


def spectrum(kind, rng, d=40):
    if kind == "falling":
        return 0.9 ** np.arange(d)
    if kind == "equal":  # The last component that is used, and the next that is not.
        return np.where(np.abs(np.arange(d) - K + 0.5) < 1, 0.5, 0.9 ** np.arange(d))
    if kind == "nearly equal":
        return 0.9 ** np.arange(d) * np.where(np.arange(d) == K, 0.9**-0.99, 1.0)
    if kind == "flat":
        return np.ones(d)
    if kind == "few":
        return np.where(np.arange(d) < 2, 1.0, 1e-9)
    return np.exp(rng.normal(size=d))


KINDS = ("falling", "equal", "nearly equal", "flat", "few", "any")


kinds_of_streams = given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(KINDS),
    decay=st.sampled_from([1.0, 0.9, 0.5]),
    tolerance=st.sampled_from([1e-6, 1e-3, 0.1, 1.0]),
    batch=st.sampled_from([1, 5, 40]),
    jump=st.sampled_from([0.0, 0.0, 30.0]),
)


def check_bound(seed, kind, decay, tolerance, batch, jump):
    rng = np.random.default_rng(seed)
    scale = np.sqrt(spectrum(kind, rng)) * (rng.random(40) > 0.1)  # Some units are dead.
    turn = np.linalg.qr(rng.normal(size=(40, 40)))[0] if seed % 2 else np.eye(40)
    weights = rng.normal(size=40)

    def rows(n):
        features = rng.normal(size=(n, 40)) * scale @ turn + 3.0
        return features, features @ weights + rng.normal(size=n)

    sums = IncrementalMoments.of(truing.Moments.of(*rows(60))).with_components(None, K, tolerance)
    for number in range(12):
        features, scores = rows(batch)
        features = features + jump * (number == 6)
        new = sums.updated(features, scores, decay, follow=False).with_components(sums, K, tolerance)
        bound = new.solve(True, K).approximation
        assert bound <= tolerance
        assert difference(new) <= bound + 1e-9
        sums = new


@settings(max_examples=50)
@kinds_of_streams
def test_scores_differ_from_the_exact_ones_by_no_more_than_the_bound(seed, kind, decay, tolerance, batch, jump):
    check_bound(seed, kind, decay, tolerance, batch, jump)


@pytest.mark.slow
@settings(max_examples=2000)
@kinds_of_streams
def test_scores_of_many_streams_differ_by_no_more_than_the_bound(seed, kind, decay, tolerance, batch, jump):
    check_bound(seed, kind, decay, tolerance, batch, jump)


def test_a_bound_is_met_by_following_and_not_only_by_eigenvectors(rng, monkeypatch):
    scale = np.sqrt(0.8 ** np.arange(60))
    features = rng.normal(size=(3000, 60)) * scale
    scores = features @ rng.normal(size=60) + rng.normal(size=3000)
    sums = IncrementalMoments.of(truing.Moments.of(features[:1000], scores[:1000])).with_components(None, K, 1e-3)
    monkeypatch.setattr(LeadingSubspace, "of", None)
    for start in range(1000, 3000, 20):
        part = slice(start, start + 20)
        new = sums.updated(features[part], scores[part], 1.0, follow=False).with_components(sums, K, 1e-3)
        assert 0 < new.solve(True, K).approximation <= 1e-3
        assert difference(new) <= new.solve(True, K).approximation
        sums = new


def test_what_rayleigh_and_ritz_leave_out_is_bounded_by_a_factor_that_exists_or_not(rng):
    """The proof of σ fails where an eigenvector that is not followed has a larger eigenvalue."""
    values = 0.8 ** np.arange(60)
    comoment = np.diag(np.append(values, 1.0))
    followed, missed = np.eye(60)[:, :8], np.eye(60)[:, 1:9]
    for basis, expected in ((followed, True), (missed, False)):
        ritz = module._Ritz.of(comoment, basis, K)
        assert ritz.bounds_the_rest((comoment[:-1, :-1] / values.sum()).astype(np.float32), values.sum()) is expected


def test_a_tolerance_of_zero_is_the_exact_fit(rng):
    features = rng.normal(size=(400, 40)) * np.sqrt(0.8 ** np.arange(40))
    scores = features.sum(axis=1) + rng.normal(size=400)
    exact, near = truing.Detector("given", components=K, tolerance=0.0), truing.Detector("given", components=K)
    for start in range(0, 400, 20):
        batch = truing.Outputs(features[start : start + 20], scores=scores[start : start + 20])
        exact.learn(batch)
        near.learn(batch)
    assert exact.state.learned.known is None
    assert exact.current_fit.approximation == 0.0
    assert 0 < near.current_fit.approximation <= 1e-3
    expected = exact.moments.solve(True, K)
    np.testing.assert_array_equal(exact.current_fit.coef, expected.coef)
    np.testing.assert_allclose(near.current_fit.coef, expected.coef, atol=1e-3)
    with pytest.raises(ValueError, match="tolerance must be at least 0 and at most 1, got -1"):
        truing.Detector(components=K, tolerance=-1)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("decay", [1.0, 0.95])
def test_a_restored_stream_goes_on_to_the_same_bits(rng, tmp_path, known, decay):
    features = rng.normal(size=(700, 40)) * np.sqrt(0.8 ** np.arange(40))
    rows = truing.Outputs(features, scores=features.sum(axis=1) + rng.normal(size=700))
    going, stopped = (truing.Detector("given", components=K, decay=decay) for _ in range(2))
    for each in (going, stopped):
        if known:
            each.calibrate(rows[600:])
    for start in range(0, 600, 20):
        one, other = (each.learn_and_score(rows[start : start + 20]) for each in (going, stopped))
        np.testing.assert_array_equal(one, other)
        assert going.current_fit.approximation == stopped.current_fit.approximation
        if start % 60 == 0:
            truing.save(stopped, tmp_path / "detector.npz")
            stopped = truing.load(tmp_path / "detector.npz")
    assert going.current_fit.approximation > 0
    truing.save(going.current_fit, tmp_path / "fit.npz")
    assert truing.load(tmp_path / "fit.npz").approximation == going.current_fit.approximation


@pytest.mark.slow
def test_real_features_keep_within_the_bound(bank):
    outputs = bank("imagenet-efficientnet-lite0", "imagenet-val-5000")
    rows = truing.Outputs(outputs.features, scores=truing.energy(outputs.logits))
    detector = truing.Detector("given", components=64)
    detector.learn(rows[:3000])
    for start in range(3000, 3320, 32):
        detector.learn(rows[start : start + 32])
        bound = detector.current_fit.approximation
        assert 0 < bound <= 1e-3
        assert difference(detector.state.learned, 64) <= bound


@pytest.mark.parametrize("unit", [1e-140, 1e-60, 1e-9, 1e9, 1e60])
def test_columns_of_any_size_are_learned_and_scored(rng, unit):
    """What cannot be followed is left to the exact way, which refuses nothing that it did not refuse before."""
    features, scores = rng.normal(size=(300, 40)), rng.normal(size=300)
    features[:, ::3] *= unit
    near, exact = truing.Detector("given", components=K), truing.Detector("given", components=K, tolerance=0.0)
    for start in range(0, 300, 30):
        batch = truing.Outputs(features[start : start + 30], scores=scores[start : start + 30])
        one, other = near.learn_and_score(batch), exact.learn_and_score(batch)
        assert np.sqrt(np.mean((one - other) ** 2)) <= 0.05
    assert near.current_fit.approximation <= 1e-3


@pytest.mark.parametrize("rank", [4, 6, 7])
def test_rows_of_fewer_directions_than_are_followed_are_learned(rank):
    """Columns of a Hadamard matrix: beside them the eigenvalues are zero to the bit."""
    features, scores = np.zeros((64, 40)), hadamard(64)[:, 1:9] @ np.arange(1.0, 9.0)
    features[:, :rank] = hadamard(64)[:, 1 : rank + 1] * np.arange(1.0, rank + 1)
    detector = truing.Detector("given", components=K)
    for _ in range(3):
        trued = detector.learn_and_score(truing.Outputs(features, scores=scores))
    used = slice(rank - K + 1, rank + 1)  # The columns that vary most.
    np.testing.assert_allclose(trued, hadamard(64)[:, used] @ np.arange(1.0, 9.0)[rank - K : rank], atol=1e-9)
    assert detector.current_fit.approximation <= 1e-3


def test_values_that_rounding_made_negative_prove_nothing(rng):
    """LAPACK factors the NaN of their roots without a word."""
    square = np.diag(np.append(0.9 ** np.arange(20), 1.0))
    ritz = module._Ritz.of(square, np.eye(20)[:, :8], K)
    single, scale = (square[:-1, :-1] / 10).astype(np.float32), 10.0
    assert ritz.bounds_the_rest(single, scale)
    values = np.append(ritz.values[:-1], -1e-18)
    assert not replace(ritz, values=values).bounds_the_rest(single, scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [8, 61, 515])
def test_a_product_in_blocks_is_the_product_on_any_number_of_threads(rng, d, dtype):
    square, vectors = rng.standard_normal((d, d)).astype(dtype), rng.standard_normal((d, 6)).astype(dtype)
    found = []
    for threads in (1, 2, 3, 8):
        truing.threads(threads)
        found.append(module._product(square, vectors))
    truing.threads(None)
    np.testing.assert_allclose(found[0], square @ vectors, rtol=0, atol=np.sqrt(d) * 40 * np.finfo(dtype).eps)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
