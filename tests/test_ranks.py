"""Ranks against counts of their own, with the kernel and without."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truing import _kernels, ranks
from truing.ranks import Ranks, blocks_of_ascending, ranks_of_ascending

values = st.one_of(st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, 1e9]), st.floats(-3, 3))
vectors = arrays(np.float64, st.integers(1, 70), elements=values)


@given(scores_in=vectors, scores=vectors, at_once=st.sampled_from([1, 3, 1000]), is_plain=st.booleans())
def test_ranks_count_known_scores_however_many_are_looked_up_at_once(scores_in, scores, at_once, is_plain):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "_SCORES_AT_ONCE", at_once)
        if is_plain:
            patch.setattr(_kernels, "kernels", None)
        found = Ranks(scores_in, scores)
        np.testing.assert_array_equal(found.below, (scores_in < scores[:, None]).sum(axis=1))
        np.testing.assert_array_equal(found.up_to, (scores_in <= scores[:, None]).sum(axis=1))
        of_ordered = Ranks(np.sort(scores_in), scores, is_ordered=True)
        np.testing.assert_array_equal(of_ordered.below, found.below)
        np.testing.assert_array_equal(of_ordered.up_to, found.up_to)
    np.testing.assert_array_equal(found.ordered, scores_in[found.order])
    np.testing.assert_allclose(found.p_values(), (1 + found.up_to) / (len(scores_in) + 1))


@given(scores_in=vectors, scores=vectors, at_once=st.sampled_from([1, 3, 1000]), is_plain=st.booleans())
def test_ranks_of_ascending_scores_are_found_a_block_at_a_time(scores_in, scores, at_once, is_plain):
    ordered, ascending = np.sort(scores_in), np.sort(scores)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "_ASCENDING_AT_ONCE", at_once)
        if is_plain:
            patch.setattr(_kernels, "kernels", None)
        blocks = blocks_of_ascending(ascending)
        below, up_to = zip(*(ranks_of_ascending(ordered, ascending[block]) for block in blocks), strict=True)
    np.testing.assert_array_equal(np.concatenate(below), (scores_in < ascending[:, None]).sum(axis=1))
    np.testing.assert_array_equal(np.concatenate(up_to), (scores_in <= ascending[:, None]).sum(axis=1))
    # Every score is in one block, and equal ones in the same.
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(len(scores)))
    assert all(ascending[block.start - 1] < ascending[block.start] for block in blocks[1:])


@pytest.mark.usefixtures("each_way")
def test_many_ascending_scores_have_the_ranks_of_a_search(rng):
    ordered, ascending = np.sort(rng.normal(size=50_001).round(3)), np.sort(rng.normal(size=70_000).round(3))
    below, up_to = ranks_of_ascending(ordered, ascending)
    np.testing.assert_array_equal(below, np.searchsorted(ordered, ascending, "left"))
    np.testing.assert_array_equal(up_to, np.searchsorted(ordered, ascending, "right"))
    nothing = ranks_of_ascending(ordered, ascending[:0])
    assert [len(counts) for counts in nothing] == [0, 0]


@pytest.mark.usefixtures("each_way")
def test_ranks_are_those_of_a_search_in_many_known_scores_and_of_scores_that_lie_apart_in_memory(rng):
    scores_in, scores = rng.normal(size=5001).round(2), rng.normal(size=(200_000, 3)).round(3)[:, 1]
    found = Ranks(scores_in, scores)
    np.testing.assert_array_equal(found.below, np.searchsorted(np.sort(scores_in), scores, "left"))
    np.testing.assert_array_equal(found.up_to, np.searchsorted(np.sort(scores_in), scores, "right"))


@pytest.mark.usefixtures("each_way")
def test_a_score_that_is_no_number_stands_above_all():
    found = Ranks(np.arange(3.0), np.array([np.nan, np.inf, -np.inf]))
    np.testing.assert_array_equal(found.up_to, [3, 3, 0])
    np.testing.assert_array_equal(found.below, [3, 3, 0])
