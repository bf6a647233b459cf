import re
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


def test_decay_weights_each_batch_by_its_age_and_never_the_reference(rng):
    outputs, reference = stream(rng, rows=120), stream(rng, rows=60)
    for is_calibrated in (False, True):
        detector, every = truing.Detector(decay=0.5), outputs
        if is_calibrated:
            detector.calibrate(reference)
            every = truing.Outputs.concatenate([outputs, reference])
        for batch in batches(outputs, 40):
            detector.learn(batch)
        weight = np.sqrt(np.append(np.repeat([0.25, 0.5, 1.0], 40), np.ones(len(every) - 120)))
        design = np.column_stack((every.features, np.ones(len(every)))) * weight[:, None]
        expected = np.linalg.lstsq(design, truing.msp(every.logits) * weight, rcond=None)[0]
        np.testing.assert_allclose(detector.current_fit.coef, expected[:-1], atol=1e-10)


def test_only_learn_and_decide_uses_the_reference_in_the_fit(rng):
    outputs, now, reference = stream(rng), stream(rng, rows=30), stream(rng, rows=60)
    detector = truing.Detector()
    detector.calibrate(reference)
    decision = detector.learn_and_decide(outputs, false_alarm=0.2)
    every = truing.Outputs.concatenate([outputs, reference])
    both = truing.fit_direct(every.features, truing.msp(every.logits))
    alone = truing.fit_direct(outputs.features, truing.msp(outputs.logits))
    np.testing.assert_array_equal(decision.is_out, decision.p_values <= 0.2)
    np.testing.assert_array_equal(detector.score(outputs), decision.scores)
    for fit, rows, decided in ((both, outputs, decision), (alone, now, detector.decide(now, false_alarm=0.1))):
        np.testing.assert_allclose(decided.scores, fit.predict(rows.features), atol=1e-12)
        expected = truing.p_values(fit.predict(reference.features), fit.predict(rows.features))
        np.testing.assert_allclose(decided.p_values, expected)


@pytest.mark.parametrize("name", ["learn_and_decide", "decide"])
def test_false_alarms_keep_their_stated_rate_on_real_features(name):
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    rng, refused = np.random.default_rng(11), []
    for _ in range(60):
        reference, test, earlier = (inside[part] for part in np.split(rng.permutation(10_000)[:1100], [200, 500]))
        detector = truing.Detector()
        detector.calibrate(reference)
        if name == "decide":
            detector.learn(earlier)
        decision = getattr(detector, name)(truing.Outputs.concatenate([test, outside[:100]]), false_alarm=0.05)
        refused.append(decision.is_out[:300].mean())
    # 10 of 201 ranks lie at or below 5 %. The standard error over 60 splits is about 0.25 points.
    assert np.mean(refused) == pytest.approx(10 / 201, abs=0.01)


def test_an_error_names_its_cause_and_does_not_change_the_state(rng):
    def fails_on_few_rows(outputs):
        if len(outputs) < 10:
            raise KeyboardInterrupt
        return outputs.features[:, 0]

    rows, reference = stream(rng), stream(rng, rows=40)
    new, calibrated = truing.Detector(), truing.Detector()
    ready, wrong, fails = (truing.Detector(**each) for each in ({}, {"components": 7}, {"base": fails_on_few_rows}))
    for detector in (calibrated, ready, fails):
        detector.calibrate(reference)
    for detector in (ready, fails):
        detector.learn(rows)
    narrow, bare = truing.Outputs(np.ones((5, 3)), np.ones((5, 4))), truing.Outputs(rows.features)
    two_columns = truing.Moments.of(rng.normal(size=(9, 2)), np.arange(9.0))
    for detector, call, error, message in (
        (new, lambda: new.score(rows), ValueError, "nothing learned yet"),
        (new, lambda: new.decide(rows, fdr=0.1), ValueError, "call calibrate first"),
        (calibrated, lambda: calibrated.decide(rows, fdr=0.1), ValueError, "nothing learned yet"),
        (ready, lambda: ready.decide(rows), ValueError, "exactly one error rate"),
        (ready, lambda: ready.learn(narrow), ValueError, "features must have 6 columns, as before, got 3"),
        (ready, lambda: ready.calibrate(narrow), ValueError, "must have 6 .*columns, .* got 3"),
        (ready, lambda: ready.learn(bare), ValueError, "needs logits"),
        (ready, lambda: ready.calibrate(bare), ValueError, "needs logits"),
        (ready, lambda: ready.learn([[1.0]]), TypeError, "must be Outputs, got list"),
        (ready, lambda: ready.calibrate(None), TypeError, "must be Outputs, got None"),
        (wrong, lambda: wrong.learn(rows), ValueError, "components must be at most the 6 columns"),
        (ready, lambda: ready.merge(two_columns), ValueError, "moments must have 6 columns, as before, got 2"),
        (ready, lambda: ready.merge({}), TypeError, "moments must be Moments, as the detector has, got dict"),
        (fails, lambda: fails.learn_and_decide(rows[:3], fdr=0.1), KeyboardInterrupt, None),
    ):
        before = detector.state
        with pytest.raises(error, match=message):
            call()
        assert detector.state is before


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
def test_reusing_the_callers_buffer_changes_neither_the_reference_nor_learned_rows(rng, method):
    reference, rows = stream(rng, rows=60), stream(rng)
    plain, reused = truing.Detector(method=method), truing.Detector(method=method)
    for name, outputs in (("calibrate", reference), ("learn", rows)):
        buffer = outputs.features.copy()
        getattr(plain, name)(outputs)
        getattr(reused, name)(truing.Outputs(buffer, outputs.logits))
        buffer[:] = 7.0
    for each in (plain, reused):
        each.learn(reference)
    np.testing.assert_array_equal(reused.decide(rows, fdr=0.1).p_values, plain.decide(rows, fdr=0.1).p_values)


