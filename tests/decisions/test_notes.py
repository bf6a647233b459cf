"""Notes on a large share of out-of-distribution rows, from counts of p-values."""

import numpy as np

from truing.decisions import notes
from truing.decisions.thresholds import out_share_of_counts


def counts_of(places, rows_in):
    """Return the number of rows with each of the p-values 1 / (m + 1), 2 / (m + 1), …, 1, given their indices."""
    return np.bincount(places, minlength=rows_in + 1)


def test_many_slightly_out_rows_get_a_note():
    """No p-value is at most 0.25, so only the level 0.5 detects these rows."""
    rows_in = 1999
    a_little = counts_of(np.arange(600, 1000).repeat(10), rows_in)
    assert out_share_of_counts(a_little, levels=(0.05, 0.25)) == 0
    (note,) = notes.on_out_share(a_little)
    assert note.startswith("at least 99 % of the rows look out: check that the reference comes from the same network")


def test_the_note_is_given_exactly_when_the_bound_over_all_levels_reaches_90_percent(rng):
    """The quick check before the bound never changes the result."""
    rows_in, noted = 199, 0
    for _ in range(200):
        share, up_to = rng.uniform(0.85, 1.0), rng.choice([0.04, 0.2, 0.45, 0.6])
        is_out = rng.random(1000) < share
        p_values = np.where(is_out, up_to * rng.random(1000), rng.random(1000))
        counts = counts_of((p_values * (rows_in + 1)).astype(np.intp), rows_in)
        says_so = out_share_of_counts(counts, levels=(0.05, 0.25, 0.5)) >= 0.9
        noted += says_so
        assert len(list(notes.on_out_share(counts))) == says_so
    assert 20 < noted < 180
