r"""Learn from the tail: a linear discriminant between reference rows and the test rows that look out.

Let A be the reference rows and Q the test rows, with standardised features x and base scores u (`Standard`). A test row
looks out if its score s lies in a range where reference rows are rare. With the empirical distribution functions
$F_A$ and $F_Q$ of the scores, the weight

$$ r_i = 1 - \min\bigl(1, F_A(s_i) / F_Q(s_i)\bigr) $$

estimates the share of out rows among the rows of Q that score at most $s_i$. Starting with s = u, four rounds compute

$$ \Delta = \frac{\sum_Q r_i x_i}{\sum_Q r_i} - \bar{x}_A, \qquad
   w = -(S_A + \rho I)^{-1} \Delta, \qquad
   s = u + \frac{w^\top x}{\mathrm{sd}_A(w^\top x)}, $$

where $S_A$ is the correlation matrix of the m rows of A, and $\rho = 1.5 \sqrt{d / m}$ is about its sampling error.
The learned part $w^\top x$ then gets a weight by cross-validation with five folds of A and Q: each fold is scored by a
fit to the other four folds, so no row is scored by a fit that contains it.

- *Gain*: how many more rows of Q fall below the 0.2, 0.5 and 1 % quantiles of A when ranked by s than when ranked by u
  (or than expected by chance, if u has no excess), in standard errors.
- *Shift*: the difference between A and the rows of Q that do not look out, along the direction of the mean difference
  of A and Q, in standard errors. Out rows move the tail; a reference that differs from production moves the bulk.
- *Trust* is $\Phi(\text{gain} - 1 - \max(0, \text{shift} - 1))$.
- *Balance*, between ¼ and 1, is the weight of the learned part relative to u in a discriminant on these two columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._check import Floats, Matrix, row_blocks
from .._threads import add_blocks, map_blocks
from ..scores.rows import ScoredRows
from .ridge import FOLDS, FoldedCovariance, folds_of

ROUNDS = 4

# The quantiles of the reference that define the tail.
_TAIL = (0.002, 0.005, 0.01)

# Required gain and tolerated shift, in standard errors. They were chosen on three networks and checked on others.
_NEEDED_GAIN = 1.0
_TOLERATED_SHIFT = 1.0

_LOWEST_BALANCE, _HIGHEST_BALANCE = 0.25, 1.0
_BALANCE_ROUNDS = 2

# If the total tail weight is smaller, there is nothing to learn.
_LEAST_WEIGHT = 1e-9


@dataclass(frozen=True, eq=False)
class Learned:
    """The learned part: coefficients (d,) whose products have unit deviation over the reference, and its weights.

    The module docstring defines gain, trust, balance and shift.
    """

    coef: Floats
    gain: float = 0.0
    trust: float = 0.0
    balance: float = 1.0
    shift: float = 0.0


def learn(reference: ScoredRows, rows: ScoredRows, covariance: FoldedCovariance) -> Learned:
    """Return the learned part of a contrast of reference rows with test rows."""
    folds_in, folds = covariance.folds, folds_of(rows.features, rows.scores)
    fits = np.arange(FOLDS + 1)  # Fit k leaves out fold k; the last fit leaves out nothing.
    uses_in, uses = folds_in[:, None] != fits, folds[:, None] != fits
    centre = _sums(reference.features, uses_in.astype(np.float64)) / uses_in.sum(axis=0)

    def discriminant(weights: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the coefficients (d, k) of each fit, and their products with the reference rows and the test rows."""
        total = weights.sum(axis=0)
        displacement = _sums(rows.features, weights) / np.maximum(total, _LEAST_WEIGHT) - centre
        coef = np.where(total > _LEAST_WEIGHT, -covariance.solve(displacement), 0.0)
        along_in = _products(reference.features, coef)
        deviation = np.array([along_in[uses_in[:, k], k].std() for k in fits])
        unit = np.where(deviation > 0, deviation, 1.0)
        return coef / unit, along_in / unit, _products(rows.features, coef) / unit

    along_in, along = np.zeros(uses_in.shape), np.zeros(uses.shape)
    for _ in range(ROUNDS):
        scores_in, scores = reference.scores[:, None] + along_in, rows.scores[:, None] + along
        weights = np.zeros(uses.shape)
        for k in fits:
            weights[uses[:, k], k] = tail_weights(scores_in[uses_in[:, k], k], scores[uses[:, k], k])
        coef, along_in, along = discriminant(weights)

    left_out_in, left_out = _of_own_fold(along_in, folds_in), _of_own_fold(along, folds)
    gain = tail_excess(reference.scores + left_out_in, rows.scores + left_out) - max(
        tail_excess(reference.scores, rows.scores), 0.0
    )
    _, mean_in, mean = discriminant(uses.astype(np.float64))
    looks_in = 1 - tail_weights(reference.scores + left_out_in, rows.scores + left_out)
    shift = _shift(_of_own_fold(mean_in, folds_in), _of_own_fold(mean, folds), looks_in)
    return Learned(
        coef[:, -1],
        gain,
        trust=_normal_cdf(gain - _NEEDED_GAIN - max(shift - _TOLERATED_SHIFT, 0.0)),
        balance=_balance(reference.scores, left_out_in, rows.scores, left_out),
        shift=shift,
    )


