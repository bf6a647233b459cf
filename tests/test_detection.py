import re

import numpy as np
import pytest

import truing
from truing.detection import detect


@pytest.fixture
def rows(rng) -> truing.Outputs:
    features = rng.normal(1, 1, size=(300, 5))
    return truing.Outputs(features, features @ rng.normal(size=(5, 4)) + rng.normal(size=(300, 4)))


def joined(one: truing.Outputs, other: truing.Outputs) -> truing.Outputs:
    return truing.Outputs(np.concatenate((one.features, other.features)), np.concatenate((one.logits, other.logits)))


@pytest.mark.parametrize("method", ["dlr", "rlr", "online"])
def test_without_a_reference_there_are_scores_and_no_decision(rows, method):
    found = detect(rows, method=method)
    assert (found.p_values, found.is_out, found.threshold) == (None, None, None)
    assert "there are scores but no decisions" in " ".join(found.notes)
    np.testing.assert_array_equal(found.base_scores, truing.msp(rows.logits))
    assert found.fitted_rows.all()


@pytest.mark.parametrize("method", ["dlr", "rlr"])
@pytest.mark.parametrize("shape", [{}, {"components": 2}, {"intercept": False}])
def test_the_reference_joins_the_fit_and_sets_the_threshold(rows, method, shape):
    test, reference = rows[:200], rows[200:]
    found = detect(test, reference, method=method, base="energy", temperature=2.0, accept=0.9, **shape)
    both = joined(test, reference)
    fit = {"dlr": truing.fit_direct, "rlr": truing.fit_robust}[method]
    fit = fit(both.features, truing.energy(both.logits, 2.0), **shape)
    np.testing.assert_allclose(found.scores, fit.predict(test.features), atol=1e-12)
    threshold = truing.threshold_at(fit.predict(reference.features), accept=0.9)
    assert threshold - 1e-5 * np.abs(found.scores).max() < found.threshold < threshold
    np.testing.assert_array_equal(found.is_out, fit.predict(test.features) < threshold)


def test_dlr_and_rlr_do_not_depend_on_the_order_of_rows(rows, rng):
    order = rng.permutation(200)
    for method in ("dlr", "rlr"):
        one = detect(rows[:200], rows[200:], method=method, fdr=0.2)
        other = detect(rows[:200][order], rows[200:], method=method, fdr=0.2)
        np.testing.assert_allclose(other.scores, one.scores[order], atol=1e-10)
        np.testing.assert_array_equal(other.is_out, one.is_out[order])


@pytest.mark.parametrize("rate", [{"false_alarm": 0.1}, {"fdr": 0.1}])
def test_online_learn_first_is_a_detector_that_learns_then_decides(rows, rate):
    test, reference = rows[:200], rows[200:]
    found = detect(test, reference, method="online", batch=30, **rate)
    detector = truing.Detector(method="dlr")
    detector.calibrate(reference)
    for start in range(0, 200, 30):
        part = slice(start, start + 30)
        decision = detector.learn_and_decide(test[part], **rate)
        np.testing.assert_allclose(found.scores[part], decision.scores)
        np.testing.assert_array_equal(found.is_out[part], decision.is_out)


def test_online_score_first_uses_earlier_rows_alone_and_marks_the_first_batch(rows):
    test, reference = rows[:200], rows[200:]
    found = detect(test, reference, method="online", batch=50, order="score-first", false_alarm=0.1)
    assert found.fitted_rows.tolist() == [0] * 50 + [50] * 50 + [100] * 50 + [150] * 50
    np.testing.assert_array_equal(found.scores[:50], found.base_scores[:50])
    np.testing.assert_array_equal(
        found.p_values[:50], truing.p_values(truing.msp(reference.logits), found.base_scores[:50])
    )
    for start in (50, 100, 150):
        fit = truing.fit_direct(test.features[:start], found.base_scores[:start])
        part = slice(start, start + 50)
        np.testing.assert_allclose(found.scores[part], fit.predict(test.features[part]), atol=1e-10)
        expected = truing.p_values(fit.predict(reference.features), found.scores[part])
        np.testing.assert_allclose(found.p_values[part], expected)
    assert "50 rows came before any fit" in " ".join(found.notes)


