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

from . import _kernels, _linalg
from ._check import (
    BLOCK_NUMBERS,
    KERNEL_NUMBERS,
    Bools,
    Floats,
    Matrix,
    as_block,
    as_matrix_unchecked,
    check_finite,
    row_blocks,
)
from ._double import EPS
from ._threads import map_blocks

# Eigenvalues of a correlation matrix up to this share of the largest are what rounding leaves of a dependence: up to 17
# units of EPS were seen over duplicated and summed columns, 3 to 128 of them, 50 to a million rows.
RANK_TOLERANCE = 64 * EPS

# With every eigenvalue of the correlation matrix above this, Cholesky and eigenvectors agree to 1e-8.
CHOLESKY_EIGENVALUE = 1e-7

# What rounding may then change in a fit, as a share of the scores' spread.
CHOLESKY_ROUNDING = RANK_TOLERANCE / CHOLESKY_EIGENVALUE

# A column varies when its standard deviation is above this share of its mean: rounding leaves less of a constant.
CONSTANT_TOLERANCE = 1000 * EPS

# Squares below this have lost digits to underflow: a column that varies by less than 1e-145 counts as constant, and one
# whose numbers are all smaller as zero.
UNDERFLOWING_SQUARE = 1e-290

# Entries of null vectors, in units of the columns' standard deviations, up to which they count as zero; where rounding
# has made the null space less exact than that, up to more, but never more than the second.
_NULL_ENTRY_TOLERANCE = 1e-7
_MAX_NULL_ENTRY_TOLERANCE = 1e-3

# A mean no further than this from the span of the centred rows, in units of their standard deviation, is in it.
_IN_SPAN_TOLERANCE = 1e-9

# Norms within this factor of one another are alike.
_MAX_NORM_RATIO = 1e3

# Of so few BLAS uses one thread, whatever it may use.
_FEW_SCORES = 4096


@dataclass(frozen=True, eq=False)
class LinearFit:
    r"""A linear map from features to a trued score, $z^\top$ `coef` + `intercept` (Eq. 12).

    `rows` is the weight of the rows behind it, `rank` the number of directions it uses, and `explained` the
    share of those rows' score variance that it accounts for. `collinear` counts the directions left out because the
    columns depend on one another there, exactly or to about 1e-7 of their size, which sums of squares cannot tell
    apart, or because a column varies no more than the rounding that a subtraction left; directions that are missing
    because there are too few rows are not counted, nor those outside the principal components that a fit is
    confined to. `rounding` is what rounding may have cost the trued scores of these rows, as a share of the scores'
    spread: more than 1e-6 where columns are nearly collinear. `approximation` bounds how far these rows' trued scores
    are from those of the exact fit, in root mean square, as a share of the same: 0 but in a stream whose principal
    components are followed.
    """

    coef: Floats
    intercept: float
    rows: float
    rank: int
    explained: float
    collinear: int = 0
    rounding: float = 0.0
    approximation: float = 0.0

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
        if self.coef.ndim != 1:
            raise ValueError(f"coef must be 1-D (d,), got shape {self.coef.shape}")
        if matrix.shape[1] != len(self.coef):
            raise ValueError(f"features must have {len(self.coef)} columns, as the fit has, got {matrix.shape[1]}")
        scores = row_products(matrix, self.coef, float(self.intercept))
        # Of few scores a sum of squares tells soonest; it may overflow.
        are_finite = len(scores) <= _FEW_SCORES and np.vdot(scores, scores) < np.inf
        if not are_finite and not np.isfinite(scores).all():
            check_finite(matrix, "features")
            row = np.flatnonzero(~np.isfinite(scores))[0]
            wanted = "features must be of a size that the fit can score"
            raise ValueError(f"{wanted}, got a score beyond all 64-bit numbers in row {row}")
        return scores


def row_products(matrix: Matrix, coef: Floats, constant: float = 0.0) -> Floats:
    """Return the product of every row with `coef`, and a constant (n,); equal rows get the same, to the bit."""
    products, weights = np.empty(len(matrix)), _kernels.doubles(coef)
    if matrix.size <= BLOCK_NUMBERS:
        _multiply(matrix, weights, constant, products)
    else:
        is_plain = _kernels.kernels is None
        parts = row_blocks(matrix, copies=2) if is_plain else row_blocks(matrix, most=KERNEL_NUMBERS)
        map_blocks(lambda rows: _multiply(matrix[rows], weights, constant, products[rows]), parts, uses_blas=False)
    return products


