"""Keys by which rows that are equal are found: a reference must not be decided against itself."""

from dataclasses import dataclass

import numpy as np

from ._check import Floats, Matrix
from .least_squares import row_products

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
        some = _made(features[:: -(-len(features) // _LOOKED_UP)])
        place = np.minimum(np.searchsorted(self.keys, some), len(self.keys) - 1)
        share = float((self.keys[place] == some).mean())
        if share < _SHARED:
            return []
        return [f"{share:.0%} of the rows are rows of the reference: p-values and rates hold for others alone"]


def _made(features: Matrix) -> Floats:
    return row_products(features, np.cos(np.arange(1, features.shape[1] + 1)))