def test_one_batch_online_is_dlr(rows):
    for known in ({}, {"reference": rows[200:], "false_alarm": 0.1}):
        online = detect(rows[:200], method="online", batch=200, **known)
        direct = detect(rows[:200], method="dlr", **known)
        assert (online.threshold, online.out_share_at_least) == (direct.threshold, direct.out_share_at_least)
        for name in ("scores", "fitted_rows", "p_values", "is_out", "scores_in"):
            np.testing.assert_array_equal(getattr(online, name), getattr(direct, name), err_msg=name)


def test_progress_counts_every_row(rows):
    seen = []
    detect(rows, method="online", batch=128, progress=lambda *step: seen.append(step))
    assert seen == [("batches", 128, 300), ("batches", 256, 300), ("batches", 300, 300)]
    seen.clear()
    detect(rows[:200], rows[200:], fdr=0.1, progress=lambda *step: seen.append(step))
    assert seen == [(name, 200, 200) for name in ("sums", "p-values", "scores")]


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_what_should_make_a_user_careful_is_noted(rows):
    assert "12 rows were scored by a fit to few rows for its rank of 5," in " ".join(detect(rows[:12]).notes)
    flat = truing.Outputs(rows.features, rows.logits * 0)
    assert "all base scores are equal" in " ".join(detect(flat).notes)
    still = truing.Outputs(rows.features * 0 + 3, rows.logits)
    assert "the features do not vary" in " ".join(detect(still).notes)
    few = detect(rows[:200], rows[200:210], method="dlr", false_alarm=0.05)
    assert not few.is_out.any()
    assert "10 reference rows give p-values of at least 0.091" in " ".join(few.notes)
    assert detect(rows[:200], rows[200:], method="dlr").notes == ()


def test_truing_that_hurts_is_seen_without_labels(bank):
    """On a near set AUROC falls, and the reference tells."""
    inside, near = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "cifar100")
    found = detect(joined(inside[:2000], near), inside[5000:], method="dlr", base="energy")
    before = truing.auroc(found.base_scores[:2000], found.base_scores[2000:])
    assert truing.auroc(found.scores[:2000], found.scores[2000:]) < before - 0.03
    assert "truing hurts here" in " ".join(found.notes)
    helped = detect(joined(inside[:5000], bank("cifar10-resnet56", "svhn")), inside[5000:], method="dlr")
    assert truing.auroc(helped.scores[:5000], helped.scores[5000:]) > 0.95
    assert "truing hurts here" not in " ".join(helped.notes)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_another_mix_of_classes_is_neither_harm_nor_a_swap(bank, method):
    inside = bank("cifar10-resnet56", "cifar10-test")
    for classes in ([0, 1, 8], [1, 8, 9], [2, 3, 5]):  # Among them those that the network knows best, and least.
        rows = inside[:5000][np.isin(inside.labels[:5000], classes)]
        notes = " ".join(detect(rows, inside[5000:], method=method).notes)
        assert "hurts" not in notes
        assert "swapped" not in notes


def test_few_rows_say_nothing_of_their_order(rows):
    high = truing.Outputs(rows.features[:10], 9 * rows.logits[:10])
    assert "swapped" not in " ".join(detect(high, rows[10:], method="none").notes)


def test_a_rate_without_a_reference_and_other_widths_are_refused(rows):
    with pytest.raises(ValueError, match="need a reference"):
        detect(rows, fdr=0.1)
    with pytest.raises(ValueError, match="exactly one error rate"):
        detect(rows, rows, fdr=0.1, accept=0.9)
    narrow = truing.Outputs(rows.features[:, :3], rows.logits)
    for method in ("dlr", "rlr", "online"):
        with pytest.raises(ValueError, match="reference must have 5 feature columns, as the outputs have, got 3"):
            detect(rows, narrow, method=method)
    more = truing.Outputs(rows.features, np.hstack((rows.logits, rows.logits)))
    with pytest.raises(ValueError, match="reference must have 4 logit columns, as the outputs have, got 8"):
        detect(rows, more)
    with pytest.raises(TypeError, match="outputs must be Outputs, got str"):
        detect("rows.npz")
    with pytest.raises(ValueError, match="penalty must be above 0"):
        detect(rows, method="rlr", penalty=0.0)
    with pytest.raises(ValueError, match="method must be one of auto, none, dlr, rlr, online, contrast, got 'magic'"):
        detect(rows, method="magic")


