"""Moments of features and scores: everything a linear fit needs, as a sum over rows.

Batches, streams and clusters compute the same sum. The score is one more column after the features, so there are
p = d + 1 columns. All sums of products are centred, so that digits are not lost if means are large.

The second moment has two forms. With at least p + 1 rows it is the co-moment (p, p), a sum of products of columns. With
n <= p rows it is a factor of the co-moment, a matrix of n - 1 deviations (n - 1, p), so that no d × d matrix is built.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from inspect import signature

import numpy as np
from numpy.typing import ArrayLike

from .. import _linalg
from .._blas import one_thread
from .._check import (
    LARGEST,
    Bools,
    Floats,
    Matrix,
    as_count,
    as_matrix_unchecked,
    as_number,
    as_share,
    as_truth,
    as_vector,
    check_finite,
    check_same_rows,
    counted,
    rows_of_block,
    slices,
)
from .._kernels import KERNEL_NUMBERS, kernels, readable
from .._threads import add_blocks
from .least_squares import (
    EPS,
    RANK_TOLERANCE,
    Columns,
    LinearFit,
    Solution,
    bordered,
    cholesky_factor,
    solve_comoment,
    solve_deviations,
)

# Rounding error in a sum of squares of rows, as a share of the sum: twice the largest error seen (see RANK_TOLERANCE).
_SUM_ROUNDING = 32 * EPS

# Smaller blocks make matrix products slow. Larger blocks lose digits.
_MIN_BLOCK_ROWS, _MAX_BLOCK_ROWS = 256, 8192

# Number of sampled rows whose mean serves as the shift.
_SAMPLED_FOR_MEAN = 64

# If the squares about the shift exceed the squares about the mean by this factor, sum the rows again about the mean.
_MAX_SHIFT_RATIO = 4.0

# Largest weight of moments, and rounding error tolerated in a zero eigenvalue of a correlation matrix.
_MOST_ROWS = 2.0**63
_EIGENVALUE_ROUNDING = 2.0**-40

# With fewer columns, or more components per column, LAPACK is as fast as Lanczos iterations.
_MIN_LANCZOS_COLUMNS, _MIN_COLUMNS_PER_COMPONENT = 512, 16

# Lanczos iterations are accepted only if they missed no eigenvalue that exceeds the smallest returned one by more than
# this share of the largest.
_MISSED_EIGENVALUE = 1e-9

# Entries below this share of the largest entry do not change an eigenvector, but LAPACK can fail on them.
_NEGLIGIBLE = EPS**4


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """An orthonormal `basis` (d, k) about an `origin` (d,). If no feature varies, the basis is a column of zeros."""

    origin: Floats
    basis: Floats


@dataclass(frozen=True, eq=False)
class Moments:
    r"""Weight, mean (p,) and centred second moment of the columns [features, score].

    Parameters
    ----------
    rows
        The weight of all rows.
    mean
        Mean (p,) of every column.
    second_moment
        The co-moment (p, p), $\sum_i (x_i - \bar x)(x_i - \bar x)^\top$; or, with m < p, deviations F (m, p) whose
        product $F^\top F$ is the co-moment.
    gram
        The Gram matrix (m, m) of the feature columns of the deviations; empty if there is a co-moment.
    rounding
        Bounds (p,) on the rounding errors that additions, subtractions and decay left in the sums of squares.

    >>> days = Moments.of([[0.0], [1.0]], [1.0, 3.0]) + Moments.of([[2.0]], [5.0])
    >>> days.solve().predict([[3.0]]).round(6)
    array([7.])
    """

    rows: float
    mean: Floats
    second_moment: Floats
    gram: Floats = field(repr=False)
    rounding: Floats

    @classmethod
    def of(cls, features: ArrayLike, scores: ArrayLike) -> Moments:
        """Return the moments of features (n, d) and scores (n,), accumulated in float64."""
        matrix, vector = as_matrix_unchecked(features, "features"), as_vector(scores, "scores")
        check_same_rows(features=matrix, scores=vector)
        with one_thread(), np.errstate(invalid="ignore", over="ignore"):
            moments = _of_few_rows(matrix, vector) if len(matrix) <= matrix.shape[1] + 1 else _of_rows(matrix, vector)
        trace = moments._trace()
        if not (trace <= LARGEST**2 and np.abs(moments.mean).max() <= LARGEST):  # NaN fails these comparisons too.
            check_finite(matrix, "features")
            if not math.isfinite(trace):
                raise ValueError("features and scores must not change while truing reads them")
        return moments

    def __repr__(self) -> str:
        return f"Moments({self.rows:,.10g} rows of {counted(self.dimensions, 'feature')})"

    @property
    def dimensions(self) -> int:
        """Number of feature columns."""
        return len(self.mean) - 1

    @property
    def is_dense(self) -> bool:
        """Whether the second moment is stored as a co-moment."""
        return len(self.second_moment) == len(self.mean)

    @property
    def comoment(self) -> Floats:
        """The co-moment (p, p). It is computed on request when there are fewer rows than columns."""
        if self.is_dense:
            return self.second_moment
        with one_thread():
            return _square(self.second_moment)

    @property
    def squares(self) -> Floats:
        """The centred sum of squares of every column (p,)."""
        if self.is_dense:
            return self.second_moment.diagonal()
        return np.asarray(np.einsum("ij,ij->j", self.second_moment, self.second_moment))

    def __add__(self, more: Moments) -> Moments:
        """Return the moments of both sets of rows: sums of products add up (Eq. 17, 18).

        Pairwise (Chan, Golub & LeVeque 1983): n = n₁ + n₂, δ = x̄₂ − x̄₁, x̄ = x̄₁ + n₂/n δ, C = C₁ + C₂ + n₁n₂/n δδᵀ.
        """
        _check_same_dimensions(self, more)
        if len(more.second_moment) > len(self.second_moment):
            self, more = more, self
        rows = self.rows + more.rows
        if not rows > 0:
            raise ValueError(f"moments to add must have a positive weight, got {self.rows:g} and {more.rows:g} rows")
        step = more.mean - self.mean
        mean = self.mean + step * (more.rows / rows)
        step *= math.sqrt(self.rows * more.rows / rows)
        rounding = np.hypot(self.rounding, more.rounding)
        with one_thread():
            if not self.is_dense:
                return _of_deviations(rows, mean, self.second_moment, self.gram, _with_row(more, step), rounding)
            comoment = _plus_square(self.second_moment, _with_row(more, step), 1.0)
            if more.is_dense:
                comoment += more.second_moment
        return _dense(rows, mean, comoment, np.hypot(rounding, EPS * comoment.diagonal()))

    def __radd__(self, zero: int) -> Moments:
        """Return these moments, because `sum` starts with 0."""
        return self if zero == 0 else NotImplemented

    def __sub__(self, old: Moments) -> Moments:
        """Return the moments of the remaining rows, without the `old` rows, which were added before.

        The result has a co-moment. Its rounding errors are relative to the sums before the subtraction.
        """
        _check_same_dimensions(self, old)
        rows = self.rows - old.rows
        if not rows > 0:
            raise ValueError(f"the subtracted moments must have fewer rows than {self.rows:g}, got {old.rows:g}")
        step = old.mean - self.mean
        mean = self.mean - step * (old.rows / rows)
        weight = math.sqrt(self.rows * old.rows / rows)
        step *= weight
        whole = self.comoment
        with one_thread():
            comoment = _plus_square(whole, _with_row(old, step), -1.0)
            if old.is_dense:
                comoment -= old.second_moment
        squares = whole.diagonal()
        before = np.hypot(np.maximum(self.rounding, _SUM_ROUNDING * np.abs(squares)), EPS * squares)
        taken = np.maximum(old.rounding, _SUM_ROUNDING * np.abs(old.squares))
        error = EPS * weight * (np.abs(self.mean) + np.abs(old.mean)) * (step != 0)
        rounding = np.hypot(np.hypot(before, taken), _rounding_of_square(step, error, squares))
        return _dense(rows, mean, comoment, rounding)

    def decayed(self, factor: float) -> Moments:
        """Return the same moments with the weight of every row multiplied by `factor`, in (0, 1]."""
        factor = as_share(factor, "factor")
        if factor == 1.0:
            return self
        if not self.is_dense:
            deviations, gram = self.second_moment * math.sqrt(factor), self.gram * factor
            return Moments(self.rows * factor, self.mean, deviations, gram, self.rounding * factor)
        comoment = self.second_moment * factor
        rounding = np.hypot(self.rounding * factor, EPS * comoment.diagonal())
        return _dense(self.rows * factor, self.mean, comoment, rounding)

    def solve(self, intercept: bool = True, components: int | None = None, ridge: float = 0.0) -> LinearFit:
        r"""Return the minimum-norm least-squares fit (Eq. 11).

        The fit minimises $\sum_i (s_i - z_i^\top \beta - a)^2 + \mathrm{ridge} \, \|\beta\|^2$ over `coef` $\beta$ and
        `intercept` $a$. Without an intercept $a = 0$, as in the paper's equations. With `components` = k the fit is
        confined to the k leading principal components of the centred features. The features are centred even without an
        intercept, which shifts all scores by the same constant.
        """
        ridge, intercept = as_number(ridge, "ridge", at_least=0.0), as_truth(intercept, "intercept")
        if components is not None:
            return self.solve_within(self.principal_components(components), intercept=intercept, ridge=ridge)
        with one_thread():
            return self._linear_fit(self._solution(intercept, ridge), intercept, np.zeros(self.dimensions))

    def principal_components(self, components: int) -> PrincipalComponents:
        """Return the leading principal components of the centred features; fewer if the rank of the features is lower.

        If all rows are equal, return one direction of length zero.
        """
        k = as_count(components, "components", at_most=self.dimensions)
        with one_thread():
            basis = _leading_directions(self, k)
        return PrincipalComponents(self.mean[:-1], basis if basis.size else np.zeros((self.dimensions, 1)))

    def solve_within(self, principal: PrincipalComponents, *, intercept: bool = True, ridge: float = 0.0) -> LinearFit:
        """Return the fit of these rows confined to the given principal components."""
        with one_thread():
            inner = self.projected(principal)._solution(intercept, ridge)
            solution = Solution(principal.basis @ inner.coef, inner.rank, inner.collinear, inner.rounding)
            return self._linear_fit(solution, intercept, principal.origin)

    def projected(self, principal: PrincipalComponents) -> Moments:
        """Return the moments of the rows' coordinates (n, k) in the given principal components."""
        k = principal.basis.shape[1]
        basis = np.zeros((len(self.mean), k + 1))
        basis[:-1, :-1] = principal.basis
        basis[-1, -1] = 1.0
        mean = basis.T @ (self.mean - np.append(principal.origin, 0.0))
        rounding = (np.abs(basis).T @ np.sqrt(self.rounding)) ** 2
        if self.is_dense:
            return _dense(self.rows, mean, basis.T @ self.second_moment @ basis, rounding)
        deviations = self.second_moment @ basis
        return _of_deviations(self.rows, mean, deviations[:0], np.empty((0, 0)), deviations, rounding)

    def _solution(self, intercept: bool, ridge: float) -> Solution:
        columns = Columns.of(self.rows, self.mean, self.squares, self.rounding, intercept=intercept, ridge=ridge)
        if self.is_dense:
            return solve_comoment(columns, self.second_moment)
        return solve_deviations(columns, self.second_moment, self.gram)

    def _linear_fit(self, solution: Solution, intercept: bool, origin: Floats) -> LinearFit:
        """Return the fit with these coefficients, its intercept, and the share of the variance that it explains."""
        error_weights = np.empty(len(self.mean))  # A row [features, score] times these weights is an error of the fit.
        error_weights[:-1] = solution.coef
        error_weights[-1] = -1.0
        mean_error = float(self.mean @ error_weights)
        constant = -mean_error if intercept else -float(origin @ solution.coef)
        offset = mean_error + constant
        residual = self._square_along(error_weights) + self.rows * (offset * offset)  # A product may overflow to inf.
        score = self.second_moment[:, -1]
        total = float(score[-1]) if self.is_dense else float(score @ score)
        explained = 1.0 - residual / total if total > 0.0 else float(residual <= 0.0)
        return LinearFit(
            solution.coef, constant, self.rows, solution.rank, explained, solution.collinear, solution.rounding
        )

    def _trace(self) -> float:
        """Return the sum of the columns' centred sums of squares."""
        second = self.second_moment
        return float(second.trace() if self.is_dense else np.vdot(second, second))

    def _square_along(self, weights: Floats) -> float:
        """Return the centred sum of squares of the rows times `weights` (p,), infinity if it overflows."""
        with np.errstate(over="ignore", invalid="ignore"):
            ahead = self.second_moment @ weights
            square = float(weights @ ahead) if self.is_dense else float(ahead @ ahead)
        return max(square, 0.0) if math.isfinite(square) else math.inf


