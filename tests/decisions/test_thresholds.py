from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import hypergeom

import truing
from truing.decisions.ranks import Ranks
from truing.decisions.thresholds import (
    Rate,
    decide_at,
    out_share_at_least,
    out_share_at_most,
    out_share_of_counts,
    threshold_between,
)

from ..foldable import FLOAT32_ERROR

scores = arrays(np.float64, st.integers(1, 40), elements=st.floats(-5, 5).map(lambda x: round(x, 1)))
shares = st.floats(0.01, 1.0)


@given(scores_in=scores, accept=shares)
def test_the_threshold_is_the_largest_that_accepts_the_share(scores_in, accept):
    threshold = truing.threshold_at(scores_in, accept=accept)
    accepted = [np.mean(scores_in >= value) for value in np.unique(scores_in)]
    best = max(value for value, share in zip(np.unique(scores_in), accepted, strict=True) if share >= accept - 1e-9)
    assert threshold == best
    assert np.mean(~truing.is_out(scores_in, threshold)) >= accept - 1e-9


@pytest.mark.parametrize(("rows", "refused"), [(3, 1 / 4), (20, 2 / 21), (150, 8 / 151)])
def test_accepting_95_percent_refuses_a_larger_share_of_new_rows(rows, refused):
    """A new row is equally likely to have any rank among the reference rows."""
    ranks = np.arange(rows + 1.0)
    thresholds = [truing.threshold_at(np.delete(ranks, place), accept=0.95) for place in range(rows + 1)]
    assert np.mean(ranks < thresholds) == pytest.approx(refused)


@given(rows=scores, scores_in=scores)
def test_p_values_count_reference_scores_at_or_below(rows, scores_in):
    expected = [(1 + sum(rows_in <= row for rows_in in scores_in)) / (len(scores_in) + 1) for row in rows]
    np.testing.assert_allclose(truing.p_values(scores_in, rows), expected)


@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), fdr=shares)
def test_selection_agrees_with_the_benjamini_hochberg_definition(seed, n, fdr):
    p = np.random.default_rng(seed).choice([0.0, *np.random.default_rng(seed + 1).random(9) ** 2, 1.0], n)
    ordered = sorted(p)
    lines = [Fraction(fdr) * rank / len(p) for rank in range(1, len(p) + 1)]
    assume(
        all(abs(value - line) > 1e-12 for value, line in zip(ordered, lines, strict=True))
    )  # Rounding decides exact ties.
    passing = [rank for rank, line in enumerate(lines, 1) if ordered[rank - 1] <= line]
    cut = ordered[max(passing) - 1] if passing else -1
    assert truing.benjamini_hochberg(p, fdr=fdr).tolist() == [value <= cut for value in p]


def test_p_values_of_exchangeable_rows_are_valid_at_every_level(rng):
    trials = np.array([truing.p_values(rng.normal(size=19), rng.normal(size=20)) for _ in range(2000)])
    for level in (0.05, 0.1, 0.5):
        # The expected share is the level, because level·20 is an integer. The tolerance is a few standard errors.
        assert np.mean(trials <= level) == pytest.approx(level, abs=0.015)


def test_p_values_outside_zero_to_one_are_rejected():
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\], got 0.5 to 2"):
        truing.benjamini_hochberg([0.5, 2.0])


few_values = arrays(np.float64, st.integers(1, 30), elements=st.sampled_from([-2.0, 0.0, 0.5, 1.0, 3.0, 1e9]))
counts = st.integers(1, 40)
levels = st.one_of(st.floats(1e-12, 1.0), st.builds(lambda part, rest: part / (part + rest), counts, counts))


rates = st.one_of(st.builds(Rate, st.just("false_alarm"), levels), st.builds(Rate, st.just("accept"), shares))


@given(scores_in=few_values, scores=few_values, level=levels)
def test_the_threshold_of_a_false_alarm_rate_agrees_with_the_p_values(scores_in, scores, level):
    decided = decide_at(Rate("false_alarm", level), Ranks(scores_in, scores))
    assert decided.is_out.tolist() == (scores < decided.threshold).tolist() == (decided.p_values <= level).tolist()
    # The reference rows themselves are decided by exact ranks.
    of_reference = decide_at(Rate("false_alarm", level), Ranks(scores_in, scores_in))
    np.testing.assert_array_equal(of_reference.is_out, truing.p_values(scores_in, scores_in) <= level)
    assert of_reference.threshold == decided.threshold


@given(scores_in=few_values, scores=few_values, rate=rates)
def test_a_score_just_below_the_accepted_reference_score_has_the_p_value_of_a_tie(scores_in, scores, rate):
    decided = decide_at(rate, Ranks(scores_in, scores))
    as_tied = scores
    if np.isfinite(decided.threshold):
        accepted = scores_in[scores_in >= decided.threshold].min()
        as_tied = np.where((scores >= decided.threshold) & (scores < accepted), accepted, scores)
    np.testing.assert_array_equal(decided.p_values, truing.p_values(scores_in, as_tied))
    assert (decided.p_values >= truing.p_values(scores_in, scores)).all()


