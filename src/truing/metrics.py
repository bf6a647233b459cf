"""Metrics of how well scores separate in- from out-of-distribution rows.

Every function takes (scores_in, scores_out), so there are no labels to mix up. All values are shares in [0, 1] and
exact under ties. Metrics are computed from sums of integers over ranges of ascending scores. Scores in memory and
scores in many files therefore give bitwise equal metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import Floats, as_choice, as_share, as_vector, check_same_rows
from ._display.html import properties
from ._display.json import as_json
from ._display.plots import figure_of_report
from ._threads import map_blocks
from .decisions.ranks import Counts
from .decisions.thresholds import is_out, rows_for, threshold_at

if TYPE_CHECKING:
    from ._display.plots import Figure

T = TypeVar("T")

Candidate = tuple[float, float]
"""The distance of a recall from the wanted recall, and the false-positive rate at this recall."""

# From this many scores on, sorting in a second thread is faster.
_MANY_SCORES = 2**15

# Number of scores of each set in a range.
_SCORES_OF_RANGE = 2**15

# Precisions are added as integers, in units of this power of two.
_PRECISION_BITS = 60


def auroc(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Return the probability that a random in row outscores a random out row; a tie counts as one half.

    >>> auroc([2.0, 3.0], [1.0, 2.0])
    0.875
    """
    return evaluate(scores_in, scores_out).auroc


