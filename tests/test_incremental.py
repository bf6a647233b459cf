import tracemalloc
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from tests.conftest import without_kernels
from truing import incremental as module
from truing.incremental import EigenvalueBound, IncrementalMoments, RunningInverse


def streamed(features, scores, sizes, *, decay=1.0):
    """Return the moments updated by batches of the given sizes, and what a plain sum gives."""
    sums, plain, start = None, None, 0
    for size in sizes:
        part = slice(start, start + size)
        batch = truing.Moments.of(features[part], scores[part])
        if sums is None:
            sums, plain = IncrementalMoments.of(batch), batch
        else:
            sums = sums.updated(features[part], scores[part], decay)
            plain = plain.decayed(decay) + batch
        start += size
    return sums, plain


def assert_known(sums, kind):
    """What is known is of that kind, and true: an inverse inverts the co-moment, a bound is below its eigenvalues."""
    assert type(sums.known) is {"inverted": RunningInverse, "factored": EigenvalueBound}[kind]
    norm = sums.known.norm
    scaled = sums.moments.comoment[:-1, :-1][np.ix_(sums.live, sums.live)] / norm / norm[:, None]
    eigenvalues = np.linalg.eigvalsh(scaled)
    if kind == "inverted":
        inverse = np.tril(sums.known.inverse) + np.tril(sums.known.inverse, -1).T
        digits = 1e-13 * eigenvalues[-1] / eigenvalues[0]
        np.testing.assert_allclose(inverse @ scaled, np.eye(len(norm)), atol=digits)
    else:
        assert 0 < sums.known.eigenvalue_bound <= eigenvalues[0] * (1 + 1e-9)


@pytest.fixture
def inverted(monkeypatch):
    """Update the inverse of few columns too."""
    monkeypatch.setattr(module, "_MIN_COLUMNS", 0)
    monkeypatch.setattr(module, "_MIN_COLUMNS_PER_ROW", 2)


@pytest.fixture(params=["factored", "inverted"])
def either(request):
    """Factor a co-moment of few columns each time, as is done, or update its inverse, as is done with many."""
    if request.param == "inverted":
        request.getfixturevalue("inverted")
    return request.param


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("decay", [1.0, 0.97])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 60), min_size=2, max_size=30))
def test_an_updated_solve_is_the_solve_of_the_sum(either, intercept, decay, seed, sizes):
    rng = np.random.default_rng(seed)
    scale = np.where(rng.random(40) < 0.1, 0.0, np.exp(rng.normal(size=40)))  # Some units are dead.
    features = rng.normal(5, 1, size=(sum(sizes), 40)) * scale
    scores = features @ rng.normal(size=40) * 0.1 + rng.normal(size=len(features))
    sums, plain = streamed(features, scores, sizes, decay=decay)
    np.testing.assert_allclose(sums.moments.comoment, plain.comoment, rtol=1e-9, atol=1e-9)
    fit, expected = sums.solve(intercept, None), plain.solve(intercept)
    size = 1e-8 * (1 + np.abs(expected.coef).max())
    np.testing.assert_allclose(fit.coef, expected.coef, atol=size)
    assert fit.rank == expected.rank
    assert fit.intercept == pytest.approx(expected.intercept, abs=50 * size)


