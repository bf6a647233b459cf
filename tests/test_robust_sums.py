"""RLR of a stream: of all rows while they are held, and of what was trusted before."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing import robust_sums
from truing.fits import trust_order

from .plain_online_rlr import online_rlr, ridge_fit

generated = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def world(rng, rows, d=4):
    features = rng.normal(1, 1, size=(rows, d))
    scores = features @ np.arange(1.0, d + 1) + 0.3 * rng.normal(size=rows)
    scores[rng.random(rows) < 0.15] -= 20 * rng.random()
    return truing.Outputs(features, scores=scores)


def cut(outputs, rng):
    """Return the rows in batches of any sizes."""
    ends = np.sort(rng.integers(0, len(outputs), size=rng.integers(1, 12)))
    parts = zip(np.append(0, ends), np.append(ends, len(outputs)), strict=True)
    return [outputs[int(start) : int(stop)] for start, stop in parts if stop > start]


@pytest.fixture
def few_held(monkeypatch):
    """Let rows leave early."""
    monkeypatch.setattr(robust_sums, "FEWEST_HELD", 30)
    monkeypatch.setattr(robust_sums, "MOST_HELD", 60)


@generated
@given(
    seed=st.integers(0, 10**6),
    shape=st.sampled_from([{}, {"keep": 0.6}, {"intercept": False}, {"components": 2}, {"keep": 1.0}]),
    calibrated=st.booleans(),
)
def test_as_long_as_all_rows_are_held_the_rows_that_rlr_trusts_of_all_are_fitted(seed, shape, calibrated):
    rng = np.random.default_rng(seed)
    rows, known, detector = world(rng, 120), world(rng, 40), truing.Detector("given", method="rlr", **shape)
    if calibrated:
        detector.calibrate(known)
    for batch in cut(rows, rng):
        detector.learn(batch)
    everything = truing.Outputs.concatenate([rows, known]) if calibrated else rows
    coef, intercept = online_rlr(everything.features, everything.scores, **shape)
    np.testing.assert_allclose(detector.current_fit.coef, coef, rtol=1e-8, atol=1e-9)
    assert detector.current_fit.intercept == pytest.approx(intercept, rel=1e-8, abs=1e-9)
    assert detector.moments.rows == 120


def test_of_many_rows_the_ranking_is_that_of_rlr(rng):
    rows, detector = world(rng, 1900), truing.Detector("given", method="rlr")
    for batch in cut(rows, rng):
        detector.learn(batch)
    fit = truing.fit_robust(rows.features, rows.scores)
    assert np.corrcoef(detector.score(rows), fit.predict(rows.features))[0, 1] > 1 - 1e-5
    assert detector.current_fit.explained == pytest.approx(fit.explained, abs=1e-4)


def test_scores_of_early_and_late_batches_are_on_one_scale():
    """RLR's own are not: of msp its coefficients become smaller by orders of magnitude as rows come in."""
    rows = truing.sample()[np.random.default_rng(0).permutation(len(truing.sample()))]
    detector, spreads, of_batches = truing.Detector("msp", method="rlr"), [], []
    for part in (rows[:100], rows[100:3000]):
        detector.learn(part)
        spreads.append(detector.score(rows).std())
    for count in (100, 3000):
        fit = truing.fit_robust(rows[:count].features, truing.msp(rows[:count].logits))
        of_batches.append(fit.predict(rows.features).std())
    assert of_batches[0] > 30 * of_batches[1]
    assert 1 / 2 < spreads[0] / spreads[1] < 2


@generated
@given(seed=st.integers(0, 10**6), rows=st.integers(2, 60))
def test_trued_scores_do_not_depend_on_units(seed, rows):
    """With `keep` = 1: which rows RLR trusts does depend on them."""
    rng = np.random.default_rng(seed)
    outputs, scale = world(rng, rows), 10.0 ** rng.integers(-6, 7, size=4)
    one, other = (truing.Detector("given", method="rlr", keep=1.0) for _ in range(2))
    one.learn(outputs)
    other.learn(truing.Outputs(outputs.features * scale, scores=1e3 * outputs.scores - 7))
    scores = other.score(truing.Outputs(outputs.features * scale))
    np.testing.assert_allclose(one.score(outputs), scores, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [{}, {"intercept": False}, {"components": 2}])
