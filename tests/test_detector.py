from functools import partial

import numpy as np
import pytest

import truing
from truing.contrast import split
from truing.scores.rows import BaseScore
from truing.steps import Sums, score_rows, sum_rows


def stream(rng, rows=400, d=6) -> truing.Outputs:
    features = rng.normal(2, 1, size=(rows, d))
    return truing.Outputs(features, features @ rng.normal(size=(d, 4)) + rng.normal(size=(rows, 4)))


def batches(outputs: truing.Outputs, size: int) -> list[truing.Outputs]:
    return [outputs[start : start + size] for start in range(0, len(outputs), size)]


@pytest.mark.parametrize("size", [1, 32])
@pytest.mark.parametrize("settings", [{}, {"intercept": False}, {"components": 3}, {"base": "energy"}])
def test_after_the_last_batch_the_fit_equals_the_fit_of_all_rows(rng, size, settings):
    outputs, detector = stream(rng), truing.Detector(**settings)
    for batch in batches(outputs, size):
        detector.learn(batch)
    shape = {name: value for name, value in settings.items() if name != "base"}
    score = truing.SCORES[settings.get("base", "msp")]
    expected = truing.fit_direct(outputs.features, score(outputs), **shape)
    np.testing.assert_allclose(
        detector.current_fit.coef, expected.coef, rtol=1e-9, atol=1e-9 * np.abs(expected.coef).max()
    )
    assert detector.current_fit.intercept == pytest.approx(expected.intercept, rel=1e-9)


def test_each_batch_is_scored_as_in_algorithm_3(rng):
    size = 32
    outputs, detector = stream(rng), truing.Detector()
    gram, cross = np.zeros((7, 7)), np.zeros(7)
    for seen, batch in enumerate(batches(outputs, size)):
        detector.learn(batch)
        design = np.column_stack((batch.features, np.ones(len(batch))))
        gram += design.T @ design
        cross += design.T @ truing.msp(batch.logits)
        if (seen + 1) * size > 40:  # With fewer rows, several fits are optimal.
            expected = design @ (np.linalg.pinv(gram, hermitian=True) @ cross)
            np.testing.assert_allclose(detector.score(batch), expected, atol=1e-8)


def test_decay_weights_each_batch_by_its_age(rng):
    outputs, detector = stream(rng, rows=120), truing.Detector(decay=0.5)
    for batch in batches(outputs, 40):
        detector.learn(batch)
    weight = np.sqrt(np.repeat([0.25, 0.5, 1.0], 40))
    design = np.column_stack((outputs.features, np.ones(120))) * weight[:, None]
    expected = np.linalg.lstsq(design, truing.msp(outputs.logits) * weight, rcond=None)[0]
    np.testing.assert_allclose(detector.current_fit.coef, expected[:-1], atol=1e-10)


def test_a_decision_uses_the_fit_of_learned_and_reference_rows(rng):
    outputs, reference, detector = stream(rng), stream(rng, rows=60), truing.Detector()
    detector.calibrate(reference)
    decision = detector.learn_and_decide(outputs, false_alarm=0.2)
    both = truing.fit_direct(
        np.concatenate((outputs.features, reference.features)),
        truing.msp(np.concatenate((outputs.logits, reference.logits))),
    )
    np.testing.assert_allclose(decision.scores, both.predict(outputs.features), atol=1e-12)
    expected = truing.p_values(both.predict(reference.features), decision.scores)
    np.testing.assert_allclose(decision.p_values, expected)
    np.testing.assert_array_equal(decision.is_out, expected <= 0.2)
    np.testing.assert_array_equal(detector.score(outputs), decision.scores)


def test_decide_leaves_the_reference_out_of_the_fit(rng):
    earlier, now, reference = stream(rng), stream(rng, rows=30), stream(rng, rows=60)
    detector = truing.Detector()
    detector.calibrate(reference)
    detector.learn(earlier)
    fit = truing.fit_direct(earlier.features, truing.msp(earlier.logits))
    decision = detector.decide(now, false_alarm=0.1)
    np.testing.assert_allclose(decision.scores, fit.predict(now.features), atol=1e-12)
    expected = truing.p_values(fit.predict(reference.features), fit.predict(now.features))
    np.testing.assert_allclose(decision.p_values, expected)


