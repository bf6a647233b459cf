"""Rows that are among others are found by their keys, as a comparison of all rows finds them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from truing.decisions.row_keys import RowKeys


@given(seed=st.integers(0, 10**6), m=st.integers(1, 40), n=st.integers(1, 40), shared=st.integers(0, 40))
def test_rows_that_are_among_others_are_counted(seed, m, n, shared):
    rng = np.random.default_rng(seed)
    known, rows = rng.normal(size=(m, 3)), rng.normal(size=(n, 3))
    rows[:shared] = known[rng.integers(m, size=len(rows[:shared]))]
    keys = RowKeys.of(known)
    expected = int((rows[:, None] == known).all(axis=2).any(axis=1).sum())
    assert keys.found(rows) == expected
    assert bool(keys.notes(rows)) == (expected >= 0.02 * n)


def test_nothing_is_noted_where_known_rows_repeat_one_another():
    known = np.ones((10, 2))
    assert RowKeys.of(known).notes(known) == []
