r"""Which predicted classes hold the out rows.

Another mix of classes changes how many rows a class has; out rows change how its rows score. So the share $\pi_k$ of
out rows in class k is told from scores within the class. Let known rows of class k score $\ell_k$ on average, with
variance $v$, and out rows D less. Then the others score $\ell_k - \pi_k D$ on average, and over all classes their
variance exceeds v by $\pi (1 - \pi) D^2$, which gives D; it is taken to be one standard deviation at least, for scores
nearer than that do not tell a share from a shift. Bayes' rule adds the log odds of $\pi_k$ to those of the score,
which in the score's own units is

$$ -\frac{v}{D} \Bigl( \log \frac{\pi_k}{1 - \pi_k} - \log \frac{\pi}{1 - \pi} \Bigr). $$
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._check import Bools, Floats
from .sums import PlainSums

# Standard errors by which the others must score less than known rows before anything is said of classes.
_MIN_STANDARD_ERRORS = 2.0

# Out rows score so many standard deviations less than known ones, at least.
_MIN_DISTANCE = 1.0

# Bounds of the share of out rows: over all classes, of one class, and of one class as a share of that over all.
_MAX_OUT_SHARE = 0.98
_MAX_CLASS_SHARE = 0.95
_MIN_RELATIVE_SHARE = 0.02

# A class of fewer known rows counts as one of so many.
_MIN_CLASS_ROWS = 1.0

# A decayed class of less weight than this is as good as none.
_LIGHTEST = 1e-12


@dataclass(frozen=True, eq=False)
class ClassShares:
    """Of each class what to add to a row's score (c,), and the share of out rows over all classes."""

    added: Floats
    out_share: float


def class_shares(known: PlainSums, others: PlainSums, coef: Floats, offsets: Floats) -> ClassShares:
    """Return what the classes say, given the score's weights (p,) on the columns and its offset for each class (c,)."""
    ours, theirs = _Scores.of(known, known, coef, offsets), _Scores.of(others, known, coef, offsets)
    level = ours.shrunk_means()
    variance = ours.squares_about(level) / ours.rows
    lower = level - theirs.means(level)  # How much lower the others score, by class.
    less = float(theirs.counts @ lower) / theirs.rows
    spread = max(theirs.squares_about(level) / theirs.rows - less**2, 0.0)
    none = ClassShares(np.zeros(len(level)), 0.0)
    if not variance > 0 or less <= _MIN_STANDARD_ERRORS * np.sqrt(variance / ours.rows + spread / theirs.rows):
        return none
    distance = max(less + max(spread - variance, 0.0) / less, _MIN_DISTANCE * float(np.sqrt(variance)))
    share = min(less / distance, _MAX_OUT_SHARE)
    shares = _random_effects(
        lower / distance,
        (spread / np.maximum(theirs.counts, _LIGHTEST) + variance / np.maximum(ours.counts, _MIN_CLASS_ROWS))
        / distance**2,
        theirs.counts > 0,
        share,
    )
    shares = np.clip(shares, _MIN_RELATIVE_SHARE * share, max(_MAX_CLASS_SHARE, share))
    return ClassShares(-variance / distance * (_log_odds(shares) - _log_odds(np.array(share))), share)


@dataclass(frozen=True, eq=False)
class _Scores:
    """Weight, and by class the number of rows (c,), and sums of scores (c,) and of their squares over all."""

    rows: float
    counts: Floats
    sums: Floats
    squares: float

    @classmethod
    def of(cls, rows: PlainSums, known: PlainSums, coef: Floats, offsets: Floats) -> _Scores:
        """Return those of a score, taken about its mean over the known rows."""
        middle = known.mean
        plain = rows.about(middle) @ coef
        level = float((rows.mean - middle) @ coef)
        squares = float(coef @ rows.comoment @ coef) + rows.rows * level**2
        squares += float(-2 * offsets @ plain + rows.counts @ offsets**2)
        return cls(rows.rows, rows.counts, plain - rows.counts * offsets, squares)

    def means(self, default: Floats) -> Floats:
        """Return the mean score of each class, the default's where it has no rows."""
        return np.where(self.counts > 0, self.sums / np.maximum(self.counts, np.finfo(float).tiny), default)

    def squares_about(self, level: Floats) -> float:
        """Return the sum of squares about a level for each class."""
        return max(self.squares - float(2 * level @ self.sums) + float(self.counts @ level**2), 0.0)

    def shrunk_means(self) -> Floats:
        """Return the mean score of each class, shrunk towards that of all by what its few rows leave open."""
        overall = float(self.sums.sum()) / self.rows
        means = self.means(np.full(len(self.counts), overall))
        classes = int(np.count_nonzero(self.counts))
        noise = self.squares_about(means) / max(self.rows - classes, 1.0)
        return _random_effects(means, noise / np.maximum(self.counts, _MIN_CLASS_ROWS), self.counts > 0, overall)


def _random_effects(values: Floats, noise: Floats, there: Bools, centre: float) -> Floats:
    """Return values shrunk towards a centre by their noise against their spread (DerSimonian & Laird 1986)."""
    weights = np.where(there & (noise > 0), 1 / np.where(noise > 0, noise, 1.0), 0.0)
    total = float(weights.sum())
    free = total - float((weights**2).sum()) / total if total > 0 else 0.0
    if not free > 0:
        return np.where(there & (noise <= 0), values, centre)
    mean = float(weights @ values) / total
    excess = float(weights @ (values - mean) ** 2) - (np.count_nonzero(weights) - 1)
    between = max(excess / free, 0.0)
    kept = np.where(there, between / np.maximum(between + noise, np.finfo(float).tiny), 0.0)
    shrunk: Floats = centre + kept * (values - centre)
    return shrunk


def _log_odds(share: Floats) -> Floats:
    odds: Floats = np.log(share / (1 - share))
    return odds