def false_alarms(method: str, trials: int) -> float:
    """Share of in-distribution rows refused at 5 %, over random splits of real features."""
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    rng, called = np.random.default_rng(5), []
    for _ in range(trials):
        order = rng.permutation(10_000)
        test = joined(inside[order[200:500]], outside[:100])
        found = detect(test, inside[order[:200]], method=method, false_alarm=0.05)
        called.append(found.is_out[:300].mean())
    return float(np.mean(called))


@pytest.mark.parametrize("method", ["dlr", "rlr", "online"])
def test_false_alarms_keep_their_stated_rate(method):
    assert false_alarms(method, 40) == pytest.approx(10 / 201, abs=0.012)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dlr", "rlr", "online"])
def test_false_alarms_keep_their_stated_rate_over_many_splits(method):
    assert false_alarms(method, 1000) == pytest.approx(10 / 201, abs=0.0035)


def test_a_fit_that_leaves_most_directions_out_is_noted(rows, rng):
    copies = truing.Outputs(np.tile(rows.features[:, :2], 4), rows.logits)
    assert "uses 2 directions and leaves 6 out" in " ".join(detect(copies).notes)
    near = rows.features.copy()
    near[:, 1] = near[:, 0] + 1e-6 * near[:, 1]
    assert "columns are nearly collinear" in " ".join(detect(truing.Outputs(near, rows.logits)).notes)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_rows_that_are_the_reference_are_noted(rows):
    assert "100% of the rows are reference rows" in " ".join(detect(rows[:100], rows).notes)
    assert "rows of the reference" not in " ".join(detect(rows[:100], rows[100:]).notes)


def test_one_row_is_told_of_in_the_singular(rows):
    online = detect(rows[:40], method="online", batch=1, order="score-first")
    assert "1 row came before any fit" in " ".join(online.notes)


def test_a_detection_says_what_it_holds(rows):
    found = detect(rows[:200], rows[200:], method="dlr", false_alarm=0.1)
    assert repr(found).startswith("Detection(200 rows, msp trued by dlr, ")
    assert found.rate.value == 0.1
    assert found.reference_rows == 100


def test_a_single_row_beside_a_reference_is_trued_and_nothing_else_is_said_of_its_base_score(rows):
    assert "all base scores are equal" not in " ".join(detect(rows[:1], rows[1:]).notes)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_rows_and_reference_in_each_others_place_are_noted(bank):
    inside, outside = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "svhn")
    mixture = joined(inside[:1000], outside[:1000])
    assert "check that outputs and reference are not swapped" in " ".join(detect(inside[5000:], mixture).notes)
    assert "check that outputs and reference are not swapped" not in " ".join(detect(mixture, inside[5000:]).notes)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_some_rows_of_the_reference_are_noticed_online_too_and_discrete_rows_are_no_cause(rows, rng):
    part = joined(rows[:10], rows[100:200])
    for method in ("dlr", "online"):
        assert "9% of the rows are reference rows" in " ".join(detect(part, rows[:100], method=method).notes)
    binary = truing.Outputs(rng.integers(0, 2, size=(300, 4)), rows.logits)
    assert "rows of the reference" not in " ".join(detect(binary[:100], binary[100:]).notes)


def test_components_that_are_lost_beside_a_large_column_are_noted(rows):
    beside = truing.Outputs(np.column_stack((rows.features, np.arange(300) * 1e9)), rows.logits)
    assert "only 1 of 4 components are used" in " ".join(detect(beside, components=4).notes)
    assert "components" not in " ".join(detect(rows, components=4).notes)


def test_a_detectors_decisions_carry_the_notes_of_their_fit(rows):
    copies = truing.Outputs(np.tile(rows.features, 3), rows.logits)
    detector = truing.Detector(method="dlr")
    detector.calibrate(copies[:100])
    assert "uses 5 directions and leaves 10 out" in " ".join(detector.learn_and_decide(copies[100:], fdr=0.1).notes)


