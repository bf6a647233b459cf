"""Moments that grow by batches, with what is known of their co-moment kept beside them.

A batch of b rows changes a co-moment by rank b + 1, so its inverse follows at the cost of b·d² (Woodbury), where a
factorisation costs d³. The inverse is only a means: every solution is refined against the co-moment itself, and
where that does not settle at once, the moments are solved anew. Where d is small the factorisation costs less, and
what follows is that it will be sound: rows that are added make no eigenvalue smaller (Weyl 1912).
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from scipy.linalg import lapack

from ._blas import one_thread
from ._check import LARGEST, Bools, Floats, Matrix
from .linear import LinearFit
from .moments import CHOLESKY_RCOND, Moments, among, least_norm

# A solution is taken when its last correction is below this share of it.
_SETTLED = 1e-9
_CORRECTIONS = 4
# An inverse times its matrix is the identity to this much at least, or it is none.
_SOUND = 1e-3
# An inverse is followed where there are more columns than so many, and so many for each row of a batch (measured).
_COLUMNS, _COLUMNS_A_ROW = 128, 8
# What is known to be sound is so by this factor, so that LAPACK, asked anew of a restored one, would say the same.
_MARGIN = 10


@dataclass(frozen=True, eq=False)
class Growing:
    """Moments, and what is known of the features' co-moment over the columns that are `live`, not dead.

    That is its inverse, or that no eigenvalue is below a `least` that makes its Cholesky factor sound.
    """

    moments: Moments
    live: Bools
    inverse: Floats | None = None
    least: float = 0.0

    @classmethod
    def of(cls, moments: Moments) -> "Growing":
        """Return moments of which no more is known."""
        return cls(moments, moments.normal_equations(True, moments.mean)[1])

    @classmethod
    def restored(cls, moments: Moments, inverse: Floats | None) -> "Growing":
        """Return one that was stored, refusing an inverse that is none; laid out as before, to give the same bits."""
        growing = cls.of(moments)
        if inverse is None:
            return growing
        gram = growing._live_gram()
        if inverse.shape != gram.shape or inverse.dtype != np.float64 or not _is_inverse(inverse, gram):
            raise ValueError("the inverse stored must be that of the co-moment stored")
        own = _spaced(len(inverse))
        own[:] = inverse
        return cls(moments, growing.live, own)

    def grown(self, features: Matrix, scores: Floats, decay: float, *, follow: bool = True) -> "Growing":
        """Return these with their weight multiplied by `decay`, and a batch added with weight 1.

        What is known follows where it is of use: to a fit with an intercept, and not within components.
        """
        old, b, d = self.moments, len(scores), self.moments.dimensions
        rows = decay * old.rows + b
        block = np.empty((b + 1, d + 1))
        batch = block[:b]
        batch[:, :d], batch[:, d] = features, scores
        with one_thread(), np.errstate(invalid="ignore", over="ignore"):
            batch -= old.mean
            step = np.add.reduce(batch) / b
            batch -= step
            # The merge of two sets of moments adds the square of the step between their means: one row more.
            block[b] = step * sqrt(decay * old.rows * b / rows)
            comoment = block.T @ block
            comoment += old.comoment if decay == 1.0 else decay * old.comoment
            if not comoment.trace() <= (d + 1) * rows * LARGEST**2:  # Not so for NaN.
                raise ValueError(
                    "features must be finite when learned, and scores: they have changed since their check"
                )
            grown = Growing.of(Moments(rows, old.mean + step * (b / rows), comoment, decay * old.floor))
            return self._followed(grown, block[:, :d], decay) if follow else grown

    def solve(self, intercept: bool, components: int | None) -> LinearFit:
        """Return what `moments.solve` would."""
        if components is not None or not intercept:
            return self.moments.solve(intercept, components)
        moments, live = self.moments, self.live
        with one_thread():
            if self.inverse is not None:
                gram, cross, coef = moments.comoment[:-1, :-1], moments.comoment[-1, :-1], np.zeros(len(live))
                for _ in range(1 + _CORRECTIONS):
                    correction = self.inverse @ (cross - gram @ coef)[live]
                    coef[live] += correction
                    if np.linalg.norm(correction) <= _SETTLED * np.linalg.norm(coef):
                        return moments.fit_of(coef, len(correction), True, moments.mean)
            coef, rank = least_norm(moments.comoment, live, moments.floor, sound=self.least > 0.0)
            return moments.fit_of(coef, rank, True, moments.mean)

    def _followed(self, grown: "Growing", rows: Floats, decay: float) -> "Growing":
        """Return `grown` with what is known of its co-moment, which these rows have changed: followed, or begun."""
        moments, live = grown.moments, grown.live
        same = live.tobytes() == self.live.tobytes()
        if moments.dimensions <= _COLUMNS + _COLUMNS_A_ROW * len(rows):
            enough = _MARGIN * CHOLESKY_RCOND * moments.comoment.trace()
            least = decay * self.least
            if not (same and least > enough):
                least = _least(grown._live_gram()) if moments.rows > live.sum() else 0.0
            return Growing(moments, live, None, least if least > enough else 0.0)
        if moments.rows <= live.sum():
            return grown
        if self.inverse is None or not same:
            return Growing(moments, live, _begun(grown._live_gram()))
        inverse = self.inverse if decay == 1.0 else self.inverse / decay
        rows = rows if live.all() else rows[:, live]
        ahead = rows @ inverse
        factor, failed = lapack.dpotrf(np.eye(len(rows)) + ahead @ rows.T, lower=True)
        if failed:
            return Growing(moments, live, _begun(grown._live_gram()))
        change = lapack.dtrtrs(factor, ahead, lower=True)[0]
        less = _spaced(len(inverse))
        np.matmul(change.T, change, out=less)
        return Growing(moments, live, np.subtract(inverse, less, out=less))

    def _live_gram(self) -> Floats:
        return among(self.moments.comoment[:-1, :-1], self.live)


def _spaced(d: int) -> Floats:
    """Return an empty (d, d) whose rows lie no power of two apart: caches are slow for those, by half at d = 512."""
    return np.empty((d, d + 8))[:, :d]


def _is_inverse(inverse: Floats, gram: Floats) -> bool:
    with one_thread(), np.errstate(invalid="ignore", over="ignore"):
        return bool(np.abs(inverse @ gram - np.eye(len(gram))).max() < _SOUND)


def _least(gram: Floats) -> float:
    """Return a bound below the eigenvalues, as LAPACK estimates it, or zero."""
    factor, failed = lapack.dpotrf(gram.T, lower=True, clean=False)
    return 0.0 if failed else float(lapack.dpocon(factor, 1.0, uplo="L")[0])


def _begun(gram: Floats) -> Floats | None:
    """Return the inverse, unless its condition number is too large for a Cholesky factor."""
    factor, failed = lapack.dpotrf(gram, lower=True)
    if failed:
        return None
    lower, inverse = np.tril(lapack.dpotri(factor, lower=True)[0]), _spaced(len(gram))
    np.add(lower, np.tril(lower, -1).T, out=inverse)
    condition = np.abs(gram).sum(axis=0).max() * np.abs(inverse).sum(axis=0).max()
    return inverse if condition * CHOLESKY_RCOND < 1 else None