def _multiply(rows: Matrix, coef: Floats, constant: float, out: Floats) -> None:
    """Write the product of every row with `coef`, and a constant, into `out`."""
    kernels = _kernels.kernels
    if kernels is None:  # Not by BLAS, whose last bit depends on a row's neighbours.
        with np.errstate(over="ignore", invalid="ignore"):  # Whoever looks at the products finds these.
            np.sum(as_block(rows) * coef, axis=1, out=out)
            out += constant
    else:
        kernels("row_products", _kernels.readable(rows), coef, constant, out)


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
        live = norm > np.sqrt(UNDERFLOWING_SQUARE)
    lost_columns = int(np.count_nonzero(~live & (rounding[:-1] > 0)))
    problem = _Standardised.of(rows, mean, comoment, rounding, norm, live, ridge)
    if not live.any():
        return Solution(np.zeros(len(live)), 0, lost_columns, 0.0)
    factor = cholesky_factor(problem.correlations.copy())
    smallest = 0.0 if factor is None else smallest_eigenvalue(factor)
    if factor is not None and smallest > max(CHOLESKY_EIGENVALUE, 4 * problem.subtraction_error):
        scaled, rank = problem.by_cholesky(factor, intercept), len(problem.norm)
        rounding_cost = max(CHOLESKY_ROUNDING, problem.subtraction_error / smallest)
    else:
        scaled, rank, rounding_cost = problem.by_eigenvectors(intercept)
    coef = np.zeros(len(live))
    coef[live] = scaled / problem.norm
    score_square = max(float(comoment[-1, -1]), 0.0)
    if not intercept:
        rounding_cost = max(rounding_cost, problem.rounding_through_origin(scaled, score_square))
    if problem.subtraction_error and rounding[-1]:  # What subtraction left in the products with the score.
        left = problem.subtraction_error * rounding[-1] / max(smallest, CHOLESKY_EIGENVALUE)
        rounding_cost = max(rounding_cost, float(np.sqrt(left / score_square)) if score_square > 0 else 1.0)
    return Solution(coef, rank, len(problem.norm) + lost_columns, min(rounding_cost, 1.0))