def aupr(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Return the average precision with in-distribution rows as positives.

    >>> aupr([3.0, 1.0], [2.0])
    0.8333333333333333
    """
    return evaluate(scores_in, scores_out).aupr


def aupr_out(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Return the average precision with out-of-distribution rows as positives.

    >>> aupr_out([3.0, 1.0], [2.0])
    0.5
    """
    return evaluate(scores_in, scores_out).aupr_out


def fpr_at_tpr(
    scores_in: ArrayLike, scores_out: ArrayLike, *, tpr: float = 0.95, convention: str = "at-least"
) -> float:
    """Return the false-positive rate at a true-positive rate of `tpr`, under a named convention.

    - `at-least`: in-distribution rows are positive. The threshold is the largest one with a recall of at least `tpr`.
    - `paper`: in-distribution rows are positive. The threshold has the recall nearest to `tpr`; if two recalls are
      equally near, the higher recall. Among thresholds of equal recall, the lowest threshold is used, as in the
      reference code of many papers on this subject.
    - `ood-positive`: out-of-distribution rows are positive. The result is the share of in-distribution rows rejected
      when at least `tpr` of the out-of-distribution rows are rejected. This share differs from the results of the other
      two conventions by several percentage points.

    >>> fpr_at_tpr([4.0, 3.0, 2.0, 1.0], [2.5, 0.0], tpr=0.75)
    0.5
    """
    rule, share = as_choice(convention, "convention", CONVENTIONS), as_share(tpr, "tpr")
    scores = _Sorted.of(scores_in, scores_out)
    return _best(scores.map_counts(lambda counts: rule(counts, scores.rows, share)))


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

    # The sorted scores, set by `evaluate` and used by `plot`. Equality and JSON ignore them.
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
            lines.append(f"refused    {right} of the correctly and {wrong} of the wrongly classified in rows")
        return "\n".join(lines)

    def json(self) -> str:
        """Return the report as one JSON object, with NaN as null."""
        return as_json(asdict(self))

    def plot(self) -> Figure:
        """Return a figure with score densities, the threshold that accepts 95 % of the in rows, and the ROC curve."""
        if self._scores is None:
            raise ValueError("plot() needs the scores in memory: create the report with truing.evaluate")
        inside, outside = self._scores.inside, self._scores.outside
        return figure_of_report(inside, outside, threshold_at(inside, accept=0.95), self.auroc)

    def _repr_html_(self) -> str:
        rows = {"rows": f"{self.rows_in:,} in, {self.rows_out:,} out", "convention": self.convention}
        shares = {"AUROC": self.auroc, "AUPR": self.aupr, "AUPR, out positive": self.aupr_out, "FPR95": self.fpr95}
        refusals = {"refused, correctly classified": self.refused_right, "refused, wrongly": self.refused_wrong}
        shares |= {name: share for name, share in refusals.items() if share is not None}
        return properties("Report", {name: f"{share:.2%}" for name, share in shares.items()} | rows)


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
    scores_in, scores_out
        Scores of the in- and of the out-of-distribution rows (n,) and (m,).
    convention
        The meaning of FPR95; see `fpr_at_tpr`.
    correct
        Whether the network classifies each in-distribution row correctly (n,); see `Outputs.correct`.
    """
    as_choice(convention, "convention", CONVENTIONS)
    scores = _Sorted.of(scores_in, scores_out)
    right = wrong = None
    if correct is not None:
        right, wrong = _refusals(as_vector(scores_in, "scores_in"), np.asarray(correct))
    sums = scores.map_counts(lambda counts: Sums.of(counts, scores.rows, convention))
    report = report_of(sums, scores.rows, convention, refused_right=right, refused_wrong=wrong)
    object.__setattr__(report, "_scores", scores)
    return report


@dataclass(frozen=True)
class RowCounts:
    """The numbers of in-distribution rows (`inside`) and out-of-distribution rows (`outside`)."""

    inside: int
    outside: int


@dataclass(frozen=True, eq=False)
class ScoreCounts:
    """The number of rows of each set that score at or below each of k ascending, distinct scores.

    The first entry of `up_to_in` and `up_to_out` (k + 1,) counts the rows below all of these scores.
    """

    scores: Floats
    up_to_in: Counts
    up_to_out: Counts

    @classmethod
    def of(cls, inside: Floats, outside: Floats, below: RowCounts) -> ScoreCounts:
        """Count the ascending scores of both sets in a range. `below` is the number of rows below the range."""
        both = np.concatenate((inside, outside))
        order = np.argsort(both, kind="stable")  # Merges the two ascending sets in linear time.
        both = both[order]
        ends = np.append(np.flatnonzero(both[1:] != both[:-1]), len(both) - 1)
        up_to_in = np.append(0, np.cumsum(order < len(inside))[ends])
        up_to_out = np.append(0, ends + 1) - up_to_in
        return cls(both[ends], up_to_in + below.inside, up_to_out + below.outside)

    @property
    def up_to_last(self) -> RowCounts:
        """The number of rows of each set up to the last score."""
        return RowCounts(int(self.up_to_in[-1]), int(self.up_to_out[-1]))

    def part(self, start: int, stop: int) -> ScoreCounts:
        """Return the counts for the scores from index `start` up to `stop`."""
        return ScoreCounts(self.scores[start:stop], self.up_to_in[start : stop + 1], self.up_to_out[start : stop + 1])

    def joined(self, more: ScoreCounts) -> ScoreCounts:
        """Return the counts over this range and the next range, `more`. The ranges may share one score."""
        last = len(self.scores) - int(self.scores[-1] == more.scores[0])
        return ScoreCounts(
            np.concatenate((self.scores[:last], more.scores)),
            np.concatenate((self.up_to_in[: last + 1], more.up_to_in[1:])),
            np.concatenate((self.up_to_out[: last + 1], more.up_to_out[1:])),
        )


@dataclass(frozen=True)
class Sums:
    """The contribution of a range of scores to the metrics.

    `won` is twice the number of pairs in which the in row wins, where a tie counts as half a pair. `precision_in` and
    `precision_out` are sums of precisions over rows, in units of 2 ** -_PRECISION_BITS. `fpr95` is the best candidate
    for the false-positive rate in this range, or None if there is none.
    """

    won: int
    precision_in: int
    precision_out: int
    fpr95: Candidate | None

    @classmethod
    def of(cls, counts: ScoreCounts, rows: RowCounts, convention: str) -> Sums:
        """Return the sums over the rows of one range, given the number of all rows."""
        below_in, below_out = counts.up_to_in[:-1], counts.up_to_out[:-1]
        up_to_in, up_to_out = counts.up_to_in[1:], counts.up_to_out[1:]
        here_in, here_out = up_to_in - below_in, up_to_out - below_out
        accepted_in, accepted_out = rows.inside - below_in, rows.outside - below_out
        return cls(
            won=_exact_dot(here_in, below_out + up_to_out),
            precision_in=_exact_dot(here_in, _fixed_point(accepted_in / (accepted_in + accepted_out))),
            precision_out=_exact_dot(here_out, _fixed_point(up_to_out / (up_to_in + up_to_out))),
            fpr95=CONVENTIONS[convention](counts, rows, 0.95),
        )


def report_of(
    sums: Iterable[Sums],
    rows: RowCounts,
    convention: str,
    *,
    refused_right: float | None = None,
    refused_wrong: float | None = None,
) -> Report:
    """Return the report of two sets of scores from the sums over all ranges, in ascending order."""
    added = list(sums)
    return Report(
        auroc=sum(some.won for some in added) / (2 * rows.inside * rows.outside),
        aupr=sum(some.precision_in for some in added) / (rows.inside << _PRECISION_BITS),
        aupr_out=sum(some.precision_out for some in added) / (rows.outside << _PRECISION_BITS),
        fpr95=_best(some.fpr95 for some in added),
        convention=convention,
        rows_in=rows.inside,
        rows_out=rows.outside,
        refused_right=refused_right,
        refused_wrong=refused_wrong,
    )


@dataclass(frozen=True, eq=False)
class _Sorted:
    """Both sets of scores in memory, in ascending order."""

    inside: Floats
    outside: Floats

    @classmethod
    def of(cls, scores_in: ArrayLike, scores_out: ArrayLike) -> _Sorted:
        both = as_vector(scores_in, "scores_in"), as_vector(scores_out, "scores_out")
        inside, outside = map_blocks(np.sort, both, fewest=2 if min(map(len, both)) >= _MANY_SCORES else 3)
        return cls(inside, outside)

    @property
    def rows(self) -> RowCounts:
        return RowCounts(len(self.inside), len(self.outside))

    def map_counts(self, work: Callable[[ScoreCounts], T]) -> list[T]:
        """Return the result of `work` for the counts of each range, in ascending order. No range splits a tie."""
        lowest, step = min(self.inside[0], self.outside[0]), _SCORES_OF_RANGE
        starts = np.unique(np.concatenate(([lowest], self.inside[step::step], self.outside[step::step])))
        cuts_in = [*np.searchsorted(self.inside, starts).tolist(), len(self.inside)]
        cuts_out = [*np.searchsorted(self.outside, starts).tolist(), len(self.outside)]

        def count_and_work(number: int) -> T:
            inside = self.inside[cuts_in[number] : cuts_in[number + 1]]
            outside = self.outside[cuts_out[number] : cuts_out[number + 1]]
            return work(ScoreCounts.of(inside, outside, RowCounts(cuts_in[number], cuts_out[number])))

        return map_blocks(count_and_work, range(len(starts)), uses_blas=False)


def _fixed_point(shares: Floats) -> NDArray[np.int64]:
    """Return shares in [0, 1] as integers in units of 2 ** -_PRECISION_BITS."""
    return np.ldexp(shares, _PRECISION_BITS).astype(np.int64)


def _exact_dot(counts: Counts, numbers: NDArray[np.int64]) -> int:
    """Return the dot product of counts and integers of at most 2**60, without overflow below 2**33 rows."""
    half = _PRECISION_BITS // 2
    return (int(counts @ (numbers >> half)) << half) + int(counts @ (numbers & ((1 << half) - 1)))


def _fpr_at_least(counts: ScoreCounts, rows: RowCounts, tpr: float) -> Candidate | None:
    place = rows.inside - rows_for(tpr, rows.inside)  # The rank of the threshold among the in-distribution scores.
    if not counts.up_to_in[0] <= place < counts.up_to_in[-1]:
        return None
    below = np.searchsorted(counts.up_to_in, place, "right") - 1
    return 0.0, float((rows.outside - counts.up_to_out[below]) / rows.outside)


def _fpr_nearest(counts: ScoreCounts, rows: RowCounts, tpr: float) -> Candidate | None:
    # The thresholds are the lowest in-distribution score and all higher scores. Recall falls as the threshold rises.
    first = np.searchsorted(counts.up_to_in[1:], 0, "right")
    below_in, below_out = counts.up_to_in[first:-1], counts.up_to_out[first:-1]
    if not len(below_in):
        return None
    distances = np.round(np.abs(1 - below_in / rows.inside - tpr), 12)
    nearest = np.argmin(distances)
    return float(distances[nearest]), float((rows.outside - below_out[nearest]) / rows.outside)


def _fpr_out_positive(counts: ScoreCounts, rows: RowCounts, tpr: float) -> Candidate | None:
    place = rows_for(tpr, rows.outside) - 1  # The rank of the highest rejected score among the out scores.
    if not counts.up_to_out[0] <= place < counts.up_to_out[-1]:
        return None
    return 0.0, float(counts.up_to_in[np.searchsorted(counts.up_to_out, place, "right")] / rows.inside)


def _best(candidates: Iterable[Candidate | None]) -> float:
    """Return the false-positive rate with the smallest distance; in a tie, the rate of the lowest threshold."""
    return min((some for some in candidates if some is not None), key=lambda some: some[0])[1]


CONVENTIONS: dict[str, Callable[[ScoreCounts, RowCounts, float], Candidate | None]] = {
    "at-least": _fpr_at_least,
    "paper": _fpr_nearest,
    "ood-positive": _fpr_out_positive,
}


def _refusals(scores_in: Floats, correct: NDArray[np.bool_]) -> tuple[float | None, float | None]:
    if correct.dtype != np.bool_ or correct.ndim != 1:
        raise TypeError(f"correct must be a 1-D array of booleans, got {correct.ndim}-D {correct.dtype}")
    check_same_rows(scores_in=scores_in, correct=correct)
    refused = is_out(scores_in, threshold_at(scores_in, accept=0.95))
    shares = [float(refused[rows].mean()) if rows.any() else None for rows in (correct, ~correct)]
    return shares[0], shares[1]
