"""Moments of features and scores: all that a linear fit needs, as a sum.

Batch, stream and cluster are the same sum. The score is kept as one more column behind the features, and everything is
centred, so that a large mean does not cancel. Mean and co-moment are kept to twice the working precision: a part that
was added can be taken away again and leaves nothing behind, and sums of many parts do not drift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _kernels, _linalg
from ._blas import one_thread
from ._check import (
    BLOCK_NUMBERS,
    KERNEL_NUMBERS,
    LARGEST,
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
from ._double import EPS, two_product, two_product_outer, two_ratio, two_sum
from ._threads import add_blocks
from .least_squares import RANK_TOLERANCE, LinearFit, Solution, cholesky_factor, minimum_norm
from .rows import Rows

# What rounding may leave in a sum of squares, as a share of it: twice what was seen (see RANK_TOLERANCE).
_SUM_ROUNDING = 32 * EPS

# A block of fewer rows makes a poor matrix product; one of more rows loses digits.
_MIN_BLOCK_ROWS, _MAX_BLOCK_ROWS = 256, 8192

# From more columns on BLAS sums products in less time than the kernel, where it has wider vectors. Rows that the latter
# has in its panels at once: the cache nearest to the processor holds some panels of them.
_WIDE = 512
_ROWS_IN_PANELS = 192

# Blocks whose sums are added plainly, and then with the digits that are lost otherwise, which costs five times as much.
_BLOCKS_AT_ONCE = 8

# What two doubles do not hold of a number, with a margin.
_DOUBLE_DOUBLE_EPS = 2.0**-98

# Entries of a matrix below this share of the largest are nothing beside its rounding.
_NEGLIGIBLE = EPS**4

# Parts that a sum remembers.
_MAX_PARTS = 4096

# Rows that moments weigh at most, and what rounding may leave of a square that is none, as a share of it.
_MOST_ROWS = 2.0**63
_ROUNDED_SQUARE = 2.0**-40

# In place of a digest: rows were added that no part tells.
UNTOLD = 0

# Rows whose mean is taken to be near that of all.
_SAMPLED_FOR_MEAN = 64

# Squares about the shift, over those about the mean, above which the rows are summed again about the mean.
_MAX_SHIFT_RATIO = 4.0


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """An orthonormal `basis` (d, k) of feature space, about an `origin` (d,)."""

    origin: Floats
    basis: Floats


@dataclass(frozen=True, eq=False)
class Moments:
    r"""Weight, mean (d + 1,) and co-moment (d + 1, d + 1) of the columns [features, score].

    The co-moment is $\sum_i (x_i - \bar x)(x_i - \bar x)^\top$. `mean_low` and `comoment_low` hold the digits that
    follow those of `mean` and `comoment`. `rounding` (d + 1,) is what rounding may have left in the variances when
    moments were taken away or decayed. `parts` tells up to 4,096 parts that were added whole, by a digest: one of them
    that is taken away leaves no rounding behind; other moments of the same rows may. A 0 among them says that rows were
    added that none of them tells.

    >>> days = Moments.of([[0.0], [1.0]], [1.0, 3.0]) + Moments.of([[2.0]], [5.0])
    >>> days.solve().predict([[3.0]]).round(6)
    array([7.])
    """

    rows: float
    mean: Floats
    comoment: Floats
    mean_low: Floats
    comoment_low: Floats
    rounding: Floats
    parts: frozenset[int] = frozenset()

    @classmethod
    def of(cls, features: ArrayLike, scores: ArrayLike) -> Moments:
        """Return the moments of features (n, d) and scores (n,), accumulated in float64."""
        matrix, vector = as_matrix_unchecked(features, "features"), as_vector(scores, "scores")
        check_same_rows(features=matrix, scores=vector)
        moments = cls._of_rows(Rows(matrix), vector)
        small = (np.diagonal(moments.comoment) <= len(matrix) * LARGEST**2) & (np.abs(moments.mean) <= LARGEST)
        if not small.all():  # NaN fails these comparisons too.
            check_finite(matrix, "features")
            if not np.isfinite(moments.comoment.trace()):
                raise ValueError("features and scores must not change while they are read")
        return moments

    def __repr__(self) -> str:
        return f"Moments({self.rows:,.10g} rows of {counted(self.dimensions, 'feature')})"

    @classmethod
    def _of_rows(cls, rows: Rows, scores: Floats) -> Moments:
        """Return the moments of rows that are made as they are read, summed about a point near the mean."""
        some = rows_sampled_for_mean(len(scores))
        with one_thread(), np.errstate(invalid="ignore", over="ignore"):
            sample = np.column_stack((rows.take(some), scores[some]))
            return summed_near_mean(mean_of_sample(sample), lambda shift: _summed_about(shift, rows, scores))

    @property
    def dimensions(self) -> int:
        """Number of feature columns."""
        return len(self.mean) - 1

    def __add__(self, more: Moments) -> Moments:
        """Return the moments of both sets of rows: sums of products add up (Eq. 17, 18)."""
        _check_same_dimensions(self, more)
        parts = self.parts | more.parts
        twice = self.parts & more.parts  # Which of the two is taken away later could not be told.
        known = parts - (twice - {UNTOLD}) if len(parts) <= _MAX_PARTS else frozenset()
        return _combined(self, more, 1, np.hypot(self.rounding, more.rounding), known)

    def __radd__(self, zero: int) -> Moments:
        """Return these: `sum` starts at zero."""
        return self if zero == 0 else NotImplemented

    def __sub__(self, old: Moments) -> Moments:
        """Return the moments of the rows that remain when `old` ones, added before, are taken away."""
        _check_same_dimensions(self, old)
        if not self.rows > old.rows:
            raise ValueError(f"the moments taken away must weigh less than {self.rows:g} rows, got {old.rows:g}")
        if old.parts and old.parts <= self.parts and UNTOLD not in self.parts and not old.rounding.any():
            rounding = np.hypot(self.rounding, _DOUBLE_DOUBLE_EPS * np.abs(np.diagonal(self.comoment)))
            return _combined(self, old, -1, rounding, self.parts - old.parts)
        # Summed in other parts the same rows have rounding of their own.
        rounding = np.hypot(self._possible_rounding(), old._possible_rounding())
        return _combined(self, old, -1, rounding, self.parts - (old.parts - {UNTOLD}))

    def told_by(self, digests: Iterable[int]) -> Moments:
        """Return the same moments with these digests among their parts, none where they are too many to remember."""
        parts = self.parts.union(digests)
        return replace(self, parts=parts if len(parts) <= _MAX_PARTS else frozenset())

    def decayed(self, factor: float) -> Moments:
        """Return the same moments with every row's weight multiplied by `factor`, in (0, 1]."""
        factor = as_share(factor, "factor")
        if factor == 1.0:
            return self
        rounding = factor * (self.rounding + EPS * np.abs(np.diagonal(self.comoment)))
        comoment, low = self.comoment * factor, self.comoment_low * factor
        return Moments(self.rows * factor, self.mean, comoment, self.mean_low, low, rounding)

    def solve(self, intercept: bool = True, components: int | None = None, ridge: float = 0.0) -> LinearFit:
        r"""Return the minimum-norm least-squares fit (Eq. 11).

        It minimises $\sum_i (s_i - z_i^\top \beta - a)^2 + \mathrm{ridge} \, \|\beta\|^2$ over `coef` $\beta$ and
        `intercept` $a$; without an intercept $a = 0$, as the paper prints it. With `components` = k the fit is
        confined to the k leading principal components of the centred features; the centring stays when
        `intercept` is false, which only shifts every score by one constant.
        """
        ridge, intercept = as_number(ridge, "ridge", at_least=0.0), as_truth(intercept, "intercept")
        if components is None:
            with one_thread():
                sums = (self.rows, self.mean, self.comoment, self.rounding)
                found = minimum_norm(*sums, intercept=intercept, ridge=ridge)
                return self._linear_fit(found, intercept, np.zeros(self.dimensions))
        return self._solve_within(self._principal_components(components), intercept=intercept, ridge=ridge)

    def _principal_components(self, components: int) -> PrincipalComponents:
        """Return the leading principal components of the features, fewer where the rank is lower."""
        d = self.dimensions
        k = as_count(components, "components", at_most=d)
        with one_thread():
            scaled, exponent = _without_underflow(self.comoment[:d, :d])
            values, vectors = _linalg.eigh(scaled, subset_by_index=(d - k, d - 1), overwrite_a=True)
        used = values > RANK_TOLERANCE * values[-1] + np.ldexp(self.rounding[:d].sum(), -exponent)
        return PrincipalComponents(self.mean[:d], vectors[:, used])

    def _solve_within(self, principal: PrincipalComponents, *, intercept: bool, ridge: float = 0.0) -> LinearFit:
        """Return the fit of these rows confined to given principal components, as `solve` does to its own."""
        with one_thread():
            onto = self._projected(principal)
            sums = (onto.rows, onto.mean, onto.comoment, onto.rounding)
            inner = minimum_norm(*sums, intercept=intercept, ridge=ridge)
            found = Solution(principal.basis @ inner.coef, inner.rank, inner.full_rank, inner.rounding)
            return self._linear_fit(found, intercept, principal.origin)

    def _projected(self, principal: PrincipalComponents) -> Moments:
        """Return the moments of the rows' coordinates (n, k) in a basis."""
        k = principal.basis.shape[1]
        basis = np.zeros((self.dimensions + 1, k + 1))
        basis[:-1, :-1] = principal.basis
        basis[-1, -1] = 1.0
        origin = np.append(principal.origin, 0.0)
        rounding = (np.abs(basis).T @ np.sqrt(self.rounding)) ** 2
        comoment = basis.T @ self.comoment @ basis
        mean = basis.T @ (self.mean - origin)
        return Moments(self.rows, mean, comoment, np.zeros(k + 1), np.zeros((k + 1, k + 1)), rounding)

    def _linear_fit(self, found: Solution, intercept: bool, origin: Floats) -> LinearFit:
        """Return the fit with these coefficients: its constant, and the share of variance that it explains."""
        error_weights = np.empty_like(self.mean)  # Times a row [features, score]: the fit, less the score.
        error_weights[:-1] = found.coef
        error_weights[-1] = -1.0
        mean_error = float(self.mean @ error_weights)
        constant = -mean_error if intercept else -float(origin @ found.coef)
        return self._with_constant(found, intercept, constant, self._explained(error_weights, mean_error + constant))

    def _with_constant(self, found: Solution, intercept: bool, constant: float, explained: float) -> LinearFit:
        """Return the fit with these coefficients and this constant, which explains that share of variance."""
        for_want_of_rows = found.rank == self.rows - intercept  # Then directions are missing that depend on nothing.
        collinear = 0 if for_want_of_rows else found.full_rank - found.rank
        return LinearFit(found.coef, constant, self.rows, found.rank, explained, collinear, found.rounding)

    def _explained(self, error_weights: Floats, mean_error: float) -> float:
        """Return the share of the score's variance that a fit with these errors explains."""
        return self._share_without(self._residual_square(error_weights, mean_error))

    def _share_without(self, residual_square: float) -> float:
        """Return the share of the score's variance that is not left over."""
        total_square = float(self.comoment[-1, -1])
        return 1.0 - residual_square / total_square if total_square > 0.0 else float(residual_square <= 0.0)

    def _residual_square(self, error_weights: Floats, mean_error: float) -> float:
        """Return the sum of squared errors, infinity where no double holds it."""
        with np.errstate(over="ignore", invalid="ignore"):
            about_mean = float(error_weights @ (self.comoment @ error_weights))
        return square_in_range(about_mean) + self.rows * mean_error * mean_error

    def _possible_rounding(self) -> Floats:
        return np.maximum(self.rounding, _SUM_ROUNDING * np.abs(np.diagonal(self.comoment)))


