"""The Hessian of a Huber loss, whose factor is kept while few rows become inliers or cease to be."""

import numpy as np

from .. import _linalg
from .._check import Bools, Floats
from .products import gram_of_chosen

# Share of its trace that keeps a Hessian of too few rows solvable.
RIDGE = 1e-13

_MAX_CHANGED_SHARE = 1 / 12  # Changed rows for each unknown above which a new factor costs less than the old one.


class InlierHessian:
    """The Hessian Σ wᵢ wᵢᵀ over the inliers among `rows` (m, k), factored anew only after many of them changed.

    Up to then the rows that changed are a correction of low rank, U D Uᵀ with D = ±1 (Woodbury 1950): k² operations
    for each of them in place of k³.
    """

    def __init__(self, rows: Floats) -> None:
        self._rows = rows
        self._factored = np.zeros(len(rows), dtype=np.bool_)
        self._factor: Floats | None = None

    def newton_step(self, inliers: Bools, gradient: Floats) -> Floats:
        """Return Newton's step down from a point with these inliers and this negative gradient."""
        changed = np.flatnonzero(inliers != self._factored)
        if self._factor is not None and len(changed) <= _MAX_CHANGED_SHARE * len(gradient):
            step = self._corrected_step(self._factor, changed, gradient)
            if 0 < gradient @ step < np.inf:  # Otherwise rows went without which the Hessian is singular.
                return step
        self._factor = factored(gram_of_chosen(self._rows, inliers))
        self._factored = inliers
        return self._corrected_step(self._factor, changed[:0], gradient)

    def _corrected_step(self, factor: Floats, changed: np.ndarray, gradient: Floats) -> Floats:
        half = _linalg.lapack.dtrtrs(factor, gradient, lower=1)[0]
        if len(changed):
            sign = np.where(self._factored[changed], -1.0, 1.0)
            rows = _linalg.lapack.dtrtrs(factor, self._rows[changed].T, lower=1)[0]
            half = half - rows @ _linalg.lapack.dgesv(np.diag(sign) + rows.T @ rows, rows.T @ half)[2]
        return np.asarray(_linalg.lapack.dtrtrs(factor, half, lower=1, trans=1)[0])


def factored(gram: Floats) -> Floats:
    """Return the Cholesky factor, lower, of a Gram matrix, to which a slight ridge is added."""
    gram.flat[:: len(gram) + 1] += RIDGE * (np.trace(gram) + len(gram))
    return np.asarray(_linalg.lapack.dpotrf(gram.T, lower=1, overwrite_a=1)[0])