def tail_weights(scores_in: Floats, scores: Floats) -> Floats:
    """Return for each row (n,) the estimated share of out rows among the rows with the same or a lower score.

    >>> tail_weights(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 3.0])).round(3)
    array([1., 0., 0.])
    """
    order = np.argsort(scores)
    ordered = scores[order]
    up_to = np.searchsorted(ordered, ordered, "right") / len(scores)
    up_to_in = np.searchsorted(np.sort(scores_in), ordered, "right") / len(scores_in)
    weights = np.empty(len(scores))
    weights[order] = 1 - np.minimum(1.0, up_to_in / up_to)
    return weights


def tail_excess(scores_in: Floats, scores: Floats) -> float:
    """Return the excess of rows below low quantiles of the reference over the expected number, in standard errors."""
    return excess_of_counts(tail_counts(tail_levels(scores_in), scores), len(scores), len(scores_in))


def tail_levels(scores_in: Floats) -> Floats:
    """Return the low quantiles of reference scores that define the tail."""
    levels: Floats = np.quantile(scores_in, _TAIL)
    return levels


def tail_counts(levels: Floats, scores: Floats) -> NDArray[np.int64]:
    """Return the number of scores at or below each level."""
    return np.array([np.count_nonzero(scores <= level) for level in levels], dtype=np.int64)


def excess_of_counts(counts: NDArray[np.int64], rows: int, reference_rows: int) -> float:
    """Return `tail_excess`, given the number of scores at or below each level."""
    expected = rows * np.array(_TAIL)
    return float(np.mean((counts - expected) / np.sqrt(expected * (1 + rows / reference_rows) + 1)))


def _balance(base_in: Floats, along_in: Floats, base: Floats, along: Floats) -> float:
    """Return the weight of the learned part relative to the base score, from a discriminant on these two columns."""
    both_in, both = np.array([base_in, along_in]), np.array([base, along])
    mean, deviation = both_in.mean(axis=1)[:, None], both_in.std(axis=1)[:, None]
    if not deviation.min() > 0:
        return _HIGHEST_BALANCE
    both_in, both = (both_in - mean) / deviation, (both - mean) / deviation
    correlation = float(np.mean(both_in[0] * both_in[1]))
    balance = _HIGHEST_BALANCE
    for _ in range(_BALANCE_ROUNDS):
        weights = tail_weights(both_in[0] + balance * both_in[1], both[0] + balance * both[1])
        of_base, of_learned = -(both @ weights)
        first, second = of_base - correlation * of_learned, of_learned - correlation * of_base
        ratio = second / first if first > 0 else _HIGHEST_BALANCE
        balance = float(np.clip(ratio, _LOWEST_BALANCE, _HIGHEST_BALANCE))
    return balance


def _shift(along_in: Floats, along: Floats, weights: Floats) -> float:
    """Return the mean of `along_in` minus the weighted mean of `along`, in standard errors.

    `weights` (n,) are small for rows that look out.
    """
    total = float(weights.sum())
    if total <= _LEAST_WEIGHT:
        return 0.0
    mean = float(weights @ along) / total
    variance = float(weights**2 @ (along - mean) ** 2) / total**2 + float(along_in.var()) / len(along_in)
    return float((along_in.mean() - mean) / np.sqrt(variance)) if variance > 0 else 0.0


def _of_own_fold(along: Floats, folds: NDArray[np.intp]) -> Floats:
    """Return for each row the product from the fit that left its fold out."""
    own: Floats = along[np.arange(len(along)), folds]
    return own


def _products(features: Matrix, coef: Floats) -> Floats:
    """Return features (n, d) times coefficients (d, k)."""
    products = np.empty((len(features), coef.shape[1]))

    def fill(part: slice) -> None:
        products[part] = features[part] @ coef

    map_blocks(fill, row_blocks(features))
    return products


def _sums(features: Matrix, weights: Floats) -> Floats:
    """Return the weighted sums (d, k) of features (n, d) with weights (n, k)."""
    total = np.zeros((features.shape[1], weights.shape[1]))

    def add(part: Floats) -> None:
        np.add(total, part, out=total)

    add_blocks(lambda part: features[part].T @ weights[part], row_blocks(features), add)
    return total


def _normal_cdf(x: float) -> float:
    from scipy.special import ndtr

    return float(ndtr(x))
