r"""Least squares from sums of products: the minimum-norm fit, and which directions are there to be fitted.

A fit minimises $\sum_i (s_i - z_i^\top \beta - a)^2$. All it needs are the rows' weight, and the mean and centred
co-moment of the columns [features, score]. In steps:

1. Columns that do not vary are left out.
2. The others are scaled to unit variance, so that no unit of measurement decides what counts as small.
3. Where the smallest eigenvalue of that correlation matrix is large enough, a Cholesky factor solves.
4. Else its eigenvectors do. Those whose eigenvalue is not above what rounding leaves of an exact dependence are no
   directions, and among the coefficients that fit alike the shortest, in the features' own units, are taken.

Sums of squares hold half of the digits of what was squared. Columns that depend on one another to about 1e-7 of their
size cannot be told from columns that do so exactly, and are treated as these; those that do so to δ are fitted, with an
error of about 1e-16 / δ² of the scores' spread. A fit says which of the two happened.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from . import _linalg
from ._check import Bools, Floats, as_matrix_unchecked, check_finite, row_blocks
from ._double import EPS
from ._threads import map_blocks

# Eigenvalues of a correlation matrix up to this share of the largest are what rounding leaves of a dependence: up to 17
# units of EPS were seen over duplicated and summed columns, 3 to 128 of them, 50 to a million rows.
DEPENDENT = 64 * EPS

# With every eigenvalue of the correlation matrix above this, Cholesky and eigenvectors agree to 1e-8.
CHOLESKY_EIGENVALUE = 1e-7

# What rounding may then change in a fit, as a share of the scores' spread.
CHOLESKY_ROUNDING = DEPENDENT / CHOLESKY_EIGENVALUE

# A column varies when its standard deviation is above this share of its mean: rounding leaves less of a constant.
_CONSTANT = 1000 * EPS

# Squares below this have lost digits to underflow: a column that varies by less than 1e-145 counts as constant.
_UNDERFLOWING_SQUARE = 1e-290

# A column with a smaller part in a dependence, in units of its standard deviation, has none.
_NO_PART = 1e-7
_SOME_PART = 1e-3  # And with more than this it has one, however inexact the directions are.

# A mean that far outside the span of centred rows, in units of their standard deviation, is inside.
_NO_LEVEL = 1e-9

# Norms within this factor of one another are alike.
_MAX_NORM_RATIO = 1e3

# einsum buffers, and splits its sums, above 8,192 numbers.
_COLUMNS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class LinearFit:
    r"""A linear map from features to a trued score, $z^\top$ `coef` + `intercept` (Eq. 12).

    `rows` is the weight of the rows behind it, `rank` the number of directions it uses, and `explained` the
    share of those rows' score variance that it accounts for. `collinear` counts the directions left out because the
    columns depend on one another there, exactly or to about 1e-7 of their size, which sums of squares cannot tell
    apart, or because a column varies no more than the rounding that a subtraction left; directions that are missing
    because there are too few rows are not counted, nor those outside the principal components that a fit is
    confined to. `rounding` is what rounding may have cost the trued scores of these rows, as a share of the scores'
    spread: more than 1e-6 where columns are nearly collinear.
    """

    coef: Floats
    intercept: float
    rows: float
    rank: int
    explained: float
    collinear: int = 0
    rounding: float = 0.0

    def notes(self, components: int | None = None) -> list[str]:
        """Return what a user should know before trusting it; `components` are those it was to be confined to."""
        if self.rows and self.rank == 0 and not self.collinear:
            return ["the features do not vary: every row gets the same score"]
        notes = []
        if self.collinear > self.rank:
            notes.append(
                f"the fit uses {self.rank:,} directions and leaves {self.collinear:,} out, in which columns depend on "
                "one another to about 1e-7 of their size, or which are lost in rounding: are columns repeated?"
            )
        if self.rounding > 1e-6:
            cost = f"{self.rounding:.0e} of their spread"
            notes.append(f"columns are nearly collinear: rounding may have changed scores by {cost}")
        if components is not None and self.rank < min(components, self.rows - 1):
            notes.append(
                f"of {components:,} components {self.rank:,} are used: the others are lost in the rounding of the "
                "largest, or there are no more; are columns of very different size?"
            )
        return notes

    def predict(self, features: ArrayLike) -> Floats:
        """Return the trued score of every row (n,); rows that are equal get the same score, to the bit."""
        matrix = as_matrix_unchecked(features, "features")
        if matrix.shape[1] != len(self.coef):
            raise ValueError(f"features must have {len(self.coef)} columns, as the fit has, got {matrix.shape[1]}")
        scores = np.zeros(len(matrix))

        # Not by BLAS, whose last bit depends on a row's neighbours. What einsum adds up is copied into one layout, no
        # wider than it takes without a buffer, so that the order of its sum is the same for every row.
        def fill(rows: slice) -> None:
            for first in range(0, matrix.shape[1], _COLUMNS_AT_ONCE):
                columns = slice(first, first + _COLUMNS_AT_ONCE)
                block = np.array(matrix[rows, columns], dtype=np.float64, order="C")
                scores[rows] += np.einsum("ij,j->i", block, self.coef[columns])

        map_blocks(fill, row_blocks(matrix))
        if not np.isfinite(scores).all():
            check_finite(matrix, "features")
        scores += self.intercept
        return scores


@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients (d,) of a least-squares problem, the directions they use, and how many there would be at most.

    `rounding` is that of `LinearFit`.
    """

    coef: Floats
    rank: int
    full_rank: int
    rounding: float


