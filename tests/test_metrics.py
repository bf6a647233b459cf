import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score, roc_auc_score

import truing

# Few distinct values, so that most scores are tied.
tied = arrays(np.float64, st.integers(1, 25), elements=st.integers(-4, 4).map(float))
apart = arrays(np.float64, st.integers(1, 25), elements=st.floats(-100, 100))
either = st.one_of(tied, apart)
levels = st.sampled_from([0.05, 0.25, 0.5, 0.8, 0.95, 1.0])


def stacked(scores_in, scores_out):
    return np.repeat([1, 0], [len(scores_in), len(scores_out)]), np.concatenate((scores_in, scores_out))


def assert_equals_scikit_learn(scores_in, scores_out):
    is_in, scores = stacked(scores_in, scores_out)
    found = truing.evaluate(scores_in, scores_out)
    assert truing.auroc(scores_in, scores_out) == found.auroc == pytest.approx(roc_auc_score(is_in, scores), abs=1e-12)
    precision = average_precision_score(is_in, scores)
    assert truing.aupr(scores_in, scores_out) == found.aupr == pytest.approx(precision, abs=1e-12)
    precision_out = average_precision_score(1 - is_in, -scores)
    assert truing.aupr_out(scores_in, scores_out) == found.aupr_out == pytest.approx(precision_out, abs=1e-12)


@given(scores_in=either, scores_out=either)
def test_auroc_and_aupr_agree_with_scikit_learn(scores_in, scores_out):
    assert_equals_scikit_learn(scores_in, scores_out)


@pytest.mark.parametrize("decimals", [0, 2, 16])
@pytest.mark.parametrize("rows", [(200_000, 100), (70_000, 150_000)])
def test_many_scores_in_several_ranges_have_the_metrics_of_scikit_learn(rng, rows, decimals):
    assert_equals_scikit_learn(rng.normal(1, 1, rows[0]).round(decimals), rng.normal(0, 1, rows[1]).round(decimals))


@given(scores_in=either, scores_out=either)
def test_metrics_depend_only_on_the_order_of_scores(scores_in, scores_out):
    places = np.unique(np.concatenate((scores_in, scores_out)), return_inverse=True)[1].astype(float)
    of_ranks = truing.evaluate(places[: len(scores_in)], places[len(scores_in) :])
    assert truing.evaluate(scores_in, scores_out) == of_ranks


@given(scores_in=either, scores_out=either, tpr=levels)
def test_fpr_at_least_agrees_with_a_loop_over_thresholds(scores_in, scores_out, tpr):
    for threshold in sorted({*scores_in, *scores_out}, reverse=True):
        if np.mean(scores_in >= threshold) >= tpr - 1e-12:
            break
    assert truing.fpr_at_tpr(scores_in, scores_out, tpr=tpr) == np.mean(scores_out >= threshold)


@given(scores_in=either, scores_out=either, tpr=levels)
def test_fpr_ood_positive_agrees_with_a_loop_over_thresholds(scores_in, scores_out, tpr):
    for threshold in sorted({*scores_in, *scores_out}):
        if np.mean(scores_out <= threshold) >= tpr - 1e-12:
            break
    found = truing.fpr_at_tpr(scores_in, scores_out, tpr=tpr, convention="ood-positive")
    assert found == np.mean(scores_in <= threshold)


@given(scores_in=either, scores_out=either, tpr=levels)
def test_fpr_of_the_paper_agrees_with_a_loop_over_thresholds(scores_in, scores_out, tpr):
    best = None
    for threshold in sorted({*scores_in, *scores_out}, reverse=True):
        recall = np.mean(scores_in >= threshold)
        distance = round(abs(recall - tpr), 12)
        # Later thresholds have the higher recall or, for the same recall, more false positives: they win ties.
        if best is None or distance <= best[0]:
            best = distance, np.mean(scores_out >= threshold)
        if recall == 1:
            break
    assert truing.fpr_at_tpr(scores_in, scores_out, tpr=tpr, convention="paper") == best[1]


def test_the_conventions_differ_under_ties():
    scores_in, scores_out = [3.0, 3.0, 1.0], [1.0, 0.0]  # The only recalls are 2/3 and 1.
    found = [
        truing.fpr_at_tpr(scores_in, scores_out, tpr=0.7, convention=name)
        for name in ("at-least", "paper", "ood-positive")
    ]
    assert found == [0.5, 0.0, 1 / 3]


def test_a_report_names_its_convention_in_text_and_json(bank):
    inside, outside = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "svhn")
    report = truing.evaluate(
        truing.msp(inside.logits), truing.msp(outside.logits), convention="paper", correct=inside.correct()
    )
    read = json.loads(report.json())
    assert read["convention"] == "paper"
    assert read["rows_in"] == 10_000
    assert read["rows_out"] == 2_000
    for value in (report.auroc, report.aupr, report.aupr_out, report.fpr95):
        assert f"{value:.2%}" in str(report)
    assert "convention: paper" in str(report)


def test_refusals_are_counted_among_correctly_and_wrongly_classified_rows(bank):
    inside, outside = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "svhn")
    scores, right = truing.msp(inside.logits), inside.correct()
    assert right.mean() == pytest.approx(0.9339)
    report = truing.evaluate(scores, truing.msp(outside.logits), correct=right)
    refused = scores < np.sort(scores)[500]
    assert report.refused_right == refused[right].mean()
    assert report.refused_wrong == refused[~right].mean()
    assert report.refused_wrong > 5 * report.refused_right
    assert f"{report.refused_wrong:.2%} of the wrongly" in str(report)


def test_correct_must_be_one_boolean_per_in_row():
    with pytest.raises(TypeError, match="correct must be a 1-D array of booleans, got 1-D int"):
        truing.evaluate([1.0], [2.0], correct=[1])
    with pytest.raises(ValueError, match="same number of rows, got scores_in 1, correct 2"):
        truing.evaluate([1.0], [2.0], correct=[True, False])
    assert truing.evaluate([1.0], [2.0], correct=[True]).refused_wrong is None


@given(numbers=st.lists(st.floats(), min_size=4, max_size=4), right=st.one_of(st.none(), st.floats()))
def test_a_report_with_any_numbers_is_valid_json(numbers, right):
    report = truing.Report(*numbers, "paper", 3, 4, refused_right=right)
    found = json.loads(report.json(), parse_constant=pytest.fail)
    for name, value in vars(report).items():
        finite = not isinstance(value, float) or np.isfinite(value)
        assert found[name] == (value if finite else None)
