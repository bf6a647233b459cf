"""The row of a given rank, by keys and their tie-breakers, is that of a sort of all rows."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from truing._check import Floats
from truing.parts import selection
from truing.parts.passes import ScoredBlock
from truing.parts.selection import Search, from_order, guess_from, in_order, search_all
from truing.parts.summaries import Reader

from .in_memory import PartsInMemory, random_cuts


@dataclass(frozen=True)
class ByScoreThenFeatures:
    def values(self, block: ScoredBlock) -> Floats:
        return block.scores

    def tie_breakers(self, block: ScoredBlock, rows: NDArray[np.intp]) -> Floats:
        return np.asarray(block.features[rows], dtype=np.float64)


doubles = st.floats(allow_nan=False)


@given(a=doubles, b=doubles)
def test_the_order_of_doubles_is_that_of_the_whole_numbers_they_become(a, b):
    one, other = in_order(np.array([a, b]))
    assert (one < other) == (a < b)
    assert (one == other) == (a == b)
    assert from_order(in_order(np.array([a])))[0] == a


def found_by_sorting(features, scores, rank):
    keys = np.column_stack((scores, features))[~np.isnan(scores)]
    keys = keys[np.lexsort(keys.T[::-1])]
    equal = np.flatnonzero((keys == keys[rank]).all(axis=1))
    return keys[rank], equal[0], len(equal)


def check(features, scores, rank, cuts, *, guess=None, block=37):
    parts = PartsInMemory(features, scores, cuts, block)
    search = Search(ByScoreThenFeatures(), lambda n: rank, guess=guess)
    search_all(Reader(parts, "select"), {"search": search})
    keys, before, equal = found_by_sorting(features, scores, rank)
    np.testing.assert_array_equal(search.found.keys, keys)
    assert (search.found.before, search.found.equal) == (before, equal)
    return len(parts.names)


TABLES = {
    "plain": lambda rng, n: (rng.standard_normal((n, 3)), rng.standard_normal(n)),
    "tied scores": lambda rng, n: (rng.standard_normal((n, 3)), rng.integers(0, 3, n).astype(float)),
    "all equal": lambda rng, n: (np.ones((n, 3)), np.zeros(n)),
    "equal but for the last column": lambda rng, n: (np.eye(3)[2] * rng.integers(0, 2, (n, 1)), np.full(n, -0.5)),
    "repeated rows": lambda rng, n: (rng.integers(0, 2, (n, 3)).astype(float), rng.integers(0, 2, n).astype(float)),
    "far apart": lambda rng, n: (
        rng.standard_normal((n, 3)),
        rng.choice([-1e100, -1e-300, 0.0, -0.0, 1e-323, 1e90], n),
    ),
    "heavy tails": lambda rng, n: (rng.standard_cauchy((n, 3)), np.sign(rng.random(n) - 0.5) * rng.random(n) ** -9),
    "some take no part": lambda rng, n: (
        rng.standard_normal((n, 3)),
        np.where(np.arange(n) % 3 > 0, rng.standard_normal(n).round(1), np.nan),
    ),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("gathered", [8, 200, 10**6])
def test_it_is_the_row_of_a_sort_however_many_keys_are_gathered(rng, monkeypatch, table, gathered):
    monkeypatch.setattr(selection, "GATHERED_NUMBERS", gathered)
    for n in (1, 2, 3, 500):
        features, scores = table(rng, n)
        taking_part = np.count_nonzero(~np.isnan(scores))
        for rank in {0, taking_part // 2, taking_part - 1} - {-1}:
            if taking_part:
                check(features, scores, rank, random_cuts(rng, n))


@pytest.mark.parametrize("guess", [(0.4, 0.6), (5.0, 6.0), (-6.0, -5.0), (0.5, 0.5)])
def test_a_wrong_guess_costs_passes_alone(rng, monkeypatch, guess):
    monkeypatch.setattr(selection, "GATHERED_NUMBERS", 64)
    features, scores = TABLES["plain"](rng, 700)
    for rank in (0, 350, 699):
        check(features, scores, rank, [100, 500], guess=guess)


def test_with_a_range_from_a_sample_one_pass_does(rng):
    features, scores = TABLES["plain"](rng, 40_000)
    assert check(features, scores, 32_000, [10_000], guess=guess_from(scores[::20], 0.8), block=5000) == 1


def test_rows_that_are_all_equal_take_one_pass(monkeypatch):
    monkeypatch.setattr(selection, "GATHERED_NUMBERS", 8)
    assert check(np.ones((900, 60)), np.full(900, 2.5), 450, [300]) == 1


@pytest.mark.slow
def test_any_table_and_rank_and_any_cuts(monkeypatch):
    for seed in range(3000):
        rng = np.random.default_rng(seed)
        monkeypatch.setattr(selection, "GATHERED_NUMBERS", int(rng.integers(4, 400)))
        monkeypatch.setattr(selection, "_BIN_BITS", int(rng.integers(1, 15)))
        n = int(rng.integers(1, 400))
        features, scores = list(TABLES.values())[seed % (len(TABLES) - 1)](rng, n)
        check(features, scores, int(rng.integers(n)), random_cuts(rng, n), block=int(rng.integers(1, 100)))