def check_moments(moments: Moments) -> None:
    """Reject moments that no rows can have: wrong types or shapes, invalid numbers, a negative eigenvalue.

    Use this for moments from files and from other machines.
    """
    rows = as_number(moments.rows, "rows", at_least=0.0, at_most=_MOST_ROWS)
    p, m = np.size(moments.mean), len(moments.second_moment)
    if p < 2 or m > p:
        raise ValueError(f"moments must have p >= 2 means and a second moment of at most p rows, got {p} and {m}")
    largest = 4 * max(1.0, rows) * LARGEST**2  # Rows lie within 2 * LARGEST of their mean.
    sides = 0 if m == p else m
    most_deviation = largest if m == p else math.sqrt(largest)
    _check_array(moments.mean, "mean", (p,), LARGEST)
    _check_array(moments.second_moment, "second_moment", (m, p), most_deviation)
    _check_array(moments.gram, "gram", (sides, sides), p * largest)
    _check_array(moments.rounding, "rounding", (p,), largest)
    if (moments.rounding < 0).any():
        raise ValueError(f"rounding must not be negative, got {moments.rounding.min():g}")
    with one_thread():
        if m == p:
            _check_comoment(moments.second_moment, moments.rounding)
        elif not _are_close(moments.gram, moments.second_moment[:, :-1] @ moments.second_moment[:, :-1].T):
            raise ValueError("moments must be sums of rows, got a Gram matrix that does not match the deviations")


