r"""The leading principal components of moments that grow by batches, followed from batch to batch with a bound.

All eigenvectors of a co-moment C take d³ operations. After a batch the leading ones lie near those before it, so that
p = 2 k of these are a good start for k. In steps:

1. A Chebyshev polynomial of C, small on the eigenvalues that are not wanted, is applied to the start, in float32: that
   is but a means (Zhou, Saad, Tiago & Chelikowsky 2006).
2. Within the span Q (d, p) of the result, Rayleigh & Ritz give values $\theta_1 \ge \theta_2 \dots$ and vectors. What
   is left, E = C Q − Q Θ, is orthogonal to Q. In a basis of the first k vectors, the p − k others and the rest, C is

   $$\begin{pmatrix} \Theta_1 & 0 & E_1^\top \\ 0 & \Theta_2 & E_2^\top \\ E_1 & E_2 & C_\perp \end{pmatrix}.$$

3. A Cholesky factor of σI − (C − Q Θ Qᵀ) proves that no eigenvalue of $C_\perp$ is above a σ below $\theta_k$.
4. The exact leading subspace is that of the first k vectors plus the others times Z (p − k, k) plus the rest times X.
   For its columns, and entry by entry for Z, with $\epsilon_i$ the norm of E's column i,

   $$\|x_i\| \le \frac{\epsilon_i + \sum_j \epsilon_j |z_{ji}| + \|X\| \|E_1\| \|x_i\|}{\theta_i - \sigma}, \qquad
     |z_{ji}| \le \frac{(\epsilon_j + \|E_1\| \|z_{j\cdot}\|) \|x_i\|}{\theta_i - \theta_j}:$$

   it solves a Riccati equation (Stewart 1973), and numbers that satisfy both, which are found by iteration, enclose a
   solution (Brouwer 1911).
5. Scores within the first k vectors are fitted with coefficients β in their basis, and r = c − C β is what of the
   products c with the score is left. Then the scores of the rows behind C differ from those within the exact subspace
   by at most, in the sum of squares, with μ the largest eigenvalue outside the first k vectors,

   $$\mu \Bigl( \sum_i |\beta_i| \sqrt{\|x_i\|^2 + \|z_i\|^2} \Bigr)^2
     + \sum_i \bigl( \|x_i\| \|r_\perp\| + \sum_j |z_{ji}| |r_j| \bigr)^2 / \theta_k.$$

Where the bound is above the tolerance the steps are done again, and where they do not help, as when the k-th and the
next eigenvalue are equal, the eigenvectors are found exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from . import _linalg
from ._check import Floats, Matrix
from ._threads import kept_helpers, map_blocks

# Vectors that are followed, for each component.
_FOLLOWED = 2
# The degree of the polynomial, and how often it is applied before the eigenvectors are found exactly.
_DEGREE = 3
_MAX_ROUNDS = 3
# σ lies so far between the last value that is followed and the k-th.
_BETWEEN = 0.25
# Components with smaller variances than this share of the largest are left to the exact way, which tells their rank.
_SMALLEST_VARIANCE = 1e-6
# Squares of numbers between these are in range in float64, and shares of the largest in float32.
_SMALLEST_SQUARE, _LARGEST_SQUARE = 1e-200, 1e200
# The enclosure is sought in so many steps, or until one adds no more than this share, and widened by this factor.
_ENCLOSURE_STEPS = 30
_SETTLED = 1e-3
_MORE = 1.01
# A Cholesky factor of products of unit vectors, all above this on its diagonal, makes them orthonormal to about 1e-11.
_WELL_CONDITIONED = 1e-2
# Rounding of n float32 numbers, that of one being u: no more than this times √n u, but for a chance of 1e-7 (Higham &
# Mary 2019).
_ROUNDING = 6.0
_ROUNDOFF = float(np.finfo(np.float32).eps) / 2

# A product is made of so many blocks of rows, which all cores share.
_BLOCKS = 8

# With fewer columns, or more components for them, eigenvectors take no longer (measured).
_MIN_COLUMNS, _MIN_COLUMNS_PER_COMPONENT = 512, 8


@dataclass(frozen=True, eq=False)
class LeadingSubspace:
    """Orthonormal vectors (d, p), p = 2 k, near the leading principal components, and their variances (p,), falling.

    `coef` (d,) are the coefficients of the fit within the first k. `error` bounds how far the scores of the rows behind
    it are from those of the exact fit, in root mean square, as a share of the base scores' spread.
    """

    basis: Floats
    variances: Floats
    coef: Floats
    error: float

    @property
    def components(self) -> int:
        """The number k of components that the fit is confined to."""
        return len(self.variances) // _FOLLOWED

    @classmethod
    def of(cls, comoment: Floats, components: int, least: float = 0.0) -> LeadingSubspace | None:
        """Return the exact components of a co-moment of features and score, or None if they are not so many.

        Their variances must be above `least`.
        """
        d, p = len(comoment) - 1, _FOLLOWED * components
        square = comoment[:-1, :-1]
        if not _is_in_range(square):
            return None
        values, vectors = _linalg.eigh(square, subset_by_index=(d - p, d - 1))
        basis, variances = np.ascontiguousarray(vectors[:, ::-1]), values[::-1].copy()
        if variances[components - 1] <= max(_SMALLEST_VARIANCE * variances[0], least):
            return None
        leading = basis[:, :components]
        coef = leading @ (leading.T @ comoment[:-1, -1] / variances[:components])
        # LAPACK's vectors are not finite where entries lie hundreds of powers of ten apart.
        return cls(basis, variances, coef, 0.0) if np.isfinite(coef).all() else None

    def followed(self, comoment: Floats, tolerance: float, least: float = 0.0) -> LeadingSubspace | None:
        """Return the components of another co-moment near these, or None if their error is not below the tolerance.

        Their variances must be above `least`.
        """
        if not _is_in_range(comoment[:-1, :-1]):
            return None
        scale = float(comoment[:-1, :-1].trace())
        single = np.empty_like(comoment[:-1, :-1], dtype=np.float32)
        np.divide(comoment[:-1, :-1], scale, out=single, casting="same_kind")
        with kept_helpers():
            return self._followed(comoment, single, scale, tolerance, least)

    def _followed(
        self, comoment: Floats, single: Matrix, scale: float, tolerance: float, least: float
    ) -> LeadingSubspace | None:
        """Return the same, given C / scale in float32."""
        basis, cut = self.basis, float(self.variances[-1]) / scale
        for _ in range(_MAX_ROUNDS):
            if not cut > 0:  # The rows have fewer directions than are followed.
                return None
            orthonormal = _orthonormal(_filtered(single, basis, cut))
            if orthonormal is None:
                return None
            ritz = _Ritz.of(comoment, orthonormal, self.components)
            if ritz.values[self.components - 1] <= max(_SMALLEST_VARIANCE * ritz.values[0], least):
                return None
            error = ritz.error_bound(float(comoment[-1, -1]))
            if error <= tolerance:  # NaN fails this comparison.
                if not ritz.bounds_the_rest(single, scale):
                    return None
                return LeadingSubspace(ritz.basis, ritz.values, ritz.coef, error)
            basis, cut = ritz.basis, float(ritz.values[-1]) / scale
        return None


def is_worth_following(dimensions: int, components: int) -> bool:
    """Return whether there are so many columns for each component that eigenvectors take longer than to follow them."""
    return dimensions >= max(_MIN_COLUMNS, _MIN_COLUMNS_PER_COMPONENT * components)


@dataclass(frozen=True, eq=False)
class _Ritz:
    """Ritz values (p,), falling, and vectors (d, p); `left` (d, p) is E, and `cross` (d,) the products with the score.

    `coef` (d,) is the fit within the first k vectors, `beta` (k,) the same in their basis, and `sigma` the σ to prove.
    """

    values: Floats
    basis: Floats
    left: Floats
    cross: Floats
    beta: Floats
    coef: Floats
    sigma: float

    @classmethod
    def of(cls, comoment: Floats, orthonormal: Floats, k: int) -> _Ritz:
        """Return the values and vectors within the span of orthonormal vectors (d, p) (step 2)."""
        square, cross = comoment[:-1, :-1], comoment[:-1, -1]
        products = _product(square, orthonormal)
        values, rotation = np.linalg.eigh(orthonormal.T @ products)
        values, rotation = values[::-1].copy(), rotation[:, ::-1]
        basis = orthonormal @ rotation
        left = products @ rotation - basis * values
        beta = basis[:, :k].T @ cross / values[:k]
        sigma = float(values[-1] + _BETWEEN * (values[k - 1] - values[-1]))
        return cls(values, basis, left, cross, beta, basis[:, :k] @ beta, sigma)

    def bounds_the_rest(self, single: Matrix, scale: float) -> bool:
        """Return whether a Cholesky factor proves σ, given C / scale in float32, which is used up (step 3)."""
        d = len(single)
        if not self.values[-1] > 0:  # LAPACK would factor the NaN of its root.
            return False
        weighted = (self.basis * np.sqrt(self.values / scale)).astype(np.float32)
        rest = _linalg.blas.ssyrk(1.0, weighted, beta=-1.0, c=single.T, lower=True, overwrite_c=True)
        sigma = self.sigma / scale
        margin = _ROUNDING * np.sqrt(d) * _ROUNDOFF * (d * sigma + 2.0)  # Of the traces that are added up.
        rest.flat[:: d + 1] += np.float32(sigma - margin)
        return bool(sigma > margin and _linalg.lapack.spotrf(rest, lower=True, clean=False, overwrite_a=True)[1] == 0)

    def error_bound(self, score_square: float) -> float:
        """Return the bound of step 5, as a share of the scores' spread, given that σ is proved; infinity for none."""
        k = len(self.beta)
        found = _Riccati.of(self.values, self.left, self.sigma, k).enclosure()
        if found is None or not score_square > 0:
            return np.inf
        residual = self.cross - (self.left[:, :k] @ self.beta + self.basis[:, :k] @ (self.values[:k] * self.beta))
        along = self.basis[:, k:].T @ residual
        across = float(np.linalg.norm(residual - self.basis[:, k:] @ along))
        tilted = float(np.abs(self.beta) @ np.sqrt(found.x**2 + (found.z**2).sum(axis=0)))
        turned = found.x * across + np.abs(along) @ found.z
        square = found.eigenvalue * tilted**2 + float(turned @ turned) / float(self.values[k - 1])
        return float(np.sqrt(square / score_square))


