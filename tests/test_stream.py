"""Steps of a stream: batches that arrive together, repeated batches, and differences of states."""

import numpy as np
import pytest

import truing
from truing.decisions.thresholds import Rate
from truing.stream import SolvedState, answer_again, calibrated, learn_batches, learned_since, merged

RATE = Rate("false_alarm", 0.1)
KINDS = {
    "dlr": {"method": "dlr", "drift_alarm": 0.01},
    "components": {"method": "dlr", "components": 2},
    "window": {"method": "dlr", "window": 40},
    "decay": {"method": "dlr", "decay": 0.9},
    "rlr": {"method": "rlr"},
    "contrast": {"method": "contrast", "drift_alarm": 0.01},
}


def rows(rng, n=20):
    return truing.Outputs(rng.normal(size=(n, 4)), rng.normal(size=(n, 3)))


def start(kind, rng):
    state = truing.Detector(**KINDS[kind]).state
    return SolvedState(calibrated(state, rows(rng, 300)))


@pytest.mark.parametrize("kind", ["dlr", "components"])
def test_batches_that_arrive_together_are_scored_by_a_fit_of_all_of_them(kind, rng):
    solved = start(kind, rng)
    batches = [rows(rng, n) for n in (5, 9, 2)]
    detector = truing.Detector.of_state(solved)
    detector.learn(truing.Outputs.concatenate(batches))
    _, answers = learn_batches(solved, batches, RATE)
    for batch, answer in zip(batches, answers, strict=True):
        np.testing.assert_allclose(answer.scores, detector.score(batch), atol=1e-12)


@pytest.mark.parametrize("kind", ["window", "decay", "rlr"])
def test_batches_are_learned_one_after_another_if_rows_are_forgotten(kind, rng):
    solved = start(kind, rng)
    batches = [rows(rng) for _ in range(4)]
    together, answers = learn_batches(solved, batches, RATE)
    for batch, answer in zip(batches, answers, strict=True):
        solved, (alone,) = learn_batches(solved, [batch], RATE)
        np.testing.assert_array_equal(answer.scores, alone.scores)
    assert together.state.rows == solved.state.rows


def test_garbage_rows_are_noted_for_their_own_batch_only(rng):
    solved = start("dlr", rng)
    garbage = truing.Outputs(np.full((2, 4), 1e9), rng.normal(size=(2, 3)))
    after, (first, second) = learn_batches(solved, [rows(rng), garbage], RATE)
    assert after.state.skipped_rows == 2
    assert not any("not learned" in note for note in first.notes)
    assert any("not learned" in note for note in second.notes)


@pytest.mark.parametrize("kind", ["dlr", "window", "contrast"])
def test_a_repeated_batch_keeps_the_false_alarm_rate(kind):
    refused = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        solved = start(kind, rng)
        first = rows(rng, 30)
        solved, _ = learn_batches(solved, [first], RATE)
        for _ in range(3):
            solved, _ = learn_batches(solved, [rows(rng, 30)], RATE)
        decision = answer_again(solved, first, RATE).decision
        refused.append(decision.is_out.mean())
    error = np.std(refused) / np.sqrt(len(refused))
    assert np.mean(refused) <= 0.1 + 4 * error
    if kind == "dlr":  # The rows and the reference are both in the fit.
        detector = truing.Detector.of_state(solved)
        scores_in = detector.score(truing.Outputs(solved.state.reference.features))
        np.testing.assert_array_equal(decision.p_values, truing.p_values(scores_in, detector.score(first)))


@pytest.mark.parametrize("kind", ["dlr", "contrast"])
def test_differences_of_a_stream_add_up_to_the_whole_stream(kind, rng):
    local, hub = (SolvedState(calibrated(truing.Detector(**KINDS[kind]).state, rows(rng, 300))) for _ in range(2))
    whole, before = hub.state, local.state
    for turn in range(5):
        for _ in range(turn):  # The first turn learns nothing.
            local, _ = learn_batches(local, [rows(rng)], RATE)
        difference = learned_since(local.state, before)
        assert (difference is None) == (turn == 0)
        if difference is not None:
            assert difference.rows == pytest.approx(20 * turn)
            whole = merged(whole, difference)
        before = local.state
    assert whole.rows == pytest.approx(local.state.rows)
    if kind == "dlr":
        np.testing.assert_allclose(whole.sums.comoment, local.state.sums.comoment, atol=1e-9)
    else:
        np.testing.assert_array_equal(whole.sample.joined().features, local.state.sample.joined().features)


@pytest.mark.parametrize("kind", ["decay", "window", "rlr"])
def test_a_stream_that_forgets_has_no_differences(kind, rng):
    before = start(kind, rng)
    after, _ = learn_batches(before, [rows(rng)], RATE)
    with pytest.raises(ValueError, match="lose weight"):
        learned_since(after.state, before.state)


def test_a_sample_of_other_rows_cannot_be_subtracted(rng):
    one, other, more = (learn_batches(start("contrast", rng), [rows(rng, n)], RATE)[0].state.sums for n in (30, 40, 10))
    with pytest.raises(ValueError, match="earlier sample of the same stream"):
        _ = one - (more + other)
