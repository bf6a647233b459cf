"""A stream with contrast: batches, saving and restoring, threads, merging, and agreement with whole jobs."""

import numpy as np
import pytest

import truing
from truing.contrast import RowSample, split
from truing.steps import Sums, score_rows, sum_rows


@pytest.fixture(scope="module")
def rows() -> truing.Outputs:
    parts = (truing.sample("cifar10-test")[:900], truing.sample("svhn")[:100])
    mix = truing.Outputs.concatenate([truing.Outputs(part.features, part.logits) for part in parts])
    return mix[np.random.default_rng(0).permutation(1000)]


@pytest.fixture(scope="module")
def reference() -> truing.Outputs:
    calibration = truing.sample("cifar10-test")[5000:5600]
    return truing.Outputs(calibration.features, calibration.logits)


def detector_of(reference, **options) -> truing.Detector:
    detector = truing.Detector(method="contrast", **options)
    detector.calibrate(reference)
    return detector


OPTIONS = [{}, {"components": 12}, {"base": "knn"}, {"base": "energy"}]


@pytest.mark.parametrize("options", OPTIONS)
def test_a_fit_compares_the_learned_rows_with_the_learning_half(rows, reference, options):
    """The fit is renewed when the number of learned rows has grown by a quarter."""
    detector = detector_of(reference, **options)
    for start in range(0, 800, 80):
        detector.learn(rows[start : start + 80])
    learned = 640  # Renewed at 80, 160, 240, 320, 480 and 640 rows.
    halves = detector.reference
    expected = halves.learn(halves.standard.scored(rows[:learned]), with_calibration=False)
    fit = halves.applied(expected, rows=learned)
    np.testing.assert_array_equal(detector.score(rows), fit.predict(rows))
    assert detector.moments.rows == 800


def test_a_batch_is_decided_by_the_fit_before_it(rows, reference):
    """This fit contains neither the batch nor the reference rows that decide, so p-values are valid."""
    one, other = detector_of(reference), detector_of(reference)
    for start in range(0, 600, 50):
        batch = rows[start : start + 50]
        decision = one.learn_and_decide(batch, false_alarm=0.1)
        if start:
            unlearned = other.decide(batch, false_alarm=0.1)
            np.testing.assert_array_equal(decision.scores, unlearned.scores)
            np.testing.assert_array_equal(decision.p_values, unlearned.p_values)
        other.learn(batch)


def test_one_batch_learned_and_decided_is_the_whole_job(rows, reference):
    decision = detector_of(reference).learn_and_decide(rows, false_alarm=0.05)
    found = truing.detect(rows, reference, false_alarm=0.05)
    assert found.method == "contrast"
    np.testing.assert_array_equal(decision.is_out, found.is_out)
    np.testing.assert_array_equal(decision.p_values, found.p_values)


def test_a_first_batch_is_decided_by_the_base_score_with_a_note(rows, reference):
    detector = detector_of(reference)
    decision = detector.decide(rows[:1], false_alarm=0.05)
    _, calibration = split(reference)
    halves = detector.reference
    near = halves.standard.distances(halves.calibration) <= halves.standard.limit
    assert near.mean() > 0.99
    scores_in = np.where(near, truing.gen(calibration.logits), -np.inf)  # More distant rows have the lowest scores.
    expected = (1 + (scores_in <= truing.gen(rows.logits[:1])).sum()) / (len(calibration) + 1)
    np.testing.assert_allclose(decision.p_values, expected)
    assert "nothing learned yet: rows are ranked by gen alone" in decision.notes
    with pytest.raises(ValueError, match="nothing learned yet"):
        detector.score(rows)
    with pytest.raises(ValueError, match="nothing learned yet"):
        _ = detector.current_fit