def test_ties_keep_the_false_alarm_rate(rng):
    """Only three distinct rows occur, one at a time. A difference in the last bit would break all ties the same way."""
    kinds, alarms = rng.normal(size=(3, 5)), []
    for _ in range(300):
        features = kinds[rng.integers(0, 3, size=40)]
        rows = truing.Outputs(features, scores=features.sum(axis=1))
        detector = truing.Detector("given")
        detector.calibrate(rows[:39])
        alarms.append(detector.learn_and_decide(rows[39:], false_alarm=0.05).is_out[0])
    assert np.mean(alarms) <= 0.05


def test_the_repr_of_a_detector_and_a_decision_summarises_them(rng):
    detector = truing.Detector("energy")
    assert repr(detector) == "Detector(auto, base energy, nothing learned)"
    detector.calibrate(stream(rng, rows=60))
    detector.learn(stream(rng, rows=1500))
    assert repr(detector) == "Detector(dlr, base energy, 6 features, 1,500 rows learned, 60 reference rows)"
    decided = repr(detector.decide(stream(rng), false_alarm=0.1))
    assert re.match(r"Decision\(\d+ of 400 rows out at false_alarm 0\.1; the method is dlr: .*\)$", decided)


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


def test_a_window_keeps_the_newest_batches_and_forgets_earlier_outliers(rng):
    outputs = stream(rng, rows=300)
    detector = truing.Detector("energy", window=100)
    for number, batch in enumerate(batches(outputs, 32)):
        if number == 2:
            detector.learn(truing.Outputs(1e12 * batch.features, batch.logits))
        detector.learn(batch)
    kept = outputs[-76:]  # 32 + 32 + 12 rows; a fourth batch would exceed 100.
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
    kept = truing.Outputs.concatenate([outputs[-(window or 400) :], reference])
    expected = truing.fit_robust(kept.features, truing.energy(kept.logits))
    np.testing.assert_array_equal(detector.current_fit.coef, expected.coef)
    with pytest.raises(ValueError, match="moments cannot be merged into a window"):
        detector.merge(truing.Moments.of(kept.features, kept.features[:, 0]))


