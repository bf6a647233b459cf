import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics import average_precision_score, roc_auc_score

import truing

# Few distinct values, so that most scores are tied.
tied = arrays(np.float64, st.integers(1, 25), elements=st.integers(-4, 4).map(float))
apart = arrays(np.float64, st.integers(1, 25), elements=st.floats(-100, 100))
either = st.one_of(tied, apart)
levels = st.sampled_from([0.05, 0.25, 0.5, 0.8, 0.95, 1.0])
CONVENTIONS = ("at-least", "paper", "ood-positive")


def assert_equals_scikit_learn(scores_in, scores_out):
    is_in, scores = np.repeat([1, 0], [len(scores_in), len(scores_out)]), np.concatenate((scores_in, scores_out))
    found = truing.evaluate(scores_in, scores_out)
    for metric, expected in (
        ("auroc", roc_auc_score(is_in, scores)),
        ("aupr", average_precision_score(is_in, scores)),
        ("aupr_out", average_precision_score(1 - is_in, -scores)),
    ):
        assert getattr(truing, metric)(scores_in, scores_out) == getattr(found, metric)
        assert getattr(found, metric) == pytest.approx(expected, abs=1e-12)


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


def fpr_by_a_loop(scores_in, scores_out, tpr, convention):
    thresholds, best = sorted({*scores_in, *scores_out}, reverse=True), None
    if convention == "ood-positive":
        found = next(t for t in thresholds[::-1] if np.mean(scores_out <= t) >= tpr - 1e-12)
        return np.mean(scores_in <= found)
    for threshold in thresholds:
        recall, fpr = np.mean(scores_in >= threshold), np.mean(scores_out >= threshold)
        if convention == "at-least" and recall >= tpr - 1e-12:
            return fpr
        distance = round(abs(recall - tpr), 12)
        # Later thresholds have the higher recall or, for the same recall, more false positives: they win ties.
        if best is None or distance <= best[0]:
            best = distance, fpr
        if recall == 1:
            break
    return best[1]


@given(scores_in=either, scores_out=either, tpr=levels, convention=st.sampled_from(CONVENTIONS))
@settings(max_examples=300)
def test_fpr_agrees_with_a_loop_over_thresholds(scores_in, scores_out, tpr, convention):
    found = truing.fpr_at_tpr(scores_in, scores_out, tpr=tpr, convention=convention)
    assert found == fpr_by_a_loop(scores_in, scores_out, tpr, convention)


def test_the_conventions_differ_under_ties():
    scores_in, scores_out = [3.0, 3.0, 1.0], [1.0, 0.0]  # The only recalls are 2/3 and 1.
    found = [truing.fpr_at_tpr(scores_in, scores_out, tpr=0.7, convention=name) for name in CONVENTIONS]
    assert found == [0.5, 0.0, 1 / 3]


def test_a_report_counts_refusals_among_correctly_and_wrongly_classified_rows(bank):
    inside, outside = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "svhn")
    scores, right = truing.msp(inside.logits), inside.correct()
    assert right.mean() == pytest.approx(0.9339)
    report = truing.evaluate(scores, truing.msp(outside.logits), convention="paper", correct=right)
    refused = scores < np.sort(scores)[500]
    assert report.refused_right == refused[right].mean()
    assert report.refused_wrong == refused[~right].mean()
    assert report.refused_wrong > 5 * report.refused_right
    assert f"{report.refused_wrong:.2%} of the wrongly" in str(report)
    read = json.loads(report.json())
    assert (read["convention"], read["rows_in"], read["rows_out"]) == ("paper", 10_000, 2_000)
    for value in (report.auroc, report.aupr, report.aupr_out, report.fpr95):
        assert f"{value:.2%}" in str(report)
    assert "convention: paper" in str(report)
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
