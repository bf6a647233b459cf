"""Metrics of how well scores separate in- from out-of-distribution rows.

Every function takes (scores_in, scores_out), so there are no labels to mix up. All values are shares in [0, 1] and
exact under ties.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import fsum
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import Floats, as_choice, as_share, as_vector, check_same_rows
from ._display.html import facts
from ._display.json import as_json
from ._display.plots import figure_of_report
from ._threads import map_blocks
from .decisions.ranks import Counts, blocks_of_ascending, ranks_of_ascending
from .decisions.thresholds import is_out, rows_for, threshold_at

if TYPE_CHECKING:
    from ._display.plots import Figure

# From this many scores on, sorting in a second thread is faster.
_MANY_SCORES = 2**15


def auroc(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Return the probability that a random in row outscores a random out row; a tie counts as one half.

    >>> auroc([2.0, 3.0], [1.0, 2.0])
    0.875
    """
    return _auroc_and_aupr(_Sorted.of(scores_in, scores_out))[0]


def aupr(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Return the average precision with in-distribution rows as positives.

    >>> aupr([3.0, 1.0], [2.0])
    0.8333333333333333
    """
    return _auroc_and_aupr(_Sorted.of(scores_in, scores_out))[1]


def aupr_out(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Return the average precision with out-of-distribution rows as positives.

    >>> aupr_out([3.0, 1.0], [2.0])
    0.5
    """
    return _auroc_and_aupr(_Sorted.of(scores_in, scores_out).seen_from_out())[1]


def fpr_at_tpr(
    scores_in: ArrayLike, scores_out: ArrayLike, *, tpr: float = 0.95, convention: str = "at-least"
) -> float:
    """Return the false-positive rate at a true-positive rate of `tpr`, under a named convention.

    `at-least`: in-distribution rows are positive; the threshold is the largest one with a recall of at least `tpr`.
    `paper`: in-distribution rows are positive; the recall is the one nearest to `tpr`, and the higher one in a tie.
    Among thresholds of equal recall the lowest is used, as in the code that papers on this subject share.
    `ood-positive`: out-of-distribution rows are positive; the result is the share of in-distribution rows rejected
    when at least `tpr` of the out-of-distribution rows are rejected. It differs from the other two by several points.

    >>> fpr_at_tpr([4.0, 3.0, 2.0, 1.0], [2.5, 0.0], tpr=0.75)
    0.5
    """
    rule = as_choice(convention, "convention", CONVENTIONS)
    return rule(_Sorted.of(scores_in, scores_out), as_share(tpr, "tpr"))


@dataclass(frozen=True)
class Report:
    """The metrics that `evaluate` returns, as shares in [0, 1]. `str` and `json` render the report.

    `refused_right` and `refused_wrong` are the rejected shares of the correctly and of the wrongly classified
    in-distribution rows, at the threshold that accepts 95 % of the in-distribution rows.
    """

    auroc: float
    aupr: float
    aupr_out: float
    fpr95: float
    convention: str
    rows_in: int
    rows_out: int
    refused_right: float | None = None
    refused_wrong: float | None = None

    # The scores, set by `evaluate` for `plot`. Equality and JSON ignore them.
    _scores: ClassVar[_Sorted | None] = None

    def __str__(self) -> str:
        lines = [
            f"AUROC      {self.auroc:7.2%}",
            f"AUPR       {self.aupr:7.2%}   (out-of-distribution positive: {self.aupr_out:.2%})",
            f"FPR95      {self.fpr95:7.2%}   (convention: {self.convention})",
            f"rows       {self.rows_in} in, {self.rows_out} out",
        ]
        if self.refused_right is not None or self.refused_wrong is not None:
            right, wrong = (
                "none" if share is None else f"{share:.2%}" for share in (self.refused_right, self.refused_wrong)
            )
            lines.append(f"refused    {right} of the rightly and {wrong} of the wrongly classified in rows")
        return "\n".join(lines)

    def json(self) -> str:
        """Return the report as one JSON object, with NaN as null."""
        return as_json(asdict(self))

    def plot(self) -> Figure:
        """Return a figure with score densities, the threshold that accepts 95 % of the in rows, and the ROC curve."""
        if self._scores is None:
            raise ValueError("a report must be made by evaluate for its figure, which shows the scores")
        inside, outside = self._scores.inside, self._scores.outside
        return figure_of_report(inside, outside, threshold_at(inside, accept=0.95), self.auroc)

    def _repr_html_(self) -> str:
        rows = {"rows": f"{self.rows_in:,} in, {self.rows_out:,} out", "convention": self.convention}
        shares = {"AUROC": self.auroc, "AUPR": self.aupr, "AUPR, out positive": self.aupr_out, "FPR95": self.fpr95}
        refusals = {"refused, rightly classified": self.refused_right, "refused, wrongly": self.refused_wrong}
        shares |= {name: share for name, share in refusals.items() if share is not None}
        return facts("Report", {name: f"{share:.2%}" for name, share in shares.items()} | rows)


def evaluate(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    *,
    convention: str = "at-least",
    correct: ArrayLike | None = None,
) -> Report:
    """Return all metrics of two sets of scores.

    Parameters
    ----------
    correct
        Whether the network classifies each in-distribution row correctly (n,); see `Outputs.correct`.
    """
    rule = as_choice(convention, "convention", CONVENTIONS)
    scores = _Sorted.of(scores_in, scores_out)
    right = wrong = None
    if correct is not None:
        right, wrong = _refusals(as_vector(scores_in, "scores_in"), np.asarray(correct))
    area, precision = _auroc_and_aupr(scores)
    report = Report(
        auroc=area,
        aupr=precision,
        aupr_out=_auroc_and_aupr(scores.seen_from_out())[1],
        fpr95=rule(scores, 0.95),
        convention=convention,
        rows_in=len(scores.inside),
        rows_out=len(scores.outside),
        refused_right=right,
        refused_wrong=wrong,
    )
    object.__setattr__(report, "_scores", scores)
    return report


@dataclass(frozen=True, eq=False)
class _Sorted:
    """Both sets of scores in ascending order, so that counts are positions found by binary search."""

    inside: Floats
    outside: Floats

    @classmethod
    def of(cls, scores_in: ArrayLike, scores_out: ArrayLike) -> _Sorted:
        both = as_vector(scores_in, "scores_in"), as_vector(scores_out, "scores_out")
        inside, outside = map_blocks(np.sort, both, fewest=2 if min(map(len, both)) >= _MANY_SCORES else 3)
        return cls(inside, outside)

    def seen_from_out(self) -> _Sorted:
        """Return the scores negated and the two sets swapped."""
        return _Sorted(-self.outside[::-1], -self.inside[::-1])

    def accepted_out(self, thresholds: ArrayLike) -> Any:
        """Return how many out-of-distribution rows each threshold accepts."""
        return len(self.outside) - np.searchsorted(self.outside, thresholds)

    def firsts(self, rows: slice) -> Counts:
        """Return, for each in-distribution row of the slice, the position of the first row with the same score."""
        inside, places = self.inside[rows], np.arange(rows.start, rows.stop)
        places[1:][inside[1:] == inside[:-1]] = 0
        return np.maximum.accumulate(places)


def _auroc_and_aupr(scores: _Sorted) -> tuple[float, float]:
    """Return AUROC and AUPR from one pass over the in-distribution rows."""
    rows_in, rows_out = len(scores.inside), len(scores.outside)

    def sums(rows: slice) -> tuple[int, float]:
        below, up_to = ranks_of_ascending(scores.outside, scores.inside[rows])
        # Twice the number of pairs won, as an integer: a win counts 2, a tie 1.
        won = int(below.sum()) + int(up_to.sum())
        # The precision with each row's score as threshold.
        accepted_in = rows_in - scores.firsts(rows)
        precision = accepted_in / (accepted_in + (rows_out - below))
        return won, float(precision.sum())

    won, precision = zip(*map_blocks(sums, blocks_of_ascending(scores.inside), uses_blas=False), strict=True)
    return sum(won) / (2 * rows_in * rows_out), fsum(precision) / rows_in


def _fpr_at_least(scores: _Sorted, tpr: float) -> float:
    rows = len(scores.inside)
    return float(scores.accepted_out(scores.inside[rows - rows_for(tpr, rows)]) / len(scores.outside))


def _fpr_nearest(scores: _Sorted, tpr: float) -> float:
    rows = len(scores.inside)
    firsts = scores.firsts(slice(0, rows))
    refused = np.unique(firsts)  # In-distribution rows below each threshold, from full recall downwards.
    if scores.outside[-1] > scores.inside[-1]:
        refused = np.append(refused, rows)
    nearest = refused[np.argmin(np.round(np.abs(1 - refused / rows - tpr), 12))]
    if nearest == 0:
        return float(scores.accepted_out(scores.inside[0]) / len(scores.outside))
    # The lowest threshold of this recall lies just above the next lower in-distribution score.
    return float(np.mean(scores.outside > scores.inside[nearest - 1]))


def _fpr_out_positive(scores: _Sorted, tpr: float) -> float:
    return _fpr_at_least(scores.seen_from_out(), tpr)


CONVENTIONS: dict[str, Callable[[_Sorted, float], float]] = {
    "at-least": _fpr_at_least,
    "paper": _fpr_nearest,
    "ood-positive": _fpr_out_positive,
}


def _refusals(scores_in: Floats, correct: NDArray[np.bool_]) -> tuple[float | None, float | None]:
    if correct.dtype != np.bool_ or correct.ndim != 1:
        raise TypeError(f"correct must be 1-D true or false, got {correct.ndim}-D {correct.dtype}")
    check_same_rows(scores_in=scores_in, correct=correct)
    refused = is_out(scores_in, threshold_at(scores_in, accept=0.95))
    shares = [float(refused[rows].mean()) if rows.any() else None for rows in (correct, ~correct)]
    return shares[0], shares[1]
