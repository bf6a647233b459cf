"""Moments of features and scores: all that a linear fit needs, as a sum.

Batch, stream and cluster are the same sum. The score is kept as one more column behind the features, and
everything is centred, so that a large mean does not cancel.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import block_diag, eigh, lapack

from ._blas import one_thread
from ._check import (
    BLOCK_NUMBERS,
    LARGEST,
    Bools,
    Floats,
    Matrix,
    as_count,
    as_matrix_of_any,
    as_number,
    as_share,
    as_truth,
    as_vector,
    check_finite,
    check_same_rows,
)
from .linear import LinearFit

_EPS = float(np.finfo(np.float64).eps)

# Below this reciprocal condition number a Cholesky solve and the eigen-decomposition may differ by 1e-8.
CHOLESKY_RCOND = 1e-7

# Fewer rows than this make a poor matrix product.
_LEAST_ROWS = 256


@dataclass(frozen=True, eq=False)
class Moments:
    r"""Weight, mean (d + 1,) and co-moment (d + 1, d + 1) of the columns [features, score].

    The co-moment is $\sum_i (x_i - \bar x)(x_i - \bar x)^\top$. `floor` is what rounding may have left in its
    eigenvalues when larger moments were taken away.

    >>> days = Moments.of([[0.0], [1.0]], [1.0, 3.0]) + Moments.of([[2.0]], [5.0])
    >>> days.solve().predict([[3.0]]).round(6)
    array([7.])
    """

    rows: float
    mean: Floats
    comoment: Floats
    floor: float = 0.0

    @classmethod
    def of(cls, features: ArrayLike, scores: ArrayLike) -> "Moments":
        """Return the moments of features (n, d) and scores (n,), accumulated in float64."""
        matrix, vector = as_matrix_of_any(features, "features"), as_vector(scores, "scores")
        check_same_rows(features=matrix, scores=vector)
        with one_thread(), np.errstate(invalid="ignore", over="ignore"):
            moments = _accumulate(matrix, vector)
        if not (np.diagonal(moments.comoment) <= len(matrix) * LARGEST**2).all():  # Not so for NaN.
            check_finite(matrix, "features")
        return moments

    @property
    def dimensions(self) -> int:
        """Number of feature columns."""
        return len(self.mean) - 1

    def __add__(self, more: "Moments") -> "Moments":
        """Return the moments of both sets of rows."""
        # Pairwise (Chan, Golub & LeVeque 1983), so a large mean does not cancel.
        step = _step(self, more)
        rows = self.rows + more.rows
        comoment = np.outer(step, step * (self.rows * more.rows / rows))
        comoment += self.comoment
        comoment += more.comoment
        return Moments(rows, self.mean + step * (more.rows / rows), comoment, self.floor + more.floor)

    def __sub__(self, old: "Moments") -> "Moments":
        """Return the moments of the rows that remain when `old` ones, added before, are taken away."""
        step = _step(self, old)
        rows = self.rows - old.rows
        if not rows > 0:
            raise ValueError(f"the moments taken away must weigh less than {self.rows:g} rows, got {old.rows:g}")
        comoment = self.comoment - old.comoment
        comoment -= np.outer(step, step * (self.rows * old.rows / rows))
        floor = self.floor + old.floor + 8 * _EPS * float(np.trace(self.comoment))
        return Moments(rows, self.mean - step * (old.rows / rows), comoment, floor)

    def decayed(self, factor: float) -> "Moments":
        """Return the same moments with every row's weight multiplied by `factor`, in (0, 1]."""
        factor = as_share(factor, "factor")
        return Moments(self.rows * factor, self.mean, self.comoment * factor, self.floor * factor)

    def solve(self, intercept: bool = True, components: int | None = None, ridge: float = 0.0) -> LinearFit:
        r"""Return the minimum-norm least-squares fit (Eq. 11).

        It minimises $\sum_i (s_i - z_i^\top \beta - a)^2 + \mathrm{ridge} \, \|\beta\|^2$ over `coef` $\beta$ and
        `intercept` $a$; without an intercept $a = 0$, as the paper prints it. With `components` = k the fit is
        confined to the k leading principal components of the centred features; the centring stays when
        `intercept` is false, which only shifts every score by one constant.
        """
        ridge, intercept = as_number(ridge, "ridge", at_least=0.0), as_truth(intercept, "intercept")
        if components is None:
            return self.solve_within(None, intercept=intercept, ridge=ridge)
        return self.solve_within(self.principal(components), intercept=intercept, ridge=ridge)

    def principal(self, components: int) -> "Principal":
        """Return the leading principal components of the features, fewer where the rank is lower."""
        d = self.dimensions
        k = as_count(components, "components", at_most=d)
        with one_thread():
            values, vectors = eigh(self.comoment[:d, :d], subset_by_index=(d - k, d - 1))
        used = values > max(d * _EPS * values[-1], self.floor)
        return Principal(self.mean[:d], vectors[:, used])

    def solve_within(self, principal: "Principal | None", *, intercept: bool, ridge: float = 0.0) -> LinearFit:
        """Return the fit of these rows confined to given principal components, as `solve` does to its own."""
        origin = np.zeros(self.dimensions) if principal is None else principal.origin
        sums, live = self.normal_equations(intercept, origin)
        with one_thread():
            if principal is None:
                through = None if intercept or ridge or self.floor else self._through_origin()
                coef, rank = through or least_norm(sums, live, self.floor, ridge)
            else:
                basis = block_diag(principal.basis, 1.0)
                sums = basis.T @ sums @ basis
                inner, rank = least_norm(sums, sums.diagonal()[:-1] > 0.0, self.floor, ridge)
                coef = principal.basis @ inner
            return self.fit_of(coef, rank, intercept, origin)

    def _through_origin(self) -> tuple[Floats, int] | None:
        """Return the fit without an intercept from the centred sums, from which a large mean does not take digits.

        The Gram matrix about zero is the centred one and the square of the mean: Sherman & Morrison (1950).
        """
        d = self.dimensions
        mean, mean_score = self.mean[:d], float(self.mean[d])
        factor, sound = _factor(self.comoment.copy())
        if not sound:
            return None
        centred, along = lapack.dpotrs(factor[:d, :d], np.column_stack((self.comoment[d, :d], mean)), lower=True)[0].T
        left = self.rows * (mean_score - mean @ centred) / (1 + self.rows * (mean @ along))
        return centred + along * left, d

    def normal_equations(self, intercept: bool, origin: Floats) -> tuple[Floats, Bools]:
        """Return the sums of products (d + 1, d + 1) that a fit is made from, and which features (d,) are not dead.

        With an intercept they are about the mean, without one about the origin.
        """
        if intercept:
            # Rounding of a block's mean leaves this of a constant column.
            noise = self.rows * (1000 * _EPS * self.mean[:-1]) ** 2
            return self.comoment, self.comoment.diagonal()[:-1] > noise
        centre = self.mean - np.append(origin, 0.0)
        sums = self.comoment + self.rows * np.outer(centre, centre)
        return sums, sums.diagonal()[:-1] > 0.0

    def fit_of(self, coef: Floats, rank: int, intercept: bool, origin: Floats) -> LinearFit:
        """Return the fit with these coefficients: its constant, and the share of variance that it explains."""
        total, over = float(self.comoment[-1, -1]), np.empty(len(coef) + 1)
        over[:-1], over[-1] = coef, -1.0  # Times a row [features, score], what the fit is over the score.
        level = float(self.mean @ over)
        constant = -level if intercept else -float(origin @ coef)
        left = max(float(over @ (self.comoment @ over)), 0.0) + self.rows * (level + constant) ** 2
        return LinearFit(coef, constant, self.rows, rank, 1.0 - left / total if total > 0.0 else float(left <= 0.0))