def test_ties_with_the_reference_are_no_sign_of_a_swap(bank):
    """A saturated softmax ties most rows at the top."""
    inside = bank("cifar10-resnet56", "cifar10-test")
    notes = " ".join(detect(inside[:3000], inside[5000:], temperature=0.2).notes)
    assert "swapped" not in notes
    assert "hurts" not in notes


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_a_reference_makes_a_contrast_and_none_makes_dlr(rows):
    many = truing.Outputs.concatenate([rows, truing.Outputs(rows.features + 0.01, rows.logits)])
    both = detect(many[:200], many[200:])
    assert (both.method, both.base, both.reference_rows) == ("contrast", "gen", 200)
    alone = detect(rows)
    assert (alone.method, alone.base) == ("dlr", "msp")
    few = detect(rows[:200], rows[200:210], false_alarm=0.05)
    assert few.method == "dlr"
    assert "the method is dlr: contrast needs a reference of at least 200 rows here, got 10 rows" in few.notes
    assert detect(many[:200], many[200:], false_alarm=0.001).method == "dlr"
    assert detect(rows[:100], rows[100:], false_alarm=0.05).method == "contrast"
    plain = detect(rows[:100], rows[100:], intercept=False)
    assert plain.method == "dlr"
    assert "the method is dlr: contrast needs an intercept, got intercept=False" in plain.notes
    assert detect(rows[:200], rows[200:], base="energy").base == "energy"
    given = truing.Outputs(rows.features, scores=truing.energy(rows.logits))
    assert detect(given[:200], given[200:]).base == "given"


def test_a_contrast_is_decided_against_the_half_that_was_not_learned_from(rows):
    found = detect(rows[:200], rows[200:], method="contrast", base="energy", false_alarm=0.1)
    fit = truing.fit_contrast(rows[:200], rows[200:], base="energy")
    np.testing.assert_array_equal(found.scores, fit.predict(rows[:200]))
    np.testing.assert_array_equal(found.p_values, truing.p_values(fit.scores_in, found.scores))
    np.testing.assert_array_equal(found.base_scores, truing.energy(rows.logits[:200]))
    assert found.fitted_rows.tolist() == [200.0] * 200


def test_no_method_decides_by_the_base_score_as_it_is(rows):
    found = detect(rows[:200], rows[200:], method="none", base="energy", false_alarm=0.1)
    np.testing.assert_array_equal(found.scores, truing.energy(rows.logits[:200]))
    np.testing.assert_array_equal(found.p_values, truing.p_values(truing.energy(rows.logits[200:]), found.scores))
    assert found.fit is None
    assert repr(found).startswith("Detection(200 rows, energy, ")


def test_a_base_score_that_looks_at_known_rows_gets_half_of_the_reference(rows):
    for method in ("none", "dlr", "rlr", "online", "contrast"):
        found = detect(rows[:200], rows[200:], method=method, base="knn", false_alarm=0.1)
        assert found.reference_rows == 50
        assert 0 < found.p_values.min() <= found.p_values.max() <= 1


def test_what_a_contrast_cannot_do_is_refused(rows):
    for options, message in (
        ({"reference": None}, "method contrast needs a reference"),
        ({"intercept": False}, "intercept must be True for the method contrast"),
        ({"reference": rows[:200]}, "reference must hold other rows than outputs, got the same rows"),
        ({"reference": rows[200:203]}, "reference must have at least 4 rows"),
    ):
        with pytest.raises(ValueError, match=message):
            detect(rows[:200], **{"reference": rows[200:], "method": "contrast", **options})


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_rows_that_are_nearly_all_out_make_the_reference_doubtful(bank):
    inside, outside = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "mnist")
    for method in ("contrast", "dlr"):
        found = detect(joined(inside[:20], outside), inside[5000:], method=method)
        assert "of the rows look out: check that the reference comes from" in " ".join(found.notes)
        fine = detect(joined(inside[:1000], outside), inside[5000:], method=method)
        assert "look out" not in " ".join(fine.notes)