class _Enclosure(NamedTuple):
    """Bounds above ‖xᵢ‖ (k,) and |zⱼᵢ| (p − k, k), and an `eigenvalue` that divides the subspace from the rest.

    None of the subspace that is enclosed is below it, and none outside of the first k vectors above it.
    """

    x: Floats
    z: Floats
    eigenvalue: float


@dataclass(frozen=True, eq=False)
class _Riccati:
    """The equation of step 4, by the sizes of its terms, given Ritz values (p,), falling.

    `ours` (k,) and `others` (p − k,) are the norms ε of E's columns, and `outside` is that of E₁.
    """

    values: Floats
    sigma: float
    ours: Floats
    others: Floats
    outside: float

    @classmethod
    def of(cls, values: Floats, left: Floats, sigma: float, k: int) -> _Riccati:
        """Return that of E, which Rayleigh & Ritz have `left` (d, p)."""
        norms = np.sqrt(np.einsum("ij,ij->j", left, left))
        return cls(values, sigma, norms[:k], norms[k:], float(np.linalg.norm(norms[:k])))

    def enclosure(self) -> _Enclosure | None:
        """Return bounds of a solution that is the leading subspace, or None if none are found."""
        k = len(self.ours)
        if not (self.values[k - 1] > self.sigma and self.values[k - 1] > self.values[k]):
            return None
        x, z = np.zeros(k), np.zeros((len(self.others), k))
        with np.errstate(over="ignore", invalid="ignore"):
            for _ in range(_ENCLOSURE_STEPS):
                before, (x, z) = x, self._bounds(x, z)
                if (x <= (1 + _SETTLED) * before).all():
                    break
            x, z = _MORE * x, _MORE**2 * z
            again_x, again_z = self._bounds(x, z)
            if not ((again_x <= x).all() and (again_z <= z).all()):
                return None
        least = float(self.values[k - 1] - self.outside * np.linalg.norm(x))
        return _Enclosure(x, z, least) if self._is_leading(least) else None

    def _bounds(self, x: Floats, z: Floats) -> tuple[Floats, Floats]:
        """Return the right-hand sides of step 4."""
        k = len(self.ours)
        from_others = self.others @ z
        by_row = self.others + self.outside * np.linalg.norm(z, axis=1)
        above_rest = self.values[:k] - self.sigma
        above_others = self.values[:k] - self.values[k:, None]  # (p - k, k)
        return (
            (self.ours + from_others + np.linalg.norm(x) * self.outside * x) / above_rest,
            by_row[:, None] * x / above_others,
        )

    def _is_leading(self, least: float) -> bool:
        """Return whether a subspace with eigenvalues of `least` or more is the leading one: the others are smaller.

        They are those of the blocks Θ₂, E₂ and C⊥, and `least` less these is positive definite by its Schur complement.
        """
        values = self.values[len(self.ours) :]
        if not least > max(self.sigma, values[0]):
            return False
        return bool((self.others**2 / (least - values)).sum() < least - self.sigma)


