import numpy as np
import pytest

import truing
from truing.contrast import split
from truing.detection import detect


@pytest.fixture
def rows(rng) -> truing.Outputs:
    features = rng.normal(1, 1, size=(300, 5))
    return truing.Outputs(features, features @ rng.normal(size=(5, 4)) + rng.normal(size=(300, 4)))


@pytest.mark.parametrize("method", ["dlr", "rlr", "online"])
def test_without_a_reference_there_are_scores_and_no_decision(rows, method):
    result = detect(rows, method=method)
    assert (result.p_values, result.is_out, result.threshold) == (None, None, None)
    assert "there are scores but no decisions" in " ".join(result.notes)
    np.testing.assert_array_equal(result.base_scores, truing.msp(rows.logits))
    assert result.fitted_rows.all()


@pytest.mark.parametrize("method", ["dlr", "rlr"])
@pytest.mark.parametrize("shape", [{}, {"components": 2}, {"intercept": False}])
def test_the_reference_joins_the_fit_and_sets_the_threshold(rows, method, shape):
    test, reference = rows[:200], rows[200:]
    result = detect(test, reference, method=method, base="energy", temperature=2.0, accept=0.9, **shape)
    both = truing.Outputs.concatenate([test, reference])
    fit = {"dlr": truing.fit_direct, "rlr": truing.fit_robust}[method]
    fit = fit(both.features, truing.energy(both.logits, 2.0), **shape)
    np.testing.assert_allclose(result.scores, fit.predict(test.features), atol=1e-12)
    threshold = truing.threshold_at(fit.predict(reference.features), accept=0.9)
    assert threshold - 1e-5 * np.abs(result.scores).max() < result.threshold < threshold
    np.testing.assert_array_equal(result.is_out, fit.predict(test.features) < threshold)


@pytest.mark.parametrize("rate", [{"false_alarm": 0.1}, {"fdr": 0.1}])
def test_online_learn_first_is_a_detector_that_learns_then_decides(rows, rate):
    test, reference = rows[:200], rows[200:]
    result = detect(test, reference, method="online", batch=30, **rate)
    detector = truing.Detector(method="dlr")
    detector.calibrate(reference)
    for start in range(0, 200, 30):
        part = slice(start, start + 30)
        decision = detector.learn_and_decide(test[part], **rate)
        np.testing.assert_allclose(result.scores[part], decision.scores)
        np.testing.assert_array_equal(result.is_out[part], decision.is_out)


def test_online_score_first_uses_earlier_rows_alone_and_marks_the_first_batch(rows):
    test, reference = rows[:200], rows[200:]
    result = detect(test, reference, method="online", batch=50, order="score-first", false_alarm=0.1)
    assert result.fitted_rows.tolist() == [0] * 50 + [50] * 50 + [100] * 50 + [150] * 50
    np.testing.assert_array_equal(result.scores[:50], result.base_scores[:50])
    np.testing.assert_array_equal(
        result.p_values[:50], truing.p_values(truing.msp(reference.logits), result.base_scores[:50])
    )
    for start in (50, 100, 150):
        fit = truing.fit_direct(test.features[:start], result.base_scores[:start])
        part = slice(start, start + 50)
        np.testing.assert_allclose(result.scores[part], fit.predict(test.features[part]), atol=1e-10)
        expected = truing.p_values(fit.predict(reference.features), result.scores[part])
        np.testing.assert_allclose(result.p_values[part], expected)
    assert "50 rows came before any fit" in " ".join(result.notes)


def test_progress_counts_every_row(rows):
    seen = []
    detect(rows, method="online", batch=128, progress=lambda *step: seen.append(step))
    assert seen == [("batches", 128, 300), ("batches", 256, 300), ("batches", 300, 300)]
    seen.clear()
    detect(rows[:200], rows[200:], fdr=0.1, progress=lambda *step: seen.append(step))
    assert seen == [(name, 200, 200) for name in ("sums", "p-values", "scores")]


def warned(text):
    return pytest.warns(truing.TruingWarning, match=text)


