"""Detector states are restored bit for bit, and threads can share a detector without losing updates."""

import copy
import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing.saved import to_bytes


@st.composite
def batches(draw, d):
    """Return a batch of rows with any of the changes in `WORLDS`."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    rows = draw(st.integers(1, 12))
    features = rng.normal(size=(rows, d))
    for change in draw(st.lists(st.sampled_from(sorted(WORLDS)), max_size=3)):
        features = WORLDS[change](features, rng)
    features = np.clip(features, -1e95, 1e95)
    if draw(st.booleans()):
        features = np.clip(features, -6e4, 6e4).astype(np.float16)
    scores = rng.normal(size=rows) * draw(st.sampled_from([1.0, 0.0, 1e-9, 1e9]))
    return truing.Outputs(features, scores=scores)


def _one_row_far(features, rng):
    features[rng.integers(len(features))] *= 1e6
    return features


def _copied(features, rng):
    features[:, -1] = features[:, 0]
    return features


def _with_dead(features, rng):
    features[:, rng.integers(features.shape[1])] = 0.0
    return features


WORLDS = {
    "jump": lambda z, rng: z + 3e4,
    "far": _one_row_far,
    "copied": _copied,
    "dead": _with_dead,
    "constant": lambda z, rng: z * 0 + 0.1,
    "units": lambda z, rng: z * 10.0 ** rng.integers(-12, 13, z.shape[1]),
    "tiny": lambda z, rng: z * 1e-90,
    "huge": lambda z, rng: z * 1e90,
}

STEPS = st.sampled_from(["learn", "learn", "learn", "calibrate", "save", "learn_and_decide"])


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@settings(max_examples=35, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), d=st.integers(2, 6))
def test_a_restored_detector_continues_with_the_same_bits(tmp_path, data, d):
    path = tmp_path / "detector.npz"
    shape = data.draw(
        st.fixed_dictionaries(
            {
                "decay": st.sampled_from([1.0, 1.0, 0.9, 0.01]),
                "intercept": st.booleans(),
                "components": st.sampled_from([None, None, 1, 2]),
                "model": st.sampled_from([None, "a"]),
            }
        )
    )
    going, stopped = truing.Detector("given", **shape), truing.Detector("given", **shape)
    probe = truing.Outputs(np.random.default_rng(0).normal(size=(5, d)))
    for step in data.draw(st.lists(STEPS, min_size=2, max_size=14)):
        if step == "save":
            truing.save(stopped, path)
            stopped = truing.load(path)
        else:
            batch = data.draw(batches(d))
            if step == "learn_and_decide" and going.reference is not None:
                one, other = (each.learn_and_decide(batch, false_alarm=0.2) for each in (going, stopped))
                np.testing.assert_array_equal(one.p_values, other.p_values)
            else:
                act = "calibrate" if step == "calibrate" else "learn"
                for each in (going, stopped):
                    getattr(each, act)(batch)
        if going.moments is not None:
            np.testing.assert_array_equal(going.score(probe), stopped.score(probe))
            assert going.moments.rows == stopped.moments.rows
            for one, other in (
                (going.moments, stopped.moments),
                (going.current_fit, stopped.current_fit),
                (going.fit_of_learned(), stopped.fit_of_learned()),
            ):
                for name, value in vars(one).items():
                    np.testing.assert_array_equal(getattr(other, name), value)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_moments_after_any_sums_and_differences_are_restored_bit_for_bit(tmp_path, data):
    moments = parts = None
    for batch in data.draw(st.lists(batches(4), min_size=1, max_size=8)):
        more = truing.Moments.of(batch.features, batch.scores)
        moments = more if moments is None else moments + more
        if parts is not None and data.draw(st.booleans()):
            moments = moments - parts
            parts = None
        else:
            parts = more if moments.rows > more.rows else None
        if data.draw(st.booleans()):
            moments = moments.decayed(0.5)
            parts = None
        truing.save(moments, tmp_path / "moments.npz")
        again = truing.load(tmp_path / "moments.npz")
        for name, value in vars(moments).items():
            np.testing.assert_array_equal(getattr(again, name), value)
        np.testing.assert_array_equal(again.solve().coef, moments.solve().coef)
        assert np.isfinite(moments.solve().coef).all()


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("d", [3, 150])
def test_eight_threads_learn_the_same_as_one(d):
    """Other threads decide and calibrate at the same time."""
    rng = np.random.default_rng(1)
    features = rng.integers(-3, 4, size=(30, 5, d)).astype(np.float64)  # Sums of integers are exact.
    scores = rng.integers(-3, 4, size=(30, 5)).astype(np.float64)
    parts = [truing.Outputs(z, scores=s) for z, s in zip(features, scores, strict=True)]
    shared, serial, done = truing.Detector("given"), truing.Detector("given"), threading.Event()
    for detector in (shared, serial):
        detector.calibrate(parts[0])
        detector.learn(parts[0])

    def read():
        while not done.is_set():
            assert (shared.current_fit.rows - 5) % 5 == 0
            assert np.isfinite(shared.decide(parts[1], false_alarm=0.5).scores).all()

    def calibrate():
        while not done.is_set():
            shared.calibrate(parts[0])

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(12) as threads:
            others = [threads.submit(act) for act in (read, read, read, calibrate)]
            learned = [threads.submit(shared.learn_and_decide, part, false_alarm=0.5) for part in parts[1:]]
            for future in learned:
                future.result()
            done.set()
            for future in others:
                future.result()
    finally:
        done.set()
        sys.setswitchinterval(before)
    for part in parts[1:]:
        serial.learn(part)
    assert shared.moments.rows == serial.moments.rows == 150
    for one, other in ((shared.fit_of_learned(), serial.fit_of_learned()), (shared.current_fit, serial.current_fit)):
        np.testing.assert_allclose(one.coef, other.coef, atol=1e-9)


def test_a_score_does_not_wait_for_a_learn(rng):
    rows = truing.Outputs(rng.normal(size=(20, 3)), scores=rng.normal(size=20))
    learning, done = threading.Event(), threading.Event()

    def slow(outputs):
        if learning.is_set():
            done.wait(30)
        return outputs.scores

    detector = truing.Detector(slow)
    detector.learn(rows)
    learning.set()
    with ThreadPoolExecutor(2) as threads:
        learned = threads.submit(detector.learn, rows)
        scored = threads.submit(detector.score, rows).result(timeout=30)
        assert not learned.done()
        done.set()
    expected = truing.fit_direct(rows.features, rows.scores).predict(rows.features)
    np.testing.assert_allclose(scored, expected, atol=1e-10)
    assert detector.moments.rows == 40


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize(
    "options",
    [{"decay": 0.9, "model": "a"}, {"window": 50}, {"method": "rlr"}, {"method": "contrast", "components": 2}],
    ids=str,
)
def test_a_copy_is_independent_of_the_original(rng, options):
    rows = truing.Outputs(rng.normal(size=(400, 4)), scores=rng.normal(size=400))
    detector = truing.Detector("given", drift_alarm=0.01, **({"method": "dlr"} | options))
    detector.calibrate(rows[:150])
    detector.learn_and_decide(rows[150:250], fdr=0.1)
    before = to_bytes("detector", detector)
    for copied in (copy.copy(detector), copy.deepcopy(detector), pickle.loads(pickle.dumps(detector))):
        assert to_bytes("detector", copied) == before
        copied.learn_and_decide(rows[250:], fdr=0.1)
        copied.decide(rows, false_alarm=0.1)
        assert to_bytes("detector", copied) != before
    assert to_bytes("detector", detector) == before


def test_a_fit_is_solved_once_for_a_state_and_its_copies(rng):
    rows = truing.Outputs(rng.normal(size=(60, 4)), scores=rng.normal(size=60))
    detector = truing.Detector("given")
    detector.calibrate(rows)
    detector.learn(rows)
    copied = copy.copy(detector)
    fits = detector.current_fit, detector.fit_of_learned()
    assert fits[0] is not fits[1]
    for each in (detector, copied):
        assert (each.current_fit, each.fit_of_learned()) == fits
    copied.learn(rows)
    assert copied.current_fit is not fits[0]
    assert detector.current_fit is fits[0]
