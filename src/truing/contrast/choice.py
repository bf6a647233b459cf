"""Choose the base score of a contrast, gen or fdbd, by the number of rows in the tail of the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._check import Floats
from ..outputs import Outputs
from ..scores import Base, Head
from ..scores.rows import BaseScore
from .standard import Standard
from .tail import excess_of_counts, tail_counts, tail_levels

# fdbd is chosen if its excess of rows in the tail, in standard errors, exceeds the excess of gen by more than this.
_CLEAR_EXCESS = 1.0

_BASES = ("gen", "fdbd")


class Candidate(NamedTuple):
    """A base score to choose from, and the low quantiles of its reference scores that define the tail."""

    base: BaseScore
    levels: Floats


class TailCounts(NamedTuple):
    """The number of rows, and for each candidate the number of rows at or below each level of the candidate."""

    rows: int
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, outputs: Outputs, candidates: Sequence[Candidate]) -> TailCounts:
        """Return the counts over all rows of `outputs`."""
        counts = [tail_counts(candidate.levels, candidate.base.of(outputs)) for candidate in candidates]
        return cls(len(outputs), np.array(counts))

    @classmethod
    def none(cls, candidates: Sequence[Candidate]) -> TailCounts:
        """Return counts of zero, to start a sum."""
        return cls(0, np.array([np.zeros(len(candidate.levels), np.int64) for candidate in candidates]))

    def plus(self, more: TailCounts) -> TailCounts:
        """Return the counts over both sets of rows."""
        return TailCounts(self.rows + more.rows, self.counts + more.counts)


def has_choice(base: Base | None, temperature: float, head: Head | None) -> bool:
    """Return whether to choose between gen and fdbd: without `base`, with a head and at temperature 1."""
    return base is None and head is not None and temperature == 1.0


def choose_base(
    to_learn: Outputs, to_decide: Outputs, head: Head, count: Callable[[Sequence[Candidate]], TailCounts]
) -> str:
    """Return fdbd if it puts clearly more rows into the tail than gen, and gen otherwise.

    `count` counts the test rows in the tail of each candidate. The calibration half `to_decide` joins the test rows.
    """
    standards = [Standard.of(to_learn, base, 1.0, head) for base in _BASES]
    candidates = [Candidate(standard.base_score, tail_levels(rows.scores)) for standard, rows in standards]
    totals = count(candidates).plus(TailCounts.of(to_decide, candidates))
    gen, fdbd = (excess_of_counts(counts, totals.rows, len(to_learn)) for counts in totals.counts)
    return _BASES[int(fdbd - max(gen, 0.0) > _CLEAR_EXCESS)]