def test_serious_problems_are_notes_and_warnings(rows):
    reference, right = rows[100:], rows[100:].logits.argmax(axis=1)
    cases = {
        "all base scores are equal": (truing.Outputs(rows.features, rows.logits * 0), None),
        "the features do not vary": (truing.Outputs(rows.features * 0 + 3, rows.logits), None),
        "10 reference rows give p-values of at least 0.091": (rows[:200], rows[200:210]),
        "100% of the rows are reference rows": (rows[:50], rows),
        "9% of the rows are reference rows": (truing.Outputs.concatenate([rows[:100], reference[:10]]), reference),
        "of the rows look out": (truing.Outputs(rows.features[:100] - 50, rows.logits[:100] - 50), reference),
        "all 200 reference rows correctly": (rows[:100], truing.Outputs(reference.features, reference.logits, right)),
    }
    for text, (outputs, with_reference) in cases.items():
        rate = {} if with_reference is None else {"false_alarm": 0.05}
        with warned(text):
            result = detect(outputs, with_reference, method="dlr", base="max_logit", **rate)
        assert text in " ".join(result.notes)
    with warned("exact copy in the reference"):
        detect(rows[:100], truing.Outputs.concatenate([reference, reference]))
    with warned("groups were not used"):
        detect(rows[:100], reference, method="dlr", groups=np.arange(200))


def test_other_problems_are_notes(rows, rng):
    near = rows.features.copy()
    near[:, 1] = near[:, 0] + 1e-6 * near[:, 1]
    beside = np.column_stack((rows.features, np.arange(300) * 1e9))
    for text, outputs, options in (
        ("12 rows were scored by a fit to few rows for its rank of 5,", rows[:12], {}),
        ("uses 2 directions and leaves 6 out", truing.Outputs(np.tile(rows.features[:, :2], 4), rows.logits), {}),
        ("columns are nearly collinear", truing.Outputs(near, rows.logits), {}),
        ("only 1 of 4 components are used", truing.Outputs(beside, rows.logits), {"components": 4}),
    ):
        assert text in " ".join(detect(outputs, **options).notes)
    assert detect(rows[:200], rows[200:], method="dlr").notes == ()
    # Repeated rows of few values are not taken for reference rows.
    binary = truing.Outputs(rng.integers(0, 2, size=(300, 4)), rows.logits)
    assert "reference rows" not in " ".join(detect(binary[:100], binary[100:], method="dlr").notes)


def test_truing_that_hurts_is_noted_without_labels(bank):
    """AUROC falls for near out-of-distribution rows."""
    inside, near = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "cifar100")
    result = detect(truing.Outputs.concatenate([inside[:2000], near]), inside[5000:], method="dlr", base="energy")
    before = truing.auroc(result.base_scores[:2000], result.base_scores[2000:])
    assert truing.auroc(result.scores[:2000], result.scores[2000:]) < before - 0.03
    assert "truing hurts here" in " ".join(result.notes)
    far = truing.Outputs.concatenate([inside[:5000], bank("cifar10-resnet56", "svhn")])
    helped = detect(far, inside[5000:], method="dlr")
    assert truing.auroc(helped.scores[:5000], helped.scores[5000:]) > 0.95
    assert "truing hurts here" not in " ".join(helped.notes)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_other_class_frequencies_are_not_taken_for_harm_or_a_swap(bank, method):
    inside = bank("cifar10-resnet56", "cifar10-test")
    for classes in ([0, 1, 8], [1, 8, 9], [2, 3, 5]):  # Among them those that the network knows best, and least.
        rows = inside[:5000][np.isin(inside.labels[:5000], classes)]
        notes = " ".join(detect(rows, inside[5000:], method=method).notes)
        assert "hurts" not in notes
        assert "swapped" not in notes