@pytest.mark.parametrize("rows", [1, 2, 40])
def test_rows_that_are_all_the_same_score_zero(rng, shape, rows):
    row, detector = rng.normal(size=3) + 10, truing.Detector("given", method="rlr", **shape)
    detector.learn(truing.Outputs(np.tile(row, (rows, 1)), scores=np.full(rows, 0.1)))
    assert detector.score(truing.Outputs([row])) == pytest.approx(0.0, abs=1e-12)


def test_rounding_of_the_scores_is_not_scaled_up_to_a_spread_of_one(rng):
    features = rng.normal(size=(40, 3)) + 10
    detector = truing.Detector("given", method="rlr")
    detector.learn(truing.Outputs(features, scores=1 + 2.0**-52 * rng.integers(2, size=40)))
    np.testing.assert_allclose(detector.score(truing.Outputs(features)), 0.0, atol=1e-12)


def test_a_fit_of_few_rows_is_nearer_to_that_of_many_than_rlr_is():
    rows = truing.sample()[np.random.default_rng(0).permutation(len(truing.sample()))]
    scores = truing.energy(rows.logits)
    settled = truing.fit_robust(rows.features, scores).predict(rows.features)
    for count in (50, 200, 800):
        detector = truing.Detector("energy", method="rlr")
        detector.learn(rows[:count])
        rlr = truing.fit_robust(rows.features[:count], scores[:count])
        online, batch = (
            np.corrcoef(trued, settled)[0, 1] for trued in (detector.score(rows), rlr.predict(rows.features))
        )
        assert online > batch


def plainly(batches, keep):
    """Return (features, scores) of the rows that are fitted after these batches, by lists of rows."""
    held, settled = [], []
    for batch in batches:
        if len(held) > 60:
            features, scores = (np.array(column) for column in zip(*held, strict=True))
            trusted = set(trust_order(features, scores)[: int(keep * len(held) + 1e-9)].tolist())
            leaving = len(held) - 30
            settled += [row for number, row in enumerate(held[:leaving]) if number in trusted]
            held = held[leaving:]
        held += list(zip(batch.features, batch.scores, strict=True))
    features, scores = (np.array(column) for column in zip(*held, strict=True))
    trusted = trust_order(features, scores)[: int(keep * len(held) + 1e-9)]
    fitted = settled + [held[number] for number in trusted]
    return tuple(np.array(column) for column in zip(*fitted, strict=True))


@generated
@given(seed=st.integers(0, 10**6), keep=st.sampled_from([0.8, 0.5, 0.95]))
def test_rows_that_left_stay_as_they_were_trusted(few_held, seed, keep):
    rng = np.random.default_rng(seed)
    rows, detector = world(rng, 260), truing.Detector("given", method="rlr", keep=keep)
    parts = cut(rows, rng)
    for batch in parts:
        detector.learn(batch)
    features, scores = plainly(parts, keep)
    np.testing.assert_allclose(detector.current_fit.coef, ridge_fit(features, scores)[0], rtol=1e-7, atol=1e-8)
    assert detector.current_fit.rows == len(scores)
    assert detector.moments.rows == 260


def test_rows_held_are_bounded(few_held, rng):
    detector = truing.Detector("given", method="rlr")
    for _ in range(60):
        detector.learn(world(rng, 7))
        assert sum(map(len, detector.moments.held)) <= 60 + 7
    assert detector.moments.rows == 420