def _check_array(values: object, name: str, shape: tuple[int, ...], most: float) -> None:
    if type(values) is not np.ndarray or values.dtype != np.float64:
        kind = f"dtype {values.dtype}" if type(values) is np.ndarray else type(values).__name__
        raise TypeError(f"{name} must be an array of float64, got {kind}")
    if values.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {values.shape}")
    size = np.abs(values).max(initial=0.0)
    if not size <= most:  # NaN fails this comparison too.
        raise ValueError(f"{name} must be finite and at most {most:g} in size, got {size:g}")


def _check_comoment(comoment: Floats, rounding: Floats) -> None:
    """Raise an error unless a co-moment is symmetric and has no negative eigenvalue, up to rounding errors."""
    squares = comoment.diagonal()
    error = len(squares) * (rounding + _EIGENVALUE_ROUNDING * np.maximum(squares, 0.0))
    if (squares < -error).any():
        raise ValueError(f"moments must be sums of rows, got a negative sum of squares: {squares.min():g}")
    live = squares + error > 0
    norm = np.sqrt((squares + error)[live])
    scaled = comoment[np.ix_(live, live)] / norm[:, None] / norm
    asymmetry = np.abs(scaled - scaled.T).max(initial=0.0)
    if not asymmetry <= _EIGENVALUE_ROUNDING + (error[live] / norm**2).max(initial=0.0):
        raise ValueError("moments must be sums of rows, got a co-moment that is not symmetric")
    np.fill_diagonal(scaled, 1.0)
    if live.any() and cholesky_factor(scaled) is None:
        raise ValueError("moments must be sums of rows, got a co-moment with a negative eigenvalue")


