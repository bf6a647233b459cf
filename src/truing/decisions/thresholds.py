"""From scores to in or out: a threshold, or p-values against known in-distribution rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import Bools, Floats, as_count, as_number, as_share, as_vector
from .ranks import Ranks

# A share of in-distribution rows refused, over the one asked for, from which a note says so.
_MORE_THAN_ASKED = 1.25

# Levels below this count as this.
_LOWEST_LEVEL = 1e-9


def threshold_at(scores_in: ArrayLike, *, accept: float = 0.95) -> float:
    """Return the largest threshold that accepts at least `accept` of the rows.

    >>> threshold_at([1.0, 2.0, 3.0, 4.0], accept=0.75)
    2.0
    """
    scores = as_vector(scores_in, "scores_in")
    return float(np.sort(scores)[len(scores) - rows_for(as_share(accept, "accept"), len(scores))])


def is_out(scores: ArrayLike, threshold: float) -> Bools:
    """Return which rows fall below the threshold (n,): `score >= threshold` accepts (Eq. 1).

    >>> is_out([1.0, 2.0], threshold=2.0)
    array([ True, False])
    """
    out: Bools = as_vector(scores, "scores") < as_number(threshold, "threshold")
    return out


def p_values(scores_in: ArrayLike, scores: ArrayLike) -> Floats:
    r"""Return the conformal p-value of each row (n,), $(1 + \#\{\mathrm{in} \le s\}) / (m + 1)$.

    For an in-distribution row it is at most any $\alpha$ with probability at most $\alpha$, as long as the
    row and the m known ones were scored by a rule symmetric in them.

    >>> p_values([1.0, 2.0, 3.0], [0.0, 2.5])
    array([0.25, 0.75])
    """
    return Ranks(as_vector(scores_in, "scores_in"), as_vector(scores, "scores")).p_values()


def benjamini_hochberg(p: ArrayLike, *, fdr: float = 0.05) -> Bools:
    """Return which rows to call out (n,) so that the false discovery rate stays below `fdr`.

    Benjamini & Hochberg (1995): the rows up to the largest p-value that is at most `fdr` times its rank
    over n.

    >>> benjamini_hochberg([0.01, 0.9, 0.02], fdr=0.05)
    array([ True, False,  True])
    """
    values = as_vector(p, "p")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"p must lie in [0, 1], got {values.min():g} to {values.max():g}")
    ordered = np.sort(values)
    chosen: Bools = values <= largest_called_out(ordered, np.arange(1, len(values) + 1), as_share(fdr, "fdr"))
    return chosen


def largest_called_out(p: Floats, up_to: NDArray[np.integer[Any]], fdr: float) -> float:
    """Return the largest of some ascending p-values that Benjamini and Hochberg call out, below 0 where there is none.

    `up_to` says how many rows have a p-value up to each of them, ties counted in any order but the last.
    """
    # p-values are fractions, so that equality counts: a few last bits of slack.
    passing = p[p * up_to[-1] <= fdr * up_to * (1 + 1e-12)]
    return float(passing[-1]) if len(passing) else -1.0


def out_share_at_least(
    p: ArrayLike, *, rows_in: int, confidence: float = 0.95, levels: Sequence[float] = (0.05,)
) -> float:
    r"""Return a lower bound on the share of out rows, which holds with at least the given confidence.

    Of $N$ in-distribution rows, $r$ or more have a p-value up to $j / (m + 1)$, made with $m$ = `rows_in` known rows,
    if at most $j - 1$ of the lowest $r + j - 1$ of both are known ones: a hypergeometric chance. The bound is
    the smallest number of out rows that leaves that chance above 1 - `confidence`, given how many p-values are up to
    a level. Of several levels it is the largest of their bounds, each at a confidence that makes up for their number
    (Bonferroni): high levels tell rows that are out but not far. Rows must be exchangeable with the known ones where
    they are in-distribution, and scored by one rule; another mix of classes does most harm at high levels.

    >>> out_share_at_least([0.01] * 50 + [k / 50 for k in range(1, 51)], rows_in=99)
    0.46
    """
    values = as_vector(p, "p")
    m = as_count(rows_in, "rows_in")
    if not levels:
        raise ValueError("levels must hold one level at least, got none")
    # Of p-values that are no multiples of 1 / (m + 1) the next larger one; p-values are fractions: a few bits of slack.
    places = np.clip(np.ceil(values * (m + 1) * (1 - 1e-12)), 1, m + 1).astype(np.intp)
    return out_share_of_counts(np.bincount(places - 1, minlength=m + 1), confidence=confidence, levels=levels)


def out_share_of_counts(
    counts: NDArray[np.integer[Any]], *, confidence: float = 0.95, levels: Sequence[float] = (0.05,)
) -> float:
    """Return `out_share_at_least` of rows that are told by how many of them have each of the m + 1 p-values."""
    m, up_to = len(counts) - 1, np.cumsum(counts)
    miss = (1 - as_share(confidence, "confidence")) / len(levels)
    bounds = [_out_rows_at_least(up_to, m, miss, as_share(level, "levels")) for level in levels]
    return max(bounds) / int(up_to[-1])


def out_share_at_most(counts: NDArray[np.integer[Any]], levels: Sequence[float]) -> float:
    """Return what `out_share_of_counts` cannot be above at these levels: the share of rows up to the highest."""
    up_to = np.cumsum(counts)
    return int(up_to[_p_values_at(max(levels), len(counts) - 1) - 1]) / int(up_to[-1])


def _p_values_at(level: float, m: int) -> int:
    """Return how many of the m + 1 p-values count as up to a level, one at least."""
    return max(1, math.floor(level * (m + 1) + 1e-9))


def _out_rows_at_least(up_to: NDArray[np.integer[Any]], m: int, miss: float, level: float) -> int:
    """Return a lower bound on the number of out rows by the p-values up to a level; `miss` is the chance to fail."""
    j = _p_values_at(level, m)
    low, rows = int(up_to[j - 1]), int(up_to[-1])
    chance_of = _chance_by_out_rows(low, rows, m, j)
    least, most = 0, low
    while least < most:  # The chance rises with the number of out rows.
        middle = (least + most) // 2
        if chance_of(middle) > miss:
            most = middle
        else:
            least = middle + 1
    return least


def _chance_by_out_rows(low: int, rows: int, known: int, j: int) -> Callable[[int], float]:
    """Return the chance, by how many rows are out, that the others of `low` rows lie below the j-th lowest known one.

    Where so many are out, r = low - out or more of the N = rows - out others do so if at most j - 1 of the lowest
    r + j - 1 of both are known. Most binomial coefficients in that do not depend on how many are out.
    """
    from scipy.special import gammaln

    fewest = max(0, low + j - 1 - rows)
    lowest = np.arange(fewest, min(j - 1, known) + 1)
    of_known = gammaln(known + 1) - gammaln(lowest + 1) - gammaln(known - lowest + 1)
    of_rest = gammaln(rows - low - j + 1 + lowest + 1)

    def chance_of(out: int) -> float:
        drawn, others = low - out + j - 1, rows - out
        if low <= out:
            return 1.0
        of_others = gammaln(others + 1) - gammaln(drawn - lowest + 1) - of_rest
        of_both = gammaln(known + others + 1) - gammaln(drawn + 1) - gammaln(known + others - drawn + 1)
        return float(np.exp(of_known + of_others - of_both).sum())

    return chance_of


@dataclass(frozen=True, eq=False)
class Rate:
    """The one error rate of a decision, by its `name`: accept, false_alarm or fdr."""

    name: str
    value: float

    @classmethod
    def of(cls, accept: float | None = None, false_alarm: float | None = None, fdr: float | None = None) -> Rate:
        """Return the one rate that is given."""
        given = {"accept": accept, "false_alarm": false_alarm, "fdr": fdr}
        rates = [cls(name, as_share(value, name)) for name, value in given.items() if value is not None]
        if len(rates) != 1:
            found = " and ".join(rate.name for rate in rates) or "none"
            raise ValueError(f"exactly one error rate must be given, accept, false_alarm or fdr, got {found}")
        return rates[0]

    def fewest_rows(self) -> int:
        """Return the fewest reference rows with which a row can be refused at this rate.

        Under `accept` that is one; so few refuse more than was asked, so that as many are wanted as for p-values.
        """
        level = 1 - self.value if self.name == "accept" else self.value
        return 1 if level <= 0 else math.ceil(1 / max(level, _LOWEST_LEVEL) - 1e-9) - 1

    def notes(self, rows_in: int) -> list[str]:
        """Return what so many reference rows make of the rate, where that is not what was asked for."""
        smallest = 1 / (rows_in + 1)
        if self.name == "accept":
            refused = 1 - rows_for(self.value, rows_in) / (rows_in + 1)
            if refused <= _MORE_THAN_ASKED * (1 - self.value) or self.value == 1.0:
                return []
            return [
                f"few reference rows, {rows_in:,}: of in-distribution rows {refused:.1%} are refused on average where "
                f"{1 - self.value:.1%} of the reference are"
            ]
        if smallest <= self.value:
            return []
        return [f"no row can be refused at this rate: {rows_in:,} reference rows allow {smallest:.2g} at least"]


@dataclass(frozen=True, eq=False)
class Decision:
    """Scores, conformal p-values and in or out, one of each per row (n,), and the rate they were decided at.

    `threshold` is the score from which rows are accepted, None under `fdr`, where that depends on the rows. `notes` say
    what a user should know before trusting these decisions.
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
    """Return which rows are out, at a rate, by the ranks of their scores among those of known in-distribution rows.

    `more_notes` are what a user should know beside what the rate says of so many known rows.
    """
    scores = ranks.scores
    p, known = ranks.p_values(), ranks.ordered
    notes = (*rate.notes(len(known)), *more_notes)
    if rate.name == "fdr":
        return Decision(scores, p, benjamini_hochberg(p, fdr=rate.value), None, rate, notes)
    if rate.name == "accept":
        threshold = float(known[len(known) - rows_for(rate.value, len(known))])
        return Decision(scores, p, scores < threshold, threshold, rate, notes)
    k = _p_values_up_to(rate.value, len(known))
    # p <= α where fewer than k reference scores are at most the score.
    threshold = -math.inf if k == 0 else math.inf if k > len(known) else float(known[k - 1])
    return Decision(scores, p, p <= rate.value, threshold, rate, notes)


def _p_values_up_to(level: float, rows_in: int) -> int:
    """Return how many of the p-values 1 / (m + 1) to 1 that m known rows allow are at most the level."""
    nearest = round(level * (rows_in + 1))
    return nearest if nearest / (rows_in + 1) <= level else nearest - 1


def rows_for(share: float, rows: int) -> int:
    """Return the fewest of `rows` rows that make up at least `share` of them, rounding aside."""
    return max(1, math.ceil(share * rows - 1e-9))
