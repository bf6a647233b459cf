"""Ranks against independent counts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truing.decisions.ranks import Ranks

values = st.one_of(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, 1e9]), st.floats(-3, 3))
vectors = arrays(np.float64, st.integers(1, 70), elements=values)


@given(scores_in=vectors, scores=vectors)
def test_ranks_count_the_reference_scores_below_and_up_to_every_score(scores_in, scores):
    found = Ranks(scores_in, scores)
    np.testing.assert_array_equal(found.below, (scores_in < scores[:, None]).sum(axis=1))
    np.testing.assert_array_equal(found.up_to, (scores_in <= scores[:, None]).sum(axis=1))
    of_ordered = Ranks(np.sort(scores_in), scores, is_ordered=True)
    np.testing.assert_array_equal(of_ordered.below, found.below)
    np.testing.assert_array_equal(of_ordered.up_to, found.up_to)
    np.testing.assert_array_equal(found.ordered, scores_in[found.order])
    np.testing.assert_allclose(found.p_values(), (1 + found.up_to) / (len(scores_in) + 1))


def test_ranks_of_many_scores_agree_with_searchsorted(rng):
    scores_in, scores = rng.normal(size=5001).round(2), rng.normal(size=(200_000, 3)).round(3)[:, 1]
    found = Ranks(scores_in, scores)
    np.testing.assert_array_equal(found.below, np.searchsorted(np.sort(scores_in), scores, "left"))
    np.testing.assert_array_equal(found.up_to, np.searchsorted(np.sort(scores_in), scores, "right"))


def test_a_nan_score_ranks_above_all():
    found = Ranks(np.arange(3.0), np.array([np.nan, np.inf, -np.inf]))
    np.testing.assert_array_equal(found.up_to, [3, 3, 0])
    np.testing.assert_array_equal(found.below, [3, 3, 0])