def drifting(rng, rows, shift=0.0):
    """Return outputs of a classifier with three classes."""
    features = rng.normal(size=(rows, 6)) + shift
    features[:, 0] += 4
    return truing.Outputs(features, np.stack([features[:, 0], features[:, 1], -features[:, 1]], axis=1))


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_the_drift_alarm_sees_only_the_p_values_of_learned_rows(rng, method):
    """The fit of a contrast changes its scores, so p-values by the base score are monitored instead."""
    detector = truing.Detector("energy", method=method, drift_alarm=0.001)
    assert detector.drift is None
    reference = drifting(rng, 1600)
    detector.calibrate(reference)
    scores_in = truing.energy(split(reference)[1].logits)
    alarm = truing.DriftAlarm(0.001, seed=detector.drift.seed)
    for number in range(60):
        batch = drifting(rng, 32, shift=0.0 if number < 40 else 2.0)
        decision = detector.learn_and_decide(batch, false_alarm=0.05)
        is_contrast = method == "contrast"
        base_scores = truing.energy(batch.logits)
        np.testing.assert_array_equal(detector.base_scores(batch), base_scores)
        by_base = truing.p_values(scores_in, base_scores)
        alarm = alarm.updated(by_base if is_contrast else decision.p_values)
        detector.decide(batch, false_alarm=0.05)
        assert detector.drift.martingale == alarm.martingale
        assert not detector.drift.is_alarming or number >= 40
    assert detector.drift.is_alarming
    assert detector.drift.report().features_moved
    detector.calibrate(reference)  # A new reference starts a new alarm.
    assert detector.drift.rows == 0


def test_a_base_score_may_be_a_function(rng):
    def margin(outputs):
        ordered = np.sort(outputs.logits, axis=1)
        return ordered[:, -1] - ordered[:, -2]

    outputs, detector = stream(rng), truing.Detector(margin)
    detector.learn(outputs)
    expected = truing.fit_direct(outputs.features, margin(outputs)).predict(outputs.features)
    decided = truing.detect(outputs, base=margin)
    assert decided.base == "margin"
    for scores in (detector.score(outputs), decided.scores):
        np.testing.assert_allclose(scores, expected, atol=1e-10)
    for options, message in (
        ({"base": lambda outputs: margin(outputs)[1:]}, "base must return one score per row, 400, got 399"),
        ({"base": margin, "temperature": 2.0}, "temperature must be 1"),
        ({"base": "margin"}, "base must be one of msp"),
    ):
        with pytest.raises(ValueError, match=message):
            truing.detect(outputs, **options)


@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
@pytest.mark.parametrize("column", ["features", "scores"])
def test_rows_that_changed_after_their_check_are_rejected(method, column):
    every = truing.sample()[:310]
    rows = truing.Outputs(every.features, scores=truing.msp(every.logits))
    detector = truing.Detector("given", method=method)
    detector.calibrate(rows[:200])
    detector.learn(rows[200:300])
    before = detector.state
    columns = {"features": np.array(rows.features[300:]), "scores": rows.scores[300:].copy()}
    changed = truing.Outputs(**columns)
    columns[column][3] = np.inf
    calls = [detector.learn, detector.learn_and_score, partial(detector.learn_and_decide, false_alarm=0.05)]
    if column == "features":
        calls += [detector.score, partial(detector.decide, false_alarm=0.05)]
    for call in calls:
        with pytest.raises(ValueError, match="must be finite"):
            call(changed)
        assert detector.state is before


def test_rows_whose_scores_overflow_are_rejected(rng):
    tiny = truing.Outputs(1e-140 * rng.normal(size=(20, 3)), scores=1e98 * rng.normal(size=20))
    detector = truing.Detector("given")
    detector.calibrate(tiny)
    detector.learn(tiny)
    huge = truing.Outputs(np.full((2, 3), 1e99), scores=[1.0, 2.0])
    for ask in (detector.score, detector.learn_and_score, partial(detector.decide, false_alarm=0.1)):
        with pytest.raises(ValueError, match="got a score that overflows in row 0"):
            ask(huge)


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
def test_garbage_rows_change_no_later_score_and_no_later_decision(rng, tmp_path, settings, is_calibrated):
    inside, outside = wide(truing.sample("cifar10-test")), wide(truing.sample("svhn"))
    mixed = truing.Outputs.concatenate([inside[1000:2200], outside[:400]])[rng.permutation(1600)]
    hit, clean = truing.Detector(**settings), truing.Detector(**settings)
    if is_calibrated:
        for detector in (hit, clean):
            detector.calibrate(inside[:1000])
    for number, batch in enumerate(batches(mixed, 100)):
        clean.learn(batch)
        if number == 3:  # As a batch of its own.
            assert np.isfinite(hit.learn_and_score(garbage(rng, 1e10))).all()
        if number in (0, 5):  # Among other rows, also in the first batch, whose medians say what is typical.
            batch = truing.Outputs.concatenate([batch[:40], garbage(rng, 1e10 if number == 0 else 1e99), batch[40:]])
        hit.learn(batch)
        if number == 5:
            truing.save(hit, tmp_path / "detector.npz")
            hit = truing.load(tmp_path / "detector.npz")
    assert (hit.skipped_rows, clean.skipped_rows) == (3, 0)
    rows = truing.Outputs.concatenate([inside[3000:3050], outside[500:550]])
    np.testing.assert_array_equal(hit.score(rows), clean.score(rows))
    if is_calibrated:
        for name in ("decide", "learn_and_decide"):
            decided, expected = (getattr(detector, name)(rows, false_alarm=0.05) for detector in (hit, clean))
            np.testing.assert_array_equal(decided.p_values, expected.p_values)
            assert decided.notes == expected.notes


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


