r"""Minimum-norm least squares from moments: find the directions that the rows determine, and the shortest fit.

A fit minimises $\sum_i (s_i - z_i^\top \beta - a)^2$ over the coefficients $\beta$ and the intercept $a$. It needs the
weight of the rows, and the mean and centred second moment of the columns [features, score]. The steps are:

1. Leave out the columns that do not vary.
2. Judge the rank on columns scaled to unit variance, so that the rank does not depend on units of measurement.
3. If the rank is full, solve with one Cholesky factor: of the correlation matrix (k, k), or, with fewer rows than
   columns, of the Gram matrix (m, m) of the rows.
4. Otherwise find the directions that the rows determine, from eigenvectors or a thin singular value decomposition.
   Among all coefficients that fit equally well, return the shortest in the features' own units.

A sum of squares keeps only half of the digits of the squared numbers. Columns that depend on each other to within about
1e-7 of their size are therefore treated as exactly dependent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from .. import _linalg
from .._check import BLOCK_NUMBERS, Bools, Floats, Matrix, as_matrix_unchecked, check_finite, row_blocks
from .._kernels import KERNEL_NUMBERS, kernels, readable
from .._threads import map_blocks
from .._warnings import Alert

EPS = float(np.finfo(np.float64).eps)

# An eigenvalue of a correlation matrix counts as zero if it is at most this share of the largest eigenvalue. For
# exactly dependent columns (duplicates and sums; 3 to 128 columns, 50 to a million rows), the share was up to 17 EPS.
RANK_TOLERANCE = 64 * EPS

# A matrix is solved by Cholesky if its smallest eigenvalue exceeds the limit for a zero eigenvalue by this factor.
_SAFETY_FACTOR = 4.0

# A column is constant if its standard deviation is at most this share of its mean.
_CONSTANT_TOLERANCE = 1000 * EPS

# A column counts as constant if its sum of squares is below this bound, where digits are lost to underflow.
_UNDERFLOWING_SQUARE = 1e-290

# Columns whose norms differ by more than this factor are treated as different units.
_MAX_NORM_RATIO = 1e3

# If columns have different units, entries of a unit vector below _ZERO_ENTRY count as rounding errors. The bound is
# larger if the vectors are less accurate, but at most _MAX_ZERO_ENTRY.
_ZERO_ENTRY = 1e-7
_MAX_ZERO_ENTRY = 1e-3

# Setting these entries to zero changes the fitted scores slightly. This number of refinement steps corrects the scores.
_REFINEMENTS = 3

# The mean counts as a combination of centred rows if its distance from their span is at most this share of its length.
_IN_SPAN_TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class LinearFit:
    r"""A linear map from features to a trued score, $z^\top$ `coef` + `intercept` (Eq. 12).

    `rows` is the weight of the fitted rows, `rank` the number of directions that the fit uses, and `explained` the
    share of the score variance that it explains. `collinear` counts the directions left out because columns depend on
    each other or are lost in rounding errors; directions missing because there are few rows are not counted.
    `rounding` bounds the effect of rounding errors on the trued scores of the fitted rows, as a share of the spread
    of the scores.
    """

    coef: Floats
    intercept: float
    rows: float
    rank: int
    explained: float
    collinear: int = 0
    rounding: float = 0.0

    def notes(self, components: int | None = None) -> list[str]:
        """Return warnings about this fit. `components` is the requested number of principal components."""
        if self.rows and self.rank == 0 and not self.collinear:
            return [Alert("the features do not vary: every row gets the same score")]
        notes = []
        if self.collinear > self.rank:
            notes.append(
                f"the fit uses {self.rank:,} directions and leaves {self.collinear:,} out, because columns depend on "
                "each other to within 1e-7 of their size or are lost in rounding errors: check for repeated columns"
            )
        if self.rounding > 1e-6:
            error = f"{self.rounding:.0e} of their spread"
            notes.append(f"columns are nearly collinear: rounding errors may have changed scores by {error}")
        if components is not None and self.rank < min(components, self.rows - 1):
            notes.append(
                f"only {self.rank:,} of {components:,} components are used: the others have no variance, or less than "
                "the rounding error of the largest; check whether the columns differ greatly in size"
            )
        return notes

    def predict(self, features: ArrayLike) -> Floats:
        """Return the trued score of every row (n,). Equal rows get bitwise equal scores."""
        matrix = as_matrix_unchecked(features, "features")
        if self.coef.ndim != 1:
            raise ValueError(f"coef must be 1-D (d,), got shape {self.coef.shape}")
        if matrix.shape[1] != len(self.coef):
            raise ValueError(f"features must have {len(self.coef)} columns for this fit, got {matrix.shape[1]}")
        scores = row_products(matrix, self.coef, float(self.intercept))
        if not np.isfinite(scores).all():
            check_finite(matrix, "features")
            row = np.flatnonzero(~np.isfinite(scores))[0]
            raise ValueError(f"features must give finite scores, got a score that overflows in row {row}")
        return scores


def row_products(matrix: Matrix, coef: Floats, constant: float = 0.0) -> Floats:
    """Return the product of every row with `coef`, plus a constant (n,). Equal rows get bitwise equal products."""
    products, coef = np.empty(len(matrix)), readable(coef)
    map_blocks(
        lambda rows: kernels.row_products(readable(matrix[rows]), coef, constant, products[rows]),
        row_blocks(matrix, most=KERNEL_NUMBERS) if matrix.size > BLOCK_NUMBERS else [slice(0, len(matrix))],
        uses_blas=False,
    )
    return products


@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients (d,) with the `rank`, `collinear` and `rounding` of a `LinearFit`."""

    coef: Floats
    rank: int
    collinear: int
    rounding: float