def test_reference_rows_are_never_decayed(rng):
    reference, detector = stream(rng, rows=60), truing.Detector(decay=0.5)
    detector.calibrate(reference)
    for batch in batches(stream(rng), 100):
        detector.learn(batch)
    assert detector.current_fit.rows == pytest.approx(60 + 100 * (1 + 1 / 2 + 1 / 4 + 1 / 8))


def false_alarms(trials: int, learned: bool, size: int = 200) -> float:
    """Return the share of in-distribution rows refused at 5 %, over random splits of real features."""
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    rng, refused = np.random.default_rng(11), []
    for _ in range(trials):
        rows = rng.permutation(10_000)
        reference, test = inside[rows[:size]], inside[rows[size : size + 300]]
        mixed = truing.Outputs.concatenate([test, outside[:100]])
        detector = truing.Detector()
        detector.calibrate(reference)
        if not learned:
            earlier = inside[rows[size + 300 : size + 900]]
            detector.learn(earlier)
        decide = detector.learn_and_decide if learned else detector.decide
        refused.append(decide(mixed, false_alarm=0.05).is_out[:300].mean())
    return float(np.mean(refused))


@pytest.mark.parametrize("learned", [True, False])
def test_false_alarms_keep_their_stated_rate_on_real_features(learned):
    # 10 of 201 ranks lie at or below 5 %. The standard error over 60 splits is about 0.25 points.
    assert false_alarms(60, learned) == pytest.approx(10 / 201, abs=0.01)


def test_rejected_rows_do_not_change_the_state(rng):
    detector = truing.Detector(components=4)
    detector.calibrate(stream(rng, rows=40))
    detector.learn(stream(rng))
    before = detector.state
    for rows in (truing.Outputs(np.ones((5, 3)), np.ones((5, 4))), truing.Outputs(np.ones((5, 6))), [[1.0]], None):
        for act in (detector.learn, detector.calibrate):
            with pytest.raises((ValueError, TypeError)):
                act(rows)
            assert detector.state is before


def test_errors_name_the_missing_step_or_argument(rng):
    outputs, detector = stream(rng, rows=20), truing.Detector()
    with pytest.raises(ValueError, match="nothing learned yet"):
        detector.score(outputs)
    with pytest.raises(ValueError, match="call calibrate first"):
        detector.decide(outputs, fdr=0.1)
    detector.calibrate(outputs)
    with pytest.raises(ValueError, match="nothing learned yet"):
        detector.decide(outputs, fdr=0.1)
    detector.learn(outputs[:5])
    with pytest.raises(ValueError, match="exactly one error rate"):
        detector.decide(outputs[:5])
    with pytest.raises(ValueError, match="features must have 6 columns, as before, got 3"):
        detector.learn(truing.Outputs(np.ones((5, 3)), np.ones((5, 4))))
    with pytest.raises(ValueError, match="components must be at most the 6 columns"):
        truing.Detector(components=7).learn(outputs)


def test_a_failing_base_score_does_not_change_the_state(rng):
    def fails_on_few_rows(outputs):
        if len(outputs) < 10:
            raise KeyboardInterrupt
        return outputs.features[:, 0]

    detector = truing.Detector(fails_on_few_rows)
    detector.learn(stream(rng, rows=50))
    detector.calibrate(stream(rng, rows=40))
    before = detector.state
    with pytest.raises(KeyboardInterrupt):
        detector.learn_and_decide(stream(rng, rows=3), false_alarm=0.1)
    assert detector.state is before


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
def test_reusing_the_callers_buffer_does_not_change_the_reference(rng, method):
    reference, detector = stream(rng, rows=60), truing.Detector(method=method)
    buffer = reference.features.copy()
    detector.calibrate(truing.Outputs(buffer, reference.logits))
    detector.learn(stream(rng))
    before = detector.decide(reference, fdr=0.1).p_values
    buffer[:] = 7.0
    np.testing.assert_array_equal(detector.decide(reference, fdr=0.1).p_values, before)