def square_in_range(square: float) -> float:
    """Return a sum of products that is a square: 0 where rounding left less, infinity where no double holds it."""
    return max(square, 0.0) if math.isfinite(square) else math.inf  # Overflown terms may add up to -inf, or to NaN.


def check_bounds(moments: Moments) -> None:
    """Refuse moments that no rows have: of other types or shapes, or with numbers not finite or too large."""
    rows = as_number(moments.rows, "rows", at_least=0.0, at_most=_MOST_ROWS)
    columns = moments.dimensions + 1
    if columns < 2:
        raise ValueError(f"moments must be of a feature at least, got a mean of {columns} columns")
    for name in ("mean", "mean_low", "rounding"):
        check_array(getattr(moments, name), name, (columns,))
    for name in ("comoment", "comoment_low"):
        check_array(getattr(moments, name), name, (columns, columns))
    largest = 4 * max(1.0, rows) * LARGEST**2  # Rows lie within twice this size of their mean.
    for name, most in (("mean", LARGEST), ("mean_low", LARGEST), ("comoment", largest), ("comoment_low", largest)):
        values = np.abs(getattr(moments, name))
        if not values.max() <= most:  # NaN fails this comparison too.
            raise ValueError(f"{name} must be finite and at most {most:g} in size, got {values.max():g}")
    refused = ~((moments.rounding >= 0) & (moments.rounding <= largest))  # NaN fails these comparisons too.
    if refused.any():
        value = moments.rounding[refused][0]
        raise ValueError(f"rounding must be finite, not negative and at most {largest:g}, got {value:g}")


