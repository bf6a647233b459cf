"""The bounded sample of learned rows: uniform, mergeable, decaying, windowed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from truing.contrast import RowSample
from truing.scores.rows import KeyedRows, ScoredRows, row_keys, sampled


def numbered(first, rows, width=1):
    """Return rows whose base score is their number."""
    numbers = np.arange(first, first + rows, dtype=np.float64)
    return ScoredRows(np.repeat(numbers[:, None], width, axis=1), numbers)


def streamed(sizes, width=1, **options):
    sample, first = RowSample(), 0
    for rows in sizes:
        more = KeyedRows.of(numbered(first, rows, width), np.arange(first, first + rows), share=1.0)
        sample = sample.with_rows(more, **options)
        first += rows
    return sample


def test_keys_are_uniform_and_depend_on_the_row_number_only():
    keys = row_keys(np.arange(200_000))
    assert np.abs(np.histogram(keys, 50, (0, 1))[0] / 4000 - 1).max() < 0.07
    assert abs(np.corrcoef(keys[:-1], keys[1:])[0, 1]) < 0.01
    np.testing.assert_array_equal(row_keys(np.arange(777, 900)), keys[777:900])


@given(sizes=st.lists(st.integers(1, 90), min_size=1, max_size=100))
@settings(max_examples=30)
def test_few_rows_are_all_kept_in_order(sizes):
    sample = streamed(sizes)
    np.testing.assert_array_equal(sample.joined().scores, np.arange(sum(sizes)))
    assert (sample.rows, sample.seen, sample.share) == (sum(sizes), sum(sizes), 1.0)


@pytest.mark.parametrize("batch", [7, 1000, 30_000])
def test_many_rows_are_thinned_to_a_uniform_sample_that_does_not_depend_on_the_batches(batch):
    sample = streamed([batch] * (60_000 // batch))
    kept = sample.joined().scores
    assert 3_000 < len(kept) <= 8_192
    seen = sample.seen
    expected = np.flatnonzero(row_keys(np.arange(seen)) < sample.share)
    np.testing.assert_array_equal(kept, expected)
    assert sample.rows == seen


def test_wide_rows_are_kept_in_fewer_numbers():
    sample = streamed([256] * 40, width=2048)
    assert len(sample) <= 2048
    assert len(sample) > 700


def test_the_sum_of_two_samples_has_rows_of_both_in_proportion():
    one, other = streamed([20_000]), streamed([5_000])
    both = one + other
    assert both.share == one.share
    assert both.rows == 25_000
    share = (len(both) - len(one)) / len(other)
    assert share == pytest.approx(one.share, abs=0.02)


def test_decay_thins_earlier_rows_by_its_factor():
    sample = streamed([3_000, 3_000, 3_000], decay=0.5)
    numbers = np.floor(sample.joined().scores / 3_000)
    shares = [np.mean(numbers == k) * len(numbers) / 3_000 for k in range(3)]
    np.testing.assert_allclose(shares, [0.25, 0.5, 1.0], atol=0.03)
    assert sample.rows == pytest.approx(3_000 * 1.75)


def test_a_window_keeps_the_newest_rows():
    sample = streamed([40] * 200, window=500)
    np.testing.assert_array_equal(sample.joined().scores, np.arange(7_500, 8_000))
    assert sample.rows == 500


def test_a_table_and_its_parts_give_the_same_sample():
    rows = numbered(0, 5_000)
    whole = sampled(rows, 0.3, np.arange(5_000))
    parts = [sampled(rows[slice(a, a + 700)], 0.3, np.arange(a, min(a + 700, 5_000))) for a in range(0, 5_000, 700)]
    np.testing.assert_array_equal(np.concatenate([part.scores for part in parts]), whole.scores)