def test_a_detector_with_a_reference_in_another_memory_order_is_restored_bit_for_bit(rng, tmp_path):
    rows = stream(rng, rows=300, d=129)
    detector = truing.Detector(decay=0.9)
    detector.calibrate(truing.Outputs(np.asfortranarray(rows.features)[::2], rows.logits[::2]))
    detector.learn(stream(rng, rows=200, d=129))
    truing.save(detector, tmp_path / "detector.npz")
    restored = truing.load(tmp_path / "detector.npz")
    for _ in range(3):
        batch = stream(rng, rows=20, d=129)
        np.testing.assert_array_equal(detector.learn_and_score(batch), restored.learn_and_score(batch))


def test_ties_keep_the_false_alarm_rate(rng):
    """Only three distinct rows occur, one at a time. A difference in the last bit would break all ties the same way."""
    kinds, alarms, decided = rng.normal(size=(3, 5)), 0, 0
    for _ in range(300):
        rows = kinds[rng.integers(0, 3, size=40)]
        detector = truing.Detector("given")
        detector.calibrate(truing.Outputs(rows[:39], scores=rows[:39].sum(axis=1)))
        test = truing.Outputs(rows[39:], scores=rows[39:].sum(axis=1))
        alarms += detector.learn_and_decide(test, false_alarm=0.05).is_out.sum()
        decided += 1
    assert alarms / decided <= 0.05


def test_rows_of_another_model_or_number_of_classes_are_rejected(rng, tmp_path):
    outputs, detector = stream(rng), truing.Detector(model="a")
    detector.calibrate(stream(rng, rows=40))
    detector.learn(outputs)
    truing.save(detector, tmp_path / "detector.npz")
    classes = truing.Outputs(outputs.features, np.column_stack((outputs.logits, outputs.logits)))
    tagged = truing.Outputs(outputs.features, outputs.logits, model="b")
    for each in (detector, truing.load(tmp_path / "detector.npz")):
        for act in (each.learn, each.calibrate, each.score, lambda rows, each=each: each.decide(rows, fdr=0.1)):
            with pytest.raises(ValueError, match="logits must have 4 columns, as before, got 8"):
                act(classes)
            with pytest.raises(ValueError, match="outputs must be of the model 'a', as the detector is, got 'b'"):
                act(tagged)
        each.learn(truing.Outputs(outputs.features, outputs.logits, model="a"))
        assert each.moments.rows == 800
    with pytest.raises(TypeError, match="model must be a name, got int"):
        truing.Detector(model=3)
    assert outputs[:3].model is None
    assert tagged[:3].model == "b"


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_few_reference_rows_are_noted_at_every_rate(rng):
    """Accepting 95 % of three rows rejects a quarter of new rows."""
    detector, rows = truing.Detector(method="dlr"), stream(rng)
    detector.calibrate(stream(rng, rows=3))
    few = detector.learn_and_decide(rows, accept=0.95)
    assert (
        "only 3 reference rows: on average, 25.0% of the in-distribution rows are refused instead of 5.0%"
        in few.notes[0]
    )
    assert "3 reference rows give p-values of at least 0.25" in detector.decide(rows, false_alarm=0.05).notes[0]
    assert "3 reference rows give p-values of at least 0.25" in detector.decide(rows, fdr=0.05).notes[0]
    detector.calibrate(stream(rng, rows=400))
    for rate in ({"accept": 0.95}, {"false_alarm": 0.05}, {"fdr": 0.05}):
        assert detector.decide(rows, **rate).notes == ()


@pytest.mark.parametrize("rows", [3, 20, 150])
def test_accept_refuses_the_share_of_new_rows_that_the_note_states(rng, rows):
    scores = rng.normal(size=(3000, rows + 1))
    refused = [row[-1] < truing.threshold_at(row[:-1], accept=0.95) for row in scores]
    expected = 1 - np.ceil(0.95 * rows - 1e-9) / (rows + 1)
    assert np.mean(refused) == pytest.approx(expected, abs=0.025)


def test_the_repr_of_a_detector_and_a_decision_summarises_them(rng):
    detector = truing.Detector("energy")
    assert repr(detector) == "Detector(auto, base energy, nothing learned)"
    detector.calibrate(stream(rng, rows=60))
    detector.learn(stream(rng, rows=1500))
    assert repr(detector) == "Detector(dlr, base energy, 6 features, 1,500 rows learned, 60 reference rows)"
    decided = repr(detector.decide(stream(rng), false_alarm=0.1))
    assert decided.startswith("Decision(")
    note = "the method is dlr: contrast needs a reference of at least 200 rows here, got 60 rows"
    assert decided.endswith(f"of 400 rows out at false_alarm 0.1; {note})")