def test_invalid_calls_are_rejected_and_change_nothing(rows, reference):
    detector = truing.Detector(method="contrast")
    with pytest.raises(ValueError, match="contrast needs in-distribution rows before it learns: call calibrate first"):
        detector.learn(rows)
    with pytest.raises(ValueError, match="call calibrate first"):
        detector.learn_and_decide(rows, fdr=0.1)
    with pytest.raises(ValueError, match="reference must have at least 4 rows"):
        detector.calibrate(reference[:2])
    assert detector.moments is None
    detector.calibrate(reference[:100])
    detector.learn(rows[:50])
    state = detector.state
    for call, message in (
        (lambda: detector.learn(truing.Outputs(rows.features[:, :3], rows.logits)), "features must have 64 columns"),
        (lambda: detector.learn(truing.Outputs(rows.features, rows.logits[:, :3])), "logits must have 10 columns"),
        (lambda: detector.learn(truing.Outputs(rows.features)), "outputs must have 10 logits"),
        (lambda: detector.decide(rows, fdr=2.0), "fdr must be"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
        assert detector.state is state
    with pytest.raises(ValueError, match="method must be one of auto, dlr, rlr, contrast, got 'tea'"):
        truing.Detector(method="tea")


def test_a_head_is_saved_with_the_fit_or_detector(rows, reference, rng, tmp_path):
    head = (rng.normal(size=(10, 64)), rng.normal(size=10))
    fit = truing.fit_contrast(rows, reference, base="scale", head=head)
    detector = detector_of(reference, base="scale", head=head)
    detector.learn(rows)
    for thing, name in ((fit, "fit.npz"), (detector, "detector.npz")):
        truing.save(thing, tmp_path / name)
    np.testing.assert_array_equal(truing.load(tmp_path / "fit.npz").predict(rows), fit.predict(rows))
    np.testing.assert_array_equal(truing.load(tmp_path / "detector.npz").score(rows), detector.score(rows))


def test_a_detector_is_calibrated_again_and_keeps_what_it_learned(rows, reference):
    detector = detector_of(reference[:300], drift_alarm=0.01)
    for start in range(0, 1000, 100):
        detector.learn_and_decide(rows[start : start + 100], false_alarm=0.1)
    assert detector.drift.rows == 1000
    detector.calibrate(reference[300:])
    assert detector.drift.rows == 0
    assert detector.moments.rows == 1000
    other = detector_of(reference[300:])
    other.learn(rows)
    np.testing.assert_array_equal(detector.score(rows), other.score(rows))
    forgetful = detector_of(reference[:300], base="knn")
    forgetful.learn(rows)
    forgetful.calibrate(reference[300:])
    assert forgetful.moments is None
    assert "nothing learned yet" in " ".join(forgetful.decide(rows, false_alarm=0.1).notes)


def test_samples_of_two_detectors_are_merged(rows, reference, tmp_path):
    one, other, whole = (detector_of(reference) for _ in range(3))
    one.learn(rows[:500])
    other.learn(rows[500:])
    truing.save(other.moments, tmp_path / "sample.npz")
    one.merge(truing.load(tmp_path / "sample.npz"))
    whole.learn(rows)
    np.testing.assert_allclose(one.score(rows), whole.score(rows), rtol=1e-9)
    assert one.moments.rows == 1000


@pytest.mark.parametrize("factor", [1e3, 1e90])
def test_a_garbage_row_is_decided_counted_and_not_learned(rows, reference, rng, factor, tmp_path):
    plain, shown = detector_of(reference), detector_of(reference)
    garbage = truing.Outputs(factor * rng.normal(size=(1, 64)), rng.normal(size=(1, 10)))
    for detector in (plain, shown):
        detector.learn(rows[:300])
    decision = shown.learn_and_decide(garbage, false_alarm=0.05)
    assert decision.is_out.all()
    assert "decided but not learned" in " ".join(decision.notes)
    truing.save(shown, tmp_path / "detector.npz")
    shown = truing.load(tmp_path / "detector.npz")
    assert (plain.skipped_rows, shown.skipped_rows) == (0, 1)
    for start in range(300, 900, 100):
        one, other = (each.learn_and_decide(rows[start : start + 100], fdr=0.1) for each in (plain, shown))
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.is_out, other.is_out)


def test_samples_of_base_scores_that_need_a_reference_are_not_merged(rows, reference):
    one, other = detector_of(reference[:300], base="knn"), detector_of(reference[300:], base="knn")
    other.learn(rows)
    with pytest.raises(ValueError, match="moments of the base score knn depend on the reference and cannot be merged"):
        one.merge(other.moments)
    with pytest.raises(ValueError, match="moments must weigh more than 0 rows, got 0"):
        detector_of(reference).merge(RowSample())


def test_a_restored_auto_detector_is_contrast_when_it_is_calibrated(reference, tmp_path):
    truing.save(truing.Detector(), tmp_path / "detector.npz")
    restored = truing.load(tmp_path / "detector.npz")
    restored.calibrate(reference)
    assert (restored.settings.method, restored.base) == ("contrast", "gen")


def sums_of(detector: truing.Detector, rows: truing.Outputs, share: float = 1.0, first: int = 0) -> Sums:
    """Return the sums that a job with the reference of this detector computes over these rows, block by block."""
    base, guard = detector.reference.standard.base_score, detector.reference.guard
    sums = Sums()
    for start in range(0, len(rows), 300):
        block = score_rows(rows[start : start + 300], base)
        numbers = np.arange(first + start, first + start + len(block))
        sums += sum_rows(block, guard, numbers, with_moments=False, share=share)
    return sums


@pytest.mark.parametrize("options", [{}, {"base": "knn"}, {"base": "energy", "components": 7}])
def test_a_detector_of_the_sums_of_a_job_equals_one_that_learned_its_rows(rows, reference, rng, options, tmp_path):
    learned = detector_of(reference, **options)
    garbage = truing.Outputs(1e10 * rng.normal(size=(2, 64)), rng.normal(size=(2, 10)))
    sums = sums_of(learned, truing.Outputs.concatenate([rows[:600], garbage]), first=len(learned.reference.calibration))
    learned.learn(rows[:600])
    made = truing.Detector.of_sums(sums, reference, method="contrast", **options)
    assert (made.moments.rows, made.skipped_rows) == (600, 2)
    truing.save(made, tmp_path / "detector.npz")
    for each in (made, truing.load(tmp_path / "detector.npz")):
        np.testing.assert_array_equal(each.score(rows), learned.score(rows))
        found, wanted = (one.decide(rows[600:], false_alarm=0.05) for one in (each, learned))
        np.testing.assert_array_equal(found.p_values, wanted.p_values)
        assert found.notes == wanted.notes