def minimum_norm(
    rows: float,
    mean: Floats,
    comoment: Floats,
    rounding: Floats,
    *,
    intercept: bool,
    ridge: float = 0.0,
) -> Solution:
    """Return the shortest least-squares coefficients, from the moments of the columns [features, score].

    `rounding` (d + 1,) is what subtraction may have left in the variances.
    """
    vary = varying(rows, mean, comoment, rounding)
    if not vary.all():  # What is left of other columns is rounding.
        comoment = comoment * np.outer(np.append(vary, True), np.append(vary, True))
    live = vary | (ridge > 0)
    norm = np.sqrt(np.where(vary, comoment.diagonal()[:-1], 0.0) + ridge)
    if not intercept:  # A constant column makes up for it.
        norm = np.where(live, norm, np.abs(mean[:-1]) * np.sqrt(rows))
        live = norm > 0
    lost = int(np.count_nonzero(~live & (rounding[:-1] > 0)))
    problem = _Standardised.of(rows, mean, comoment, rounding, norm, live, ridge)
    if not live.any():
        return Solution(np.zeros(len(live)), 0, lost, 0.0)
    factor = cholesky_factor(problem.correlations.copy())
    smallest = 0.0 if factor is None else smallest_eigenvalue(factor)
    if factor is not None and smallest > max(CHOLESKY_EIGENVALUE, 4 * problem.noise):
        scaled, rank = problem.by_cholesky(factor, intercept), len(problem.norm)
        cost = max(CHOLESKY_ROUNDING, problem.noise / smallest)
    else:
        scaled, rank, cost = problem.by_eigenvectors(intercept)
    coef = np.zeros(len(live))
    coef[live] = scaled / problem.norm
    score_square = max(float(comoment[-1, -1]), 0.0)
    if not intercept:
        cost = max(cost, problem.cost_of_level(scaled, score_square))
    if problem.noise and rounding[-1]:  # What subtraction left in the products with the score.
        left = problem.noise * rounding[-1] / max(smallest, CHOLESKY_EIGENVALUE)
        cost = max(cost, float(np.sqrt(left / score_square)) if score_square > 0 else 1.0)
    return Solution(coef, rank, len(problem.norm) + lost, min(cost, 1.0))


def varying(rows: float, mean: Floats, comoment: Floats, rounding: Floats) -> Bools:
    """Return which features (d,) vary by more than rounding does, and by enough to be squared."""
    squares = comoment.diagonal()[:-1]
    enough = np.maximum(rows * (_CONSTANT * mean[:-1]) ** 2, rounding[:-1])
    live: Bools = squares > np.maximum(enough, _UNDERFLOWING_SQUARE)
    return live