def test_a_window_keeps_the_newest_batches_and_forgets_earlier_outliers(rng):
    outputs = stream(rng, rows=300)
    detector = truing.Detector("energy", window=100)
    for number, batch in enumerate(batches(outputs, 32)):
        if number == 2:
            detector.learn(truing.Outputs(1e12 * batch.features, batch.logits))
        detector.learn(batch)
    newest = truing.Outputs.concatenate(batches(outputs, 32)[-3:])  # 32 + 32 + 12 rows; a fourth would exceed 100.
    fourth = truing.Outputs.concatenate(batches(outputs, 32)[-4:])
    kept = fourth if len(fourth) <= 100 else newest
    expected = truing.fit_direct(kept.features, truing.energy(kept.logits))
    np.testing.assert_allclose(detector.current_fit.coef, expected.coef, rtol=1e-9)
    assert detector.moments.rows == len(kept)


@pytest.mark.parametrize("settings", [{}, {"keep": 0.5, "components": 2}, {"intercept": False}])
def test_a_robust_stream_scores_from_its_first_row(rng, settings):
    outputs, detector = stream(rng, rows=12), truing.Detector(method="rlr", **settings)
    for count, row in enumerate(batches(outputs, 1), start=1):
        scores = detector.learn_and_score(row)
        assert np.isfinite(scores).all()
        assert detector.current_fit.rows == max(1, int(settings.get("keep", 0.8) * count + 1e-9))


@pytest.mark.parametrize("window", [None, 150])
def test_robust_streams_fit_the_rows_in_their_window(rng, window):
    outputs, reference = stream(rng, rows=400), stream(rng, rows=60)
    detector = truing.Detector("energy", method="rlr", window=window)
    detector.calibrate(reference)
    for batch in batches(outputs, 50):
        detector.learn(batch)
    kept = outputs if window is None else outputs[-150:]
    expected = truing.fit_robust(
        np.concatenate((kept.features, reference.features)),
        truing.energy(np.concatenate((kept.logits, reference.logits))),
    )
    np.testing.assert_array_equal(detector.current_fit.coef, expected.coef)
    with pytest.raises(ValueError, match="moments cannot be merged into a window"):
        detector.merge(truing.Moments.of(kept.features, kept.features[:, 0]))


def test_merged_detectors_equal_one_detector_that_learned_all_rows(rng):
    outputs = stream(rng)
    whole, one, other = (truing.Detector("energy") for _ in range(3))
    whole.learn(outputs)
    one.learn(outputs[:150])
    other.learn(outputs[150:])
    one.merge(other.moments)
    np.testing.assert_allclose(one.score(outputs), whole.score(outputs), atol=1e-9)
    with pytest.raises(ValueError, match="moments must have 6 columns, as before, got 2"):
        one.merge(truing.Moments.of(rng.normal(size=(9, 2)), np.arange(9.0)))
    with pytest.raises(TypeError, match="moments must be Moments, as the detector has, got dict"):
        one.merge({})


def drifting(rng, rows, out_share=0.0, shift=0.0):
    """Return outputs of a classifier with three classes. A share of the rows is out."""
    features = rng.normal(size=(rows, 6)) + shift
    features[:, 0] += 4 * (rng.random(rows) >= out_share)
    return truing.Outputs(features, np.stack([features[:, 0], features[:, 1], -features[:, 1]], axis=1))


def test_the_drift_alarm_sees_only_the_p_values_of_learned_rows(rng):
    detector = truing.Detector("energy", method="dlr", drift_alarm=0.001)
    assert detector.drift is None
    detector.calibrate(drifting(rng, 1600))
    alarm = truing.DriftAlarm(0.001, seed=detector.drift.seed)
    for number in range(30):
        batch = drifting(rng, 32, shift=0.0 if number < 20 else 1.0)
        alarm = alarm.updated(detector.learn_and_decide(batch, false_alarm=0.05).p_values)
        detector.decide(batch, false_alarm=0.05)
        assert detector.drift.martingale == alarm.martingale
    assert detector.drift.is_alarming
    assert detector.drift.report().features_moved
    detector.calibrate(drifting(rng, 1600))  # A new reference starts a new alarm.
    assert detector.drift.rows == 0