def test_rows_with_a_garbage_score_alone_are_not_learned_and_stay_counted(rng):
    rows = wide(truing.sample()[:300])
    detector = truing.Detector("energy", method="dlr")
    detector.learn(rows)
    before = detector.score(rows)
    detector.learn(truing.Outputs(rows.features[:2], 1e10 * rows.logits[:2]))
    np.testing.assert_array_equal(detector.score(rows), before)
    detector.calibrate(wide(truing.sample()[300:600]))
    detector.merge(detector.moments)
    assert detector.skipped_rows == 2


@pytest.mark.parametrize("drift_alarm", [None, 0.01])
@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
def test_the_base_scores_of_a_batch_are_computed_once(rng, method, drift_alarm):
    calls = []

    def counted(outputs):
        calls.append(len(outputs))
        return truing.energy(outputs.logits)

    detector = truing.Detector(counted, method=method, drift_alarm=drift_alarm)
    detector.calibrate(stream(rng, rows=120))
    for rows in (200, 5, 30):  # A contrast solves a fit of its own for the first batch.
        for act in (detector.learn, partial(detector.learn_and_decide, fdr=0.1), detector.learn_and_score):
            calls.clear()
            act(stream(rng, rows=rows))
            assert calls == [rows]


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


def test_decisions_say_why_auto_is_dlr(rng):
    late = truing.Detector()
    late.learn(stream(rng))
    for detector, rows, why in (
        (truing.Detector(), 199, "contrast needs a reference of at least 200 rows here, got 199 rows"),
        (truing.Detector(intercept=False), 300, "contrast needs an intercept, got intercept=False"),
        (late, 300, "contrast needs a reference before it learns, but rows were learned already"),
    ):
        for _ in range(2):
            detector.calibrate(stream(rng, rows=rows))
            assert f"the method is dlr: {why}" in detector.learn_and_decide(stream(rng), fdr=0.1).notes
            assert f"the method is dlr: {why}" in detector.decide(stream(rng), fdr=0.1).notes
    for detector, rows in ((truing.Detector(), 300), (truing.Detector(method="dlr"), 100)):
        detector.calibrate(stream(rng, rows=rows))
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


@pytest.mark.parametrize("settings", [{}, {"components": 3, "intercept": False, "temperature": 2.0}])
def test_a_detector_of_the_sums_of_a_job_has_learned_its_rows(rng, settings):
    outputs, reference = stream(rng), stream(rng, rows=300)
    sums = Sums(garbage_rows=3)
    for start in range(0, 400, 100):
        rows = score_rows(outputs[start : start + 100], BaseScore("energy", settings.get("temperature", 1.0)))
        sums += sum_rows(rows, None, np.arange(start, start + 100))
    made = truing.Detector.of_sums(sums, reference, method="dlr", base="energy", **settings)
    plain = truing.Detector("energy", method="dlr", **settings)
    plain.calibrate(reference)
    plain.merge(sums.moments)
    assert (made.moments.rows, made.skipped_rows) == (400, 3)
    for _ in range(2):
        rows = stream(rng, rows=50)
        np.testing.assert_array_equal(made.decide(rows, fdr=0.1).p_values, plain.decide(rows, fdr=0.1).p_values)
        one, other = (each.learn_and_decide(rows, fdr=0.1) for each in (made, plain))
        np.testing.assert_array_equal(one.scores, other.scores)
    without = truing.Detector.of_sums(sums, None, method="dlr", base="energy", **settings)
    shape = {name: value for name, value in settings.items() if name != "temperature"}
    expected = sums.moments.solve(**shape).predict(outputs.features)
    np.testing.assert_array_equal(without.score(outputs), expected)
    with pytest.raises(ValueError, match="method must be dlr or contrast, got 'auto'"):
        truing.Detector.of_sums(sums, reference, method="auto")
