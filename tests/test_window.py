"""A window is the sum of the last batches, whatever came before them."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing.robust_sums import Batch
from truing.window import Window


class Numbers(tuple):
    """A sum that knows what was added."""

    def __add__(self, more):
        return Numbers((*self, *more))


def one(number):
    return Numbers((number,))


@given(size=st.integers(1, 60), learned=st.integers(1, 200))
def test_the_total_is_of_the_last_batches_each_once(size, learned):
    window = Window(size, one)
    for number in range(learned):
        window = window.with_batch(number)
    last = list(range(max(0, learned - size), learned))
    assert list(window.batches) == last
    assert sorted(window.total) == last
    # The memory that docs/streams.md states.
    assert len(window.leaving) + len(window.whole) + 2 <= 2 * np.sqrt(size) + 3


@given(size=st.integers(1, 60), learned=st.integers(1, 200))
def test_a_window_made_from_its_batches_is_the_one_that_learned_them(size, learned):
    window = Window(size, one)
    for number in range(learned):
        window = window.with_batch(number)
    again = Window.of(size, one, learned, window.batches)
    for name in ("learned", "batches", "leaving", "whole", "between", "newest"):
        assert getattr(again, name) == getattr(window, name)


def test_additions_per_batch_do_not_grow_with_the_window():
    counted = 0

    class Counting:
        def __add__(self, more):
            nonlocal counted
            counted += 1
            return self

    for size in (10, 100, 2500):
        window = Window(size, lambda _: Counting())
        for number in range(size):
            window = window.with_batch(number)
        counted = 0
        for number in range(2 * size):
            window = window.with_batch(number)
            _ = window.total
        assert counted <= 7 * 2 * size


@settings(max_examples=60)
@given(data=st.data(), size=st.integers(1, 9), d=st.integers(1, 5))
def test_nothing_is_left_of_batches_that_a_detector_forgot(data, size, d):
    """Not even of numbers 1e80 times as large, whose rounding alone would drown the others."""
    detector, learned = truing.Detector("given", window=size), []
    for seed in data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=24)):
        rng = np.random.default_rng(seed)
        rows = rng.integers(1, 6)
        unit, offset = rng.choice([1.0, 1.0, 1e80, 1e-80]), rng.choice([0.0, 0.0, 1e6])
        learned.append(Batch((rng.normal(size=(rows, d)) + offset) * unit, rng.normal(size=rows)))
        detector.learn(truing.Outputs(learned[-1].features, scores=learned[-1].scores))
        expected, found = Batch.joined(*learned[-size:]).moments(), detector.moments
        assert found.rows == expected.rows
        spread = np.sqrt(np.diagonal(expected.comoment))
        largest = np.abs(Batch.joined(*learned[-size:]).features).max(axis=0, initial=0)
        noise = np.sqrt(expected.rows) * 1e-15 * np.append(largest, 0)  # What centring leaves of a large mean.
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12, atol=1e-12 * largest.max())
        error = np.abs(found.comoment - expected.comoment)
        assert (error <= 1e-11 * np.outer(spread + noise, spread + noise)).all()


def batches(rows, size=40):
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@pytest.fixture(scope="module")
def known():
    held = truing.sample("cifar10-test")[5000:5600]
    return truing.Outputs(held.features, held.logits)


@pytest.fixture(scope="module")
def rows():
    mix = truing.Outputs.concatenate(
        [truing.Outputs(part.features, part.logits) for part in (truing.sample()[:700], truing.sample("svhn")[:100])]
    )
    return mix[np.random.default_rng(0).permutation(800)]


@pytest.mark.parametrize(
    "settings", [{}, {"components": 5}, {"intercept": False}, {"method": "contrast"}, {"method": "rlr"}]
)
@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_window_scores_as_a_detector_that_learned_its_batches_alone(rows, known, settings, size):
    forgetful = truing.Detector(window=size, **settings)
    forgetful.calibrate(known)
    parts = batches(rows)
    for part in parts[:12]:
        forgetful.learn(part)
    fresh = truing.Detector(**settings)
    fresh.calibrate(known)
    for part in parts[12 - size : 12]:
        fresh.learn(part)
    assert forgetful.moments.rows == fresh.moments.rows == 40 * size
    np.testing.assert_allclose(forgetful.score(rows), fresh.score(rows), rtol=1e-7, atol=1e-9)
    one, other = (each.decide(rows, false_alarm=0.1) for each in (forgetful, fresh))
    np.testing.assert_allclose(one.p_values, other.p_values, atol=2e-3)


@pytest.mark.parametrize("settings", [{}, {"components": 5}, {"method": "contrast"}, {"method": "rlr"}])
def test_a_restored_window_goes_on_to_the_bit(rows, known, settings, tmp_path):
    going, stopped = (truing.Detector(window=5, **settings) for _ in range(2))
    for each in (going, stopped):
        each.calibrate(known)
    for number, part in enumerate(batches(rows)[:18]):
        if number % 3 == 1:
            part = truing.Outputs(part.features.astype(np.float32), part.logits)
        one, other = (each.learn_and_decide(part, false_alarm=0.1) for each in (going, stopped))
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.p_values, other.p_values)
        truing.save(stopped, tmp_path / "detector.npz")
        stopped = truing.load(tmp_path / "detector.npz")
        assert stopped.settings.window == 5


def test_a_window_follows_a_change_that_all_rows_hide(rng):
    features = rng.normal(size=(2000, 3))
    truth = np.where(np.arange(2000)[:, None] < 1000, [1.0, 0, 0], [0, 0, 1.0])
    rows = truing.Outputs(features, scores=np.sum(features * truth, axis=1))
    fixed, following = truing.Detector("given"), truing.Detector("given", window=10)
    for part in batches(rows, 50):
        fixed.learn(part)
        following.learn(part)
    np.testing.assert_allclose(following.current_fit.coef, [0, 0, 1], atol=1e-9)
    np.testing.assert_allclose(fixed.current_fit.coef, [0.5, 0, 0.5], atol=0.05)


def test_a_buffer_used_again_does_not_change_a_window(rng):
    buffer = rng.normal(size=(30, 3))
    scores = rng.normal(size=30)
    detector = truing.Detector("given", window=2)
    for _ in range(4):
        detector.learn(truing.Outputs(buffer, scores=scores))
    expected = truing.Moments.of(buffer, scores)
    buffer *= 1e6
    detector.learn(truing.Outputs(np.zeros((1, 3)), scores=[0.0]))
    zero = truing.Moments.of(np.zeros((1, 3)), [0.0])
    np.testing.assert_allclose(detector.moments.comoment, (expected + zero).comoment, rtol=1e-12)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"window": 3, "decay": 0.9}, "decay does not go with a window, got 0.9"),
        ({"method": "rlr", "decay": 0.9}, "decay does not go with the method rlr"),
        ({"keep": 0.5}, "keep goes with method 'rlr', got 0.5"),
        ({"method": "rlr", "keep": 0.0}, "keep must be above 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        truing.Detector(**settings)
    with pytest.raises(TypeError, match="window must be a whole number"):
        truing.Detector(window=2.5)


def test_threads_fill_a_window_as_one_would(rng):
    """Sums of whole numbers are exact: the sums are those of the batches that the window says it has."""
    numbers = rng.integers(-3, 4, size=(60, 5, 4)).astype(np.float64)
    shared = truing.Detector("given", window=10)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda rows: shared.learn(truing.Outputs(rows[:, :3], scores=rows[:, 3])), numbers))
    window = shared.state.window
    assert (window.learned, len(window.batches), shared.moments.rows) == (60, 10, 50)
    expected = Batch.joined(*window.batches).moments()
    np.testing.assert_allclose(shared.moments.comoment, expected.comoment, atol=1e-9)
    np.testing.assert_allclose(shared.moments.mean, expected.mean, atol=1e-12)


@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
def test_batches_of_several_types_are_restored_in_the_type_they_came_in(rng, tmp_path, method):
    def rows(dtype, count=6):
        return truing.Outputs(rng.normal(size=(count, 4)).astype(dtype), rng.normal(size=(count, 3)))

    detector = truing.Detector(method=method, window=2)
    detector.calibrate(rows(np.float32, 40))
    for dtype in (np.float64, np.float32):
        detector.learn(rows(dtype))
    truing.save(detector, tmp_path / "detector.npz")
    restored = truing.load(tmp_path / "detector.npz")
    more = rows(np.float16)
    for one, name in ((detector, "one.npz"), (restored, "other.npz")):
        one.learn(more)  # The batch of float64 leaves.
        truing.save(one, tmp_path / name)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "other.npz").read_bytes()