@dataclass(frozen=True, eq=False)
class Columns:
    """The d feature columns of a least-squares problem: weight and mean of the rows, and the scale of each column.

    `vary` (d,) says which columns vary. `live` (d,) says which k columns get a coefficient. These columns are divided
    by their `norm` (k,). `scaled_mean` (k,) is their mean in this scale. `lost` counts columns that are lost in
    rounding errors, and `error` bounds the effect of rounding errors on an eigenvalue of the correlation matrix.
    """

    rows: float
    mean_score: float
    intercept: bool
    ridge: float
    vary: Bools
    live: Bools
    norm: Floats
    scaled_mean: Floats
    lost: int
    error: float

    @classmethod
    def of(
        cls, rows: float, mean: Floats, squares: Floats, rounding: Floats, *, intercept: bool, ridge: float
    ) -> Columns:
        """Return the columns, given mean, centred squares and their rounding errors (p,) of [features, score]."""
        mean_score, mean, squares, rounding = float(mean[-1]), mean[:-1], squares[:-1], rounding[:-1]
        floor = np.maximum(rows * (_CONSTANT_TOLERANCE * mean) ** 2, rounding)
        vary = squares > np.maximum(floor, _UNDERFLOWING_SQUARE)
        if vary.all():
            norm = np.sqrt(squares + ridge)
            error = float((rounding / norm / norm).sum())
            return cls(rows, mean_score, intercept, ridge, vary, vary, norm, mean / norm, 0, error)
        norm = np.sqrt(np.where(vary, squares, 0.0) + ridge)
        if not intercept:  # A constant column can take the place of an intercept.
            norm = np.where(norm > 0, norm, np.abs(mean) * np.sqrt(rows))
        live = norm > np.sqrt(_UNDERFLOWING_SQUARE)
        lost = int(np.count_nonzero(~live & (squares <= rounding) & (rounding > 0)))
        norm = norm[live]
        error = float((rounding[live] / norm / norm).sum())
        return cls(rows, mean_score, intercept, ridge, vary, live, norm, mean[live] / norm, lost, error)

    def coef(self, scaled: Floats) -> Floats:
        """Return coefficients (d,) in the features' own units, given coefficients (k,) of scaled live columns."""
        coef = np.zeros(len(self.live))
        coef[self.live] = scaled / self.norm
        return coef

    def rounding_through_origin(self, scaled: Floats, spread: float) -> float:
        """Return the rounding error of a fit through the origin that cancels large means, as a share of the spread."""
        if self.intercept or spread <= 0:
            return 0.0
        cancelled = np.sqrt(self.rows) * float(np.abs(self.scaled_mean) @ np.abs(scaled))
        return float(RANK_TOLERANCE * cancelled / spread)


