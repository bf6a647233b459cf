"""Ranks: where scores stand among those of known rows, found once for p-values and placements alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ._check import Floats, slices
from ._threads import map_blocks

Counts = NDArray[np.intp]

# Scores that are looked up together, in ascending order: neighbours then find their place beside one another.
_SCORES_AT_ONCE = 2**16

# So few are looked up as they come.
_FEW_SCORES = 64


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of scores (n,) among known ones (m,), each found when it is first asked for.

    >>> ranks = Ranks(np.array([3.0, 1.0, 1.0]), np.array([0.0, 1.0, 2.0]))
    >>> ranks.below.tolist(), ranks.up_to.tolist()
    ([0, 0, 2], [0, 2, 2])
    """

    scores_in: Floats
    scores: Floats

    @cached_property
    def ordered(self) -> Floats:
        """The known scores in ascending order."""
        return np.sort(self.scores_in)

    @cached_property
    def order(self) -> Counts:
        """The indices that sort the known scores."""
        return np.argsort(self.scores_in)

    @cached_property
    def up_to(self) -> Counts:
        """Of every score how many known ones are up to it, ties with it among them."""
        ordered = self.ordered
        if len(self.scores) <= _FEW_SCORES:
            return np.searchsorted(ordered, self.scores, side="right")
        up_to = np.empty(len(self.scores), dtype=np.intp)

        def look_up(part: slice) -> None:
            block = self.scores[part]
            by_score = np.argsort(block)
            up_to[part][by_score] = _known_up_to(ordered, block[by_score])

        map_blocks(look_up, slices(len(up_to), _SCORES_AT_ONCE), uses_blas=False)
        return up_to

    @cached_property
    def below(self) -> Counts:
        """Of every score how many known ones are below it."""
        ordered, up_to, below = self.ordered, self.up_to, np.empty(len(self.scores), dtype=np.intp)
        first = np.searchsorted(ordered, ordered)  # Of equal ones, the first.

        def look_up(part: slice) -> None:
            last = np.maximum(up_to[part] - 1, 0)
            below[part] = np.where(ordered[last] == self.scores[part], first[last], up_to[part])

        map_blocks(look_up, slices(len(below), _SCORES_AT_ONCE), uses_blas=False)
        return below

    def p_values(self) -> Floats:
        """Return the conformal p-value of each score (n,)."""
        values: Floats = (1 + self.up_to) / (len(self.scores_in) + 1)
        return values


def _known_up_to(ordered: Floats, scores: Floats) -> Counts:
    """Return of every score how many known ones are up to it; both ascend."""
    if len(ordered) >= len(scores):
        return np.searchsorted(ordered, scores, side="right")
    from_where_on = np.searchsorted(scores, ordered)  # The other way round there is less to look up.
    return np.cumsum(np.bincount(from_where_on, minlength=len(scores) + 1)[:-1])
