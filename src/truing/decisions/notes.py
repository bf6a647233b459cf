"""Notes: warnings to read before trusting a detection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._check import counted
from ..regression.least_squares import LinearFit
from .distances import GARBAGE_DISTANCE
from .thresholds import out_share_at_most, out_share_of_counts

# A fit reproduces the base score if it has about as many rows as dimensions (the paper's sample-number ablation).
# Fits with fewer rows than this multiple of their rank get a note.
_FEW_ROWS = 3

# If at least this share of the rows is out with confidence, the reference is probably wrong. High p-value levels are
# included because all rows of another camera may look slightly out.
_NEARLY_ALL = 0.9
_LEVELS = (0.05, 0.25, 0.5)

# The smallest number of rows whose order is compared, and the number of standard errors of a clear difference.
ROWS_TO_COMPARE = 20
_CLEAR = 2.0

# The share of rows by which the mix of predicted classes may differ without a note, beyond sampling error.
_OTHER_MIX = 0.1

# Tolerance for rounding errors of a probability.
_ROUNDED_CHANCE = 1e-6

NO_REFERENCE = "no in/out: refusing a share of an unknown mixture is no decision; give a reference"
ALL_EQUAL = "the base scores are all equal: there is nothing to true"


class Chance(Protocol):
    """The probability that a reference row outscores a test row, or a change in it, with its standard error."""

    @property
    def chance(self) -> float:
        """The probability, or its change."""

    @property
    def standard_error(self) -> float:
        """The standard error of `chance`."""


def is_few(rows: Any, fit: LinearFit) -> Any:
    """Return whether `rows`, a row count or an array of row counts, is too small for the rank of the fit."""
    return rows < _FEW_ROWS * fit.rank


def on_few_rows(few: int, fit: LinearFit) -> str:
    """Return a note on rows that were scored by a fit to too few rows."""
    return (
        f"{counted(few)} {'was' if few == 1 else 'were'} scored by a fit of few rows for its rank, {fit.rank:,}, "
        "which repeats the base score: give more rows, or fewer components"
    )


def on_out_share(counts: NDArray[np.integer[Any]]) -> Iterator[str]:
    """Yield a note if nearly all rows look out; `counts` is the number of rows with each of the m + 1 p-values."""
    if out_share_at_most(counts, _LEVELS) < _NEARLY_ALL:  # The lower bound is slower to compute.
        return
    bound = out_share_of_counts(counts, levels=_LEVELS)
    if bound >= _NEARLY_ALL:
        yield (
            f"at least {math.floor(100 * bound)} % of the rows look out: is the reference of the same network and "
            "camera, and was it held out from training?"
        )


def on_skipped_rows(skipped: int, *, has_reference: bool) -> list[str]:
    """Return a note on garbage rows, which were not learned, if there are any."""
    if not skipped:
        return []
    verb, was = ("is", "it was") if skipped == 1 else ("are", "they were")
    typical, done = ("the reference", "decided") if has_reference else ("the other rows", "scored")
    far = f"more than {GARBAGE_DISTANCE:g} times farther from {typical} than usual"
    return [f"{counted(skipped)} {verb} {far}: {was} {done} but not learned"]


def on_class_mix(counts_in: NDArray[np.integer[Any]], counts: NDArray[np.integer[Any]]) -> list[str]:
    """Return a note if the predicted classes of the rows clearly have other frequencies than in the reference.

    Both arguments count the rows of each class (c,). The share of rows to move to make both mixes equal must exceed its
    expected value for equal mixes by a tenth.
    """
    rows_in, rows = int(counts_in.sum()), int(counts.sum())
    both = (counts_in + counts) / (rows_in + rows)
    noise = np.sqrt(2 / np.pi * both * (1 - both) * (1 / rows_in + 1 / rows)).sum() / 2
    moved = float(np.abs(counts_in / rows_in - counts / rows).sum()) / 2
    if moved - noise < _OTHER_MIX:
        return []
    return [
        f"the predicted classes differ in frequency from the reference (by {moved:.0%} of the rows): if the "
        "in-distribution rows differ too, more of them are refused than the rate states; contrast is less affected"
    ]


def on_order(before: Sequence[Chance], after: Sequence[Chance], rises: Sequence[Chance]) -> Iterator[str]:
    """Yield notes if test rows clearly outscore reference rows, or if truing clearly makes the order worse.

    The probability that a reference row outscores a test row rises with the share of out rows and with the quality of
    the score. Each sequence has two entries: reference rows weighted equally, and weighted to the class frequencies of
    the test rows. Both must be clear, because a change in class frequencies alone changes the first, and out rows that
    fall into few classes change the second.
    """
    chance = before[0].chance
    if all(then.chance < 0.5 - _ROUNDED_CHANCE - _CLEAR * then.standard_error for then in before):
        yield (
            f"the rows score higher than the reference, with a chance of {1 - chance:.3f}: are the two swapped, or is "
            "the sign of the score flipped?"
        )
    if all(rise.chance < -_CLEAR * rise.standard_error for rise in rises):
        chances = f"{chance:.3f} before truing, {after[0].chance:.3f} after"
        yield f"truing hurts here: the chance that a reference row outscores a row is {chances}"
