"""A detector that guards its stream: what it decides, one change for all of it, and restored to the bit."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing import drift
from truing.guards import Guards
from truing.threshold import Rate

METHODS = ["dlr", "contrast"]


def world(rng, rows, out_share=0.0, shift=0.0):
    """Return rows of a classifier of three classes, some of them out, and which."""
    is_out = rng.random(rows) < out_share
    features = rng.normal(size=(rows, 6)) + shift
    features[:, 0] += 4 * ~is_out
    logits = np.stack([features[:, 0], features[:, 1], -features[:, 1]], axis=1)
    return truing.Outputs(features, logits), is_out


def guarded(rng, method="dlr", **settings):
    chosen = {"stream_fdr": 0.05, "drift_alarm": 0.001} | settings
    detector = truing.Detector("energy", method=method, **chosen)
    detector.calibrate(world(rng, 1600)[0])
    detector.learn(world(rng, 200, 0.2)[0])
    return detector


@pytest.mark.parametrize("method", METHODS)
def test_without_a_rate_rows_are_decided_by_the_streams_rule_on_their_p_values(rng, method):
    detector = guarded(rng, method)
    guard = truing.StreamFdr(0.05, 1600 if method == "dlr" else 800)
    alarm = truing.DriftAlarm(0.001, seed=detector.drift.seed)
    refused = 0
    for _ in range(40):
        decision = detector.learn_and_decide(world(rng, 32, 0.3)[0])
        guard, is_out = guard.updated(decision.p_values)
        alarm = alarm.updated(decision.p_values)
        assert (decision.is_out == is_out).all()
        assert decision.threshold is None
        assert (decision.rate.name, decision.rate.value) == ("stream_fdr", 0.05)
        refused += is_out.sum()
    assert detector.stream_fdr == guard
    assert detector.drift.martingale == alarm.martingale
    assert refused > 50


def test_another_rate_is_decided_at_and_not_counted_but_watched(rng):
    detector, plain = guarded(rng), truing.Detector("energy")
    rng = np.random.default_rng(7)
    plain.calibrate(world(rng, 1600)[0])
    plain.learn(world(rng, 200, 0.2)[0])
    batch = world(rng, 32, 0.3)[0]
    decision = detector.learn_and_decide(batch, false_alarm=0.05)
    assert (decision.is_out == plain.learn_and_decide(batch, false_alarm=0.05).is_out).all()
    assert detector.stream_fdr.rows == 0
    assert detector.drift.rows == 32


def test_deciding_without_learning_changes_nothing(rng):
    detector = guarded(rng)
    before = detector.state
    detector.decide(world(rng, 32)[0], false_alarm=0.05)
    assert detector.state is before
    with pytest.raises(ValueError, match="exactly one error rate must be given"):
        detector.decide(world(rng, 32)[0])


@pytest.mark.parametrize("method", METHODS)
def test_a_restored_detector_guards_its_stream_to_the_same_bits(rng, tmp_path, method):
    detector = guarded(rng, method)
    for _ in range(25):
        detector.learn_and_decide(world(rng, 32, 0.3)[0])
    truing.save(detector, tmp_path / "detector.npz")
    again = truing.load(tmp_path / "detector.npz")
    assert again.stream_fdr == detector.stream_fdr
    for _ in range(25):
        batch = world(rng, 32, 0.3, shift=0.5)[0]
        ours, theirs = detector.learn_and_decide(batch), again.learn_and_decide(batch)
        assert (ours.is_out == theirs.is_out).all()
        assert (ours.p_values == theirs.p_values).all()
    assert again.stream_fdr == detector.stream_fdr
    assert (again.drift.of_all.log_bets == detector.drift.of_all.log_bets).all()
    assert str(again.drift.report()) == str(detector.drift.report())
    assert detector.drift.report().features_moved


def test_a_detector_that_is_not_calibrated_yet_is_restored_as_it_is(tmp_path):
    truing.save(truing.Detector(stream_fdr=0.05, drift_alarm=0.01), tmp_path / "new.npz")
    again = truing.load(tmp_path / "new.npz")
    assert (again.settings.stream_fdr, again.settings.drift_alarm) == (0.05, 0.01)
    assert again.stream_fdr is None
    assert again.drift is None


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("drift_counts", lambda a: a - 10**6),
        ("drift_counts", lambda a: a.astype(np.float64)),
        ("drift_bets", lambda a: a * np.nan),
        ("drift_recent", lambda a: a[:-1]),
        ("drift_shift", lambda a: np.append(a, 1.0)),
        ("drift_shift", lambda a: a * np.nan),
        ("drift_bets", lambda a: a + np.inf),
        ("drift_counts", lambda a: a + 2**62),
        ("drift_recent", lambda a: a + np.inf),
    ],
)
def test_a_file_with_broken_guards_is_refused(rng, name, change):
    from truing.saved.detectors import restore_detector, store_detector

    detector = guarded(rng)
    detector.learn_and_decide(world(rng, 32)[0])
    header, arrays = store_detector(detector)
    with pytest.raises(ValueError, match="drift"):
        restore_detector(header, arrays | {name: change(arrays[name])})
    with pytest.raises(ValueError, match="same level and reference"):
        restore_detector(header | {"stream_fdr": 0.06}, arrays)


@pytest.mark.parametrize(
    ("name", "value"), [("seed", 0.5), ("seed", "a"), ("seed", -1), ("residual_of_all", None), ("residual", None)]
)
def test_a_file_with_a_broken_alarm_is_refused(rng, name, value):
    from truing.saved.detectors import restore_detector, store_detector

    detector = guarded(rng)
    detector.learn_and_decide(world(rng, 32)[0])
    header, arrays = store_detector(detector)
    restore_detector(header, arrays)
    with pytest.raises(ValueError, match=name):
        restore_detector(header | {"drift_state": header["drift_state"] | {name: value}}, arrays)


def test_bad_rows_leave_guards_and_sums_as_they_were(rng):
    detector = guarded(rng)
    before = detector.state
    with pytest.raises(ValueError, match="features must have 6 columns"):
        detector.learn_and_decide(truing.Outputs(np.ones((3, 5)), np.ones((3, 3))))
    assert detector.state is before


def test_calibrating_again_starts_the_guards_anew(rng):
    detector = guarded(rng)
    detector.learn_and_decide(world(rng, 32)[0])
    assert detector.stream_fdr.rows == detector.drift.rows == 32
    detector.learn(world(rng, 5)[0])
    assert detector.stream_fdr.rows == 32
    detector.calibrate(world(rng, 500)[0])
    assert (detector.stream_fdr.rows, detector.stream_fdr.rows_in, detector.drift.rows) == (0, 500, 0)


@pytest.mark.parametrize(
    ("method", "rows", "said"),
    [
        ("dlr", 300, r"reference must have at least 399 rows, for a stream_fdr of 0\.05, got 300"),
        ("rlr", 398, r"reference must have at least 399 rows, for a stream_fdr of 0\.05, got 398"),
        ("contrast", 500, r"reference must have at least 399 rows in the half that a contrast decides against"),
    ],
)
def test_a_small_reference_is_refused_when_it_is_given(rng, method, rows, said):
    detector = truing.Detector("energy", method=method, stream_fdr=0.05)
    with pytest.raises(ValueError, match=said):
        detector.calibrate(world(rng, rows)[0])
    assert detector.reference is None
    detector.calibrate(world(rng, 800)[0])
    assert detector.stream_fdr.rows_in == (400 if method == "contrast" else 800)


@pytest.mark.parametrize("name", ["stream_fdr", "drift_alarm"])
@pytest.mark.parametrize("value", [0.0, 1.5, -1])
def test_a_rate_that_is_none_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} must be above 0"):
        truing.Detector(**{name: value})


def test_a_spent_budget_is_noted(rng):
    detector = guarded(rng, drift_alarm=None)
    spent = truing.StreamFdr(0.05, 1600, rows=10, is_spent=True)
    from dataclasses import replace

    detector.state = replace(detector.state, guards=replace(detector.state.guards, stream_fdr=spent))
    decision = detector.learn_and_decide(world(rng, 32, 0.5)[0])
    assert not decision.is_out.any()
    assert "spent" in decision.notes[-1]


def test_threads_that_share_a_guarded_detector_lose_no_row(rng):
    detector = guarded(rng)
    batches = [world(np.random.default_rng(seed), 16)[0] for seed in range(40)]
    threads = [
        threading.Thread(
            target=lambda part: [detector.learn_and_decide(batch) for batch in part], args=(batches[k::4],)
        )
        for k in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert detector.stream_fdr.rows == detector.drift.rows == 640
    assert detector.moments.rows == 200 + 640


def test_the_alarm_of_a_detector_is_raised_by_another_camera_and_says_how_far_features_moved(rng):
    detector = guarded(rng)
    for _ in range(60):
        detector.learn_and_decide(world(rng, 32)[0])
    assert not detector.drift.is_alarming
    for _ in range(60):
        detector.learn_and_decide(world(rng, 32, shift=-1.0)[0])
    report = detector.drift.report()
    assert report.is_alarming
    assert report.what in drift.PARTS
    assert report.feature_shift > 0.5
    assert report.residual is not None


@pytest.mark.parametrize("method", [*METHODS, "rlr"])
def test_residuals_are_reported_where_trued_scores_are_in_units_of_the_base_score(rng, method):
    detector = truing.Detector("energy", method=method, drift_alarm=0.001)
    detector.calibrate(world(rng, 600)[0])
    detector.learn_and_decide(world(rng, 40)[0], false_alarm=0.05)
    assert (detector.drift.report().residual is not None) == (method == "dlr")


@pytest.mark.parametrize("method", METHODS)
def test_what_breaks_ties_is_the_reference_s_own(rng, tmp_path, method):
    """With one seed for all, the sizes of batches alone would decide whether equal rows raise the alarm."""
    one, same, other = (truing.Detector("energy", method=method, drift_alarm=0.001) for _ in range(3))
    known = world(rng, 600)[0]
    one.calibrate(known)
    same.calibrate(known)
    other.calibrate(world(rng, 600)[0])
    assert one.drift.seed == same.drift.seed != other.drift.seed
    batch = world(rng, 40, 0.2)[0]
    for each in (one, same, other):
        each.learn_and_decide(batch, false_alarm=0.05)
    truing.save(one, tmp_path / "detector.npz")
    assert truing.load(tmp_path / "detector.npz").drift.seed == one.drift.seed
    assert (one.drift.of_all.log_bets == same.drift.of_all.log_bets).all()


def test_rows_that_are_all_alike_seldom_raise_the_alarm_whatever_the_reference(rng):
    raised = 0
    for _ in range(30):
        known = rng.normal(size=(200, 2))
        detector = truing.Detector("given", drift_alarm=0.05)
        detector.calibrate(truing.Outputs(known, scores=known[:, 0]))
        for _ in range(10):
            black = np.zeros((163, 2))
            detector.learn_and_decide(truing.Outputs(black, scores=black[:, 0]), false_alarm=0.05)
        raised += detector.drift.is_alarming
    assert raised <= 6  # Of 30 at 5 %, by chance in fewer than 1 of 500.


@given(
    constant=st.floats(-1e100, 1e100, allow_subnormal=False),
    later=st.floats(-1e100, 1e100),
    spread=st.sampled_from([0.0, 1e-300, 1e-18, 1.0]),
)
@settings(max_examples=40, deadline=None)
def test_a_constant_feature_is_reported_in_its_own_units_and_no_batch_is_refused_for_the_report(
    constant, later, spread
):
    rng = np.random.default_rng(0)
    guards = Guards.of(
        np.column_stack((rng.normal(size=300), constant + spread * rng.normal(size=300))),
        stream_fdr=None,
        drift_alarm=0.01,
    )
    features = np.column_stack((rng.normal(size=5), np.full(5, later)))
    after = guards.after(Rate("fdr", 0.05), np.full(5, 0.5), np.full(5, 2e100), features)[0].drift
    assert after.rows == 5
    assert np.isfinite(after.report().feature_shift)
    if spread == 0.0:
        assert guards.scale_in[1] == 1.0
        assert after.recent.shift[1] == pytest.approx(
            np.clip(later - constant, -1e100, 1e100), rel=1e-9, abs=1e-12 * abs(constant)
        )