def test_small_batches_update_the_inverse_and_factor_nothing(rng, monkeypatch, inverted):
    features, scores = rng.normal(size=(3000, 50)), rng.normal(size=3000)
    sums, _ = streamed(features, scores, [200] + [20] * 3)
    monkeypatch.setattr(module, "cholesky_factor", None)
    monkeypatch.setattr(truing.least_squares, "cholesky_factor", None)
    for start in range(260, 3000, 20):
        sums = sums.updated(features[start : start + 20], scores[start : start + 20], 1.0)
        sums.solve(True, None)
    expected = np.linalg.lstsq(np.column_stack((features, np.ones(3000))), scores, rcond=None)[0]
    np.testing.assert_allclose(sums.solve(True, None).coef, expected[:-1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [1000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_a_stream_of_many_batches_does_not_drift(rng, either, count):
    # Decay keeps the weight bounded, so that an inverse is only ever updated.
    sums = IncrementalMoments.of(truing.Moments.of(rng.normal(size=(100, 12)), rng.normal(size=100)))
    plain = sums.moments
    for _ in range(count):
        features, scores = rng.normal(3, 1, size=(4, 12)), rng.normal(size=4)
        sums = sums.updated(features, scores, 0.95)
        plain = plain.decayed(0.95) + truing.Moments.of(features, scores)
    assert_known(sums, either)
    np.testing.assert_allclose(sums.solve(True, None).coef, plain.solve().coef, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("decay", [1.0, 0.97])
def test_a_large_batch_is_learned_as_a_small_one_is(rng, monkeypatch, decay):
    features, scores = rng.normal(1e4, 1, size=(3000, 12)), rng.normal(size=3000)
    sizes = [500, 11, 800, 900, 5, 784]
    small, _ = streamed(features, scores, sizes, decay=decay)
    monkeypatch.setattr(module, "_LARGE_BATCH", 0)
    large, plain = streamed(features, scores, sizes, decay=decay)
    assert_known(large, "factored")
    scaled = large.moments.comoment[:-1, :-1] / large.known.norm[:, None] / large.known.norm
    assert 0 < large.known.eigenvalue_bound <= np.linalg.eigvalsh(scaled)[0]
    after = large.updated(features[:500], scores[:500], decay)
    assert after.known.eigenvalue_bound == decay * large.known.eigenvalue_bound
    assert large.moments.parts == small.moments.parts
    for sums in (small, large):
        np.testing.assert_allclose(sums.moments.comoment, plain.comoment, rtol=1e-12, atol=1e-9)
        np.testing.assert_allclose(sums.moments.mean, plain.mean, rtol=1e-15, atol=1e-15)
        np.testing.assert_allclose(sums.solve(True, None).coef, plain.solve().coef, rtol=1e-9, atol=1e-12)


def test_to_learn_a_large_batch_takes_little_memory(rng):
    features, scores = rng.normal(size=(200_000, 32)).astype(np.float32), rng.normal(size=200_000)
    sums = IncrementalMoments.of_rows(features[:1000], scores[:1000])
    sums.updated(features[:20_000], scores[:20_000], 1.0)  # Loads what is loaded once.
    tracemalloc.start()
    sums.updated(features, scores, 1.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < features.nbytes / 2


def test_a_batch_of_another_size_of_world_is_solved_anew(rng, either):
    features, scores = rng.normal(size=(400, 30)), rng.normal(size=400)
    sums, _ = streamed(features, scores, [300, 10, 10])
    far, values = rng.normal(size=(10, 30)) * 1e4, rng.normal(size=10)
    sums = sums.updated(far, values, 1.0)
    expected = (truing.Moments.of(features[:320], scores[:320]) + truing.Moments.of(far, values)).solve()
    np.testing.assert_allclose(sums.solve(True, None).predict(features), expected.predict(features), atol=1e-6)


def test_real_features_stream_to_the_batch_fit(bank, either):
    outputs = bank("cifar10-wrn40-2", "cifar10-test")
    scores = truing.energy(outputs.logits)
    sums, plain = streamed(outputs.features, scores, [500] + [32] * 100)
    assert_known(sums, either)
    np.testing.assert_allclose(
        sums.solve(True, None).predict(outputs.features), plain.solve().predict(outputs.features), atol=1e-9
    )


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_no_eigenvalue_is_below_the_bound(rng, decay):
    features, scores = rng.normal(3, 1, size=(1200, 20)) @ rng.normal(size=(20, 20)), rng.normal(size=1200)
    sums = IncrementalMoments.of(truing.Moments.of(features[:200], scores[:200]))
    for start in range(200, 1200, 10):
        sums = sums.updated(features[start : start + 10], scores[start : start + 10], decay)
        assert_known(sums, "factored")


def test_a_bound_serves_many_batches(rng, monkeypatch):
    features, scores = rng.normal(size=(3000, 50)), rng.normal(size=3000)
    sums, _ = streamed(features, scores, [200, 20])
    asked = sums.known
    monkeypatch.setattr(module, "smallest_eigenvalue", None)
    for start in range(220, 3000, 20):
        sums = sums.updated(features[start : start + 20], scores[start : start + 20], 1.0)
    assert sums.known.eigenvalue_bound == asked.eigenvalue_bound
    expected = np.linalg.lstsq(np.column_stack((features, np.ones(3000))), scores, rcond=None)[0]
    np.testing.assert_allclose(sums.solve(True, None).coef, expected[:-1], rtol=1e-9, atol=1e-12)


def test_collinear_columns_have_no_bound_and_no_inverse(rng, either):
    features, scores = rng.normal(size=(400, 12)), rng.normal(size=400)
    features[:, 7] = features[:, 3] - 2 * features[:, 5]
    sums, plain = streamed(features, scores, [100] + [4] * 75)
    assert sums.known is None
    np.testing.assert_allclose(sums.solve(True, None).coef, plain.solve().coef, atol=1e-9)
    assert sums.solve(True, None).rank == 11


def test_a_unit_that_wakes_beside_its_copy_ends_the_bound(rng):
    features, scores = rng.normal(size=(400, 12)), rng.normal(size=400)
    features[:300, 7] = 0
    features[300:, 7] = features[300:, 3]
    features[:300, 3] = 0
    sums, _ = streamed(features, scores, [100] + [4] * 50)
    assert_known(sums, "factored")
    sums, plain = streamed(features, scores, [100] + [4] * 75)
    assert sums.known is None
    np.testing.assert_allclose(sums.solve(True, None).coef, plain.solve().coef, atol=1e-9)


@pytest.mark.parametrize("make", ["jump", "outlier", "collinear", "rescaled"])
def test_an_inverse_that_drifts_is_made_anew_or_dropped(rng, inverted, make):
    """A mean that jumps, a row far away, a column that turns into another: none leaves an inverse that is not one."""
    sums, _ = streamed(rng.normal(size=(400, 12)), rng.normal(size=400), [100] + [4] * 75)
    plain = sums.moments
    for step in range(60):
        features, scores = rng.normal(size=(4, 12)), rng.normal(size=4)
        if make == "jump":
            features += 3e4
        elif make == "outlier":
            features[0] *= 1e6 if step % 7 == 0 else 1.0
        elif make == "collinear":
            features[:, 3] = features[:, 4]
            features *= 1e3
        else:
            features[:, 5] *= 1e-9
        sums = sums.updated(features, scores, 0.9)
        plain = plain.decayed(0.9) + truing.Moments.of(features, scores)
        expected = plain.solve()
        if isinstance(sums.known, RunningInverse):
            assert sums.known.inverts(sums.moments.comoment[:-1, :-1], sums.live)
        fit = sums.solve(True, None)
        assert fit.rank == expected.rank
        # Beside the square of a row of 1e6 float64 has four digits left for that of another.
        digits = 1e-4 if make == "outlier" else 1e-6
        spread = np.sqrt(plain.comoment[-1, -1] / plain.rows)
        np.testing.assert_allclose(fit.predict(features), expected.predict(features), atol=digits * spread)


@pytest.mark.parametrize("decay", [1.0, 0.999])
def test_the_same_batch_again_and_again_keeps_the_rank(rng, decay):
    """Equal batches round alike, and their errors would add up."""
    features = rng.normal(1, 3, size=(30, 4))
    features = np.column_stack((features, features[:, 0] + features[:, 1], features[:, 2]))
    scores = rng.normal(size=30)
    sums = IncrementalMoments.of(truing.Moments.of(features, scores))
    for _ in range(5000):
        sums = sums.updated(features, scores, decay)
    fit, expected = sums.solve(True, None), truing.Moments.of(features, scores).solve()
    assert fit.rank == expected.rank == 4
    np.testing.assert_allclose(fit.coef, expected.coef, atol=1e-9)


def test_scores_that_are_fitted_exactly_have_a_factor(rng):
    features = rng.normal(size=(300, 12))
    features[:, 4] = 0
    for coef in (rng.normal(size=12), np.zeros(12)):
        sums, _ = streamed(features, features @ coef + 2.0, [100] + [1] * 40 + [32] * 5)
        assert_known(sums, "factored")
        fit = sums.solve(True, None)
        np.testing.assert_allclose(fit.coef, np.where(np.arange(12) == 4, 0.0, coef), atol=1e-12)
        assert fit.explained == pytest.approx(1.0)


def a_stream(rng, rows, d, dtype, make):
    """Return features and scores of a stream: with dead units, repeated columns, means far from zero, or none of it."""
    features = rng.normal(size=(rows, d)) * np.exp(rng.normal(size=d))
    if make == "dead":
        features[:, rng.random(d) < 0.3] = 0
    elif make == "repeated":
        features[:, d // 2 :] = features[:, : d - d // 2]
    elif make == "far":
        features += 1e3 * rng.normal(size=d)
    return features.astype(dtype), features @ rng.normal(size=d) + rng.normal(size=rows)


@pytest.mark.parametrize("make", ["plain", "dead", "repeated", "far"])
@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    d=st.integers(1, 40),
    sizes=st.lists(st.sampled_from([1, 1, 2, 3, 8, 31, 64]), min_size=1, max_size=12),
    dtype=st.sampled_from([np.float16, np.float32, np.float64, ">f4"]),
    decay=st.sampled_from([1.0, 0.97]),
    lay=st.sampled_from([np.ascontiguousarray, np.asfortranarray, lambda x: np.repeat(x, 2, axis=1)[:, ::2]]),
)
def test_a_stream_is_the_same_with_and_without_kernels(make, seed, d, sizes, dtype, decay, lay):
    rng = np.random.default_rng(seed)
    features, scores = a_stream(rng, sum(sizes) + 5, d, dtype, make)
    features = lay(features)
    compiled = IncrementalMoments.of_rows(features[:5], scores[:5])
    plain, start = compiled, 5
    for size in sizes:
        batch = features[start : start + size], scores[start : start + size]
        compiled = compiled.updated(*batch, decay)
        with without_kernels():
            plain = plain.updated(*batch, decay)
        start += size
    ours, theirs = compiled.moments, plain.moments
    norm = np.sqrt(theirs.comoment.diagonal()) + 1e-9
    np.testing.assert_array_equal(compiled.live, plain.live)
    np.testing.assert_allclose(ours.mean, theirs.mean, rtol=1e-15, atol=1e-15 * norm.max())
    np.testing.assert_allclose(ours.comoment / norm / norm[:, None], theirs.comoment / norm / norm[:, None], atol=1e-13)
    fit = compiled.solve(True, None)
    with without_kernels():
        expected = plain.solve(True, None)
    assert fit.rank == expected.rank
    size = np.abs(scores).max() * max(1.0, 1e3 * (make == "far"))
    np.testing.assert_allclose(fit.predict(features), expected.predict(features), atol=1e-8 * size)
    assert fit.explained == pytest.approx(expected.explained, abs=1e-8)


@settings(max_examples=50)
@given(
    seed=st.integers(0, 10**6),
    d=st.integers(1, 70),
    b=st.sampled_from([1, 2, 7, 33]),
    dead=st.booleans(),
    norms=st.sampled_from(["none", "before", "of others"]),
)
def test_columns_grow_by_the_batch_with_and_without_kernels(seed, d, b, dead, norms):
    rng = np.random.default_rng(seed)
    features, scores = rng.normal(2, 1, size=(50 + b, d)), rng.normal(size=50 + b)
    if dead:
        features[:, :: d + 1] = 5
    old = replace(truing.Moments.of(features[:50], scores[:50]), rounding=np.full(d + 1, 1e-9))
    squares = old.comoment.diagonal()[:-1][int(dead) :]
    norm = {"none": None, "before": np.sqrt(squares), "of others": np.ones(d + 2)}[norms]
    grown = module.with_batch(old, features[50:], scores[50:], norm)
    with without_kernels():
        plain = module.with_batch(old, features[50:], scores[50:], norm)
    assert grown.live == plain.live == d - dead
    np.testing.assert_array_equal(grown.varies, plain.varies)
    np.testing.assert_allclose(grown.centred, plain.centred, atol=1e-12)
    centred = features[:, int(dead) :] - features[:, int(dead) :].mean(axis=0)
    after = (centred**2).sum(axis=0)
    times = after / squares if norms == "before" else np.full(len(after), np.inf)
    for found in (grown.growth, plain.growth):
        assert found.largest_square == pytest.approx(after.max(initial=0.0))
        assert found.times == pytest.approx(times.max(initial=0.0))
        assert found.rounding == pytest.approx((1e-9 / after).sum())


@settings(max_examples=50)
@given(seed=st.integers(0, 10**6), d=st.integers(1, 70), b=st.sampled_from([1, 2, 7, 33, 64]))
def test_a_symmetric_comoment_stays_symmetric_to_the_bit(seed, d, b):
    rng = np.random.default_rng(seed)
    moments = truing.Moments.of(rng.normal(size=(50, d)), rng.normal(size=50))
    symmetric = replace(moments, comoment=moments.comoment + moments.comoment.T, comoment_low=np.zeros((d + 1, d + 1)))
    after = module.with_batch(symmetric, rng.normal(3, 1, size=(b, d)), rng.normal(size=b))[0]
    np.testing.assert_array_equal(after.comoment, after.comoment.T)
    np.testing.assert_array_equal(after.comoment_low, after.comoment_low.T)


@pytest.mark.parametrize("d", [1, 7, 8, 9, 63, 64, 65])
@pytest.mark.parametrize("dead", [False, True])
def test_coefficients_by_the_factor_are_those_of_least_squares(rng, d, dead):
    features, scores = rng.normal(2, 1, size=(300, d)), rng.normal(size=300)
    if dead:
        features[:, ::3] = 5
    sums, _ = streamed(features, scores, [200, 1, 2, 97])
    if d > 1 or not dead:
        assert_known(sums, "factored")
    expected = np.linalg.lstsq(features - features.mean(axis=0), scores, rcond=None)[0]
    np.testing.assert_allclose(sums.solve(True, None).coef, expected, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("without", [nullcontext, without_kernels])
def test_rows_that_are_no_longer_finite_are_refused(rng, dtype, bad, size, without):
    sums = IncrementalMoments.of_rows(rng.normal(size=(20, 6)), rng.normal(size=20))
    features = rng.normal(size=(size, 6)).astype(dtype)
    features[size // 2, 3] = bad
    with without(), pytest.raises(ValueError, match="features must be finite when learned"):
        sums.updated(features, rng.normal(size=size), 1.0)
