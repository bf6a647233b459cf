"""Decisions from scores: thresholds, p-values and bounds on the share of out rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import Bools, Floats, as_count, as_number, as_share, as_vector
from .._warnings import Alert
from .ranks import Ranks

# A note is given if the expected share of rejected in-distribution rows exceeds the requested share by this factor.
_TOLERATED_EXCESS = 1.25

# `Rate.fewest_rows` raises smaller error rates to this level.
_LOWEST_LEVEL = 1e-9

# Bounds on the rounding error of a score, relative to the magnitude of the reference scores. The float32 bound covers
# the error of an exported network near the threshold: over five networks, the largest measured errors are 4 eps for DLR
# and RLR, 5 eps for contrast with gen and energy, and 9 eps for contrast with msp. The float64 bound covers the
# difference between scores of equal rows that were computed in different orders.
_FLOAT32_ERROR = 12 * float(np.finfo(np.float32).eps)
_FLOAT64_ERROR = 256 * float(np.finfo(np.float64).eps)


def threshold_at(scores_in: ArrayLike, *, accept: float = 0.95) -> float:
    """Return the largest threshold that accepts at least the share `accept` of the in-distribution rows.

    >>> threshold_at([1.0, 2.0, 3.0, 4.0], accept=0.75)
    2.0
    """
    scores = as_vector(scores_in, "scores_in")
    return float(np.sort(scores)[len(scores) - rows_for(as_share(accept, "accept"), len(scores))])


def is_out(scores: ArrayLike, threshold: float) -> Bools:
    """Return which rows are out (n,). Rows with `score >= threshold` are accepted (Eq. 1).

    >>> is_out([1.0, 2.0], threshold=2.0)
    array([ True, False])
    """
    out: Bools = as_vector(scores, "scores") < as_number(threshold, "threshold")
    return out


def p_values(scores_in: ArrayLike, scores: ArrayLike) -> Floats:
    r"""Return the conformal p-value of each row (n,), $(1 + \#\{\mathrm{in} \le s\}) / (m + 1)$.

    For an in-distribution row, the probability of a p-value of at most $\alpha$ is at most $\alpha$. This requires
    that the score treats the row and the m reference rows symmetrically.

    >>> p_values([1.0, 2.0, 3.0], [0.0, 2.5])
    array([0.25, 0.75])
    """
    return Ranks(as_vector(scores_in, "scores_in"), as_vector(scores, "scores")).p_values()


def benjamini_hochberg(p: ArrayLike, *, fdr: float = 0.05) -> Bools:
    """Return which rows to refuse (n,) so that the false discovery rate is at most `fdr`.

    Benjamini & Hochberg (1995): refuse all rows up to the largest p-value that is at most `fdr` times its rank divided
    by n.

    >>> benjamini_hochberg([0.01, 0.9, 0.02], fdr=0.05)
    array([ True, False,  True])
    """
    values = as_vector(p, "p")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"p must lie in [0, 1], got {values.min():g} to {values.max():g}")
    ordered = np.sort(values)
    refused: Bools = values <= largest_refused(ordered, np.arange(1, len(values) + 1), as_share(fdr, "fdr"))
    return refused


def largest_refused(p: Floats, up_to: NDArray[np.integer[Any]], fdr: float) -> float:
    """Return the largest of the ascending p-values that Benjamini–Hochberg refuses, or -1 if it refuses none.

    `up_to` counts the rows whose p-value is at most each entry of `p`. Among tied entries, only the last must be exact.
    """
    # p-values are multiples of 1 / (m + 1), so exact equality is common. Tolerate rounding errors.
    passing = p[p * up_to[-1] <= fdr * up_to * (1 + 1e-12)]
    return float(passing[-1]) if len(passing) else -1.0


def out_share_at_least(
    p: ArrayLike, *, rows_in: int, confidence: float = 0.95, levels: Sequence[float] = (0.05,)
) -> float:
    r"""Return a lower bound on the share of out rows that holds with at least the given confidence.

    Let the p-values be computed with $m$ = `rows_in` reference rows. At least $r$ of $N$ in-distribution rows have a
    p-value of at most $j / (m + 1)$ if at most $j - 1$ of the lowest $r + j - 1$ of all $N + m$ scores belong to
    reference rows. This is a hypergeometric probability. Given the number of p-values up to a level, the bound is the
    smallest number of out rows for which the probability exceeds 1 - `confidence`. For several levels, the result is
    the largest bound, with a Bonferroni correction. High levels detect rows that are only slightly out.

    In-distribution rows must be exchangeable with the reference rows and scored by the same rule. Different class
    frequencies violate this, mostly at high levels.

    >>> out_share_at_least([0.01] * 50 + [k / 50 for k in range(1, 51)], rows_in=99)
    0.46
    """
    values = as_vector(p, "p")
    m = as_count(rows_in, "rows_in")
    if not levels:
        raise ValueError("levels must have at least one level, got none")
    # Round p-values up to multiples of 1 / (m + 1), with a tolerance for rounding errors.
    places = np.clip(np.ceil(values * (m + 1) * (1 - 1e-12)), 1, m + 1).astype(np.intp)
    return out_share_of_counts(np.bincount(places - 1, minlength=m + 1), confidence=confidence, levels=levels)


def out_share_of_counts(
    counts: NDArray[np.integer[Any]], *, confidence: float = 0.95, levels: Sequence[float] = (0.05,)
) -> float:
    """Return `out_share_at_least` from the number of rows with each of the m + 1 p-values."""
    m, up_to = len(counts) - 1, np.cumsum(counts)
    miss = (1 - as_share(confidence, "confidence")) / len(levels)
    bounds = [_out_rows_at_least(up_to, m, miss, as_share(level, "levels")) for level in levels]
    return max(bounds) / int(up_to[-1])


def out_share_at_most(counts: NDArray[np.integer[Any]], levels: Sequence[float]) -> float:
    """Return an upper bound on `out_share_of_counts`: the share of p-values up to the highest level."""
    up_to = np.cumsum(counts)
    return int(up_to[_p_values_at(max(levels), len(counts) - 1) - 1]) / int(up_to[-1])


def _p_values_at(level: float, m: int) -> int:
    """Return how many of the m + 1 possible p-values are at most `level`, but at least 1."""
    return max(1, math.floor(level * (m + 1) + 1e-9))


def _out_rows_at_least(up_to: NDArray[np.integer[Any]], m: int, miss: float, level: float) -> int:
    """Return a lower bound on the number of out rows that fails with probability at most `miss`."""
    j = _p_values_at(level, m)
    low, rows = int(up_to[j - 1]), int(up_to[-1])
    chance_of = _chance_by_out_rows(low, rows, m, j)
    least, most = 0, low
    while least < most:  # Bisection: the probability rises with the number of out rows.
        middle = (least + most) // 2
        if chance_of(middle) > miss:
            most = middle
        else:
            least = middle + 1
    return least


def _chance_by_out_rows(low: int, rows: int, m: int, j: int) -> Callable[[int], float]:
    """Return a function that maps a number of out rows to the probability that `low` or more rows are low.

    A row is low if it scores below the j-th lowest of m reference rows. All out rows count as low. Of the
    N = rows - out in-distribution rows, at least r = low - out are low if at most j - 1 of the lowest r + j - 1 of all
    scores belong to reference rows. Most binomial coefficients of this probability do not depend on `out` and are
    computed once.
    """
    from scipy.special import gammaln

    fewest = max(0, low + j - 1 - rows)
    lowest = np.arange(fewest, min(j - 1, m) + 1)
    of_reference = gammaln(m + 1) - gammaln(lowest + 1) - gammaln(m - lowest + 1)
    of_rest = gammaln(rows - low - j + 1 + lowest + 1)

    def chance_of(out: int) -> float:
        lowest_of_all, others = low - out + j - 1, rows - out
        if low <= out:
            return 1.0
        of_others = gammaln(others + 1) - gammaln(lowest_of_all - lowest + 1) - of_rest
        of_both = gammaln(m + others + 1) - gammaln(lowest_of_all + 1) - gammaln(m + others - lowest_of_all + 1)
        return float(np.exp(of_reference + of_others - of_both).sum())

    return chance_of


@dataclass(frozen=True, eq=False)
class Rate:
    """The error rate of a decision. `name` is accept, false_alarm or fdr."""

    name: str
    value: float

    @classmethod
    def of(cls, accept: float | None = None, false_alarm: float | None = None, fdr: float | None = None) -> Rate:
        """Return the rate from exactly one of the three arguments."""
        values = {"accept": accept, "false_alarm": false_alarm, "fdr": fdr}
        rates = [cls(name, as_share(value, name)) for name, value in values.items() if value is not None]
        if len(rates) != 1:
            received = " and ".join(rate.name for rate in rates) or "none of them"
            raise ValueError(f"exactly one error rate must be given (accept, false_alarm or fdr), got {received}")
        return rates[0]

    def fewest_rows(self) -> int:
        """Return the smallest number of reference rows with which a row can be rejected at this rate.

        For `accept`, one row would suffice but would reject far too many rows, so the number for p-values is returned.
        """
        level = 1 - self.value if self.name == "accept" else self.value
        return 1 if level <= 0 else math.ceil(1 / max(level, _LOWEST_LEVEL) - 1e-9) - 1

    def notes(self, rows_in: int) -> list[str]:
        """Return a note if this number of reference rows is too small for the requested rate."""
        smallest = 1 / (rows_in + 1)
        if self.name == "accept":
            refused = 1 - rows_for(self.value, rows_in) / (rows_in + 1)
            if refused <= _TOLERATED_EXCESS * (1 - self.value) or self.value == 1.0:
                return []
            return [
                f"only {rows_in:,} reference rows: on average, {refused:.1%} of the in-distribution rows are refused "
                f"instead of {1 - self.value:.1%}"
            ]
        if smallest <= self.value:
            return []
        least = f"{rows_in:,} reference rows give p-values of at least {smallest:.2g}"
        return [Alert(f"no row can be refused at this rate: {least}")]


@dataclass(frozen=True, eq=False)
class Decision:
    """Scores, conformal p-values and decisions, one per row (n,), and the error rate of the decisions.

    Rows with `score >= threshold` are accepted. The threshold lies between two reference scores, so no row ties with it
    (`threshold_between`). It is None for `fdr`, where decisions depend on the other rows. `notes` are warnings to read
    before trusting the decisions.
    """

    scores: Floats
    p_values: Floats
    is_out: Bools
    threshold: float | None
    rate: Rate
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        refused = f"{int(self.is_out.sum()):,} of {len(self.is_out):,} rows out"
        return f"Decision({refused} at {self.rate.name} {self.rate.value:g}{''.join('; ' + n for n in self.notes)})"


def decide_at(rate: Rate, ranks: Ranks, more_notes: tuple[str, ...] = ()) -> Decision:
    """Return decisions at an error rate from the ranks of scores among reference scores.

    A score between the threshold and the lowest accepted reference score counts as tied with that reference score: the
    row is accepted and gets the p-value of a tie, which is larger and therefore still valid. `more_notes` are added to
    the notes on the rate.
    """
    scores = ranks.scores
    p, scores_in = ranks.p_values(), ranks.ordered
    notes = (*rate.notes(len(scores_in)), *more_notes)
    if rate.name == "fdr":
        return Decision(scores, p, benjamini_hochberg(p, fdr=rate.value), None, rate, notes)
    refused = _refused_in(rate, len(scores_in))
    if not 0 <= refused < len(scores_in):
        threshold = math.copysign(math.inf, refused)
        return Decision(scores, p, scores < threshold, threshold, rate, notes)
    threshold = threshold_between(scores_in, refused, ranks.size)
    is_out: Bools = scores < threshold
    tied = (scores < scores_in[refused]) & ~is_out
    p[tied] = (1 + np.searchsorted(scores_in, scores_in[refused], "right")) / (len(scores_in) + 1)
    return Decision(scores, p, is_out, threshold, rate, notes)


def threshold_between(ordered: Floats, refused: int, size: float = 0.0) -> float:
    """Return a threshold that accepts all ascending scores except the first `refused`, and that ties with no score.

    The threshold lies below the lowest accepted score by the float32 error bound, so rows that tie with this score are
    accepted even if another device computes their scores. If the next lower score is too near, the threshold is the
    midpoint of the two. Scores that differ by float64 rounding count as equal. The threshold is a float32 number if
    there is one between the two scores, so an exported network compares with the same number. See `Ranks` for `size`.

    >>> threshold_between(np.array([1.0, 2.0, 2.0, 4.0]), refused=1)
    1.9999942779541016
    """
    accepted = float(ordered[refused])
    tail = len(ordered) // 20
    # Ignore the lowest and the highest 5 %, unless all other scores are zero.
    size = max(size, abs(accepted), float(np.abs(ordered[[tail, -1 - tail]]).max()))
    size = size or float(np.abs(ordered[[0, -1]]).max())
    margin = max(_FLOAT32_ERROR * size, float(np.finfo(np.float32).tiny))
    lower_scores = int(np.searchsorted(ordered, accepted - _FLOAT64_ERROR * size))
    lower = float(ordered[lower_scores - 1]) if lower_scores else -math.inf
    threshold = accepted - min(margin, (accepted - lower) / 2)
    with np.errstate(over="ignore"):
        rounded = float(np.float32(threshold))
    return rounded if lower < rounded < accepted else threshold


def _refused_in(rate: Rate, rows_in: int) -> int:
    """Return how many reference rows a rate (accept or false_alarm) refuses.

    The result is -1 if no row can ever be refused, and m if every row is refused.
    """
    if rate.name == "accept":
        return rows_in - rows_for(rate.value, rows_in)
    # p <= α if at most this many reference scores are at or below the score.
    return _p_values_up_to(rate.value, rows_in) - 1


def _p_values_up_to(level: float, rows_in: int) -> int:
    """Return how many of the possible p-values 1 / (m + 1), …, 1 are at most `level`."""
    nearest = round(level * (rows_in + 1))
    return nearest if nearest / (rows_in + 1) <= level else nearest - 1


def rows_for(share: float, rows: int) -> int:
    """Return the smallest number of rows that is at least `share` of `rows`, up to rounding errors."""
    return max(1, math.ceil(share * rows - 1e-9))
