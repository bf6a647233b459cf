"""Notes: what a user should know before trusting a detection, wherever its rows are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._check import counted
from ..regression.least_squares import LinearFit
from .thresholds import out_share_at_most, out_share_of_counts

# A fit repeats the base score when its rows are about as many as its dimensions (the paper's sample-number ablation).
_FEW_ROWS = 3

# A share of out rows, surely so, from which the reference itself is doubted, and the levels of p-values that tell it:
# rows of another camera may all look a little out.
_NEARLY_ALL = 0.9
_LEVELS = (0.05, 0.25, 0.5)

# Fewer rows say nothing of their order, and a fall or rise is told from so many standard errors on.
ROWS_TO_COMPARE = 20
_CLEAR = 2.0

# More than rounding makes of a chance.
_ROUNDED_CHANCE = 1e-6

NO_REFERENCE = "no in/out: refusing a share of an unknown mixture is no decision; give a reference"
ALL_EQUAL = "the base scores are all equal: there is nothing to true"


class Chance(Protocol):
    """A chance that a known row outscores a row, or a change of it, and its standard error."""

    @property
    def chance(self) -> float:
        """The chance."""

    @property
    def standard_error(self) -> float:
        """Of the chance."""


def is_few(rows: Any, fit: LinearFit) -> Any:
    """Return whether so many rows are few for a fit of that rank, each of them where they are an array."""
    return rows < _FEW_ROWS * fit.rank


def on_few_rows(few: int, fit: LinearFit) -> str:
    """Return a note on rows that were scored by a fit of few rows."""
    return (
        f"{counted(few)} {'was' if few == 1 else 'were'} scored by a fit of few rows for its rank, {fit.rank:,}, "
        "which repeats the base score: give more rows, or fewer components"
    )


def on_out_share(counts: NDArray[np.integer[Any]]) -> Iterator[str]:
    """Yield a note where nearly all rows look out, by how many of them have each of the m + 1 p-values."""
    if out_share_at_most(counts, _LEVELS) < _NEARLY_ALL:  # A lower bound takes longer to find.
        return
    bound = out_share_of_counts(counts, levels=_LEVELS)
    if bound >= _NEARLY_ALL:
        yield (
            f"{bound:.0%} of the rows or more look out: is the reference of the same network and camera, and was it "
            "held out from training?"
        )


def may_tell_order(before: float, after: float) -> bool:
    """Return whether `on_order` may yield something, by the chances of its first way alone, which take least time."""
    return before < 0.5 + _ROUNDED_CHANCE or after < before + _ROUNDED_CHANCE


def on_order(before: Sequence[Chance], after: Sequence[Chance], rises: Sequence[Chance]) -> Iterator[str]:
    """Yield what the order of known rows and rows at hand says, before truing and after, where it is clear.

    The chance that a known row outscores a row is higher the more rows are out and the better they are told. It must be
    clear both as it is, which is the first way, and at the rows' mix of classes, the second: a change in the mix alone
    changes the first, and out rows that are told by their class change the second.
    """
    chance = before[0].chance
    if all(then.chance < 0.5 - _CLEAR * then.standard_error for then in before):
        yield f"the rows score higher than the reference, with a chance of {1 - chance:.3f}: are the two swapped?"
    if all(rise.chance < -_CLEAR * rise.standard_error for rise in rises):
        chances = f"{chance:.3f} before truing, {after[0].chance:.3f} after"
        yield f"truing hurts here: the chance that a reference row outscores a row is {chances}"
