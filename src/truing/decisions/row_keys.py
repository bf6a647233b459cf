"""Detect test rows that are also reference rows. Their p-values would be invalid."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from .._check import Floats, Matrix
from .._warnings import Alert
from ..regression.least_squares import row_products

# The most rows to look up, the share of shared rows that causes a note, and the share of reference keys that must be
# distinct for a lookup to be meaningful.
_LOOKED_UP = 1000
_SHARED = 0.02
_DISTINCT = 0.99


@dataclass(frozen=True, eq=False)
class RowKeys:
    """One key per reference row (m,), in ascending order. Equal rows have equal keys.

    `are_distinct` is true if almost no row repeats another.
    """

    keys: Floats
    are_distinct: bool

    @classmethod
    def of(cls, *references: Matrix) -> "RowKeys":
        """Return the keys of the rows of one or more references."""
        keys = np.sort(np.concatenate([_keys(features) for features in references]))
        return cls(keys, bool(np.count_nonzero(np.diff(keys)) >= _DISTINCT * (len(keys) - 1)))

    def notes(self, features: Matrix) -> list[str]:
        """Return a note if many of these rows are reference rows, and the reference itself has few repeated rows."""
        if not self.are_distinct:
            return []
        looked_up = features[:: stride_of(len(features))]
        return self.notes_on(self.count(looked_up), len(looked_up))

    def count(self, features: Matrix) -> int:
        """Return the number of these rows that are reference rows."""
        keys = _keys(features)
        up_to, below = self.keys.searchsorted(keys, "right"), self.keys.searchsorted(keys)
        return int(np.count_nonzero(up_to > below))

    def notes_on(self, shared: int, looked_up: int) -> list[str]:
        """Return the same note as `notes`, given that `shared` of the `looked_up` rows are reference rows."""
        share = shared / looked_up
        if not self.are_distinct or share < _SHARED:
            return []
        valid = "p-values and error rates are valid only for the others"
        return [Alert(f"{share:.0%} of the rows are reference rows: {valid}")]


def stride_of(rows: int) -> int:
    """Return the step between the rows that are looked up, given the number of all rows."""
    return -(-rows // _LOOKED_UP)


def _keys(features: Matrix) -> Floats:
    return row_products(features, _weights(features.shape[1]))


@cache
def _weights(d: int) -> Floats:
    weights = np.cos(np.arange(1, d + 1))
    weights.flags.writeable = False  # All callers share the cached array.
    return weights