def test_options_of_other_methods_are_refused(rows):
    for method, option in (
        ("dlr", {"keep": 0.5}),
        ("auto", {"keep": 0.5}),
        ("contrast", {"penalty": 0.1}),
        ("rlr", {"batch": 7}),
        ("contrast", {"order": "score-first"}),
        ("none", {"components": 2}),
        ("none", {"intercept": False}),
    ):
        (name,) = option
        with pytest.raises(ValueError, match=f"{name} is an option of method '.*', got .* with method '{method}'"):
            truing.detect(rows[:100], rows[100:], method=method, **option)
    with pytest.raises(ValueError, match="groups need a reference, got None"):
        truing.detect(rows, groups=range(len(rows)))


def test_a_head_that_is_none_is_refused_whether_or_not_the_score_needs_it(rows):
    for reference in (None, rows[200:]):
        with pytest.raises(TypeError, match=r"head must be a pair \(weight, bias\) of arrays, got int"):
            detect(rows[:200], reference, head=3)
    with pytest.raises(ValueError, match=r"the head's weight must be 2-D \(n, d\), got shape \(5,\)"):
        detect(rows, head=(np.ones(5), np.ones(4)))
    with pytest.raises(ValueError, match="the head's weight and bias must have the same number of rows"):
        detect(rows, head=(np.ones((3, 5)), np.ones(4)))


def test_what_a_score_misses_is_said_of_the_rows_that_lack_it(rows):
    bare, known = truing.Outputs(rows.features[:70]), rows[70:]
    for outputs, reference, method, message in (
        (bare, known, "dlr", "the score energy needs logits, got Outputs(70 rows: features 5)"),
        (bare, known, "contrast", "outputs must have 4 logits, as the reference has, got none"),
        (known, bare, "dlr", "the score energy needs logits, got Outputs(70 rows: features 5)"),
        (known, bare, "contrast", "outputs must have no logits, as the reference has, got 4"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            detect(outputs, reference, method=method, base="energy")
    with pytest.raises(TypeError, match="base must be a name in SCORES or a function of the outputs, got int"):
        detect(rows, base=3)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_a_reference_that_the_network_knows_by_heart_is_asked_about(rng):
    rows = truing.Outputs(rng.normal(size=(300, 4)), rng.normal(size=(300, 5)))
    right = rows.logits.argmax(axis=1)
    for labels, asked in ((right, True), (np.where(np.arange(300) == 7, (right + 1) % 5, right), False)):
        known = truing.Outputs(rows.features, rows.logits, labels)
        notes = truing.detect(truing.Outputs(rows.features[:50] + 1, rows.logits[:50]), known, method="dlr").notes
        assert any("pass rows that it was not trained on" in note for note in notes) == asked


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
@pytest.mark.parametrize("size", [1e10, 1e30])
def test_garbage_rows_are_decided_and_leave_all_other_rows_alone(rng, options, has_reference, size):
    mixed = truing.Outputs.concatenate([truing.sample()[1000:1700], truing.sample("svhn")[:300]])
    rows = truing.Outputs(mixed.features.astype(np.float64), mixed.logits.astype(np.float64))[rng.permutation(1000)]
    noise = truing.Outputs(size * rng.normal(size=(2, 64)), rng.normal(size=(2, 10)))
    reference = truing.sample()[:1000] if has_reference else None
    found = detect(truing.Outputs.concatenate([rows, noise]), reference, **options)
    wanted = detect(rows, reference, **options)
    np.testing.assert_array_equal(found.scores[:1000], wanted.scores)
    assert np.isfinite(found.scores).all()
    if has_reference:
        np.testing.assert_array_equal(found.p_values[:1000], wanted.p_values)
    far = "from the reference" if has_reference else "from the other rows"
    notes = [note for note in found.notes if "but not learned" in note]
    assert len(notes) == 1
    assert notes[0].startswith(f"2 rows are more than 100 times farther {far} than usual: they were ")
    assert not [note for note in wanted.notes if "but not learned" in note]


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("method", ["dlr", "rlr", "online"])
def test_rows_that_are_all_garbage_are_decided_by_the_reference(rng, method):
    noise = truing.Outputs(1e10 * rng.normal(size=(40, 64)), rng.normal(size=(40, 10)))
    for options in ({}, {"order": "score-first"}) if method == "online" else ({},):
        found = detect(noise, truing.sample()[:1000], method=method, **options)
        assert found.p_values.shape == (40,)
        assert any(note.startswith("40 rows are more than 100 times farther") for note in found.notes)
