import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truing import ranks
from truing.ranks import Ranks

few_values = arrays(np.float64, st.integers(1, 40), elements=st.sampled_from([-1.0, -0.0, 0.0, 0.5, 2.0, 1e9]))


@given(
    scores_in=few_values,
    scores=few_values,
    at_once=st.sampled_from([1, 3, 1000]),
    as_they_come=st.sampled_from([0, 64]),
)
def test_ranks_count_known_scores_however_many_are_looked_up_together(scores_in, scores, at_once, as_they_come):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "_FEW_SCORES", as_they_come)
        patch.setattr(ranks, "_SCORES_AT_ONCE", at_once)
        found = Ranks(scores_in, scores)
        np.testing.assert_array_equal(found.below, (scores_in < scores[:, None]).sum(axis=1))
        np.testing.assert_array_equal(found.up_to, (scores_in <= scores[:, None]).sum(axis=1))
    np.testing.assert_array_equal(found.ordered, scores_in[found.order])
    np.testing.assert_allclose(found.p_values(), (1 + found.up_to) / (len(scores_in) + 1))
