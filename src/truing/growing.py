"""Moments that grow by batches, with the inverse of their co-moment kept beside them.

A batch of b rows changes a co-moment by rank b + 1, so its inverse follows at the cost of b·d² (Woodbury), where a
factorisation costs d³. The inverse is only a means: every solution is refined against the co-moment itself, and
where that does not settle at once, the moments are solved anew.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from ._check import LARGEST, Bools, Floats, Matrix
from ._threads import one_thread
from .linear import LinearFit
from .moments import CHOLESKY_RCOND, Moments

# A solution is taken when its last correction is below this share of it.
_SETTLED = 1e-9
_CORRECTIONS = 4
# An inverse times its matrix is the identity to this much at least, or it is none.
_SOUND = 1e-3


@dataclass(frozen=True, eq=False)
class Growing:
    """Moments, and the inverse of the features' co-moment over the columns that are not dead, where there is one."""

    moments: Moments
    inverse: Floats | None = None

    @classmethod
    def restored(cls, moments: Moments, inverse: Floats | None) -> "Growing":
        """Return one that was stored, refusing an inverse that is none; laid out as before, to give the same bits."""
        growing = cls(moments, inverse)
        if inverse is None:
            return growing
        if not growing._is_sound():
            raise ValueError("the inverse stored must be that of the co-moment stored")
        own = _spaced(len(inverse))
        own[:] = inverse
        return cls(moments, own)

    @cached_property
    def live(self) -> Bools:
        """Which columns vary by more than rounding leaves of a constant."""
        gram, _, noise = self.moments.normal_equations(True, self.moments.mean)
        live: Bools = np.diagonal(gram) > noise
        return live

    def grown(self, features: Matrix, scores: Floats, decay: float, *, follow: bool = True) -> "Growing":
        """Return these with their weight multiplied by `decay`, and a batch added with weight 1.

        The inverse follows where it is of use: to a fit with an intercept, and not within components.
        """
        old, b, d = self.moments, len(scores), self.moments.dimensions
        rows = decay * old.rows + b
        block = np.empty((b + 1, d + 1))
        block[:b, :d], block[:b, d] = features, scores
        step = (block[:b] - old.mean).mean(axis=0)
        block[:b] -= old.mean + step
        # The merge of two sets of moments adds the square of the step between their means: one row more.
        block[b] = step * np.sqrt(decay * old.rows * b / rows)
        with one_thread():
            comoment = block.T @ block
            comoment += old.comoment if decay == 1.0 else decay * old.comoment
            if not (np.diagonal(comoment) <= rows * LARGEST**2).all():  # Not so for NaN.
                raise ValueError("features must be finite when learned: they have changed since they were checked")
            moments = Moments(rows, old.mean + step * (b / rows), comoment, decay * old.floor)
            grown = Growing(moments)
            return Growing(moments, self._inverse_of(grown, block[:, :d], decay)) if follow else grown

    def solve(self, intercept: bool, components: int | None) -> LinearFit:
        """Return what `moments.solve` would."""
        if components is None and intercept and self.inverse is not None:
            gram, cross, _ = self.moments.normal_equations(True, self.moments.mean)
            coef, live = np.zeros(len(cross)), self.live
            with one_thread():
                for _ in range(1 + _CORRECTIONS):
                    correction = self.inverse @ (cross - gram @ coef)[live]
                    coef[live] += correction
                    if np.linalg.norm(correction) <= _SETTLED * np.linalg.norm(coef):
                        return self.moments.fit_of(coef, len(correction), True, self.moments.mean[:-1])
        return self.moments.solve(intercept, components)

    def _is_sound(self) -> bool:
        gram = self._live_gram()
        if self.inverse is None or self.inverse.shape != gram.shape or self.inverse.dtype != np.float64:
            return False
        with one_thread(), np.errstate(invalid="ignore", over="ignore"):
            return bool(np.abs(self.inverse @ gram - np.eye(len(gram))).max() < _SOUND)

    def _inverse_of(self, grown: "Growing", rows: Floats, decay: float) -> Floats | None:
        """Return the inverse of the co-moment that these rows have changed: followed, begun, or none."""
        live = grown.live
        if 2 * len(rows) >= live.sum() or grown.moments.rows <= live.sum():
            return None
        if self.inverse is None or not np.array_equal(self.live, live):
            return _begun(grown._live_gram())
        inverse = self.inverse if decay == 1.0 else self.inverse / decay
        rows = rows if live.all() else rows[:, live]
        ahead = rows @ inverse
        factor, failed = lapack.dpotrf(np.eye(len(rows)) + ahead @ rows.T, lower=True)
        if failed:
            return _begun(grown._live_gram())
        change = lapack.dtrtrs(factor, ahead, lower=True)[0]
        less = _spaced(len(inverse))
        np.matmul(change.T, change, out=less)
        return np.subtract(inverse, less, out=less)

    def _live_gram(self) -> Floats:
        gram, _, _ = self.moments.normal_equations(True, self.moments.mean)
        return gram if self.live.all() else gram[np.ix_(self.live, self.live)]


def _spaced(d: int) -> Floats:
    """Return an empty (d, d) whose rows lie no power of two apart: caches are slow for those, by half at d = 512."""
    return np.empty((d, d + 8))[:, :d]


def _begun(gram: Floats) -> Floats | None:
    """Return the inverse, unless its condition number is too large for a Cholesky factor."""
    factor, failed = lapack.dpotrf(gram, lower=True)
    if failed:
        return None
    lower, inverse = np.tril(lapack.dpotri(factor, lower=True)[0]), _spaced(len(gram))
    np.add(lower, np.tril(lower, -1).T, out=inverse)
    condition = np.abs(gram).sum(axis=0).max() * np.abs(inverse).sum(axis=0).max()
    return inverse if condition * CHOLESKY_RCOND < 1 else None