@given(scores_in=arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e100, 1e100)), accept=shares)
def test_the_threshold_lies_between_two_reference_scores_and_accepts_the_same_rows(scores_in, accept):
    ordered = np.sort(scores_in)
    accepted = truing.threshold_at(scores_in, accept=accept)
    threshold = threshold_between(ordered, int(np.searchsorted(ordered, accepted)))
    size = np.abs(scores_in).max()
    assume(not ((ordered < accepted) & (ordered > accepted - 1e-12 * size)).any())  # Ties up to rounding.
    assume(size > 1e-30)  # Float32 has no numbers between smaller ones.
    assert threshold < accepted
    assert accepted - threshold <= 1e-5 * size
    lower = ordered[ordered < accepted]
    if len(lower):
        assert lower[-1] < threshold
        np.testing.assert_array_equal(scores_in >= threshold, scores_in >= accepted)


def test_the_threshold_is_below_the_accepted_score_by_more_than_float32_error_or_in_the_middle(rng):
    ordered = np.sort(rng.normal(10, 1, size=200))
    for refused in (0, 1, 10, 199):
        assert 0 < ordered[refused] - threshold_between(ordered, refused) <= 1e-4
        assert ordered[refused] - threshold_between(ordered, refused) > FLOAT32_ERROR * ordered[100]
    near = np.array([10.0, 10.0 + 2e-6, 11.0, 12.0])
    assert threshold_between(near, 1) == pytest.approx(10.0 + 1e-6, abs=5e-7)  # To the nearest float32 number.
    nearer = np.array([10.0, 10.0 + 1e-9, 11.0, 12.0])
    assert threshold_between(nearer, 1) == pytest.approx(10.0 + 5e-10, abs=1e-14)


@given(scores_in=few_values, scores=few_values, rate=rates, seed=st.integers(0, 99))
def test_rounding_errors_of_scores_change_no_decision_on_a_tie(scores_in, scores, rate, seed):
    """Float64: reference and rows are scored in different orders. Float32: an exported network scores the rows."""
    rng, size = np.random.default_rng(seed), np.abs(scores_in).max()
    tied = np.isin(scores, scores_in)
    decided = decide_at(rate, Ranks(scores_in, scores))

    def rounded(values, error):
        return values + error * np.abs(values) * rng.uniform(-1, 1, len(values))

    again = decide_at(rate, Ranks(rounded(scores_in, 1e-15), rounded(scores, 1e-15)))
    np.testing.assert_array_equal(again.is_out[tied], decided.is_out[tied])
    assert again.threshold == pytest.approx(decided.threshold, abs=1e-5 * size)
    exported = rounded(scores, FLOAT32_ERROR).astype(np.float32) < np.float32(decided.threshold)
    np.testing.assert_array_equal(exported[tied], decided.is_out[tied])


def test_a_reference_of_the_fewest_rows_can_refuse_a_row():
    for rate in (Rate("accept", 0.95), Rate("false_alarm", 0.05), Rate("fdr", 0.1), Rate("false_alarm", 0.01)):
        fewest = rate.fewest_rows()
        decided = decide_at(rate, Ranks(np.arange(float(fewest)), np.array([-1.0])))
        assert decided.is_out.all()
        if rate.name != "accept":
            assert not decide_at(rate, Ranks(np.arange(float(fewest - 1)), np.array([-1.0]))).is_out.any()


@pytest.mark.parametrize(("share", "levels"), [(0.0, (0.05, 0.25, 0.5)), (0.3, (0.05,)), (0.9, (0.05, 0.25, 0.5))])
def test_the_bound_on_the_out_share_holds_with_95_percent_confidence(share, levels):
    rng, holds, bounds = np.random.default_rng(0), 0, []
    for _ in range(500):
        rows_in, inside = rng.normal(size=150), rng.normal(size=round(100 * (1 - share)))
        rows = np.concatenate((inside, rng.normal(-2, 1, 100 - len(inside))))
        bounds.append(out_share_at_least(truing.p_values(rows_in, rows), rows_in=150, levels=levels))
        holds += bounds[-1] <= share
    assert holds / 500 >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 500)
    assert np.mean(bounds) >= 0.4 * share


@given(
    counts=arrays(np.int64, st.integers(1, 40), elements=st.integers(0, 30)),
    levels=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=3),
)
def test_no_bound_on_the_out_share_is_above_the_share_of_rows_up_to_the_highest_level(counts, levels):
    assume(counts.any())
    assert out_share_of_counts(counts, levels=levels) <= out_share_at_most(counts, levels)


@example(counts=np.array([5, 5, *[0] * 7, 5]), level=0.2)
@given(counts=arrays(np.int64, st.integers(2, 30), elements=st.integers(0, 12)), level=st.floats(0.01, 1.0))
def test_the_bound_on_the_out_share_agrees_with_the_hypergeometric_distribution(counts, level):
    assume(counts.any())
    rows_in, rows = len(counts) - 1, int(counts.sum())
    j = max(1, int(level * (rows_in + 1) + 1e-9))
    low = int(counts[:j].sum())

    def chance(out):
        lowest = low - out + j - 1
        return 1.0 if low == out else hypergeom.cdf(j - 1, rows_in + rows - out, rows_in, lowest)

    chances = [chance(out) for out in range(low + 1)]
    assume(not any(0.04999 < one < 0.05001 for one in chances))  # Rounding decides near 0.05.
    fewest = next(out for out, one in enumerate(chances) if one > 0.05)
    assert out_share_of_counts(counts, levels=(level,)) == fewest / rows
