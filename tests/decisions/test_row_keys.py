"""Row keys find the same repeated rows as a comparison of all pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from truing.decisions.row_keys import RowKeys


@given(seed=st.integers(0, 10**6), m=st.integers(1, 40), n=st.integers(1, 40), shared=st.integers(0, 40))
def test_row_keys_count_the_rows_that_occur_among_the_known_rows(seed, m, n, shared):
    rng = np.random.default_rng(seed)
    known, rows = rng.normal(size=(m, 3)), rng.normal(size=(n, 3))
    rows[:shared] = known[rng.integers(m, size=len(rows[:shared]))]
    keys = RowKeys.of(known)
    expected = int((rows[:, None] == known).all(axis=2).any(axis=1).sum())
    assert keys.count(rows) == expected
    assert bool(keys.notes(rows)) == (expected >= 0.02 * n)


def test_known_rows_that_repeat_one_another_give_no_note():
    known = np.ones((10, 2))
    assert RowKeys.of(known).notes(known) == []