def test_invalid_arguments_are_rejected(rows):
    bare = truing.Outputs(rows.features + 1)
    narrow = truing.Outputs(rows.features[:, :3], rows.logits)
    more = truing.Outputs(rows.features, np.hstack((rows.logits, rows.logits)))
    contrast, plain = {"method": "contrast", "base": "energy"}, {"method": "dlr", "base": "energy"}
    other_method = "is an option of method '.*', got .* with method"
    for outputs, reference, options, message in (
        (rows, None, {"fdr": 0.1}, "need a reference"),
        (rows, rows, {"fdr": 0.1, "accept": 0.9}, "exactly one error rate"),
        (rows, narrow, {"method": "dlr"}, "reference must have 5 feature columns, as.*got 3"),
        (rows, narrow, {"method": "rlr"}, "reference must have 5 feature columns, as.*got 3"),
        (rows, narrow, {"method": "online"}, "reference must have 5 feature columns, as the outputs have, got 3"),
        (rows, more, {}, "reference must have 4 logit columns, as the outputs have, got 8"),
        (rows, None, {"components": 6}, "components must be at least 1 and at most 5"),
        (rows, None, {"method": "rlr", "penalty": 0.0}, "penalty must be above 0"),
        (rows, None, {"method": "magic"}, "method must be one of auto, none, dlr, rlr, online, contrast, got 'magic'"),
        (rows, None, contrast, "method contrast needs a reference"),
        (rows, rows[200:], {**contrast, "intercept": False}, "intercept must be True for the method contrast"),
        (rows, rows[:], contrast, "reference must differ from outputs, got the same rows"),
        (rows, rows[200:203], contrast, "reference must have at least 4 rows"),
        (rows, None, {"groups": range(100)}, "groups need a reference, got None"),
        (rows, None, {"head": (np.ones(5), np.ones(4))}, r"weight must be 2-D \(n, d\), got shape \(5,\)"),
        (rows, None, {"head": (np.ones((3, 5)), np.ones(4))}, "weight and bias must have the same number of rows"),
        (bare, rows, plain, r"the score energy needs logits, got Outputs\(300 rows: features 5\)"),
        (rows, bare, plain, r"the score energy needs logits, got Outputs\(300 rows: features 5\)"),
        (bare, rows, contrast, "outputs must have 4 logits, as the reference has, got none"),
        (rows, bare, contrast, "outputs must have no logits, as the reference has, got 4"),
        (rows, rows, {"method": "dlr", "keep": 0.5}, f"keep {other_method} 'dlr'"),
        (rows, rows, {"keep": 0.5}, f"keep {other_method} 'auto'"),
        (rows, rows, {"method": "contrast", "penalty": 0.1}, f"penalty {other_method} 'contrast'"),
        (rows, rows, {"method": "rlr", "batch": 7}, f"batch {other_method} 'rlr'"),
        (rows, rows, {"method": "contrast", "order": "score-first"}, f"order {other_method} 'contrast'"),
        (rows, rows, {"method": "none", "components": 2}, f"components {other_method} 'none'"),
        (rows, rows, {"method": "none", "intercept": False}, f"intercept {other_method} 'none'"),
    ):
        with pytest.raises(ValueError, match=message):
            detect(outputs, reference, **options)
    for reference in (None, rows[200:]):
        with pytest.raises(TypeError, match=r"head must be a pair \(weight, bias\) of arrays, got int"):
            detect(rows[:100], reference, head=3)
    with pytest.raises(TypeError, match="outputs must be Outputs, got str"):
        detect("rows.npz")
    with pytest.raises(TypeError, match="base must be a name in SCORES or a function of the outputs, got int"):
        detect(rows, base=3)


@pytest.mark.parametrize("method", ["contrast", "dlr"])
def test_a_job_of_out_rows_is_warned_of_but_not_a_job_of_many_out_rows(bank, method):
    inside, outside = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "mnist")
    with warned("of the rows look out: check that the reference comes from"):
        detect(truing.Outputs.concatenate([inside[:20], outside]), inside[5000:], method=method)
    many = truing.Outputs.concatenate([inside[:1000], outside])
    assert "look out:" not in " ".join(detect(many, inside[5000:], method=method).notes)


def test_swapped_arguments_and_another_preprocessing_are_warned_of(bank):
    inside, outside = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "svhn")
    mixture = truing.Outputs.concatenate([inside[:1000], outside[:1000]])
    with warned("check that outputs and reference are not swapped"):
        detect(inside[5000:], mixture, method="dlr")
    assert "swapped" not in " ".join(detect(mixture, inside[5000:], method="dlr").notes)
    rows = bank("cifar10-densenet100", "cifar10-test-5000")
    for factor, text in ((1.05, "the rows differ from the reference as a whole"), (2, "of the rows look out")):
        with warned(text):
            detect(truing.Outputs(factor * rows.features[:2000], rows.logits[:2000]), rows[2000:3000])