@dataclass(frozen=True, eq=False)
class Principal:
    """An orthonormal `basis` (d, k) of feature space, about an `origin` (d,)."""

    origin: Floats
    basis: Floats


def least_norm(sums: Floats, live: Bools, floor: float, ridge: float = 0.0, sound: bool = False) -> tuple[Floats, int]:
    """Return the shortest least-squares coefficients and their rank, from sums of products of features and score.

    An eigenvalue of at most `floor` is that of no direction. `sound` says that a Cholesky factor is known to be.
    """
    coef, d, rank = np.zeros(len(live)), len(live), int(np.count_nonzero(live))
    if rank == 0:
        return coef, 0
    if ridge:
        sums = sums + ridge * np.eye(d + 1)
    if not floor:
        factor, sound = _factor(among(sums, live), sound)
        if sound:
            right = np.zeros(rank + 1)
            right[-1] = -factor[-1, -1]
            coef[live] = lapack.dtrtrs(factor, right, lower=True, trans=1)[0][:-1]
            return coef, rank
    sums = among(sums, live)
    values, vectors = eigh(sums[:-1, :-1])
    used = values > max(d * _EPS * values[-1], floor + ridge * (floor > 0))
    coef[live] = vectors[:, used] @ (vectors[:, used].T @ sums[-1, :-1] / values[used])
    return coef, int(used.sum())