@generated
@given(seed=st.integers(0, 10**6))
def test_rows_at_hand_and_reference_rows_stand_in_the_fit_alike(few_held, seed):
    """The p-values' guarantee: rows of the batch and of the reference may change places, and no score changes."""
    rng = np.random.default_rng(seed)
    before, both = world(rng, 150), world(rng, 60)
    swapped = both[rng.permutation(60)]
    scores = []
    for rows in (both, swapped):
        detector = truing.Detector("given", method="rlr")
        detector.calibrate(rows[:40])
        for batch in (before[:70], before[70:140], before[140:]):
            detector.learn(batch)
        detector.learn_and_decide(rows[40:], false_alarm=0.1)
        scores.append(detector.score(both))
    np.testing.assert_allclose(*scores, rtol=1e-7, atol=1e-8)


def test_wrong_scores_move_online_dlr_and_not_online_rlr(rng):
    features = rng.normal(size=(3000, 3))
    scores = features @ [1.0, 2.0, 3.0]
    wrong = rng.random(3000) < 0.1
    scores[wrong] = 40 * features[wrong, 0]
    robust, direct = truing.Detector("given", method="rlr"), truing.Detector("given")
    for start in range(0, 3000, 50):
        for detector in (robust, direct):
            detector.learn(truing.Outputs(features[start : start + 50], scores=scores[start : start + 50]))
    np.testing.assert_allclose(3 * robust.current_fit.coef / robust.current_fit.coef[2], [1, 2, 3], atol=0.05)
    assert abs(3 * direct.current_fit.coef[0] / direct.current_fit.coef[2] - 1) > 1


@settings(generated, max_examples=8)
@given(seed=st.integers(0, 10**6), shape=st.sampled_from([{}, {"components": 2}, {"window": 3}]))
def test_a_restored_stream_goes_on_to_the_bit(few_held, tmp_path, seed, shape):
    rng = np.random.default_rng(seed)
    going, stopped = (truing.Detector("given", method="rlr", **shape) for _ in range(2))
    probe = world(rng, 5)
    for number, batch in enumerate(cut(world(rng, 200), rng)):
        for each in (going, stopped):
            if number == 2:
                each.calibrate(probe)
            each.learn(batch)
        truing.save(stopped, tmp_path / "detector.npz")
        stopped = truing.load(tmp_path / "detector.npz")
        np.testing.assert_array_equal(going.score(probe), stopped.score(probe))
        np.testing.assert_array_equal(going.fit_of_learned().coef, stopped.fit_of_learned().coef)
        assert stopped.moments.rows == going.moments.rows


def test_false_alarms_keep_their_stated_rate(few_held):
    """Over streams of in-distribution rows and others, in which rows leave: each has a chance of 10 %."""
    alarms = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        detector = truing.Detector("given", method="rlr")
        detector.calibrate(world(rng, 99))
        for _ in range(4):
            decision = detector.learn_and_decide(world(rng, 30), false_alarm=0.1)
            alarms.append(decision.is_out.mean())
    # Rows of one stream share its reference: the streams' means are independent.
    rates = np.mean(np.reshape(alarms, (40, 4)), axis=1)
    assert abs(rates.mean() - 0.1) < 4 * rates.std() / np.sqrt(40)


def test_rows_spoiled_after_they_were_checked_are_not_learned(rng):
    features = rng.normal(size=(20, 3))
    rows = truing.Outputs(features, scores=rng.normal(size=20))
    for options in ({"method": "rlr"}, {"window": 3}):
        detector = truing.Detector("given", **options)
        detector.learn(rows)
        state, features[3, 1] = detector.state, np.nan
        with pytest.raises(ValueError, match="features must be finite"):
            detector.learn(rows)
        assert detector.state is state
        features[3, 1] = 0.0


def test_a_detector_says_that_it_is_robust(rng):
    detector = truing.Detector("given", method="rlr")
    with pytest.raises(ValueError, match="nothing learned yet: call learn first"):
        _ = detector.current_fit
    detector.learn(world(rng, 20))
    assert repr(detector) == "Detector(rlr, base given, 4 features, 20 rows learned)"