def solve_comoment(columns: Columns, comoment: Floats) -> Solution:
    """Return the minimum-norm fit, given the co-moment (p, p) of the columns [features, score]."""
    k = len(columns.norm)
    if k == 0:
        return Solution(np.zeros(len(columns.live)), 0, columns.lost, 0.0)
    correlations, cross = _correlations(columns, comoment)
    limit = RANK_TOLERANCE * math.sqrt(np.vdot(correlations, correlations)) + columns.error
    factor = cholesky_factor(correlations)
    smallest = 0.0 if factor is None else smallest_eigenvalue(factor)
    if factor is not None and smallest > _SAFETY_FACTOR * limit:
        scaled, rank, rounding = _by_cholesky(columns, factor, cross), k, limit / smallest
    else:
        correlations, _ = _correlations(columns, comoment)  # The Cholesky factor overwrote the correlations.
        values, vectors = _linalg.eigh(correlations, overwrite_a=True)
        used = values > RANK_TOLERANCE * values[-1] + columns.error
        values, basis = values[used], vectors[:, used]
        limit = RANK_TOLERANCE * values.max(initial=1.0) + columns.error
        scaled, rank, rounding = _shortest_fit(columns, basis, values, basis.T @ cross / values, limit)
    for_lack_of_rows = rank == columns.rows - columns.intercept
    collinear = 0 if for_lack_of_rows else k - rank + columns.lost
    return _solution(columns, scaled, rank, collinear, rounding, float(comoment[-1, -1]))


def solve_deviations(columns: Columns, deviations: Floats, gram: Floats) -> Solution:
    """Return the minimum-norm fit of fewer rows than columns.

    `deviations` (m, p) is a factor of the co-moment, and `gram` (m, m) is the Gram matrix of its feature columns.
    """
    possible, k = len(deviations) + (not columns.intercept), len(columns.norm)
    if k == 0 or possible > k:
        return _solve_few_columns(columns, deviations)
    features, spread = deviations[:, :-1], deviations[:, -1]
    if not columns.vary.all():
        features = np.where(columns.vary, features, 0.0)
        gram = features @ features.T
    fit = _interpolation(columns, features, spread, gram)
    if fit is None:
        fit = _by_singular_values(columns, features[:, columns.live] / columns.norm, spread)
    scaled, rank, rounding = fit
    return _solution(columns, scaled, rank, possible - rank, rounding, float(spread @ spread))


def _solve_few_columns(columns: Columns, deviations: Floats) -> Solution:
    """Return the fit if only a few columns get a coefficient, from the co-moment of these columns."""
    live = columns.live
    narrow = replace(columns, vary=columns.vary[live], live=np.ones(len(columns.norm), dtype=bool))
    used = deviations[:, np.append(live, True)]
    solution = solve_comoment(narrow, used.T @ used)
    coef = np.zeros(len(live))
    coef[live] = solution.coef
    return replace(solution, coef=coef)


def _solution(
    columns: Columns, scaled: Floats, rank: int, collinear: int, rounding: float, score_square: float
) -> Solution:
    spread = np.sqrt(max(score_square, 0.0)) or np.sqrt(columns.rows) * abs(columns.mean_score)
    rounding = max(rounding, columns.rounding_through_origin(scaled, spread))
    return Solution(columns.coef(scaled), rank, collinear, float(min(rounding, 1.0)))


def _correlations(columns: Columns, comoment: Floats) -> tuple[Floats, Floats]:
    """Return the correlations (k, k) of the live columns, and the products (k,) of scaled columns with the score."""
    live, vary, norm = columns.live, columns.vary, columns.norm
    square, cross = comoment[:-1, :-1], comoment[-1, :-1]
    if not live.all():
        square, cross, vary = square.compress(live, axis=0).compress(live, axis=1), cross[live], vary[live]
    inverse = 1 / norm
    correlations = square * inverse[:, None]
    correlations *= inverse
    cross = cross * inverse
    if not vary.all():  # The deviations of a constant column are rounding errors.
        correlations[~vary] = 0.0
        correlations[:, ~vary] = 0.0
        cross[~vary] = 0.0
    if columns.ridge:
        correlations.flat[:: len(norm) + 1] += columns.ridge * inverse**2
    return correlations, cross


def cholesky_factor(matrix: Floats) -> Floats | None:
    """Return the lower Cholesky factor in place of the matrix, or None. The upper triangle is undefined."""
    factor, failed = _linalg.lapack.dpotrf(matrix.T, lower=True, clean=False, overwrite_a=True)
    return None if failed else factor


def smallest_eigenvalue(factor: Floats) -> float:
    """Return LAPACK's 1-norm estimate of the smallest eigenvalue of a matrix with this Cholesky factor."""
    return float(_linalg.lapack.dpocon(factor, 1.0, uplo="L")[0])