def _are_close(gram: Floats, expected: Floats) -> bool:
    return bool(np.abs(gram - expected).max(initial=0.0) <= _EIGENVALUE_ROUNDING * expected.trace())


def _dense(rows: float, mean: Floats, comoment: Floats, rounding: Floats) -> Moments:
    return Moments(rows, mean, comoment, np.empty((0, 0)), rounding)


def _of_deviations(
    rows: float, mean: Floats, deviations: Floats, gram: Floats, more: Floats, rounding: Floats
) -> Moments:
    """Return the moments with `deviations` (m, p), whose Gram matrix is given, and `more` deviations (b, p)."""
    stacked = np.concatenate((deviations, more)) if len(deviations) else more
    if len(stacked) >= len(mean):
        return _dense(rows, mean, _square(stacked), rounding)
    return Moments(rows, mean, stacked, bordered(gram, deviations[:, :-1], more[:, :-1]), rounding)


def _with_row(moments: Moments, row: Floats) -> Floats:
    """Return the deviations of the moments, if they are not dense, and `row` (p,) as one more row."""
    return row[None] if moments.is_dense else np.concatenate((moments.second_moment, row[None]))


def _square(deviations: Floats) -> Floats:
    product: Floats = deviations.T @ deviations
    return product


def _plus_square(comoment: Floats, deviations: Floats, sign: float) -> Floats:
    """Return comoment ± deviationsᵀ deviations, using a single temporary array."""
    if len(deviations) > _MIN_BLOCK_ROWS:  # NumPy computes only one triangle of this product.
        product = _square(deviations)
        product *= sign
        product += comoment
        return product
    total = comoment.copy()
    across = deviations.T
    _linalg.blas.dgemm(sign, across, across, beta=1.0, c=total.T, trans_b=True, overwrite_c=True)
    return total


