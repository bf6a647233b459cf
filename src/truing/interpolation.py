r"""Fewer rows than columns: the shortest coefficients that fit every row, as rows are added.

With the first row as the origin, m further rows are W (m, d), and their scores less the first one are t (m,). As long
as these rows are independent the minimum-norm least-squares fit with an intercept is the shortest $\beta$ with
$W \beta = t$. No weight changes it. With $W = L Q$, L lower triangular and the rows of Q orthonormal, a batch B with
scores u adds to it, in steps:

1. B = A Q + R, with R orthogonal to Q: Gram & Schmidt, twice (Giraud, Langou & Rozložník 2005).
2. R = L' Q', a factorisation of the batch alone.
3. β grows by Q'ᵀ L'⁻¹ (u − B β).

That is b·m·d operations, where eigenvectors of the co-moment take d³. L⁻¹ is kept too, as rows of it follow from A and
L' in the same way. The co-moment of the n = m + 1 rows is $W^\top (I - 1 1^\top / n) W$, and the inverse of the bracket
$I + 1 1^\top$ (Sherman & Morrison 1950). So of its eigenvalues that are not zero the inverses add up to
$\|L^{-1}\|^2 + \|L^{-1} 1\|^2$, and none of them is larger than that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import _kernels, _linalg
from ._blas import one_thread
from ._check import Bools, Floats, Matrix
from .least_squares import RANK_TOLERANCE

# A basis of so few numbers stays in the caches, where the kernel takes less time than BLAS (measured).
_FEW_NUMBERS = 2**15

# Both sides of the comparison with what rounding leaves of a dependence are rounded themselves.
_SAFETY_FACTOR = 2


@dataclass(frozen=True, eq=False)
class Interpolation:
    """The shortest coefficients (d,) that take m rows less the `origin` (d,) to their scores less the `origin_score`.

    `basis` (m, d) is Q, an orthonormal basis of the rows' span, `inverse` (m, m) the inverse of L, their coordinates in
    it, and `inverse_trace` what the inverses of the co-moment's eigenvalues that are not zero add up to. `varied` (d,)
    tells the columns in which any row differs from the origin.
    """

    origin: Floats
    origin_score: float
    coef: Floats
    basis: Floats
    inverse: Floats
    inverse_trace: float
    varied: Bools

    @classmethod
    def of(cls, features: Matrix, scores: Floats) -> Interpolation | None:
        """Return that of these rows, or None if they depend on one another."""
        d = features.shape[1]
        origin = features[0].astype(np.float64)
        first = cls(
            origin,
            float(scores[0]),
            coef=np.zeros(d),
            basis=np.empty((0, d)),
            inverse=np.empty((0, 0)),
            inverse_trace=0.0,
            varied=np.zeros(d, dtype=bool),
        )
        return first.with_rows(features[1:], scores[1:]) if len(scores) > 1 else first

    @property
    def rows(self) -> int:
        """Number of rows that are fitted, the origin among them."""
        return len(self.basis) + 1

    def with_rows(self, features: Matrix, scores: Floats) -> Interpolation | None:
        """Return that of these rows as well, or None if there are too many or they depend on one another."""
        b, m = len(features), len(self.basis)
        if m + b > features.shape[1]:
            return None
        kernels = _kernels.kernels
        if kernels is not None and (m + b) * features.shape[1] <= _FEW_NUMBERS:
            return self._by_kernel(kernels, features, scores)
        with one_thread(), np.errstate(invalid="ignore", over="ignore"):
            return self._with_rows(features, scores)

    def _by_kernel(self, kernels: _kernels.Kernels, features: Matrix, scores: Floats) -> Interpolation | None:
        """Return what `_with_rows` does, a row at a time."""
        m, d = self.basis.shape
        n = m + len(features)
        coef, varied, found = np.empty(d), self.varied.copy(), np.empty(2)
        basis, inverse = np.empty((n, d)), np.empty((n, n))
        kernels(
            "add_to_interpolation",
            _kernels.readable(features),
            _kernels.doubles(scores),
            self.origin,
            self.origin_score,
            self.coef,
            _kernels.readable(self.basis),
            _kernels.readable(self.inverse),
            coef,
            basis,
            inverse,
            varied,
            np.empty(d + 2 * n),
            found,
        )
        is_independent, more = found.tolist()
        if not is_independent:
            return None
        trace = self.inverse_trace + more
        return Interpolation(self.origin, self.origin_score, coef, basis, inverse, trace, varied)

    def _with_rows(self, features: Matrix, scores: Floats) -> Interpolation | None:
        b, m = len(features), len(self.basis)
        rows = features - self.origin
        coordinates, rest = self._coordinates_and_rest(rows)
        factored = _factored(rest)
        if factored is None:
            return None
        directions, own = factored
        beside = own @ (coordinates @ self.inverse)
        residual = (scores - self.origin_score) - rows @ self.coef
        basis = np.empty((m + b, len(self.coef)))
        basis[:m] = self.basis
        basis[m:] = directions
        inverse = np.zeros((m + b, m + b))
        inverse[:m, :m] = self.inverse
        inverse[m:, :m] = -beside
        inverse[m:, m:] = own
        row_sums = inverse[m:].sum(axis=1)
        return Interpolation(
            self.origin,
            self.origin_score,
            coef=self.coef + (own @ residual) @ directions,
            basis=basis,
            inverse=inverse,
            inverse_trace=self.inverse_trace + float(np.vdot(inverse[m:], inverse[m:]) + row_sums @ row_sums),
            varied=self.varied | rows.any(axis=0),
        )

    def _coordinates_and_rest(self, rows: Floats) -> tuple[Floats, Floats]:
        """Return A (b, m) and R (b, d) of rows about the origin (step 1)."""
        coordinates = rows @ self.basis.T
        rest = rows - coordinates @ self.basis
        again = rest @ self.basis.T
        rest -= again @ self.basis
        coordinates += again
        return coordinates, rest

    def has_full_rank(self, largest_square: float, live: int) -> bool:
        """Return whether all its directions stand above rounding, given the largest sum of squares of k live columns.

        Of the live columns' correlation matrix no eigenvalue is above k, and none that belongs to a direction of the
        rows below 1 / (inverse_trace · largest_square).
        """
        bound = self.inverse_trace * largest_square
        return _SAFETY_FACTOR * RANK_TOLERANCE * live * bound < 1.0  # NaN fails this comparison too.


def _factored(rest: Floats) -> tuple[Floats, Floats] | None:
    """Return Q' (b, d) and the inverse (b, b) of L', given R (b, d) (step 2), or None if R has not that rank."""
    if len(rest) == 1:
        length = _linalg.blas.dnrm2(rest[0])
        return (rest / length, np.array([[1 / length]])) if length > 0 else None
    directions, triangle = np.linalg.qr(rest.T)
    inverse, singular = _linalg.lapack.dtrtri(triangle)
    return None if singular else (directions.T, inverse.T)
