"""The four steps of every job, on a block of rows.

    rows = score_rows(outputs, base)                 1. base scores
    sums = sum_rows(rows, guard)                     2. sums over the rows that are learned
    fit = solve_fit(options, moments, rows)          3. a fit; for contrast `solve_contrast`
    decision, ranks = decide_rows(rows, fit, …)      4. scores, p-values and decisions

`detect` runs these steps over rows in memory, and `parts.detect` over the parts of a table, in one process or on a
cluster. A `Detector` and the service run them for each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._check import Floats
from .contrast import ContrastFit, SplitReference
from .decisions.distances import RowGuard, is_garbage
from .decisions.ranks import Ranks
from .decisions.thresholds import Decision, Rate, decide_at
from .outputs import Outputs
from .regression.fits import KEEP
from .regression.least_squares import LinearFit
from .regression.moments import Moments
from .regression.robust import fit_robust
from .scores.rows import BaseScore, KeyedRows, Numbers, ScoredRows

Fit = LinearFit | ContrastFit


class FitOptions(NamedTuple):
    """How to fit: the method (dlr, rlr, contrast or none) and its options, as in `truing.detect`."""

    method: str
    intercept: bool = True
    components: int | None = None
    keep: float = KEEP
    penalty: float = 1e-5


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over a set of rows.

    `rows` is the number of rows. `garbage_rows` is the number of rows that were not learned, because they are
    extremely far from ordinary rows. `moments` are the moments of the learned rows. `sample` holds a sample of the
    learned rows if the method needs it. `class_counts` (c,) counts the predicted classes. `lowest` and `highest` are
    the range of the base scores.
    """

    rows: int = 0
    garbage_rows: int = 0
    moments: Moments | None = None
    sample: KeyedRows | None = None
    class_counts: NDArray[np.int64] | None = None
    lowest: float = np.inf
    highest: float = -np.inf

    @property
    def learned_rows(self) -> int:
        """Number of rows that were learned."""
        return self.rows - self.garbage_rows

    def __add__(self, more: Sums) -> Sums:
        """Return the sums over both sets of rows."""
        return Sums(
            self.rows + more.rows,
            self.garbage_rows + more.garbage_rows,
            added(self.moments, more.moments),
            added(self.sample, more.sample),
            added(self.class_counts, more.class_counts),
            min(self.lowest, more.lowest),
            max(self.highest, more.highest),
        )


def score_rows(outputs: Outputs, base: BaseScore) -> ScoredRows:
    """Step 1: return the rows with their base scores."""
    return ScoredRows(outputs.features, base.of(outputs))


def sum_rows(
    rows: ScoredRows,
    guard: RowGuard | None,
    numbers: Numbers | None = None,
    *,
    with_moments: bool = True,
    share: float | None = None,
) -> Sums:
    """Step 2: return sums over the rows. Rows that are garbage according to the guard are counted but not summed.

    If `share` is given, the sums hold a sample of this share of the rows. Row numbers (n,) determine the sample.
    """
    garbage = is_garbage(rows.features, rows.scores, guard)
    garbage_rows = int(np.count_nonzero(garbage))
    learned = rows
    if garbage_rows:
        kept = np.flatnonzero(~garbage)
        learned, numbers = rows[kept], None if numbers is None else numbers[kept]
    moments = Moments.of(learned.features, learned.scores) if with_moments and len(learned) else None
    sample = None
    if share is not None and numbers is not None and len(learned):
        sample = KeyedRows.of(learned, numbers, share)
    return Sums(len(rows), garbage_rows, moments, sample)


def solve_fit(options: FitOptions, moments: Moments | None, rows: ScoredRows | None = None) -> LinearFit:
    """Step 3: return the fit of DLR from moments, or of RLR from rows."""
    if options.method == "rlr" and options.keep < 1:
        assert rows is not None
        return fit_robust(
            rows.features,
            rows.scores,
            keep=options.keep,
            penalty=options.penalty,
            intercept=options.intercept,
            components=options.components,
        )
    assert moments is not None
    return moments.solve(options.intercept, options.components)


def solve_contrast(
    reference: SplitReference,
    sample: ScoredRows | None,
    *,
    rows: float,
    with_calibration: bool,
    share: float = 1.0,
) -> ContrastFit:
    """Step 3 of a contrast: return the fit of a sample of `rows` test rows. Without a sample, return the base score.

    With `with_calibration`, the calibration half of the reference joins the test rows. Set it if the fit decides these
    test rows. `share` is the sampled share of the test rows.
    """
    test_rows = reference.calibration[:0] if sample is None else sample
    return reference.applied(reference.learn(test_rows, with_calibration=with_calibration, share=share), rows=rows)


def decide_rows(
    rows: ScoredRows,
    fit: Fit | None,
    scores_in: Floats,
    rate: Rate,
    *,
    is_ordered: bool = False,
    notes: tuple[str, ...] = (),
) -> tuple[Decision, Ranks]:
    """Step 4: return the decision on the rows, and the ranks of their scores among the reference scores.

    `scores_in` (m,) are the scores of the reference rows by the same fit. Set `is_ordered` if they are ascending.
    """
    ranks = Ranks(scores_in, trued_scores(rows, fit), is_ordered, fit.size if isinstance(fit, ContrastFit) else 0.0)
    return decide_at(rate, ranks, notes), ranks


def trued_scores(rows: ScoredRows, fit: Fit | None) -> Floats:
    """Return the score (n,) of every row by a fit, or its base score without a fit."""
    if fit is None:
        return rows.scores
    return fit.predict(rows.features) if isinstance(fit, LinearFit) else fit.predict_scored(rows)


def added(one: Any, other: Any) -> Any:
    """Return the sum of two values. If one of them is None, return the other."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
