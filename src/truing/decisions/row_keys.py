"""Keys by which rows that are equal are found: a reference must not be decided against itself."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from .._check import Bools, Floats, Matrix
from ..regression.least_squares import row_products

# Rows looked up, the share of them found from which that is noted, and the share of all keys that must be distinct.
_LOOKED_UP = 1000
_SHARED = 0.02
_DISTINCT = 0.99


@dataclass(frozen=True, eq=False)
class RowKeys:
    """A number for each row (m,), in ascending order, by which equal rows are found: they have equal numbers.

    `are_distinct` says that next to none of the rows repeats another.
    """

    keys: Floats
    are_distinct: bool

    @classmethod
    def of(cls, *parts: Matrix) -> "RowKeys":
        """Return the keys of the rows of all parts."""
        keys = np.sort(np.concatenate([_made(features) for features in parts]))
        return cls(keys, bool(np.count_nonzero(np.diff(keys)) >= _DISTINCT * (len(keys) - 1)))

    def notes(self, features: Matrix) -> list[str]:
        """Return a note if some of these rows are among those; none where those repeat rows themselves."""
        if not self.are_distinct:
            return []
        some = features[:: stride_of(len(features))]
        return self.notes_on(self.found(some), len(some))

    def found(self, features: Matrix) -> int:
        """Return how many of these rows are among those."""
        keys = _made(features)
        up_to, below = self.keys.searchsorted(keys, "right"), self.keys.searchsorted(keys)
        return int(np.count_nonzero(up_to > below))

    def notes_on(self, found: int, looked_up: int) -> list[str]:
        """Return a note if many of the rows looked up were found; none where those repeat rows themselves."""
        share = found / looked_up
        if not self.are_distinct or share < _SHARED:
            return []
        return [f"{share:.0%} of the rows are rows of the reference: p-values and rates hold for others alone"]


def may_be_shared(is_tied: Bools) -> bool:
    """Return whether a note may be due, by which of the rows (n,) have the score of a known row: equal rows all do."""
    return bool(is_tied[:: stride_of(len(is_tied))].mean() >= _SHARED)


def stride_of(rows: int) -> int:
    """Return how many rows apart those are that are looked up."""
    return -(-rows // _LOOKED_UP)


def _made(features: Matrix) -> Floats:
    return row_products(features, _weights(features.shape[1]))


@cache
def _weights(d: int) -> Floats:
    weights = np.cos(np.arange(1, d + 1))
    weights.flags.writeable = False  # All who ask for so many have the same.
    return weights
