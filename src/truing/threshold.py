"""From scores to in or out: a threshold, or p-values against known in-distribution rows."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ._check import Bools, Floats, as_number, as_share, as_vector


def threshold_at(scores_in: ArrayLike, keep: float = 0.95) -> float:
    """Return the largest threshold that accepts at least `keep` of the rows.

    >>> threshold_at([1.0, 2.0, 3.0, 4.0], keep=0.75)
    2.0
    """
    scores = as_vector(scores_in, "scores_in")
    return float(np.sort(scores)[len(scores) - rows_for(as_share(keep, "keep"), len(scores))])


def is_out(scores: ArrayLike, threshold: float) -> Bools:
    """Return which rows fall below the threshold (n,): `score >= threshold` accepts (Eq. 1).

    >>> is_out([1.0, 2.0], threshold=2.0)
    array([ True, False])
    """
    out: Bools = as_vector(scores, "scores") < as_number(threshold, "threshold")
    return out


def p_values(scores: ArrayLike, scores_in: ArrayLike) -> Floats:
    r"""Return the conformal p-value of each row (n,), $(1 + \#\{\mathrm{in} \le s\}) / (m + 1)$.

    For an in-distribution row it is at most any $\alpha$ with probability at most $\alpha$, as long as the
    row and the m known ones were scored by a rule symmetric in them (docs/concepts.md).

    >>> p_values([0.0, 2.5], scores_in=[1.0, 2.0, 3.0])
    array([0.25, 0.75])
    """
    known = np.sort(as_vector(scores_in, "scores_in"))
    return (1 + np.searchsorted(known, as_vector(scores, "scores"), side="right")) / (len(known) + 1)


def select(p: ArrayLike, fdr: float = 0.05) -> Bools:
    """Return which rows to call out (n,) so that the false discovery rate stays below `fdr`.

    Benjamini & Hochberg (1995): the rows up to the largest p-value that is at most `fdr` times its rank
    over n.

    >>> select([0.01, 0.9, 0.02], fdr=0.05)
    array([ True, False,  True])
    """
    values = as_vector(p, "p")
    if values.min() < 0 or values.max() > 1:
        raise ValueError(f"p must lie in [0, 1], got {values.min():g} to {values.max():g}")
    fdr = as_share(fdr, "fdr")
    ordered = np.sort(values)
    # p-values are fractions, so that equality counts: a few last bits of slack.
    passing = ordered[ordered * len(values) <= fdr * np.arange(1, len(values) + 1) * (1 + 1e-12)]
    chosen: Bools = values <= (passing[-1] if len(passing) else -1.0)
    return chosen


@dataclass(frozen=True, eq=False)
class Decision:
    """Scores, conformal p-values and in or out, one of each a row (n,)."""

    scores: Floats
    p_values: Floats
    is_out: Bools


def decide_at(
    scores: Floats,
    scores_in: Floats,
    *,
    keep: float | None = None,
    false_alarm: float | None = None,
    fdr: float | None = None,
) -> Decision:
    """Return which rows are out at exactly one rate: reference kept, false alarms, or false discoveries."""
    if sum(rate is not None for rate in (keep, false_alarm, fdr)) != 1:
        raise ValueError("exactly one error rate must be given: false_alarm or fdr (or, to detect, keep)")
    p = p_values(scores, scores_in)
    if keep is not None:
        return Decision(scores, p, is_out(scores, threshold_at(scores_in, keep)))
    if fdr is not None:
        return Decision(scores, p, select(p, fdr))
    assert false_alarm is not None
    return Decision(scores, p, p <= as_share(false_alarm, "false_alarm"))


def rows_for(share: float, rows: int) -> int:
    """Return the fewest of `rows` rows that make up at least `share` of them, rounding aside."""
    return max(1, math.ceil(share * rows - 1e-9))
