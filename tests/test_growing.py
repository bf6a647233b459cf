import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing.growing import Growing


def grown(features, scores, sizes, *, decay=1.0):
    """Grow by batches of the given sizes; return it and the moments that a plain sum gives."""
    growing, plain, start = None, None, 0
    for size in sizes:
        part = slice(start, start + size)
        batch = truing.Moments.of(features[part], scores[part])
        if growing is None:
            growing, plain = Growing.of(batch), batch
        else:
            growing = growing.grown(features[part], scores[part], decay)
            plain = plain.decayed(decay) + batch
        start += size
    return growing, plain


@pytest.fixture
def followed(monkeypatch):
    """Follow the inverse of few columns too."""
    monkeypatch.setattr(truing.growing, "_COLUMNS", 0)
    monkeypatch.setattr(truing.growing, "_COLUMNS_A_ROW", 2)


@pytest.fixture(params=["factored", "followed"])
def either(request):
    """Factor a co-moment of few columns each time, as is done, or follow its inverse, as is done with many."""
    if request.param == "followed":
        request.getfixturevalue("followed")
    return request.param


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("decay", [1.0, 0.97])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), sizes=st.lists(st.integers(1, 60), min_size=2, max_size=30))
def test_a_growing_solve_is_the_solve_of_the_sum(either, intercept, decay, seed, sizes):
    rng = np.random.default_rng(seed)
    scale = np.where(rng.random(40) < 0.1, 0.0, np.exp(rng.normal(size=40)))  # Some units are dead.
    features = rng.normal(5, 1, size=(sum(sizes), 40)) * scale
    scores = features @ rng.normal(size=40) * 0.1 + rng.normal(size=len(features))
    growing, plain = grown(features, scores, sizes, decay=decay)
    np.testing.assert_allclose(growing.moments.comoment, plain.comoment, rtol=1e-9, atol=1e-9)
    fit, expected = growing.solve(intercept, None), plain.solve(intercept)
    size = 1e-8 * (1 + np.abs(expected.coef).max())
    np.testing.assert_allclose(fit.coef, expected.coef, atol=size)
    assert fit.rank == expected.rank
    assert fit.intercept == pytest.approx(expected.intercept, abs=50 * size)


def test_small_batches_are_followed_and_not_factored_anew(rng, monkeypatch, followed):
    features, scores = rng.normal(size=(3000, 50)), rng.normal(size=3000)
    growing, _ = grown(features, scores, [200] + [20] * 3)
    monkeypatch.setattr(truing.growing, "_begun", None)
    monkeypatch.setattr(truing.growing, "least_norm", None)
    for start in range(260, 3000, 20):
        growing = growing.grown(features[start : start + 20], scores[start : start + 20], 1.0)
        growing.solve(True, None)
    expected = np.linalg.lstsq(np.column_stack((features, np.ones(3000))), scores, rcond=None)[0]
    np.testing.assert_allclose(growing.solve(True, None).coef, expected[:-1], rtol=1e-9, atol=1e-12)


def test_a_stream_of_many_batches_does_not_drift(rng, either):
    # Decay keeps the weight bounded, so that an inverse is only ever updated: 3,000 times here.
    growing = Growing.of(truing.Moments.of(rng.normal(size=(100, 12)), rng.normal(size=100)))
    plain = growing.moments
    for _ in range(3000):
        features, scores = rng.normal(3, 1, size=(4, 12)), rng.normal(size=4)
        growing = growing.grown(features, scores, 0.95)
        plain = plain.decayed(0.95) + truing.Moments.of(features, scores)
    assert (growing.inverse is not None) == (either == "followed")
    np.testing.assert_allclose(growing.solve(True, None).coef, plain.solve().coef, rtol=1e-9, atol=1e-9)


def test_a_batch_of_another_size_of_world_is_solved_anew(rng, either):
    features, scores = rng.normal(size=(400, 30)), rng.normal(size=400)
    growing, _ = grown(features, scores, [300, 10, 10])
    far, values = rng.normal(size=(10, 30)) * 1e4, rng.normal(size=10)
    growing = growing.grown(far, values, 1.0)
    expected = (truing.Moments.of(features[:320], scores[:320]) + truing.Moments.of(far, values)).solve()
    np.testing.assert_allclose(growing.solve(True, None).predict(features), expected.predict(features), atol=1e-6)


def test_real_features_stream_to_the_batch_fit(bank, either):
    outputs = bank("cifar10-wrn40-2", "cifar10-test")
    scores = truing.energy(outputs.logits)
    growing, plain = grown(outputs.features, scores, [500] + [32] * 100)
    assert (growing.inverse is not None, growing.least > 0) == (either == "followed", either == "factored")
    np.testing.assert_allclose(
        growing.solve(True, None).predict(outputs.features), plain.solve().predict(outputs.features), atol=1e-9
    )


@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_no_eigenvalue_is_below_the_least(rng, decay):
    features, scores = rng.normal(3, 1, size=(1200, 20)) @ rng.normal(size=(20, 20)), rng.normal(size=1200)
    growing = Growing.of(truing.Moments.of(features[:200], scores[:200]))
    for start in range(200, 1200, 10):
        growing = growing.grown(features[start : start + 10], scores[start : start + 10], decay)
        smallest = np.linalg.eigvalsh(growing.moments.comoment[:-1, :-1])[0]
        assert 0 < growing.least <= smallest


def test_a_stream_known_to_be_sound_is_not_asked_again(rng, monkeypatch):
    features, scores = rng.normal(size=(3000, 50)), rng.normal(size=3000)
    growing, _ = grown(features, scores, [200, 20])
    asked = growing.least
    monkeypatch.setattr(truing.growing, "_least", None)
    for start in range(220, 3000, 20):
        growing = growing.grown(features[start : start + 20], scores[start : start + 20], 1.0)
    assert growing.least == asked
    expected = np.linalg.lstsq(np.column_stack((features, np.ones(3000))), scores, rcond=None)[0]
    np.testing.assert_allclose(growing.solve(True, None).coef, expected[:-1], rtol=1e-9, atol=1e-12)


def test_collinear_columns_are_never_taken_for_sound(rng, either):
    features, scores = rng.normal(size=(400, 12)), rng.normal(size=400)
    features[:, 7] = features[:, 3] - 2 * features[:, 5]
    growing, plain = grown(features, scores, [100] + [4] * 75)
    assert growing.inverse is None
    assert growing.least == 0
    np.testing.assert_allclose(growing.solve(True, None).coef, plain.solve().coef, atol=1e-9)
    assert growing.solve(True, None).rank == 11


def test_a_unit_that_wakes_beside_its_copy_is_no_longer_sound(rng):
    features, scores = rng.normal(size=(400, 12)), rng.normal(size=400)
    features[:300, 7] = 0
    features[300:, 7] = features[300:, 3]
    features[:300, 3] = 0
    growing, _ = grown(features, scores, [100] + [4] * 50)
    assert growing.least > 0
    growing, plain = grown(features, scores, [100] + [4] * 75)
    assert growing.least == 0
    np.testing.assert_allclose(growing.solve(True, None).coef, plain.solve().coef, atol=1e-9)
