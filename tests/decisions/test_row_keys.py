"""Row keys find the same repeated rows as a comparison of all pairs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from truing.decisions.row_keys import RowKeys


@given(seed=st.integers(0, 10**6), m=st.integers(1, 40), n=st.integers(1, 40), shared=st.integers(0, 40))
def test_row_keys_count_the_rows_that_occur_in_the_reference(seed, m, n, shared):
    rng = np.random.default_rng(seed)
    reference, rows = rng.normal(size=(m, 3)), rng.normal(size=(n, 3))
    rows[:shared] = reference[rng.integers(m, size=len(rows[:shared]))]
    keys = RowKeys.of(reference)
    expected = int((rows[:, None] == reference).all(axis=2).any(axis=1).sum())
    assert keys.count(rows) == expected
    assert bool(keys.notes(rows)) == (expected >= 0.02 * n)


def test_a_reference_of_repeated_rows_gives_no_note():
    reference = np.ones((10, 2))
    assert RowKeys.of(reference).notes(reference) == []