def test_the_drift_alarm_of_a_contrast_monitors_p_values_by_the_base_score(rng):
    """The rule must not change with the fit, or a renewed fit would look like drift."""
    detector = truing.Detector("energy", method="contrast", drift_alarm=0.001)
    reference = drifting(rng, 1600)
    detector.calibrate(reference)
    _, to_decide = split(reference)
    alarm = truing.DriftAlarm(0.001, seed=detector.drift.seed)
    for number in range(60):
        batch = drifting(rng, 32, shift=0.0 if number < 50 else 2.0)
        detector.learn_and_decide(batch, false_alarm=0.05)
        alarm = alarm.updated(truing.p_values(truing.energy(to_decide.logits), truing.energy(batch.logits)))
        assert detector.drift.martingale == alarm.martingale
        assert detector.drift.rows == 32 * (number + 1)
        assert not detector.drift.is_alarming or number >= 50
    assert detector.drift.is_alarming


def test_a_base_score_may_be_a_function(rng):
    def margin(outputs):
        ordered = np.sort(outputs.logits, axis=1)
        return ordered[:, -1] - ordered[:, -2]

    outputs, detector = stream(rng), truing.Detector(margin)
    detector.learn(outputs)
    expected = truing.fit_direct(outputs.features, margin(outputs)).predict(outputs.features)
    np.testing.assert_allclose(detector.score(outputs), expected, atol=1e-10)
    decided = truing.detect(outputs, base=margin)
    np.testing.assert_allclose(decided.scores, expected, atol=1e-10)
    assert decided.base == "margin"
    with pytest.raises(ValueError, match="base must return one score per row, 400, got 399"):
        truing.detect(outputs, base=lambda outputs: margin(outputs)[1:])
    with pytest.raises(ValueError, match="temperature must be 1"):
        truing.detect(outputs, base=margin, temperature=2.0)
    with pytest.raises(ValueError, match="base must be one of msp"):
        truing.Detector("margin")


def test_rows_whose_scores_overflow_are_rejected(rng):
    tiny = 1e-140 * rng.normal(size=(20, 3))
    detector = truing.Detector("given")
    detector.calibrate(truing.Outputs(tiny, scores=1e98 * rng.normal(size=20)))
    detector.learn(truing.Outputs(tiny, scores=1e98 * rng.normal(size=20)))
    huge = truing.Outputs(np.full((2, 3), 1e99), scores=[1.0, 2.0])
    for ask in (detector.score, detector.learn_and_score, partial(detector.decide, false_alarm=0.1)):
        with pytest.raises(ValueError, match="got a score that overflows in row 0"):
            ask(huge)


@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
@pytest.mark.parametrize("column", ["features", "scores"])
def test_rows_that_changed_after_their_check_are_rejected(method, column):
    rows = truing.sample()[:310]
    scores = truing.msp(rows.logits)
    detector = truing.Detector("given", method=method)
    detector.calibrate(truing.Outputs(rows.features[:200], scores=scores[:200]))
    detector.learn(truing.Outputs(rows.features[200:300], scores=scores[200:300]))
    before = detector.state
    columns = {"features": np.array(rows.features[300:]), "scores": scores[300:].copy()}
    changed = truing.Outputs(**columns)
    columns[column][3] = np.inf
    calls = [detector.learn, detector.learn_and_score, partial(detector.learn_and_decide, false_alarm=0.05)]
    if column == "features":
        calls += [detector.score, partial(detector.decide, false_alarm=0.05)]
    for call in calls:
        with pytest.raises(ValueError, match="must be finite"):
            call(changed)
        assert detector.state is before


