"""Ranks: where scores stand among those of known rows, found once for p-values and placements alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from . import _kernels
from ._check import Floats, slices
from ._threads import map_blocks

Counts = NDArray[np.intp]

# Scores that are looked up at once.
_SCORES_AT_ONCE = 2**16


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
