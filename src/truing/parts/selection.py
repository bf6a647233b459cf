"""The row of a given rank among all rows, exactly, by a key that later keys break the ties of.

Doubles are mapped to whole numbers in the same order. A search keeps a range of these that holds the key of the row.
A pass counts the rows below the range and those in each of many bins of it, and gathers the keys in it if they are few:

1. once all keys in the range are gathered, they are sorted, and the row is found;
2. otherwise the bin that holds the rank is the next range;
3. where all keys in the range are equal, the next key is searched among their rows; where all are, any row will do.

A range from a sample of rows makes that one pass for millions of rows, and two for billions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .._check import Floats
from ..io.npz import Arrays
from .passes import ScoredBlock
from .summaries import Reader, Summary

# Bits of a range that tell its bins apart.
_BIN_BITS = 14

# Numbers that are gathered, at most.
GATHERED_NUMBERS = 2**22

# Standard errors of a sample's quantile within which that of all rows is looked for.
_GUESS_STANDARD_ERRORS = 4.0

_SIGN = np.uint64(1 << 63)
_LAST = 2**64 - 1

Ordered = NDArray[np.uint64]


class Key(Protocol):
    """What rows are ordered by: a frozen value, sent to where the rows are."""

    def values(self, block: ScoredBlock) -> Floats:
        """Return the first key of each row (b,), NaN for rows that take no part."""
        ...

    def tie_breakers(self, block: ScoredBlock, rows: NDArray[np.intp]) -> Floats:
        """Return the other keys (m, t) of some rows."""
        ...


@dataclass(frozen=True, eq=False)
class Selected:
    """The `keys` (1 + t,) of the row that was searched, how many rows are `before` it, and how many `equal` to it.

    The keys are NaN, and none is equal, where no row takes part.
    """

    keys: Floats
    before: int
    equal: int

    @property
    def value(self) -> float:
        """The first key."""
        return float(self.keys[0])


class Search:
    """A search for the row of rank `rank(n)`, from 0, among the n rows that take part.

    `guess` is a range of the first key, lower and upper, in which it is looked for first.
    """

    def __init__(self, key: Key, rank: Callable[[int], int], *, guess: tuple[float, float] | None = None) -> None:
        self._key = key
        self._rank = rank
        self._fixed: tuple[int, ...] = ()  # The keys known of the row.
        self._before = 0  # Rows known to be before it by these.
        low, high = (-np.inf, np.inf) if guess is None else guess
        ends = in_order(np.array([low, high], dtype=np.float64))
        self._low, self._high = int(ends[0]), int(ends[1])
        self.found: Selected | None = None

    def summary(self) -> "KeysInRange":
        """Return what the next pass is to find out."""
        return KeysInRange(self._key, self._fixed, self._low, self._high, GATHERED_NUMBERS)

    def take(self, result: Arrays) -> None:
        """Go on from what the pass found."""
        if not result["rows"]:
            self.found = Selected(np.full(len(result["least"]), np.nan), 0, 0)
            return
        rank = self._rank(int(result["rows"])) - self._before
        below, within = int(result["below"]), int(result["bins"].sum())
        if rank < below:
            self._low, self._high = 0, self._low - 1
        elif rank >= below + within:
            self._low, self._high = self._high + 1, _LAST
        elif len(result["keys"]) == within:
            self._find_among(result["keys"], below, rank - below)
        elif result["least"][0] == result["most"][0]:
            self._fix(result["least"], result["most"], below, within)
        else:
            self._narrow(result["bins"], rank - below, int(result["least"][0]), int(result["most"][0]))

    def _find_among(self, keys: Ordered, below: int, rank: int) -> None:
        """Find the row by the keys of all rows in the range, behind the fixed ones."""
        keys = keys[np.lexsort(keys.T[::-1])]
        equal = np.flatnonzero((keys == keys[rank]).all(axis=1))
        self.found = Selected(self._with_fixed(keys[rank]), self._before + below + int(equal[0]), len(equal))

    def _fix(self, least: Ordered, most: Ordered, below: int, within: int) -> None:
        """Fix the key that all rows in the range have, and those after it that they all have too."""
        differ = np.flatnonzero(least != most)
        equal = int(differ[0]) if len(differ) else len(least)
        self._before += below
        self._fixed += tuple(int(value) for value in least[:equal])
        if not len(differ):
            self.found = Selected(self._with_fixed(least[:0]), self._before, within)
            return
        self._low, self._high = int(least[equal]), int(most[equal])

    def _narrow(self, bins: NDArray[np.int64], rank: int, least: int, most: int) -> None:
        number = int(np.searchsorted(np.cumsum(bins), rank, side="right"))
        shift = _bin_shift(self._low, self._high)
        low = self._low + (number << shift)
        self._low, self._high = max(low, least), min(low + (1 << shift) - 1, self._high, most)

    def _with_fixed(self, own: Ordered) -> Floats:
        return from_order(np.concatenate((np.array(self._fixed, dtype=np.uint64), own)))


def search_all(reader: Reader, searches: Mapping[str, Search]) -> None:
    """Read the rows until every search has found its row."""
    while waiting := {name: search for name, search in searches.items() if search.found is None}:
        advance(waiting, reader.read(summaries_of(waiting)))


def summaries_of(searches: Mapping[str, Search]) -> dict[str, Summary]:
    """Return what the next pass is to find out for the searches that have not found their row."""
    return {name: search.summary() for name, search in searches.items() if search.found is None}


def advance(searches: Mapping[str, Search], results: Mapping[str, Arrays]) -> None:
    """Go on with each search from what a pass found."""
    for name, search in searches.items():
        if name in results:
            search.take(results[name])


def guess_from(sample: Floats, share: float) -> tuple[float, float] | None:
    """Return a range of keys, by those of a sample, in which that with this share of all rows below it is."""
    taking_part = np.sort(sample[~np.isnan(sample)])
    if not len(taking_part):
        return None
    margin = _GUESS_STANDARD_ERRORS * sqrt(share * (1 - share) / len(taking_part))
    low, high = int((share - margin) * len(taking_part)) - 1, int((share + margin) * len(taking_part)) + 1
    lower = taking_part[low] if low >= 0 else -np.inf
    upper = taking_part[high] if high < len(taking_part) else np.inf
    return float(lower), float(upper)


@dataclass(frozen=True, eq=False)
class KeysInRange:
    """How many rows have a key below a range, where in it the others are, and their keys if they are few.

    The key is the first one after the `fixed` ones, among rows that have these.
    """

    key: Key
    fixed: tuple[int, ...]
    low: int
    high: int
    gathered_numbers: int

    def of(self, first: int, block: ScoredBlock) -> Arrays:
        """Return `rows` that take part, those `below`, the `bins`, `least` and `most` of each key, and the `keys`."""
        values = self.key.values(block)
        taking_part = np.flatnonzero(~np.isnan(values))
        rows, own = self._with_fixed_keys(block, values, taking_part)
        within = np.flatnonzero((own >= np.uint64(self.low)) & (own <= np.uint64(self.high)))
        keys = self._keys(block, values, rows[within])[:, len(self.fixed) :]
        shift = np.uint64(_bin_shift(self.low, self.high))
        number = ((own[within] - np.uint64(self.low)) >> shift).astype(np.intp)
        return {
            "rows": np.array(len(taking_part)),
            "below": np.array(np.count_nonzero(own < np.uint64(self.low))),
            "bins": np.bincount(number, minlength=_bins(self.low, self.high)).astype(np.int64),
            "least": keys.min(axis=0, initial=_LAST),
            "most": keys.max(axis=0, initial=0),
            "keys": self._few(keys),
        }

    def combined(self, one: Arrays, other: Arrays) -> Arrays:
        """Return the counts of both, and the keys of both if they are few, else none."""
        keys = one["keys"][:0]
        if all(len(part["keys"]) == part["bins"].sum() for part in (one, other)):
            keys = self._few(np.concatenate((one["keys"], other["keys"])))
        sums = {name: one[name] + other[name] for name in ("rows", "below", "bins")}
        least, most = np.minimum(one["least"], other["least"]), np.maximum(one["most"], other["most"])
        return {**sums, "least": least, "most": most, "keys": keys}

    def _with_fixed_keys(
        self, block: ScoredBlock, values: Floats, rows: NDArray[np.intp]
    ) -> tuple[NDArray[np.intp], Ordered]:
        """Return those of some rows that have the fixed keys, and their next key."""
        first = in_order(values[rows])
        if not self.fixed:
            return rows, first
        tied = rows[first == np.uint64(self.fixed[0])]
        keys = self._keys(block, values, tied)
        same = (keys[:, : len(self.fixed)] == np.array(self.fixed, dtype=np.uint64)).all(axis=1)
        return tied[same], keys[same, len(self.fixed)]

    def _keys(self, block: ScoredBlock, values: Floats, rows: NDArray[np.intp]) -> Ordered:
        """Return all keys (m, 1 + t) of some rows."""
        return in_order(np.column_stack((values[rows], self.key.tie_breakers(block, rows))))

    def _few(self, keys: Ordered) -> Ordered:
        return keys if keys.size <= self.gathered_numbers else keys[:0]


def in_order(values: Floats) -> Ordered:
    """Return whole numbers in the same order as doubles; zeros of both signs are equal."""
    bits = (values + 0.0).view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def from_order(numbers: Ordered) -> Floats:
    """Return the doubles that `in_order` made whole numbers of."""
    return np.where(numbers & _SIGN, numbers ^ _SIGN, ~numbers).view(np.float64)


def _bin_shift(low: int, high: int) -> int:
    """Return by how many bits the keys of a range are shifted to become the numbers of their bins."""
    return max(0, (high - low).bit_length() - _BIN_BITS)


def _bins(low: int, high: int) -> int:
    return ((high - low) >> _bin_shift(low, high)) + 1