def live_block(square: Floats, live: Bools) -> Floats:
    """Return a copy of the rows and columns that are live."""
    if live.all():
        return square.copy()
    return square.compress(live, axis=0).compress(live, axis=1)  # Half the time of an index by both.


def cholesky_factor(matrix: Floats) -> Floats | None:
    """Return the lower Cholesky factor, in the matrix's place, or None; above its diagonal is anything."""
    factor, failed = _linalg.lapack.dpotrf(matrix.T, lower=True, clean=False, overwrite_a=True)
    return None if failed else factor


def smallest_eigenvalue(factor: Floats) -> float:
    """Return LAPACK's estimate of the smallest eigenvalue, by 1-norms, of the matrix with this Cholesky factor."""
    return float(_linalg.lapack.dpocon(factor, 1.0, uplo="L")[0])


@dataclass(frozen=True, eq=False)
class _Standardised:
    """A least-squares problem whose k columns, less their mean, are scaled to unit norm.

    `cross` (k,) are the columns' products with the score, `level` (k,) and `level_score` the means, and `noise` is what
    subtraction may have left in an eigenvalue of `correlations` (k, k).
    """

    rows: float
    norm: Floats
    correlations: Floats
    cross: Floats
    level: Floats
    level_score: float
    noise: float

    @classmethod
    def of(
        cls, rows: float, mean: Floats, comoment: Floats, rounding: Floats, norm: Floats, live: Bools, ridge: float
    ) -> _Standardised:
        norm = norm[live]
        correlations = live_block(comoment[:-1, :-1], live)
        correlations.flat[:: len(norm) + 1] += ridge
        correlations *= (1 / norm)[:, None]
        correlations *= 1 / norm
        noise = float((rounding[:-1][live] / norm / norm).sum())
        cross, level = comoment[-1, :-1][live] / norm, mean[:-1][live] / norm
        return cls(rows, norm, correlations, cross, level, float(mean[-1]), noise)

    def by_cholesky(self, factor: Floats, intercept: bool) -> Floats:
        """Return the coefficients (k,), of which there is one choice."""
        scaled = _linalg.lapack.dpotrs(factor, self.cross, lower=True)[0]
        if not intercept:
            # About zero the Gram matrix has the square of the mean beside the co-moment: Sherman & Morrison (1950).
            along = _linalg.lapack.dpotrs(factor, self.level, lower=True)[0]
            missing = self.level_score - self.level @ scaled
            scaled += along * (self.rows * missing / (1 + self.rows * (self.level @ along)))
        return np.asarray(scaled)

    def cost_of_level(self, scaled: Floats, score_square: float) -> float:
        """Return the `rounding` of a fit through the origin, which must cancel what its columns' means add up to."""
        spread = np.sqrt(score_square) if score_square > 0 else np.sqrt(self.rows) * abs(self.level_score)
        cancelled = np.sqrt(self.rows) * float(np.abs(self.level) @ np.abs(scaled))
        return float(min(DEPENDENT * cancelled / spread, 1.0)) if spread > 0 else 0.0

    def by_eigenvectors(self, intercept: bool) -> tuple[Floats, int, float]:
        """Return the coefficients (k,) that are shortest in the features' own units, their rank and rounding."""
        values, vectors = _linalg.eigh(self.correlations)
        limit = DEPENDENT * values[-1] + self.noise
        used = values > limit
        values, basis, null = values[used], vectors[:, used], vectors[:, ~used]
        turned = limit / values.min(initial=1.0)  # How far rounding may have turned and stretched the two spaces.
        tolerance = min(max(_NO_PART, 10 * turned), _SOME_PART)
        scaled = basis @ (basis.T @ self.cross / values)
        if intercept:
            return _of_minimum_norm(scaled, basis, null, self.norm, tolerance), basis.shape[1], turned
        missing = self.level_score - self.level @ scaled
        outside = self._mean_outside(null, turned)
        if outside is None:  # Sherman & Morrison, as above.
            direction = basis @ (basis.T @ self.level / values)
            fitted = scaled + direction * (self.rows * missing / (1 + self.rows * (self.level @ direction)))
        else:  # What no centred row has fits the mean score alone.
            direction, null = outside
            basis = np.column_stack((basis, direction))
            fitted = scaled + direction * (missing / (direction @ self.level))
        shortest = _of_minimum_norm(fitted, basis, null, self.norm, tolerance)
        # A large mean feels what is far too small to change a centred row.
        moved = self.level @ (fitted - shortest)
        if moved:
            shortest = shortest + direction * (moved / (direction @ self.level))
        return shortest, basis.shape[1], turned

    def _mean_outside(self, null: Floats, turned: float) -> tuple[Floats, Floats] | None:
        """Return the direction (k,) of the mean outside the span of centred rows and what `null` is without it."""
        outside, root = null.T @ self.level, np.sqrt(self.rows)
        if root * np.linalg.norm(outside) <= max(_NO_LEVEL, turned) * (1 + root * np.linalg.norm(self.level)):
            return None
        turn = _linalg.qr(outside[:, None])[0]
        return null @ turn[:, 0], null @ turn[:, 1:]


