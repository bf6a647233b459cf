"""Ranks: where scores stand among those of known rows, found once for p-values and placements alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._check import Floats
from ._threads import map_blocks

Counts = NDArray[np.intp]

# Scores that are looked up together, in ascending order: neighbours then find their place beside one another.
_SCORES_AT_ONCE = 2**15


@dataclass(frozen=True, eq=False)
class Ranks:
    """Of every score (n,) how many known scores are `up_to` it, ties with it among them, and how many are `below` it.

    `order` (m,) sorts the known scores, and `ordered` (m,) are those.
    """

    order: Counts
    ordered: Floats
    below: Counts
    up_to: Counts

    @classmethod
    def of(cls, scores_in: Floats, scores: Floats) -> Ranks:
        """Return the ranks of scores (n,) among known ones (m,).

        >>> ranks = Ranks.of(np.array([3.0, 1.0, 1.0]), np.array([0.0, 1.0, 2.0]))
        >>> ranks.below.tolist(), ranks.up_to.tolist()
        ([0, 0, 2], [0, 2, 2])
        """
        order = np.argsort(scores_in)
        ordered = scores_in[order]
        first = np.searchsorted(ordered, ordered)  # Of equal ones, the first.
        below, up_to = np.empty(len(scores), dtype=np.intp), np.empty(len(scores), dtype=np.intp)

        def look_up(part: slice) -> None:
            block = scores[part]
            by_score = np.argsort(block)
            up_to[part][by_score] = np.searchsorted(ordered, block[by_score], side="right")
            last = np.maximum(up_to[part] - 1, 0)
            below[part] = np.where(ordered[last] == block, first[last], up_to[part])

        starts = range(0, len(scores), _SCORES_AT_ONCE)
        map_blocks(look_up, [slice(start, min(start + _SCORES_AT_ONCE, len(scores))) for start in starts])
        return cls(order, ordered, below, up_to)

    def p_values(self) -> Floats:
        """Return the conformal p-value of each score (n,)."""
        values: Floats = (1 + self.up_to) / (len(self.ordered) + 1)
        return values