def check_array(values: object, name: str, shape: tuple[int, ...]) -> None:
    """Refuse what is no array of float64 of this shape."""
    if type(values) is not np.ndarray or values.dtype != np.float64:
        kind = f"dtype {values.dtype}" if type(values) is np.ndarray else type(values).__name__
        raise TypeError(f"{name} must be an array of float64, got {kind}")
    if values.shape != shape:
        raise ValueError(f"{name} must have shape {shape}, got {values.shape}")


def check_sums_of_rows(moments: Moments) -> None:
    """Refuse moments that no rows have, such as a difference of sums that have decayed in between.

    A co-moment of rows is symmetric and has no negative eigenvalue, but for what rounding leaves.
    """
    check_bounds(moments)
    comoment, squares = moments.comoment, moments.comoment.diagonal()
    rounding = len(squares) * (moments.rounding + _ROUNDED_SQUARE * np.maximum(squares, 0.0))
    if (squares < -rounding).any():
        raise ValueError(f"moments must be sums of rows, got a negative sum of squares: {squares.min():g}")
    live = squares + rounding > 0
    norm = np.sqrt((squares + rounding)[live])
    scaled = comoment[np.ix_(live, live)] / norm[:, None] / norm
    if not np.allclose(scaled, scaled.T, rtol=0.0, atol=_ROUNDED_SQUARE + (rounding[live] / norm**2).max(initial=0.0)):
        raise ValueError("moments must be sums of rows, got a co-moment that is not symmetric")
    np.fill_diagonal(scaled, 1.0)
    if live.any() and cholesky_factor(scaled) is None:
        raise ValueError("moments must be sums of rows, got a co-moment with a negative eigenvalue")