def _of_minimum_norm(scaled: Floats, basis: Floats, null: Floats, norm: Floats, tolerance: float) -> Floats:
    """Return `scaled` (k,) but for a part in the null space (k, m), so that scaled / norm is shortest."""
    if not null.size or not basis.size:  # There is one choice, or nothing to choose: zeros.
        return scaled
    if norm.max() > _MAX_NORM_RATIO * norm.min() or basis.shape[1] > null.shape[1]:
        return scaled - _projection(scaled, null, norm, tolerance)
    # Few directions are used: the shortest coefficients are the ones that only they determine.
    rotation, triangle = _linalg.qr(basis * norm[:, None], mode="economic")
    shortest: Floats = norm * (rotation @ _linalg.solve_triangular(triangle, basis.T @ scaled, trans=1))
    return shortest


def _projection(scaled: Floats, null: Floats, norm: Floats, tolerance: float) -> Floats:
    """Return the vector in the span of `null` (k, m) nearest to `scaled` (k,), each number divided by its `norm`."""
    order = np.argsort(norm)
    basis = _without_noise(null[order], norm[order], tolerance)
    # With rows sorted by size, and pivots, Householder's QR keeps the digits of each row (Cox & Higham 1998).
    rotation, triangle, pivots = _linalg.qr(basis / norm[order, None], mode="economic", pivoting=True)
    some = np.flatnonzero(triangle.diagonal())  # A direction that was all noise has none.
    if not some.size:
        return np.zeros(len(scaled))
    part = np.zeros(basis.shape[1])
    part[pivots[some]] = _linalg.solve_triangular(
        triangle[: len(some), some], rotation[:, some].T @ (scaled / norm)[order]
    )
    nearest = np.empty(len(scaled))
    nearest[order] = basis @ part
    return nearest


def _without_noise(null: Floats, norm: Floats, tolerance: float) -> Floats:
    """Return a basis of the same space with zeros where rows of smaller `norm` (k,), in ascending order, have no part.

    Units, and so norms, may lie many powers of ten apart. In the smallest even rounding would outweigh what there is in
    the largest. So a band of like norms takes, of the directions that remain, those it has a part in; of the others it
    then has none.
    """
    bands = np.floor(np.log(norm / norm[0]) / np.log(_MAX_NORM_RATIO))
    basis, taken = null.copy(), 0
    for number in np.unique(bands[bands < bands[-1]]):
        band = np.flatnonzero(bands == number)
        if taken < null.shape[1]:
            _, sizes, turn = np.linalg.svd(basis[band, taken:])
            basis[:, taken:] = basis[:, taken:] @ turn.T
            taken += int(np.count_nonzero(sizes > tolerance))
            basis[band, taken:] = 0.0
    return basis