@pytest.mark.parametrize("d", [6, 300])
def test_a_calibrated_stream_fits_all_rows_in_any_order_of_calls(rng, d):
    reference, first, second, third = (
        truing.Outputs(rng.normal(size=(n, d)), scores=rng.normal(size=n)) for n in (150, 40, 40, 40)
    )
    before, between = truing.Detector("given", method="dlr"), truing.Detector("given", method="dlr")
    before.calibrate(reference)
    for batch in (first, second):
        before.learn(batch)
        between.learn(batch)
    between.calibrate(first)
    between.calibrate(reference)
    for detector in (before, between):
        detector.merge(truing.Moments.of(third.features, third.scores))
        every = truing.Outputs.concatenate([reference, first, second, third])
        expected = truing.fit_direct(every.features, every.scores).predict(third.features)
        np.testing.assert_allclose(detector.score(third), expected, atol=1e-9)
        learned = truing.Outputs.concatenate([first, second, third])
        expected = truing.fit_direct(learned.features, learned.scores).predict(third.features)
        np.testing.assert_allclose(detector.fit_of_learned().predict(third.features), expected, atol=1e-9)


def wide(outputs: truing.Outputs) -> truing.Outputs:
    """Return features and logits in float64, which garbage needs."""
    return truing.Outputs(outputs.features.astype(np.float64), outputs.logits.astype(np.float64))


def garbage(rng, size, rows=1) -> truing.Outputs:
    return truing.Outputs(size * rng.normal(size=(rows, 64)), size * rng.normal(size=(rows, 10)))


GUARDED = {
    "dlr": {"method": "dlr"},
    "energy": {"method": "dlr", "base": "energy"},
    "window": {"method": "dlr", "window": 1000},
    "decay": {"method": "dlr", "decay": 0.99},
    "components": {"method": "dlr", "components": 20},
    "rlr": {"method": "rlr", "window": 600},
}


@pytest.mark.parametrize("is_calibrated", [True, False], ids=["calibrated", "without a reference"])
@pytest.mark.parametrize("settings", GUARDED.values(), ids=GUARDED)
def test_one_garbage_row_changes_no_later_score_and_no_later_decision(rng, tmp_path, settings, is_calibrated):
    inside, outside = wide(truing.sample("cifar10-test")), wide(truing.sample("svhn"))
    mixed = truing.Outputs.concatenate([inside[1000:2200], outside[:400]])[rng.permutation(1600)]
    hit, clean = truing.Detector(**settings), truing.Detector(**settings)
    for number, batch in enumerate(batches(mixed, 100)):
        if number == 0 and is_calibrated:
            for detector in (hit, clean):
                detector.calibrate(inside[:1000])
        if number == 3:  # As a batch of its own.
            scores = hit.learn_and_score(garbage(rng, 1e10))
            assert np.isfinite(scores).all()
        if number == 5:  # Among other rows.
            hit.learn(truing.Outputs.concatenate([batch[:40], garbage(rng, 1e99), batch[40:]]))
            truing.save(hit, tmp_path / "detector.npz")
            hit = truing.load(tmp_path / "detector.npz")
            assert hit.skipped_rows == 2
        else:
            hit.learn(batch)
        clean.learn(batch)
    assert (hit.skipped_rows, clean.skipped_rows) == (2, 0)
    if is_calibrated:
        rows = truing.Outputs.concatenate([inside[3000:3050], outside[500:550]])
        for name in ("decide", "learn_and_decide"):
            decided, expected = (getattr(detector, name)(rows, false_alarm=0.05) for detector in (hit, clean))
            np.testing.assert_array_equal(decided.p_values, expected.p_values)
            np.testing.assert_array_equal(decided.is_out, expected.is_out)
            assert decided.notes == expected.notes
    scores_in, scores_out = hit.score(inside[5000:6000]), hit.score(outside[1000:])
    np.testing.assert_array_equal(scores_in, clean.score(inside[5000:6000]))
    np.testing.assert_array_equal(scores_out, clean.score(outside[1000:]))
    base = truing.SCORES[settings.get("base", "msp")]
    assert truing.auroc(scores_in, scores_out) > truing.auroc(base(inside[5000:6000]), base(outside[1000:]))