def _solved(factor: Floats, target: Floats) -> Floats:
    """Return the solution (k,) for one right-hand side. Two BLAS calls take a third of the time of LAPACK's dpotrs."""
    dtrsv = _linalg.blas.dtrsv
    return np.asarray(dtrsv(factor, dtrsv(factor, target, lower=True), lower=True, trans=True))


def _by_cholesky(columns: Columns, factor: Floats, cross: Floats) -> Floats:
    """Return the unique least-squares coefficients (k,) of a problem of full rank."""
    scaled = _solved(factor, cross)
    if not columns.intercept:
        # The Gram matrix about zero is the co-moment plus the square of the mean: Sherman & Morrison (1950).
        mean, rows = columns.scaled_mean, columns.rows
        along = _solved(factor, mean)
        scaled += along * (rows * (columns.mean_score - mean @ scaled) / (1 + rows * (mean @ along)))
    return scaled


def _interpolation(
    columns: Columns, features: Floats, spread: Floats, gram: Floats
) -> tuple[Floats, int, float] | None:
    r"""Return the shortest coefficients $F^\top (F F^\top + \mathrm{ridge})^{-1} f$, or None if F may lack full rank.

    The rank is judged as for scaled columns, but from the Gram matrix G of unscaled columns. The smallest eigenvalue of
    G is at most the largest squared norm times the smallest eigenvalue of the Gram matrix of scaled columns, and the
    largest eigenvalue of that matrix is at most k.
    """
    largest = len(columns.norm) * float(columns.norm.max()) ** 2
    if not len(features) and columns.intercept:
        return np.zeros(len(columns.norm)), 0, 0.0
    if not columns.intercept:
        mean = np.zeros((1, features.shape[1]))
        mean[0, columns.live] = np.sqrt(columns.rows) * columns.scaled_mean * columns.norm
        features, gram = np.vstack((features, mean)), bordered(gram, features, mean)
        spread = np.append(spread, np.sqrt(columns.rows) * columns.mean_score)
        largest = max(largest, float(gram.trace()))
    ridged = gram.copy()
    ridged.flat[:: len(gram) + 1] += columns.ridge
    limit = RANK_TOLERANCE * largest
    factor = cholesky_factor(ridged)
    smallest = 0.0 if factor is None else smallest_eigenvalue(factor)
    if factor is None or smallest <= _SAFETY_FACTOR * limit:
        return None
    weights = _solved(factor, spread)
    coef = weights @ features
    # One correction makes the error proportional to the condition of F, not to its square (Björck 1987).
    correction = _solved(factor, spread - features @ coef - columns.ridge * weights)
    coef += correction @ features
    return coef[columns.live] * columns.norm, len(gram), RANK_TOLERANCE * float(np.sqrt(largest / smallest))


def bordered(gram: Floats, rows: Floats, more: Floats) -> Floats:
    """Return the Gram matrix of `rows` (m, d), given as `gram` (m, m), followed by `more` rows (b, d)."""
    m, b = len(rows), len(more)
    if m == 0:
        return np.asarray(more @ more.T)
    whole = np.empty((m + b, m + b))
    whole[:m, :m] = gram
    whole[m:, :m] = more @ rows.T
    whole[:m, m:] = whole[m:, :m].T
    whole[m:, m:] = more @ more.T
    return whole


def _by_singular_values(columns: Columns, features: Floats, spread: Floats) -> tuple[Floats, int, float]:
    """Return the scaled coefficients (k,) of the shortest fit of scaled features (m, k), the rank and the rounding."""
    if columns.ridge:
        features = np.vstack((features, np.diag(np.sqrt(columns.ridge) / columns.norm)))
        spread = np.append(spread, np.zeros(len(columns.norm)))
    left, sizes, right = np.linalg.svd(features, full_matrices=False)
    used = sizes**2 > RANK_TOLERANCE * sizes.max(initial=0.0) ** 2 + columns.error
    left, sizes, basis = left[:, used], sizes[used], right[used].T
    limit = RANK_TOLERANCE * float(sizes.max(initial=1.0)) ** 2 + columns.error
    return _shortest_fit(columns, basis, sizes**2, left.T @ spread / sizes, limit)