def _filtered(single: Matrix, basis: Floats, cut: float) -> Floats:
    """Return a Chebyshev polynomial of a matrix times `basis` (d, p), small on eigenvalues from 0 to `cut` (step 1)."""
    before: Matrix = basis.astype(np.float32)
    now: Matrix = np.float32(2 / cut) * _product(single, before) - before
    for _ in range(_DEGREE - 1):
        before, now = now, np.float32(4 / cut) * _product(single, now) - 2 * now - before
    return now.astype(np.float64)


def _product(square: Matrix, vectors: Matrix) -> Matrix:
    """Return a matrix (d, d) times vectors (d, p), of the same type, on all cores."""
    product = np.empty_like(vectors)
    rows = -(-len(square) // _BLOCKS)

    def fill(start: int) -> None:
        np.matmul(square[start : start + rows], vectors, out=product[start : start + rows])

    map_blocks(fill, range(0, len(square), rows))
    return product


def _orthonormal(vectors: Floats) -> Floats | None:
    """Return an orthonormal basis of the columns' span, or None if they depend on one another or are not finite.

    By Cholesky factors of their products, twice where they nearly depend (Yamamoto, Nakatsukasa, Yanagisawa & Fukaya
    2015).
    """
    vectors = vectors / np.linalg.norm(vectors, axis=0)
    for _ in range(2):
        factor, failed = _linalg.lapack.dpotrf(vectors.T @ vectors, lower=False)
        if failed:
            return None
        vectors = _linalg.blas.dtrsm(1.0, factor, vectors, side=1)
        if factor.diagonal().min() > _WELL_CONDITIONED:
            break
    return np.asarray(vectors) if np.isfinite(vectors).all() else None


def _is_in_range(square: Floats) -> bool:
    return bool(_SMALLEST_SQUARE < square.trace() < _LARGEST_SQUARE)