@pytest.mark.parametrize("method", ["dlr", "rlr"])
def test_a_garbage_row_of_the_first_batch_is_not_learned(rng, method):
    """Without a reference, the medians of the batch say what is typical."""
    rows = wide(truing.sample()[:100])
    hit, clean = truing.Detector(method=method), truing.Detector(method=method)
    hit.learn(truing.Outputs.concatenate([rows[:60], garbage(rng, 1e10), rows[60:]]))
    clean.learn(rows)
    assert (hit.skipped_rows, clean.skipped_rows) == (1, 0)
    np.testing.assert_array_equal(hit.score(rows), clean.score(rows))


@pytest.mark.parametrize("method", ["dlr", "rlr"])
def test_garbage_is_decided_by_the_reference_while_nothing_else_was_learned(rng, method):
    reference = wide(truing.sample()[:500])
    detector = truing.Detector(method=method)
    detector.calibrate(reference)
    decision = detector.learn_and_decide(garbage(rng, 1e10, rows=3), false_alarm=0.05)
    note = "3 rows are more than 100 times farther from the reference than usual: they were decided but not learned"
    assert note in decision.notes
    assert (detector.skipped_rows, len(decision.is_out)) == (3, 3)
    with pytest.raises(ValueError, match="nothing learned yet"):
        detector.decide(reference, false_alarm=0.05)
    more = wide(truing.sample()[500:600])
    clean = truing.Detector(method=method)
    clean.calibrate(reference)
    decided, expected = (one.learn_and_decide(more, false_alarm=0.05) for one in (detector, clean))
    np.testing.assert_array_equal(decided.p_values, expected.p_values)
    assert decided.notes == expected.notes


def test_rows_with_a_garbage_score_alone_are_not_learned(rng):
    rows = wide(truing.sample()[:300])
    broken = truing.Outputs(rows.features[:1], 1e10 * rows.logits[:1])
    detector = truing.Detector("energy", method="dlr")
    detector.learn(rows)
    before = detector.score(rows)
    detector.learn(broken)
    assert detector.skipped_rows == 1
    np.testing.assert_array_equal(detector.score(rows), before)


def test_skipped_rows_are_kept_by_calibrate_and_merge(rng):
    detector = truing.Detector(method="dlr")
    detector.learn(wide(truing.sample()[:300]))
    detector.learn(garbage(rng, 1e10, rows=2))
    detector.calibrate(wide(truing.sample()[300:600]))
    detector.merge(detector.moments)
    assert detector.skipped_rows == 2


