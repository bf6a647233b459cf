"""Ranks of scores among reference scores. p-values and placements are computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .._check import Floats, slices
from .._kernels import kernels, readable
from .._threads import map_blocks

Counts = NDArray[np.intp]

# Scores are looked up in blocks of this size.
_SCORES_AT_ONCE = 2**16


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of scores (n,) among reference scores (m,), computed on first use.

    Set `is_ordered` if the reference scores are already in ascending order. `size` is the magnitude of the numbers that
    the scores were computed from, if these numbers are larger than the scores. Rounding errors are proportional to
    `size`.

    >>> ranks = Ranks(np.array([3.0, 1.0, 1.0]), np.array([0.0, 1.0, 2.0]))
    >>> ranks.below.tolist(), ranks.up_to.tolist()
    ([0, 0, 2], [0, 2, 2])
    """

    scores_in: Floats
    scores: Floats
    is_ordered: bool = False
    size: float = 0.0

    @cached_property
    def ordered(self) -> Floats:
        """The reference scores in ascending order."""
        return self.scores_in if self.is_ordered else np.sort(self.scores_in)

    @cached_property
    def order(self) -> Counts:
        """The indices that sort the reference scores."""
        return np.argsort(self.scores_in)

    @cached_property
    def below(self) -> Counts:
        """The number of reference scores below each score (n,)."""
        ordered, scores = readable(self.ordered), readable(self.scores)
        counts = np.empty(len(scores))

        def look_up(part: slice) -> None:
            kernels.counts_below(ordered, scores[part], counts[part])

        map_blocks(look_up, slices(len(scores), _SCORES_AT_ONCE), uses_blas=False)
        return counts.astype(np.intp)

    @cached_property
    def up_to(self) -> Counts:
        """The number of reference scores at or below each score (n,).

        A score is tied if it equals the first reference score that is not below it, so a second search is not needed.
        """
        ordered = np.append(self.ordered, np.inf)
        ends = np.append(np.searchsorted(self.ordered, self.ordered, "right"), len(self.ordered))
        return np.where(ordered[self.below] == self.scores, ends[self.below], self.below)

    def p_values(self) -> Floats:
        """Return the conformal p-value of each score (n,)."""
        values: Floats = (1 + self.up_to) / (len(self.scores_in) + 1)
        return values