def varying(rows: float, mean: Floats, comoment: Floats, rounding: Floats) -> Bools:
    """Return which features (d,) vary by more than rounding does, and by enough to be squared."""
    squares = comoment.diagonal()[:-1]
    enough = np.maximum(rows * (CONSTANT_TOLERANCE * mean[:-1]) ** 2, rounding[:-1])
    live: Bools = squares > np.maximum(enough, UNDERFLOWING_SQUARE)
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

    `cross` (k,) are the columns' products with the score, `scaled_mean` (k,) and `mean_score` the means, and
    `subtraction_error` is what subtraction may have left in an eigenvalue of `correlations` (k, k).
    """

    rows: float
    norm: Floats
    correlations: Floats
    cross: Floats
    scaled_mean: Floats
    mean_score: float
    subtraction_error: float

    @classmethod
    def of(
        cls, rows: float, mean: Floats, comoment: Floats, rounding: Floats, norm: Floats, live: Bools, ridge: float
    ) -> _Standardised:
        norm = norm[live]
        correlations = live_block(comoment[:-1, :-1], live)
        correlations.flat[:: len(norm) + 1] += ridge
        correlations *= (1 / norm)[:, None]
        correlations *= 1 / norm
        subtraction_error = float((rounding[:-1][live] / norm / norm).sum())
        cross, scaled_mean = comoment[-1, :-1][live] / norm, mean[:-1][live] / norm
        return cls(rows, norm, correlations, cross, scaled_mean, float(mean[-1]), subtraction_error)

    def by_cholesky(self, factor: Floats, intercept: bool) -> Floats:
        """Return the coefficients (k,), of which there is one choice."""
        scaled = _linalg.lapack.dpotrs(factor, self.cross, lower=True)[0]
        if not intercept:
            # About zero the Gram matrix has the square of the mean beside the co-moment: Sherman & Morrison (1950).
            along = _linalg.lapack.dpotrs(factor, self.scaled_mean, lower=True)[0]
            mean_residual = self.mean_score - self.scaled_mean @ scaled
            scaled += along * (self.rows * mean_residual / (1 + self.rows * (self.scaled_mean @ along)))
        return np.asarray(scaled)

    def rounding_through_origin(self, scaled: Floats, score_square: float) -> float:
        """Return the `rounding` of a fit through the origin, which must cancel what its columns' means add up to."""
        spread = np.sqrt(score_square) if score_square > 0 else np.sqrt(self.rows) * abs(self.mean_score)
        cancelled = np.sqrt(self.rows) * float(np.abs(self.scaled_mean) @ np.abs(scaled))
        return float(min(RANK_TOLERANCE * cancelled / spread, 1.0)) if spread > 0 else 0.0

    def by_eigenvectors(self, intercept: bool) -> tuple[Floats, int, float]:
        """Return the coefficients (k,) that are shortest in the features' own units, their rank and rounding."""
        values, vectors = _linalg.eigh(self.correlations)
        limit = RANK_TOLERANCE * values[-1] + self.subtraction_error
        used = values > limit
        values, basis, null = values[used], vectors[:, used], vectors[:, ~used]
        subspace_error = limit / values.min(initial=1.0)  # Of the range and the null space (Davis & Kahan 1970).
        tolerance = min(max(_NULL_ENTRY_TOLERANCE, 10 * subspace_error), _MAX_NULL_ENTRY_TOLERANCE)
        scaled = basis @ (basis.T @ self.cross / values)
        if intercept:
            return _of_minimum_norm(scaled, basis, null, self.norm, tolerance), basis.shape[1], subspace_error
        mean_residual = self.mean_score - self.scaled_mean @ scaled
        outside = self._mean_outside(null, subspace_error)
        if outside is None:  # Sherman & Morrison, as above.
            direction = basis @ (basis.T @ self.scaled_mean / values)
            fitted = scaled + direction * (self.rows * mean_residual / (1 + self.rows * (self.scaled_mean @ direction)))
        else:  # What no centred row has fits the mean score alone.
            direction, null = outside
            basis = np.column_stack((basis, direction))
            fitted = scaled + direction * (mean_residual / (direction @ self.scaled_mean))
        shortest = _of_minimum_norm(fitted, basis, null, self.norm, tolerance)
        # What is far too small to change a centred row may still change the fitted mean, where means are large.
        mean_shift = self.scaled_mean @ (fitted - shortest)
        if mean_shift:
            shortest = shortest + direction * (mean_shift / (direction @ self.scaled_mean))
        return shortest, basis.shape[1], subspace_error

    def _mean_outside(self, null: Floats, subspace_error: float) -> tuple[Floats, Floats] | None:
        """Return the direction (k,) of the mean outside the span of centred rows and what `null` is without it."""
        outside, root = null.T @ self.scaled_mean, np.sqrt(self.rows)
        if root * np.linalg.norm(outside) <= max(_IN_SPAN_TOLERANCE, subspace_error) * (
            1 + root * np.linalg.norm(self.scaled_mean)
        ):
            return None
        rotation = _linalg.qr(outside[:, None])[0]
        return null @ rotation[:, 0], null @ rotation[:, 1:]


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
    basis = _without_rounding(null[order], norm[order], tolerance)
    # With rows sorted by size, and pivots, Householder's QR keeps the digits of each row (Cox & Higham 1998).
    rotation, triangle, pivots = _linalg.qr(basis / norm[order, None], mode="economic", pivoting=True)
    some = np.flatnonzero(triangle.diagonal())  # A direction that was all rounding has none.
    if not some.size:
        return np.zeros(len(scaled))
    part = np.zeros(basis.shape[1])
    part[pivots[some]] = _linalg.solve_triangular(
        triangle[: len(some), some], rotation[:, some].T @ (scaled / norm)[order]
    )
    nearest = np.empty(len(scaled))
    nearest[order] = basis @ part
    return nearest


def _without_rounding(null: Floats, norm: Floats, tolerance: float) -> Floats:
    """Return a basis of the same space with zeros for entries that are but rounding; `norm` (k,) ascends.

    Units, and so norms, may lie many powers of ten apart. In the smallest even rounding would outweigh what there is in
    the largest. So each band of similar norms, from the smallest, keeps those of the remaining directions in which its
    entries are not zero, and is set to zero in the others.
    """
    bands = np.floor(np.log(norm / norm[0]) / np.log(_MAX_NORM_RATIO))
    basis, taken = null.copy(), 0
    for number in np.unique(bands[bands < bands[-1]]):
        band = np.flatnonzero(bands == number)
        if taken < null.shape[1]:
            _, sizes, rotation = np.linalg.svd(basis[band, taken:])
            basis[:, taken:] = basis[:, taken:] @ rotation.T
            taken += int(np.count_nonzero(sizes > tolerance))
            basis[band, taken:] = 0.0
    return basis
