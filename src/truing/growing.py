"""Moments that grow by batches, with the inverse of their Gram matrix kept beside them.

A batch of b rows changes a Gram matrix by rank b + 1, so its inverse follows at the cost of b·d² (Woodbury), where
a factorisation costs d³. The inverse is only a means: every solution is refined against the Gram matrix itself, and
where that does not settle at once, the moments are solved anew.
"""

import numpy as np
from scipy.linalg import lapack

from ._check import Bools, Floats, Matrix
from ._threads import one_thread
from .moments import CHOLESKY_RCOND, LinearFit, Moments

# A solution is taken when its last correction is below this share of it.
_SETTLED = 1e-9
_CORRECTIONS = 4


class Growing:
    """Moments to which batches are added; `inverse`, where there is one, is over the columns that are not dead."""

    def __init__(self, moments: Moments, intercept: bool, inverse: Floats | None = None) -> None:
        self.moments = moments
        self.intercept = intercept
        self.inverse = inverse

    def grow(self, features: Matrix, scores: Floats, decay: float) -> None:
        """Multiply the weight of what is there by `decay`, and add a batch of finite rows with weight 1."""
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
            self.moments = Moments(rows, old.mean + step * (b / rows), comoment)
            self._invert(block[:, :d] if self.intercept else features, decay)

    def solve(self, components: int | None = None) -> LinearFit:
        """Return what `moments.solve` would."""
        if components is None and self.inverse is not None:
            gram, cross, live = self._equations()
            with one_thread():
                coef, inner = np.zeros(len(live)), self.inverse @ cross
                for _ in range(_CORRECTIONS):
                    correction = self.inverse @ (cross - gram @ inner)
                    inner += correction
                    if np.linalg.norm(correction) <= _SETTLED * np.linalg.norm(inner):
                        coef[live] = inner
                        return self.moments.fit_of(coef, len(cross), self.intercept, np.zeros(len(live)))
        return self.moments.solve(self.intercept, components)

    def _invert(self, rows: Matrix, decay: float) -> None:
        """Bring the inverse up to the Gram matrix, which these rows have changed, or begin one."""
        gram, _, live = self._equations()
        if self.inverse is not None and len(self.inverse) == len(gram) and 2 * len(rows) < len(gram):
            inverse = self.inverse if decay == 1.0 else self.inverse / decay
            self.inverse = _followed(inverse, np.asarray(rows[:, live], dtype=np.float64))
        else:
            self.inverse = _started(gram) if 2 * len(rows) < len(gram) < self.moments.rows else None

    def _equations(self) -> tuple[Floats, Floats, Bools]:
        gram, cross, noise = self.moments.normal_equations(self.intercept, np.zeros(self.moments.dimensions))
        live: Bools = np.diagonal(gram) > noise
        if not live.all():
            gram, cross = gram[np.ix_(live, live)], cross[live]
        return gram, cross, live


def _followed(inverse: Floats, rows: Floats) -> Floats | None:
    ahead = rows @ inverse
    _, change, failed = lapack.dposv(np.eye(len(rows)) + ahead @ rows.T, ahead)
    return None if failed else inverse - ahead.T @ change


def _started(gram: Floats) -> Floats | None:
    factor, failed = lapack.dpotrf(gram, lower=True)
    if failed:
        return None
    lower = np.tril(lapack.dpotri(factor, lower=True)[0])
    inverse: Floats = lower + np.tril(lower, -1).T
    condition = np.abs(gram).sum(axis=0).max() * np.abs(inverse).sum(axis=0).max()
    return inverse if condition * CHOLESKY_RCOND < 1 else None
