"""Notes: warnings that a user should read before trusting a detection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._check import Matrix, counted
from .._warnings import Alert
from ..outputs import Outputs
from ..regression.least_squares import LinearFit
from .distances import GARBAGE_DISTANCE
from .thresholds import out_share_at_most, out_share_of_counts

# With about as many rows as dimensions, a fit reproduces the base score (the paper's sample-number ablation). A fit to
# fewer rows than this multiple of its rank gets a note.
_FEW_ROWS = 3

# If the lower bound on the share of out rows reaches this value, the reference is probably wrong. High p-value levels
# are included because all rows of another camera may look slightly out.
_NEARLY_ALL = 0.9
_LEVELS = (0.05, 0.25, 0.5)

# The fewest rows whose order is compared, and the numbers of standard errors from which a difference counts as clear
# (`_CLEAR`) and as certain (`_CERTAIN`).
ROWS_TO_COMPARE = 20
_CLEAR = 2.0
_CERTAIN = 4.0

# The difference in predicted class frequencies that causes a note, as a share of the rows beyond sampling error.
_CLASS_SHIFT = 0.1

# Tolerance for rounding errors of a probability.
_ROUNDED_CHANCE = 1e-6

# A network that classifies this many rows without an error may have been trained on them.
_MANY_RIGHT = 100

# A column dominates if its share of the variance of unit-norm rows exceeds `_DOMINANT` and, with d columns,
# also exceeds `_DOMINANT_OF_FEW` / d. In networks with 64 to 1,280 columns, the largest share is 0.5 to 6 %.
_DOMINANT, _DOMINANT_OF_FEW = 0.1, 4.0
_SAMPLED_FOR_SCALES = 2000

NO_REFERENCE = "there are scores but no decisions: pass in-distribution rows as reference to get decisions"
ALL_EQUAL = Alert("all base scores are equal, so truing cannot improve them")


class Chance(Protocol):
    """The probability that a reference row outscores a test row, or a change of this probability."""

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
    """Return a note on rows that were scored by a fit to few rows."""
    return (
        f"{counted(few)} {'was' if few == 1 else 'were'} scored by a fit to few rows for its rank of {fit.rank:,}, "
        "so the trued score mostly repeats the base score: use more rows or fewer components"
    )


def on_training_rows(reference: Outputs) -> list[str]:
    """Return a note if labels show that the network classifies every row of a large reference correctly."""
    if reference.labels is None or reference.logits is None or len(reference) < _MANY_RIGHT:
        return []
    if not np.array_equal(reference._predicted_classes(), reference.labels):
        return []
    rows = f"all {len(reference):,} reference rows"
    return [Alert(f"the network classifies {rows} correctly: pass rows that it was not trained on")]


def on_scales(features: Matrix) -> list[str]:
    """Return a note if one column dominates the distances between reference rows (m, d) of unit norm."""
    sample = features[:: -(-len(features) // _SAMPLED_FOR_SCALES)].astype(np.float64)
    norms = np.linalg.norm(sample, axis=1, keepdims=True)
    variances = (sample / np.where(norms > 0, norms, 1)).var(axis=0)
    largest, total = variances.max(), variances.sum()
    if largest <= max(_DOMINANT, _DOMINANT_OF_FEW / len(variances)) * total:
        return []
    return [
        Alert(
            f"one column causes {largest / total:.0%} of the differences between reference rows, so knn ignores most "
            "columns: standardise the columns of rows and reference"
        )
    ]


def on_out_share(counts: NDArray[np.integer[Any]]) -> Iterator[str]:
    """Yield a note if nearly all rows look out. `counts` is the number of rows with each of the m + 1 p-values."""
    if out_share_at_most(counts, _LEVELS) < _NEARLY_ALL:  # Skip the lower bound, which is slower to compute.
        return
    bound = out_share_of_counts(counts, levels=_LEVELS)
    if bound >= _NEARLY_ALL:
        yield Alert(
            f"at least {math.floor(100 * bound)} % of the rows look out: check that the reference comes from the same "
            "network and data source, and that the network was not trained on it"
        )


def on_skipped_rows(skipped: int, *, has_reference: bool) -> list[str]:
    """Return a note on garbage rows, which were not learned, if there are any."""
    if not skipped:
        return []
    are, were = ("is", "it was") if skipped == 1 else ("are", "they were")
    typical, processed = ("the reference", "decided") if has_reference else ("the other rows", "scored")
    far = f"more than {GARBAGE_DISTANCE:g} times farther from {typical} than usual"
    return [f"{counted(skipped)} {are} {far}: {were} {processed} but not learned"]


def on_class_mix(counts_in: NDArray[np.integer[Any]], counts: NDArray[np.integer[Any]]) -> list[str]:
    """Return a note if the predicted classes clearly have other frequencies among the rows than in the reference.

    Both arguments count the rows of each class (c,). The note is given if the total variation distance between the
    class frequencies exceeds its expected value for equal frequencies by `_CLASS_SHIFT`.
    """
    rows_in, rows = int(counts_in.sum()), int(counts.sum())
    both = (counts_in + counts) / (rows_in + rows)
    noise = np.sqrt(2 / np.pi * both * (1 - both) * (1 / rows_in + 1 / rows)).sum() / 2
    moved = float(np.abs(counts_in / rows_in - counts / rows).sum()) / 2
    if moved - noise < _CLASS_SHIFT:
        return []
    return [
        f"the predicted classes have other frequencies than in the reference, for {moved:.0%} of the rows: if this is "
        "not due to out rows, more in-distribution rows are refused than stated; contrast is less affected"
    ]


def on_order(before: Sequence[Chance], after: Sequence[Chance], rises: Sequence[Chance]) -> Iterator[str]:
    """Yield notes if test rows clearly outscore reference rows, or if truing clearly makes the order worse.

    The probability that a reference row outscores a test row rises with the share of out rows and with the quality of
    the score. Each sequence has two entries: reference rows weighted equally, and weighted to the class frequencies of
    the test rows. Both entries must differ clearly, because a change in class frequencies alone changes the first
    entry, and out rows that fall into few classes change the second.
    """
    chance = before[0].chance
    if _is_low(before, _CLEAR):
        note = (
            f"the rows score higher than the reference (with probability {1 - chance:.3f}): check that outputs and "
            "reference are not swapped, and that a higher score means in-distribution"
        )
        yield Alert(note) if _is_low(before, _CERTAIN) else note
    if all(rise.chance < -_CLEAR * rise.standard_error for rise in rises):
        chances = f"{chance:.3f} before truing, {after[0].chance:.3f} after"
        yield f"truing hurts here: a reference row outscores a test row with probability {chances}"


def _is_low(before: Sequence[Chance], errors: float) -> bool:
    """Return whether all chances are below one half by more than `errors` standard errors."""
    return all(then.chance < 0.5 - _ROUNDED_CHANCE - errors * then.standard_error for then in before)