def _rounding_of_square(step: Floats, error: Floats, squares: Floats) -> Floats:
    """Return bounds (p,) on the rounding errors in the square s sᵀ of a step s (p,) that has an error e (p,).

    The error changes the square by s eᵀ + e sᵀ. The entries of this change are at most √(rᵢ rⱼ) for r = t s² + e² / t,
    with any t > 0. The best t in columns of unit variance makes the sum of r / variance twice the product of the
    lengths of s and e.
    """
    norm = np.sqrt(np.where(squares > 0, squares, np.inf))
    length, error_length = float(np.linalg.norm(step / norm)), float(np.linalg.norm(error / norm))
    if length == 0.0 or error_length == 0.0:
        return error**2
    ratio = error_length / length
    return ratio * step**2 + error**2 / ratio


def _of_few_rows(features: Matrix, scores: Floats) -> Moments:
    """Return the moments of at most p rows as deviations.

    A Householder reflection turns n centred rows R into n − 1 rows with the same products: every row but the first,
    minus R₁ / (1 + √n).
    """
    n, d = features.shape
    rows = np.empty((n, d + 1))
    rows[:, :-1] = features
    rows[:, -1] = scores
    first = rows[0].copy()
    rows -= first  # Differences of rows are accurate, however large their mean is.
    step = rows.mean(axis=0)
    rows -= step
    rows[1:] -= rows[0] / (1 + math.sqrt(n))
    return _of_deviations(float(n), first + step, rows[:0], np.empty((0, 0)), rows[1:], np.zeros(d + 1))