def test_a_detectors_decisions_carry_the_notes_of_their_fit(rows):
    copies = truing.Outputs(np.tile(rows.features, 3), rows.logits)
    detector = truing.Detector(method="dlr")
    detector.calibrate(copies[:100])
    assert "uses 5 directions and leaves 10 out" in " ".join(detector.learn_and_decide(copies[100:], fdr=0.1).notes)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_auto_is_contrast_with_a_large_reference_and_dlr_otherwise(rows):
    many = truing.Outputs.concatenate([rows, truing.Outputs(rows.features + 0.01, rows.logits)])
    few = "the method is dlr: contrast needs a reference of at least 200 rows here, got 10 rows"
    for outputs, reference, options, method, note in (
        (many[:200], many[200:], {}, "contrast", ""),
        (rows[:100], rows[100:], {"false_alarm": 0.05}, "contrast", ""),
        (rows, None, {}, "dlr", ""),
        (rows[:200], rows[200:210], {"false_alarm": 0.05}, "dlr", few),
        (many[:200], many[200:], {"false_alarm": 0.001}, "dlr", ""),
        (rows[:100], rows[100:], {"intercept": False}, "dlr", "contrast needs an intercept, got intercept=False"),
    ):
        result = detect(outputs, reference, **options)
        assert (result.method, result.base) == (method, "gen" if method == "contrast" else "msp")
        assert note in " ".join(result.notes)
    assert detect(rows[:200], rows[200:], base="energy").base == "energy"
    given = truing.Outputs(rows.features, scores=truing.energy(rows.logits))
    assert detect(given[:200], given[200:]).base == "given"


def test_a_contrast_is_decided_against_the_half_that_was_not_learned_from(rows):
    result = detect(rows[:200], rows[200:], method="contrast", base="energy", false_alarm=0.1)
    fit = truing.fit_contrast(rows[:200], rows[200:], base="energy")
    np.testing.assert_array_equal(result.scores, fit.predict(rows[:200]))
    np.testing.assert_array_equal(result.p_values, truing.p_values(fit.scores_in, result.scores))
    np.testing.assert_array_equal(result.base_scores, truing.energy(rows.logits[:200]))
    assert result.fitted_rows.tolist() == [200.0] * 200


def test_the_method_none_decides_by_the_base_score(rows):
    result = detect(rows[:200], rows[200:], method="none", base="energy", false_alarm=0.1)
    np.testing.assert_array_equal(result.scores, truing.energy(rows.logits[:200]))
    np.testing.assert_array_equal(result.p_values, truing.p_values(truing.energy(rows.logits[200:]), result.scores))
    assert result.fit is None
    assert repr(result).startswith("Detection(200 rows, energy, ")
    assert repr(detect(rows, method="dlr")).startswith("Detection(300 rows, msp trued by dlr")


def test_a_base_score_that_needs_reference_rows_gets_half_of_the_reference(rows):
    learning, calibration = split(rows[200:])
    scores_in, scores = (truing.knn(part.features, learning.features) for part in (calibration, rows[:200]))
    result = detect(rows[:200], rows[200:], method="none", base="knn", false_alarm=0.1)
    np.testing.assert_allclose(result.scores, scores, atol=1e-12)
    np.testing.assert_allclose(result.p_values, truing.p_values(scores_in, scores))
    for method in ("dlr", "rlr", "online", "contrast"):
        assert detect(rows[:200], rows[200:], method=method, base="knn", false_alarm=0.1).reference_rows == 50


@pytest.mark.parametrize(
    "options",
    [
        {"method": "dlr"},
        {"method": "dlr", "components": 16},
        {"method": "rlr"},
        {"method": "online", "batch": 100},
        {"method": "online", "batch": 100, "order": "score-first"},
    ],
    ids=str,
)
@pytest.mark.parametrize("has_reference", [True, False])
def test_garbage_rows_are_decided_and_change_no_other_row(rng, options, has_reference):
    mixed = truing.Outputs.concatenate([truing.sample()[1000:1700], truing.sample("svhn")[:300]])
    rows = truing.Outputs(mixed.features.astype(np.float64), mixed.logits.astype(np.float64))[rng.permutation(1000)]
    noise = truing.Outputs(np.array([[1e10], [1e30]]) * rng.normal(size=(2, 64)), rng.normal(size=(2, 10)))
    reference = truing.sample()[:1000] if has_reference else None
    result = detect(truing.Outputs.concatenate([rows, noise]), reference, **options)
    expected = detect(rows, reference, **options)
    np.testing.assert_array_equal(result.scores[:1000], expected.scores)
    assert np.isfinite(result.scores).all()
    if has_reference:
        np.testing.assert_array_equal(result.p_values[:1000], expected.p_values)
    far = "from the reference" if has_reference else "from the other rows"
    notes = [note for note in result.notes if "but not learned" in note]
    assert len(notes) == 1
    assert notes[0].startswith(f"2 rows are more than 100 times farther {far} than usual: they were ")
    assert not [note for note in expected.notes if "but not learned" in note]