def rows_sampled_for_mean(n: int) -> NDArray[np.intp]:
    """Return the indices of some of n rows whose mean is taken to be near that of all."""
    return np.arange(0, n, max(1, n // _SAMPLED_FOR_MEAN))


def mean_of_sample(sample: Floats) -> Floats:
    """Return the mean (p,) of some rows, exact where a column is constant."""
    mean: Floats = sample[0] + (sample - sample[0]).mean(axis=0)  # About a row's own value nothing is left of it.
    return mean


def summed_near_mean(near: Floats, summed_about: Callable[[Floats], ProductSums]) -> Moments:
    """Return the moments of rows that are summed about a point near their mean, such as that of a sample of them."""
    sums = summed_about(near)
    moments = sums.moments()
    if (sums.squares > _MAX_SHIFT_RATIO * np.diagonal(moments.comoment)).any():  # It was not near.
        moments = summed_about(moments.mean).moments()
    return moments


class ProductSums:
    """Sums of products of columns (p,) about a `shift`, and of a column of ones behind them, block by block."""

    def __init__(self, shift: Floats) -> None:
        self.shift = np.append(shift, 0.0)
        self._sum = np.zeros((len(self.shift), len(self.shift)))
        self._low = np.zeros_like(self._sum)
        self._recent: Floats | None = None  # Of the last few blocks.
        self._recent_blocks = 0

    def of(self, features: Matrix, scores: Floats) -> Floats:
        """Return those of some rows: features (n, p - 1), and scores (n,) as the last column."""
        kernels = _kernels.kernels if self.by_kernel else None
        if kernels is None:
            return self.of_block(np.column_stack((features, scores, np.ones(len(scores)))))
        rows, scores = _kernels.readable(features), _kernels.doubles(scores)
        products = np.empty_like(self._sum)
        kernels("sum_products", rows, scores, self.shift, *self.room(len(rows)), products)
        return products

    def of_block(self, block: Floats) -> Floats:
        """Return those of rows of all columns and a one (n, p + 1), which are shifted in place."""
        block -= self.shift
        products: Floats = block.T @ block
        return products

    @property
    def by_kernel(self) -> bool:
        """Whether a compiled kernel sums the products, in less time than BLAS does."""
        return _kernels.kernels is not None and len(self.shift) <= _WIDE

    def room(self, rows: int) -> tuple[int, Floats]:
        """Return how many of so many rows the kernel has in its panels at once, and room for them."""
        width = len(self.shift) + 11  # Up to eleven more columns make whole tiles.
        at_once = min(rows, _ROWS_IN_PANELS)
        return at_once, np.empty(width * (width + at_once + 3) + 4)

    def add(self, more: Floats) -> None:
        """Add those of a block, which are used up."""
        self._recent = more if self._recent is None else np.add(self._recent, more, out=more)
        self._recent_blocks += 1
        if self._recent_blocks == _BLOCKS_AT_ONCE:
            self._add_recent()

    def _add_recent(self) -> None:
        if self._recent is not None:
            self._sum, self._low = compensated(self._sum, self._low, self._recent)
            self._recent, self._recent_blocks = None, 0

    @property
    def squares(self) -> Floats:
        """The columns' sums of squares (p,) about the shift."""
        squares = np.diagonal(self._sum)[:-1]
        return squares if self._recent is None else squares + np.diagonal(self._recent)[:-1]

    def moments(self) -> Moments:
        """Return the moments of all rows."""
        self._add_recent()
        total, n = self._sum[-1, :-1], float(self._sum[-1, -1])  # The column of ones adds up the others.
        mean, mean_low = two_sum(self.shift[:-1], total / n)
        comoment = self._sum[:-1, :-1] - np.outer(total, total / n)
        told_by = np.concatenate((mean, mean_low, self.squares, comoment.sum(axis=0)))
        part = frozenset([int.from_bytes(blake2b(told_by.tobytes(), digest_size=8).digest())])
        return Moments(n, mean, comoment, mean_low, self._low[:-1, :-1], np.zeros(len(mean)), part)


def _summed_about(shift: Floats, rows: Rows, scores: Floats) -> ProductSums:
    n, sums = len(scores), ProductSums(shift)
    most = KERNEL_NUMBERS if sums.by_kernel and rows.is_plain else BLOCK_NUMBERS  # Others are copied.
    size = min(n, max(_MIN_BLOCK_ROWS, min(_MAX_BLOCK_ROWS, rows_of_block(n, len(sums.shift), most))))
    add_blocks(lambda where: sums.of(rows.unwidened(where), scores[where]), slices(n, size), sums.add)
    return sums


def compensated(high: Floats, low: Floats, more: Floats) -> tuple[Floats, Floats]:
    """Return high + low + more as a new high and low (Kahan 1965); `more` is used up."""
    total = np.empty_like(high)
    for part in _row_blocks(len(high)):
        before, rest = high[part], more[part]
        rest += low[part]
        after = np.add(before, rest, out=total[part])
        rest -= after - before
    return total, more


def _combined(one: Moments, other: Moments, sign: int, rounding: Floats, parts: frozenset[int]) -> Moments:
    """Return the moments of the rows of one and the other, or with a `sign` of -1 of one without the other.

    Pairwise (Chan, Golub & LeVeque 1983): n = n₁ ± n₂, δ = x̄₂ − x̄₁, x̄ = x̄₁ ± n₂/n δ, C = C₁ ± C₂ ± n₁n₂/n δδᵀ.
    """
    rows = one.rows + sign * other.rows
    if not rows > 0:
        raise ValueError(f"moments must weigh something to combine, got {one.rows:g} and {other.rows:g} rows")
    step, error = two_sum(other.mean, -one.mean)
    step, step_low = two_sum(step, error + (other.mean_low - one.mean_low))
    move, move_low = _times(Fraction(other.rows) / Fraction(rows), step, step_low)
    mean, error = two_sum(one.mean, sign * move)
    mean, mean_low = two_sum(mean, error + (one.mean_low + sign * move_low))
    weighted, weighted_low = _times(Fraction(one.rows) * Fraction(other.rows) / Fraction(rows), step, step_low)
    comoment, comoment_low = np.empty_like(one.comoment), np.empty_like(one.comoment)
    for part in _row_blocks(len(step)):
        square, square_low = two_product_outer(step[part], weighted)
        square_low += np.outer(step[part], weighted_low) + np.outer(step_low[part], weighted)
        total, error = two_sum(one.comoment[part], sign * other.comoment[part])
        total, another = two_sum(total, sign * square)
        error += another
        error += one.comoment_low[part] + sign * (other.comoment_low[part] + square_low)
        comoment[part], comoment_low[part] = two_sum(total, error)
    return Moments(rows, mean, comoment, mean_low, comoment_low, rounding, parts)


def _times(factor: Fraction, vector: Floats, low: Floats) -> tuple[Floats, Floats]:
    """Return a vector, high + low, times a number."""
    high, rest = two_ratio(factor)
    product, error = two_product(high, vector)
    return product, error + (high * low + rest * vector)


def _row_blocks(size: int) -> list[slice]:
    """Return the rows of a square matrix a block at a time, of which the cache holds several."""
    return slices(size, max(1, BLOCK_NUMBERS // 4 // size))


def _without_underflow(square: Floats) -> tuple[Floats, int]:
    """Return a matrix scaled by a power of two to a largest entry of about one, entries far below that set to zero.

    LAPACK finds eigenvectors that are not finite where entries lie hundreds of powers of ten apart. What is dropped
    is far below the rounding of any eigenvalue that is used.
    """
    exponent = int(np.frexp(max(square.max(), -square.min()))[1])
    scaled = np.ldexp(square, -exponent)
    scaled[np.abs(scaled) < _NEGLIGIBLE] = 0.0
    return scaled, exponent


def _check_same_dimensions(one: Moments, other: Moments) -> None:
    if not isinstance(other, Moments):
        raise TypeError(f"moments add to and subtract from moments, got {type(other).__name__}")
    if one.dimensions != other.dimensions:
        raise ValueError(f"moments must be of {one.dimensions} features to combine, got {other.dimensions}")