def _shortest_fit(
    columns: Columns, basis: Floats, values: Floats, inside: Floats, limit: float
) -> tuple[Floats, int, float]:
    """Return the scaled coefficients (k,) with coordinates `inside` (r,) in `basis` (k, r), their rank and rounding.

    `values` (r,) are the eigenvalues of the correlation matrix that belong to the basis. Components outside the basis
    do not change a fitted score. They are chosen to minimise the length of scaled / norm.
    """
    error = limit / values.min(initial=1.0)  # A bound on the error of the basis (Davis & Kahan 1970).
    tolerance = min(max(_ZERO_ENTRY, 10 * error), _MAX_ZERO_ENTRY)
    if columns.intercept:
        return _shortest(basis, inside, columns.norm, tolerance), basis.shape[1], error
    mean, rows = columns.scaled_mean, columns.rows
    along = basis.T @ mean
    outside = mean - basis @ along
    outside -= basis @ (basis.T @ outside)
    length, residual = float(np.linalg.norm(outside)), columns.mean_score - along @ inside
    if np.sqrt(rows) * length <= max(_IN_SPAN_TOLERANCE, error) * (1 + np.sqrt(rows) * np.linalg.norm(mean)):
        step = along / values  # Sherman & Morrison, as in `_by_cholesky`.
        inside = inside + step * (rows * residual / (1 + rows * (along @ step)))
        direction = basis @ step
    else:  # No centred row varies along `outside`, so a coefficient in this direction changes only the mean score.
        direction = outside / length
        basis, inside = np.column_stack((basis, direction)), np.append(inside, residual / length)
    shortest = _shortest(basis, inside, columns.norm, tolerance)
    # Where means are large, an error too small to change a centred row may still change the mean score.
    shift = float(mean @ (basis @ inside - shortest))
    if shift:
        shortest += direction * (shift / (direction @ mean))
    return shortest, basis.shape[1], error


def _shortest(basis: Floats, inside: Floats, norm: Floats, tolerance: float) -> Floats:
    """Return the shortest scaled coefficients (k,) with coordinates `inside` (r,) in `basis` (k, r).

    The length of scaled / norm is minimised. The solution is norm² · basis · v with a vector v (r,). With rows sorted
    by size and with pivoting, Householder's QR decomposition is accurate in every row, however much the norms differ
    (Cox & Higham 1998).
    """
    k, r = basis.shape
    if r in (0, k):
        return basis @ inside
    if norm.max() <= _MAX_NORM_RATIO * norm.min():
        rotation, triangle = _linalg.qr(basis * norm[:, None], mode="economic")
        shortest: Floats = norm * (rotation @ _linalg.solve_triangular(triangle, inside, trans=1))
        return shortest
    order = np.argsort(-norm, kind="stable")
    size = norm[order]
    basis, inside, is_rounding = _separated(basis[order], inside, size, tolerance)
    cleaned = np.where(is_rounding, 0.0, basis)
    rotation, triangle, pivots = _linalg.qr(cleaned * size[:, None], mode="economic", pivoting=True)
    shortest = np.zeros(k)
    for _ in range(_REFINEMENTS):  # Correct the small error of the fitted scores that the zeros caused.
        rest = inside - basis.T @ shortest
        shortest += size * (rotation @ _linalg.solve_triangular(triangle, rest[pivots], trans=1))
    in_order = np.empty(k)
    in_order[order] = shortest
    return in_order


def _separated(basis: Floats, inside: Floats, norm: Floats, tolerance: float) -> tuple[Floats, Floats, Bools]:
    """Return another basis of the same space, the coordinates in it, and which of its entries are rounding errors.

    `norm` (k,) is in descending order and may span many powers of ten. A rounding error in a column with a large norm
    would outweigh the entries of columns with small norms. Columns of similar norm form a band. Starting with the
    largest norms, each band takes those remaining directions in which it has entries. The band's entries in the
    directions that still remain are rounding errors.
    """
    bands = np.floor(np.log(norm[0] / norm) / np.log(_MAX_NORM_RATIO))
    basis, inside, taken = basis.copy(), inside.copy(), 0
    is_rounding = np.zeros(basis.shape, dtype=bool)
    for number in np.unique(bands[bands < bands[-1]]):
        band = np.flatnonzero(bands == number)
        if taken < basis.shape[1]:
            _, sizes, rotation = np.linalg.svd(basis[band, taken:])
            basis[:, taken:] = basis[:, taken:] @ rotation.T
            inside[taken:] = rotation @ inside[taken:]
            taken += int(np.count_nonzero(sizes > tolerance))
            is_rounding[band, taken:] = True
    return basis, inside, is_rounding