class CountedEnergy:
    """The energy as a base score that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, outputs):
        self.calls += 1
        return truing.energy(outputs.logits)


@pytest.mark.parametrize("drift_alarm", [None, 0.01])
@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
def test_the_base_scores_of_a_batch_are_computed_once(rng, method, drift_alarm):
    base = CountedEnergy()
    detector = truing.Detector(base, method=method, drift_alarm=drift_alarm)
    detector.calibrate(stream(rng, rows=120))
    for rows in (200, 5, 30):  # A contrast solves a fit of its own for the first batch.
        for act in (detector.learn, partial(detector.learn_and_decide, fdr=0.1), detector.learn_and_score):
            before = base.calls
            act(stream(rng, rows=rows))
            assert base.calls == before + 1


@pytest.mark.parametrize("base", [None, "energy"])
def test_a_larger_calibration_before_learning_makes_auto_a_contrast(rng, base):
    once, twice = truing.Detector(base), truing.Detector(base)
    reference = stream(rng, rows=300)
    twice.calibrate(reference[:150])
    assert twice.settings.method == "dlr"
    for detector in (once, twice):
        detector.calibrate(reference)
        detector.learn(stream(np.random.default_rng(1)))
    assert (twice.settings.method, twice.base) == ("contrast", once.base)
    np.testing.assert_array_equal(twice.score(reference), once.score(reference))


@pytest.mark.parametrize("use", [lambda detector, rows: detector.learn(rows), truing.Detector.calibrate])
def test_a_base_score_that_needs_a_reference_needs_a_large_calibration_first(rng, use):
    rows = truing.Outputs(rng.normal(size=(300, 4)), rng.normal(size=(300, 3)))
    detector = truing.Detector("knn")
    with pytest.raises(ValueError, match=r"knn needs the method contrast: .* a reference of at least 200 rows"):
        use(detector, rows[:50])
    detector.calibrate(rows)
    assert detector.settings.method == "contrast"
    with pytest.raises(ValueError, match="intercept must be True for base knn"):
        truing.Detector("knn", intercept=False)


def test_after_learning_by_dlr_a_larger_calibration_says_that_auto_stays_dlr(rng):
    detector = truing.Detector()
    detector.learn(stream(rng))
    detector.calibrate(stream(rng, rows=300))
    assert detector.settings.method == "dlr"
    note = "the method is dlr: contrast needs a reference before it learns, but rows were learned already"
    assert note in detector.decide(stream(rng), fdr=0.1).notes


def test_decisions_say_why_auto_is_dlr(rng):
    for settings, rows, why in (
        ({}, 199, "the method is dlr: contrast needs a reference of at least 200 rows here, got 199 rows"),
        ({"intercept": False}, 300, "the method is dlr: contrast needs an intercept, got intercept=False"),
    ):
        detector = truing.Detector(**settings)
        detector.calibrate(stream(rng, rows=rows))
        assert why in detector.learn_and_decide(stream(rng), fdr=0.1).notes
        assert why in detector.decide(stream(rng), fdr=0.1).notes
        detector.calibrate(stream(rng, rows=rows))
        assert why in detector.decide(stream(rng), fdr=0.1).notes
    for settings in ({}, {"method": "dlr"}):
        detector = truing.Detector(**settings)
        detector.calibrate(stream(rng, rows=300 if not settings else 100))
        assert "method is dlr" not in " ".join(detector.learn_and_decide(stream(rng), fdr=0.1).notes)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
def test_groups_that_are_not_used_are_noted(rng, tmp_path, method):
    detector = truing.Detector(method=method)
    detector.calibrate(stream(rng, rows=60), groups=np.arange(60) // 4)
    truing.save(detector, tmp_path / "detector.npz")
    for each in (detector, truing.load(tmp_path / "detector.npz")):
        notes = each.learn_and_decide(stream(rng), fdr=0.1).notes
        is_noted = "groups were not used: this method does not split the reference" in notes
        assert is_noted == (method != "contrast")


def sums_of(outputs: truing.Outputs, base: BaseScore, **how) -> Sums:
    """Return the sums of a job over these rows, in blocks."""
    sums = Sums()
    for start in range(0, len(outputs), 100):
        rows = score_rows(outputs[start : start + 100], base)
        sums += sum_rows(rows, how.get("guard"), np.arange(start, start + len(rows)), **how)
    return sums


@pytest.mark.parametrize("settings", [{}, {"components": 3, "intercept": False, "temperature": 2.0}])
def test_a_detector_of_the_sums_of_a_job_has_learned_its_rows(rng, settings):
    outputs, reference = stream(rng), stream(rng, rows=300)
    sums = sums_of(outputs, BaseScore("energy", settings.get("temperature", 1.0)))
    made = truing.Detector.of_sums(sums, reference, method="dlr", base="energy", **settings)
    plain = truing.Detector("energy", method="dlr", **settings)
    plain.calibrate(reference)
    plain.merge(sums.moments)
    assert (made.moments.rows, made.skipped_rows) == (400, 0)
    for _ in range(2):
        rows = stream(rng, rows=50)
        np.testing.assert_array_equal(made.decide(rows, fdr=0.1).p_values, plain.decide(rows, fdr=0.1).p_values)
        one, other = (each.learn_and_decide(rows, fdr=0.1) for each in (made, plain))
        np.testing.assert_array_equal(one.scores, other.scores)
        assert one.notes == other.notes


def test_a_detector_of_sums_without_a_reference_scores_rows(rng):
    outputs = stream(rng)
    sums = Sums(403, garbage_rows=3, moments=truing.Moments.of(outputs.features, truing.msp(outputs.logits)))
    made = truing.Detector.of_sums(sums, None, method="dlr")
    assert made.skipped_rows == 3
    plain = truing.Detector(method="dlr")
    plain.learn(outputs)
    np.testing.assert_array_equal(made.score(outputs), plain.score(outputs))


@pytest.mark.parametrize("method", ["rlr", "auto"])
def test_a_detector_of_sums_must_be_dlr_or_contrast(rng, method):
    with pytest.raises(ValueError, match=f"method must be dlr or contrast, got '{method}'"):
        truing.Detector.of_sums(Sums(), stream(rng), method=method)