def among(sums: Floats, live: Bools) -> Floats:
    """Return a copy of the rows and columns of live features, and the score's where it is there."""
    if live.all():
        return sums.copy()
    kept = np.ones(len(sums), dtype=bool)
    kept[: len(live)] = live
    return sums.compress(kept, axis=0).compress(kept, axis=1)  # Half the time of an index by both.


def _accumulate(matrix: Matrix, scores: Floats) -> Moments:
    n, d = matrix.shape
    # About a shift near the mean little cancels, and about a row's own value nothing is left of a constant column.
    some = slice(None, None, max(1, n // 64))
    shift = np.append(matrix[0], scores[0]).astype(np.float64)
    shift += np.append((matrix[some] - shift[:d]).mean(axis=0), (scores[some] - shift[d]).mean())
    size = min(n, max(_LEAST_ROWS, BLOCK_NUMBERS // (d + 2)))
    block, gram = np.ones((size, d + 2)), np.zeros((d + 2, d + 2))
    for start in range(0, n, size):
        part = block[: min(size, n - start)]
        part[:, :d] = matrix[start : start + size]
        part[:, d] = scores[start : start + size]
        part[:, :-1] -= shift
        gram += part.T @ part
    total = gram[-1, :-1]  # The column of ones adds up the others.
    comoment = gram[:-1, :-1] - np.outer(total, total / n)
    return Moments(float(n), shift + total / n, comoment)


def _step(one: Moments, other: Moments) -> Floats:
    if not isinstance(other, Moments):
        raise TypeError(f"moments add to and subtract from moments, got {type(other).__name__}")
    if one.dimensions != other.dimensions:
        raise ValueError(f"moments must be of {one.dimensions} features to combine, got {other.dimensions}")
    return other.mean - one.mean


def _factor(sums: Floats, sound: bool = False) -> tuple[Floats, bool]:
    """Return the Cholesky factor of sums of products, in their place, and whether it may be trusted to solve with.

    Its last row is the score's, and half of the solution.
    """
    size = 0.0 if sound else sums[:-1, :-1].trace()
    sums[-1, -1] = 1.0 + 2.0 * sums[-1, -1]  # More than a fit can explain, so that no factor fails for the score.
    factor, failed = lapack.dpotrf(sums.T, lower=True, clean=False, overwrite_a=True)
    return factor, not failed and (sound or lapack.dpocon(factor[:-1, :-1], size, uplo="L")[0] > CHOLESKY_RCOND)