def _of_rows(features: Matrix, scores: Floats) -> Moments:
    """Return the moments of many rows, summed block by block about a point near the mean."""
    some = np.arange(0, len(scores), max(1, len(scores) // _SAMPLED_FOR_MEAN))
    shift = _mean(np.column_stack((features[some].astype(np.float64), scores[some])))
    squares, moments = _summed_about(shift, features, scores)
    # If the shift was too far from the mean, rounding errors may be large.
    if (squares > _MAX_SHIFT_RATIO * moments.squares).any():
        _, moments = _summed_about(moments.mean, features, scores)
    return moments


def _mean(rows: Floats) -> Floats:
    """Return the mean (p,) of a few rows. It is exact for constant columns."""
    mean: Floats = rows[0] + (rows - rows[0]).mean(axis=0)
    return mean


def _summed_about(shift: Floats, features: Matrix, scores: Floats) -> tuple[Floats, Moments]:
    """Return the sums of squares (p,) about the shift, and the moments. Blocks are added in order."""
    n, width = len(scores), len(shift) + 1
    size = min(n, max(_MIN_BLOCK_ROWS, min(_MAX_BLOCK_ROWS, rows_of_block(n, width, KERNEL_NUMBERS))))
    sums = np.zeros((width, width))

    def add(products: Floats) -> None:
        np.add(sums, products, out=sums)

    def products_of_block(rows: slice) -> Floats:
        products = np.empty((width, width))
        kernels.column_products(readable(features[rows]), readable(scores[rows]), shift, products)
        return products

    add_blocks(products_of_block, slices(n, size), add)
    total = sums[-1, :-1]  # The column of ones sums up the other columns.
    comoment = sums[:-1, :-1] - np.outer(total, total / n)
    return sums.diagonal()[:-1], _dense(float(n), shift + total / n, comoment, np.zeros(len(shift)))


def _leading_directions(moments: Moments, k: int) -> Floats:
    """Return an orthonormal basis (d, r) of the r ≤ k leading principal components."""
    rounding = float(moments.rounding[:-1].sum())
    if moments.is_dense:
        scaled, exponent = _without_underflow(moments.second_moment[:-1, :-1])
        values, vectors = _leading_eigenvectors(scaled, k)
        return vectors[:, _above_rounding(values, np.ldexp(rounding, -exponent))]
    deviations = moments.second_moment[:, :-1]
    if not len(deviations):
        return np.empty((moments.dimensions, 0))
    scaled, exponent = _without_underflow(moments.gram)
    values, vectors = _leading_eigenvectors(scaled, min(k, len(scaled)))
    used = _above_rounding(values, np.ldexp(rounding, -exponent))
    directions = deviations.T @ (vectors[:, used] / np.sqrt(values[used]))
    sizes = np.linalg.norm(directions, axis=0)  # Largest directions first, because QR changes the first ones least.
    return np.asarray(_linalg.qr((directions / sizes)[:, ::-1], mode="economic")[0])


def _above_rounding(values: Floats, rounding: float) -> Bools:
    above: Bools = values > RANK_TOLERANCE * values[-1] + rounding
    return above


def _leading_eigenvectors(square: Floats, k: int) -> tuple[Floats, Floats]:
    """Return the k largest eigenvalues, ascending, and their vectors (d, k)."""
    d = len(square)
    if d >= _MIN_LANCZOS_COLUMNS and k * _MIN_COLUMNS_PER_COMPONENT <= d:
        leading = _by_lanczos(square, k)
        if leading is not None:
            return leading
    return _linalg.leading_eigenvectors(square, k)


def _by_lanczos(square: Floats, k: int) -> tuple[Floats, Floats] | None:
    """Return the k largest eigenvalues and their vectors by Lanczos iterations, or None if they fail.

    Iterations run to machine precision from a fixed vector and with a fixed seed, so that the result is deterministic.
    (SciPy before 1.17 takes no seed: with fewer distinct eigenvalues than iterations, its last bits can vary.) The
    iterations can miss copies of a repeated eigenvalue. A Cholesky factor of (θ_k + ε) I − C + V Θ Vᵀ proves that none
    was missed.
    """
    from scipy.sparse.linalg import ArpackError, eigsh

    d = len(square)
    seed = {"rng": np.random.default_rng(0)} if "rng" in signature(eigsh).parameters else {}
    try:
        values, vectors = eigsh(square, k, v0=np.cos(np.arange(d)), **seed)
    except ArpackError:
        return None
    rest = (vectors * values) @ vectors.T
    rest -= square
    rest.flat[:: d + 1] += values[0] + _MISSED_EIGENVALUE * values[-1]
    return None if cholesky_factor(rest) is None else (values, vectors)


def _without_underflow(square: Floats) -> tuple[Floats, int]:
    """Divide a matrix by a power of two so that its largest entry is about 1; return the result and the exponent."""
    exponent = int(np.frexp(max(square.max(), -square.min()))[1])
    scaled = np.ldexp(square, -exponent)
    scaled[np.abs(scaled) < _NEGLIGIBLE] = 0.0
    return scaled, exponent


def _check_same_dimensions(one: Moments, other: Moments) -> None:
    if not isinstance(other, Moments):
        raise TypeError(f"moments can only be combined with moments, got {type(other).__name__}")
    if one.dimensions != other.dimensions:
        raise ValueError(f"moments must have the same features, got {one.dimensions} and {other.dimensions} columns")
