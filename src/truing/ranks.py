"""Ranks: where scores stand among those of known rows, found once for p-values and placements alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from . import _kernels
from ._check import Floats, slices
from ._threads import map_blocks

Counts = NDArray[np.intp]

# Scores that are looked up at once.
_SCORES_AT_ONCE = 2**16

# Ascending scores that are a block, if they do not end within ties.
_ASCENDING_AT_ONCE = 2**15


@dataclass(frozen=True, eq=False)
class Ranks:
    """The ranks of scores (n,) among known ones (m,), each found when it is first asked for.

    `is_ordered` says that the known ones ascend.

    >>> ranks = Ranks(np.array([3.0, 1.0, 1.0]), np.array([0.0, 1.0, 2.0]))
    >>> ranks.below.tolist(), ranks.up_to.tolist()
    ([0, 0, 2], [0, 2, 2])
    """

    scores_in: Floats
    scores: Floats
    is_ordered: bool = False

    @cached_property
    def ordered(self) -> Floats:
        """The known scores in ascending order."""
        return self.scores_in if self.is_ordered else np.sort(self.scores_in)

    @cached_property
    def order(self) -> Counts:
        """The indices that sort the known scores."""
        return np.argsort(self.scores_in)

    @cached_property
    def up_to(self) -> Counts:
        """Of every score how many known ones are up to it, ties with it among them."""
        return self._counted("known_up_to", "right")

    @cached_property
    def below(self) -> Counts:
        """Of every score how many known ones are below it."""
        return self._counted("known_below", "left")

    def _counted(self, kernel: str, side: Literal["left", "right"]) -> Counts:
        ordered, scores = _kernels.doubles(self.ordered), _kernels.doubles(self.scores)
        counts, kernels = np.empty(len(scores), dtype=np.intp), _kernels.kernels

        def look_up(part: slice) -> None:
            if kernels is None or not len(ordered):
                counts[part] = np.searchsorted(ordered, scores[part], side)
            else:
                kernels(kernel, ordered, len(ordered), scores[part], part.stop - part.start, counts[part])

        map_blocks(look_up, slices(len(scores), _SCORES_AT_ONCE), uses_blas=False)
        return counts

    def p_values(self) -> Floats:
        """Return the conformal p-value of each score (n,)."""
        values: Floats = (1 + self.up_to) / (len(self.scores_in) + 1)
        return values


def ranks_of_ascending(ordered: Floats, scores: Floats) -> tuple[Counts, Counts]:
    """Return how many of the ascending numbers are below each of some ascending scores, and how many are up to it.

    >>> below, up_to = ranks_of_ascending(np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, 3.0]))
    >>> below.tolist(), up_to.tolist()
    ([1, 1, 3], [2, 2, 3])
    """
    if _kernels.kernels is None or not len(scores):
        return np.searchsorted(ordered, scores, "left"), np.searchsorted(ordered, scores, "right")
    ordered, scores = _kernels.doubles(ordered), _kernels.doubles(scores)
    first, last = int(np.searchsorted(ordered, scores[0], "left")), int(np.searchsorted(ordered, scores[-1], "right"))
    below, up_to = np.empty(len(scores), dtype=np.intp), np.empty(len(scores), dtype=np.intp)
    _kernels.kernels("known_beside_ascending", ordered, first, last, scores, len(scores), below, up_to)
    return below, up_to


def blocks_of_ascending(scores: Floats) -> list[slice]:
    """Return ascending scores a block at a time, equal ones in the same block.

    So each of a block's ties is met once, however many there are.
    """
    starts = np.unique(np.searchsorted(scores, scores[::_ASCENDING_AT_ONCE])).tolist()
    return [slice(start, stop) for start, stop in pairwise([*starts, len(scores)])]
