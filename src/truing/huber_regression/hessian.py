"""The Hessian of a Huber loss, which is kept while few rows become inliers or cease to be: itself, or its factor."""

import numpy as np

from .. import _linalg
from .._check import Bools, Floats
from .products import gram_of_chosen

# Share of its trace that keeps a Hessian of too few rows solvable.
RIDGE = 1e-13

_MAX_CHANGED_SHARE = 1 / 12  # Changed rows for each unknown above which a new factor costs less than the old one.
_FEW_CHANGED = 0.5  # Changed rows for each inlier up to which a Gram matrix is brought up to date,
_MUCH_LESS = 0.25  # unless its trace falls to this share: what rounding left of the rows that went would be felt.


class InlierGram:
    """The Gram matrix Σ wᵢ wᵢᵀ of the inliers among `rows` (m, k), from that before where few rows changed."""

    def __init__(self, rows: Floats) -> None:
        self._rows = rows
        self._inliers = np.zeros(len(rows), dtype=np.bool_)
        self._gram = np.zeros((rows.shape[1], rows.shape[1]))
        self._trace = 0.0

    def of(self, inliers: Bools) -> Floats:
        """Return that of these inliers."""
        changed = inliers != self._inliers
        is_new = bool(np.count_nonzero(changed) > _FEW_CHANGED * np.count_nonzero(inliers))
        if not is_new:
            came, went = (gram_of_chosen(self._rows, changed & rows) for rows in (inliers, ~inliers))
            self._gram = self._gram + came - went
            is_new = not self._gram.trace() > _MUCH_LESS * self._trace
        if is_new:
            self._gram = gram_of_chosen(self._rows, inliers)
            self._trace = 0.0
        self._inliers = inliers
        self._trace = max(self._trace, float(self._gram.trace()))
        return self._gram


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
