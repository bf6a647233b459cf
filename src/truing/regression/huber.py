r"""Huber regression: the exact minimiser, with a certificate of optimality.

RLR's lasso (Eq. 14) is a Huber regression. Its minimum over γ is the loss $\sum_i h_\lambda(r_i)$ with the residual
$r = s - Z \beta - a$ and $\gamma_i = r_i - \mathrm{clip}(r_i, \pm\lambda)$. This file minimises the loss in four steps.

1. Choose coordinates W = [Z - mean, 1] L with orthonormal columns, $W^\top W = n I$ (`Design`).
2. With many rows, solve a sample first. Then only rows with a residual near ±λ can still change between inlier and
   outlier (`solve`).
3. Take Newton steps on a smoothed loss, and reduce the smoothing μ to 0 (`minimise`).
4. Bound the error of the result by a dual point (`certify`).

The smoothed loss has the slope $\psi_\mu(r) = (\sqrt{(r + \lambda)^2 + \mu^2} - \sqrt{(r - \lambda)^2 + \mu^2}) / 2$,
which tends to clip(r, ±λ) as μ falls to 0. In the code, `width` is λ, or a larger
number if λ is not well above the rounding errors of residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log2, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _linalg
from .._blas import one_thread
from .._check import (
    Bools,
    Floats,
    Matrix,
    as_matrix,
    as_number,
    as_truth,
    as_vector,
    check_same_rows,
    row_blocks,
    slices,
)
from .._threads import add_blocks, map_blocks
from .least_squares import EPS

Index = NDArray[np.intp]

# A fit is returned when its duality gap is at most this share of the objective.
TOLERANCE = 1e-9

_MIN_PENALTY, _MAX_PENALTY = 2.0**-400, 2.0**100  # Shares of the largest score; beyond, the fit is the same.
_MIN_WIDTH_OVER_ROUNDING = 2.0**6  # A width closer to the rounding of residuals cannot identify inliers.
_ROUNDING_UNITS = 8  # Units in the last place by which a residual may be off.
_ILL_CONDITIONED = 1e-8  # Eigenvalue ratio of a Gram matrix below which half of the digits are lost.
_MAX_ROUNDING_SHARE = 2.0**-10  # Drop a direction if rounding of the features changes it by more than this share.
_SMOOTHING_RATIO = 4.0  # Ratio of each smoothing to the next.
_LAST_SMOOTHING = 0.01  # The smallest positive smoothing, as a share of the width.
_ROUGH, _FINE = 1.0, 1e-13  # Gradients, as a share of their terms, that end Newton's method with and without smoothing.
_NEGLIGIBLE_CURVATURE = 1e-4  # Rows with a smaller share of the largest curvature enter the Hessian as a ridge.
_RIDGE = 1e-13  # Share of the Hessian's trace that keeps a singular Hessian solvable.
_SLOPE_TOLERANCE = 0.1  # Share of the first slope along a step that ends a line search.
_MAX_STEPS, _MAX_TRIALS = 200, 100
_UNBOUNDED_RATIO = 1e3  # If a step moves residuals by this many times their size, the loss has no minimum along it.
_FEW_ROWS = 512  # Medians are computed from a sample of this many rows.
_NEAR_STANDARD_ERRORS = 5.0  # Rows within this many standard errors of ±λ may change between inlier and outlier.
_MAX_ROUNDS = 8  # Rounds over all rows, in addition to log2(rows).
_MAX_CORRECTIONS = 20
_SMALL_GRADIENT = 1e-6  # Certify the first fit only if its sum of |gradient| / (rows · width) is at most this.
_INLIERS_PER_UNKNOWN = 20  # Correct a dual point on this many inliers per unknown.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio.


@dataclass(frozen=True, eq=False)
class HuberFit:
    """A robust fit and its certificate.

    No other fit has an objective that is lower by more than the share `gap`, up to the rounding of the residuals.
    `residual` is scores - features @ coef - intercept, `gamma` is the part of each residual beyond ±penalty, and
    `passes` is the number of times that all rows were read.
    """

    coef: Floats
    intercept: float
    gamma: Floats
    residual: Floats
    gap: float
    passes: int


def huber(features: ArrayLike, scores: ArrayLike, penalty: float, *, intercept: bool = True) -> HuberFit:
    r"""Return the minimiser of $\sum_i h_\lambda(s_i - z_i^\top \beta - a)$ with the penalty λ (Eq. 13, 14).

    $h_\lambda(r)$ is $r^2/2$ up to λ and $\lambda|r| - \lambda^2/2$ beyond λ. Directions in which the rows do not vary
    beyond rounding get no coefficient. If several fits have the least objective, the result is one of them. Raise
    ArithmeticError if the duality gap stays above `TOLERANCE`.

    >>> huber([[0.0], [1.0], [2.0], [3.0], [4.0]], [1.0, 3.0, 5.0, 7.0, -9.0], 1e-3).coef.round(2)
    array([2.])
    """
    matrix = as_matrix(features, "features")
    vector = as_vector(scores, "scores")
    check_same_rows(features=matrix, scores=vector)
    return huber_rows(Rows(matrix), vector, penalty, intercept=intercept)


def huber_rows(rows: Rows, scores: Floats, penalty: float, *, intercept: bool = True) -> HuberFit:
    """Return the result of `huber` for rows that are scaled and centred while they are read."""
    penalty = as_number(penalty, "penalty", above=0.0)
    intercept = as_truth(intercept, "intercept")
    centre = float(np.median(scores)) if intercept else 0.0
    exponent = int(np.frexp(np.abs(scores - centre).max())[1])
    with one_thread(), np.errstate(over="ignore", under="ignore", invalid="ignore"):
        target = np.ldexp(scores - centre, -exponent)
        scaled_penalty = min(max(float(np.ldexp(penalty, -exponent)), _MIN_PENALTY), _MAX_PENALTY)
        design, read = design_of(rows, intercept, float(np.ldexp(abs(centre), -exponent)))
        solution = solve(design, target, scaled_penalty)
        coef, constant = design.uncentred(solution.point.theta)
        coef, constant = np.ldexp(coef, exponent), float(np.ldexp(constant, exponent)) + centre
    gap, passes = solution.gap, read + solution.passes
    check_solved(gap, coef, constant)
    residual = np.ldexp(solution.point.residual, exponent)
    gamma = residual - np.clip(residual, -penalty, penalty)
    return HuberFit(coef, constant if intercept else 0.0, gamma, residual, gap, passes)


def check_solved(gap: float, coef: Floats, constant: float) -> None:
    """Raise ArithmeticError if the coefficients are not finite or the duality gap is above the tolerance."""
    if not (np.isfinite(coef).all() and np.isfinite(constant)):
        raise ArithmeticError("huber needs coefficients beyond the largest float64 number: scale the features up")
    if not gap <= TOLERANCE:  # NaN fails this comparison too.
        raise ArithmeticError(
            f"huber reached a relative duality gap of {gap:.1e}, expected at most {TOLERANCE:g}: "
            "the penalty may be too small, or features and scores too far apart in size"
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows scale_i · z_i · factor - origin, computed in float64 a block at a time and never stored as a whole."""

    features: Matrix
    scale: Floats | None = None
    factor: Floats | None = None
    origin: Floats | None = None

    @classmethod
    def unit(cls, features: Matrix) -> Rows:
        """Return the rows divided by their Euclidean norms; rows of zeros stay zero."""

        def inverse_norms(where: slice) -> Floats:
            block = np.asarray(features[where], dtype=np.float64)
            exponent = np.maximum(np.frexp(np.abs(block).max(axis=1))[1], -1000)
            norm = np.linalg.norm(np.ldexp(block, -exponent[:, None]), axis=1)
            with np.errstate(over="ignore"):
                inverse = np.ldexp(1 / np.where(norm > 0, norm, 1.0), -exponent)
            finite: Floats = np.minimum(inverse, np.finfo(np.float64).max)
            return finite

        return cls(features, np.concatenate(map_blocks(inverse_norms, row_blocks(features))))

    def read(self, where: slice | Index) -> Floats:
        """Return some rows as a new array."""
        block = np.array(self.features[where], dtype=np.float64, order="C")
        if self.scale is not None:
            block *= self.scale[where, None]
        if self.factor is not None:
            block *= self.factor
        if self.origin is not None:
            block -= self.origin
        return block

    def blocks(self) -> list[slice]:
        """Return the slices that a pass over all rows reads one at a time."""
        return row_blocks(self.features)

    @property
    def block_size(self) -> int:
        """The number of rows in a block."""
        first = self.blocks()[0]
        return int(first.stop - first.start)


@dataclass(frozen=True, eq=False)
class Design:
    """W = [rows @ basis, 1] with WᵀW = n I. Without an intercept, there is no column of ones.

    `size` (d,) is the typical magnitude of every column before centring. `level` is the magnitude of the constant that
    was subtracted from the scores.
    """

    rows: Rows
    basis: Floats
    size: Floats
    intercept: bool
    level: float

    @property
    def unknowns(self) -> int:
        """The number of columns of W."""
        return int(self.basis.shape[1]) + self.intercept

    def take(self, index: Index) -> Floats:
        """Return the rows of W at `index`."""
        taken = np.ones((len(index), self.unknowns))

        def fill(where: slice) -> None:
            np.matmul(self.rows.read(index[where]), self.basis, out=taken[where, : self.basis.shape[1]])

        map_blocks(fill, slices(len(index), self.rows.block_size))
        return taken

    def gram(self, index: Index) -> Floats:
        """Return Σ wᵢ wᵢᵀ over the rows at `index`."""
        blocks = slices(len(index), self.rows.block_size)
        return sum_of_grams(lambda where: self.take(index[where]), blocks, self.unknowns)

    def centred(self, theta: Floats) -> tuple[Floats, float]:
        """Return the coefficients (d,) and the constant of a fit, for rows that are scaled and centred as in `rows`."""
        if self.intercept:
            return self.basis @ theta[:-1], float(theta[-1])
        return self.basis @ theta, 0.0

    def uncentred(self, theta: Floats) -> tuple[Floats, float]:
        """Return the coefficients (d,) and the constant of a fit, for columns before scaling and centring."""
        coef, constant = self.centred(theta)
        assert self.rows.factor is not None
        if self.rows.origin is not None:
            constant -= float(self.rows.origin @ coef)
        return coef * self.rows.factor, constant

    def point(self, target: Floats, theta: Floats, width: float) -> Point:
        """Return the point at `theta`, from one pass over all rows."""
        coef, constant = self.centred(theta)
        residual = target - constant
        return Point(theta, residual, self.subtract(residual, coef, width))

    def subtract(self, values: Floats, coef: Floats, width: float) -> Floats:
        """Subtract rows @ coef from the values (n,) in place and return Wᵀ clip(values, ±width)."""
        total = np.zeros(len(coef) + 1)

        def part(where: slice) -> Floats:
            block = self.rows.read(where)
            values[where] -= block @ coef
            weight = np.clip(values[where], -width, width)
            return np.append(weight @ block, weight.sum())

        add_blocks(part, self.rows.blocks(), lambda more: np.add(total, more, out=total))
        inner = total[:-1] @ self.basis
        return np.append(inner, total[-1]) if self.intercept else inner

    def rounding(self, target: Floats, theta: Floats, index: Index) -> Floats:
        """Return the rounding error of the residuals at `index`, up to a small factor."""
        coef, constant = self.centred(theta)
        size = np.abs(target[index]) + self.level + 2 * abs(constant) + float(self.size @ np.abs(coef))

        def enlarge(where: slice) -> None:
            size[where] += np.abs(self.rows.read(index[where])) @ np.abs(coef)

        map_blocks(enlarge, slices(len(index), self.rows.block_size))
        return np.asarray(EPS * size)


@dataclass(frozen=True, eq=False)
class Point:
    """A fit `theta` (k,), its `residual` (n,), and its descent direction `gradient` = Wᵀ clip(residual, ±width)."""

    theta: Floats
    residual: Floats
    gradient: Floats


def design_of(rows: Rows, intercept: bool, level: float) -> tuple[Design, int]:
    """Return the design of the rows and the number of passes over them.

    The rank is judged on columns scaled to unit variance: directions in which rows vary no more than by rounding are
    left out. A Gram matrix holds half of the digits of the rows. If it is ill-conditioned, the rows are read again in
    the coordinates computed so far.
    """
    n, d = rows.features.shape
    mean, peak = column_mean_and_peak(rows)
    factor = np.ldexp(1.0, -np.maximum(np.frexp(peak)[1], -1000))
    mean *= factor
    rows = replace(rows, factor=factor, origin=mean if intercept else None)
    spread, variance, basis = standard_directions(rows, np.abs(mean))
    passes, largest = 2, float(variance.max(initial=0.0))
    if n >= d and variance.min(initial=np.inf) <= _ILL_CONDITIONED * largest:
        gram = sum_of_grams(lambda where: rows.read(where) @ basis, rows.blocks(), basis.shape[1])
        variance, rotation = np.linalg.eigh(gram / n)
        basis = basis @ (rotation / np.sqrt(np.maximum(variance, EPS**2)))
        passes += 1
    size = np.abs(mean) + spread
    rounding = np.linalg.norm(size[:, None] * basis, axis=0) / _MAX_ROUNDING_SHARE
    cancelling = np.linalg.norm(spread[:, None] * basis, axis=0) * d * sqrt(largest)
    kept = EPS * np.maximum(rounding, cancelling) <= 1
    return Design(rows, basis[:, kept], size, intercept, level), passes


def column_mean_and_peak(rows: Rows) -> tuple[Floats, Floats]:
    """Return the mean and the largest magnitude of every column; the mean of a constant column is exact."""
    first = rows.read(slice(0, 1))[0]
    total, peak = np.zeros_like(first), np.zeros_like(first)

    def part(where: slice) -> tuple[Floats, Floats]:
        block = rows.read(where)
        return (block - first).sum(axis=0), np.abs(block).max(axis=0)

    def add(more: tuple[Floats, Floats]) -> None:
        np.add(total, more[0], out=total)
        np.maximum(peak, more[1], out=peak)

    add_blocks(part, rows.blocks(), add)
    return first + total / len(rows.features), peak


def standard_directions(rows: Rows, level: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the spread of every column, the variances along directions, and the directions scaled to variance 1.

    The variances refer to columns scaled to unit variance. `level` is the magnitude of every column's mean.
    """
    n, d = rows.features.shape
    if n < d:
        block = rows.read(slice(0, n))
        spread = np.sqrt(np.square(block).mean(axis=0))
    else:
        gram = sum_of_grams(rows.read, rows.blocks(), d) / n
        spread = np.sqrt(gram.diagonal())
    varies = np.flatnonzero(spread * _MAX_ROUNDING_SHARE > EPS * (level + spread))
    scale = 1 / spread[varies]
    if n < d:
        singular, directions = np.linalg.svd(block[:, varies] * scale, full_matrices=False)[1:]
        variance, directions, floor = np.square(singular) / n, directions.T, EPS**2
    else:
        variance, directions = np.linalg.eigh(scale[:, None] * gram[np.ix_(varies, varies)] * scale)
        floor = (d + sqrt(n)) * EPS
    limit = floor * float(variance.max(initial=0.0))
    basis = np.zeros((d, len(variance)))
    basis[varies] = scale[:, None] * directions / np.sqrt(np.maximum(variance, limit))
    return spread, variance, basis


def sum_of_grams(read: Callable[[slice], Floats], blocks: list[slice], columns: int) -> Floats:
    """Return the sum of block.T @ block over blocks of rows."""
    total = np.zeros((columns, columns))

    def part(where: slice) -> Floats:
        block = read(where)
        return np.asarray(block.T @ block)

    add_blocks(part, blocks, lambda more: np.add(total, more, out=total))
    return total


@dataclass(frozen=True, eq=False)
class Solution:
    """A point, its relative duality gap, and the number of passes over all rows that it took."""

    point: Point
    gap: float
    passes: int


def solve(design: Design, target: Floats, penalty: float) -> Solution:
    """Return the best point found: start from a sample, then solve the rows near ±penalty until the gap is small.

    The sample and the near rows only save time. The gap is computed from all rows.
    """
    n = len(target)
    theta, near_rows = start(design, target, penalty)
    best: Point | None = None
    best_gap, passes = np.inf, 2
    for count in range(int(log2(n)) + _MAX_ROUNDS):
        width = solvable_width(design, target, theta, penalty)
        point = design.point(target, theta, width)
        gap, read = np.inf, 0
        if count > 0 or np.abs(point.gradient).sum() <= _SMALL_GRADIENT * width * n:
            gap, read = certify(design, target, point, penalty, width)
        passes += read + 2
        if best is None or not gap >= best_gap:  # A gap of NaN replaces the point too.
            best, best_gap = point, gap
        if gap <= TOLERANCE:
            break
        theta = point.theta + step_of_near_rows(design, point, width, near_rows)
        near_rows = all_if_half(2 * near_rows, n)
    assert best is not None
    return Solution(best, best_gap, passes)


def start(design: Design, target: Floats, penalty: float) -> tuple[Floats, int]:
    """Return a first fit, and the number of rows that may still change between inlier and outlier."""
    n, k = len(target), design.unknowns
    none = np.zeros(k)
    theta = design.point(target, none, np.inf).gradient / n
    some = sampled_numbers(n, _FEW_ROWS)
    residual = target[some] - design.take(some) @ theta
    if np.median(np.abs(residual)) > np.median(np.abs(target[some])):  # Outliers spoiled the least-squares fit.
        theta = none
    # This sample size balances the costs of solving the sample and the rows near ±λ (Portnoy & Koenker 1997).
    sampled = int((n * k) ** (2 / 3) / 2)
    if n <= _FEW_ROWS or not 0 < sampled < n / 2:
        return theta, n
    near_rows = all_if_half(int(_NEAR_STANDARD_ERRORS * n * sqrt(k / sampled)), n)
    if near_rows < n:
        index = sampled_numbers(n, sampled)
        rows = design.take(index)
        theta = theta + minimise(rows, target[index] - rows @ theta, penalty, np.zeros((k, k)), none)
    return theta, near_rows


def step_of_near_rows(design: Design, point: Point, width: float, count: int) -> Floats:
    """Return the step to the minimum if only the `count` rows nearest to ±width can change sides.

    All other inliers contribute a quadratic term and all other outliers a linear term.
    """
    n, k = len(point.residual), design.unknowns
    if count >= n:
        return minimise(design.take(np.arange(n)), point.residual, width, np.zeros((k, k)), np.zeros(k))
    distance = np.abs(np.abs(point.residual) - width)
    near = np.sort(np.argpartition(distance, count - 1)[:count])
    inliers = np.abs(point.residual) <= width
    inliers[near] = False
    rows, residual = design.take(near), point.residual[near]
    linear = point.gradient - np.clip(residual, -width, width) @ rows
    return minimise(rows, residual, width, design.gram(np.flatnonzero(inliers)), linear)


def minimise(rows: Floats, residual: Floats, width: float, quadratic: Floats, linear: Floats) -> Floats:
    """Return the minimiser x of Σ h(rᵢ - wᵢᵀx) + xᵀ quadratic x / 2 - linearᵀ x, by Newton steps.

    Newton's method can diverge if few rows are inliers. The smoothed loss gives every row some curvature, and its
    minimum moves smoothly with the smoothing. The first smoothing is the upper quartile of the distances of |rᵢ| from
    the width. A mean would be too large: one huge residual could move x so far that rounding destroys the residuals of
    all other rows. A median would be too small if most rows fit well.
    """
    x = np.zeros(rows.shape[1])
    smoothing = float(np.quantile(np.abs(np.abs(residual) - width), 0.75))
    while True:
        smoothing = smoothing if smoothing > _LAST_SMOOTHING * width else 0.0
        step, residual = newton(rows, residual, width, smoothing, quadratic, linear - quadratic @ x)
        x = x + step
        if smoothing == 0:
            return x
        smoothing /= _SMOOTHING_RATIO


def newton(
    rows: Floats, residual: Floats, width: float, smoothing: float, quadratic: Floats, linear: Floats
) -> tuple[Floats, Floats]:
    """Return the step to the minimum of the smoothed loss, and the residual after the step.

    If the smoothing is positive, the step is only approximate.
    """
    x = np.zeros(rows.shape[1])
    for count in range(_MAX_STEPS):
        slope, curvature = smooth_clip(residual, width, smoothing)
        pull = linear - quadratic @ x
        gradient = pull + slope @ rows
        enough = _FINE * (np.abs(slope).sum() + np.abs(linear).sum())
        if smoothing > 0 and count > 0:
            enough = _ROUGH * width * len(x)
        if np.abs(gradient).sum() <= enough:
            break
        step = newton_step(hessian(rows, curvature) + quadratic, gradient)
        fitted = rows @ step
        length = line_search(residual, fitted, width, smoothing, float(step @ pull), float(step @ quadratic @ step))
        if length in (0.0, np.inf):
            break
        x = x + length * step
        residual = residual - length * fitted
    return x, residual


def smooth_clip(residual: Floats, width: float, smoothing: float) -> tuple[Floats, Floats]:
    """Return the slope ψ of the smoothed loss of every row, and ψ′. Without smoothing, ψ is clip(r, ±width)."""
    if smoothing == 0:
        return np.clip(residual, -width, width), (np.abs(residual) < width).astype(np.float64)
    above, below = residual + width, residual - width
    far = np.sqrt(above * above + smoothing * smoothing)
    near = np.sqrt(below * below + smoothing * smoothing)
    return 2 * width * residual / (far + near), np.maximum(above / far - below / near, 0.0) / 2


def hessian(rows: Floats, curvature: Floats) -> Floats:
    """Return Σ curvatureᵢ wᵢ wᵢᵀ, with rows of little curvature replaced by their average, a multiple of I."""
    index = np.flatnonzero(curvature > _NEGLIGIBLE_CURVATURE * curvature.max(initial=0.0))
    weight = curvature[index]
    some = rows[index] * np.sqrt(weight)[:, None]
    total: Floats = some.T @ some
    total.flat[:: len(total) + 1] += max(float(curvature.sum() - weight.sum()), 0.0)
    return total


def newton_step(matrix: Floats, gradient: Floats) -> Floats:
    """Return the Newton step for a Hessian, or the gradient itself if rounding makes the Hessian indefinite."""
    matrix.flat[:: len(gradient) + 1] += _RIDGE * (np.trace(matrix) + len(gradient))
    return np.asarray(_linalg.lapack.dposv(matrix, gradient)[1])  # If dposv fails, it returns the gradient.


def line_search(
    residual: Floats, fitted: Floats, width: float, smoothing: float, linear: float, quadratic: float
) -> float:
    """Return the step length at which the slope is zero; 0 if the loss rises, infinity if it falls without bound.

    The loss is convex along the step and, without smoothing, piecewise quadratic. Newton's method finds the zero of the
    slope. Each iterate is kept between the current bounds.
    """
    first = linear + float(smooth_clip(residual, width, smoothing)[0] @ fitted)
    largest = _UNBOUNDED_RATIO * (float(np.abs(residual).max(initial=0.0)) + width + smoothing)
    moves = float(np.abs(fitted).max(initial=0.0))
    if not first > 0:
        return 0.0
    low, high, length = 0.0, np.inf, min(1.0, largest / moves if moves > 0 else 1.0)
    for _ in range(_MAX_TRIALS):
        slopes, curvature = smooth_clip(residual - length * fitted, width, smoothing)
        slope = linear - length * quadratic + float(slopes @ fitted)
        if abs(slope) <= _SLOPE_TOLERANCE * first or high - low <= EPS * length:
            return length
        low, high = (length, high) if slope > 0 else (low, length)
        if low * moves >= largest or moves == quadratic == 0:
            return np.inf
        bend = quadratic + float(curvature @ (fitted * fitted))
        newton_length = length + slope / bend if bend > 0 else np.inf
        length = min(4 * low, 0.5 * (low + high)) if low > 0 else high / 4
        if low < newton_length < min(high, 16 * max(low, length)):
            length = newton_length
    return low


def solvable_width(design: Design, target: Floats, theta: Floats, penalty: float) -> float:
    """Return the penalty, or a width well above the rounding of the residuals if the penalty is smaller."""
    some = sampled_numbers(len(target), _FEW_ROWS)
    rounding = float(np.median(design.rounding(target, theta, some)))
    return max(penalty, _MIN_WIDTH_OVER_ROUNDING * rounding)


def huber_loss(residual: Floats, width: float) -> float:
    """Return Σ h(rᵢ) / width. The division comes first because a square of a small width underflows."""
    size = np.abs(residual)
    share = np.minimum(size / width, 1.0)
    return float(share @ (size - np.minimum(size, width) / 2))


def certify(design: Design, target: Floats, point: Point, penalty: float, width: float) -> tuple[float, int]:
    """Return the relative duality gap of a point near the minimum at `width` ≥ penalty, and the number of passes.

    For any u with |uᵢ| ≤ 1 and Wᵀu = 0, no fit has a loss over the penalty λ below Σ sᵢuᵢ - λuᵢ²/2. At the minimum,
    u = clip(r / λ, ±1) reaches this bound.
    """
    loss = huber_loss(point.residual, penalty)
    n = len(target)
    gap = duality_gap(design, point, penalty, width, np.full(n, 1e-2 * TOLERANCE * loss / n))
    if gap <= TOLERANCE * loss:
        return (gap / loss if gap > 0 else 0.0), 1
    rounding = design.rounding(target, point.theta, np.arange(n))
    gap = min(gap, duality_gap(design, point, penalty, width, rounding))
    slope = np.minimum(np.abs(point.residual) / penalty, 1.0)
    allowed = _ROUNDING_UNITS * float(slope @ rounding)
    return gap / max(loss, allowed / TOLERANCE), 3


def duality_gap(design: Design, point: Point, penalty: float, width: float, slack: Floats) -> float:
    """Return the duality gap of a dual point near clip(r / width); rows within `slack` of ±width count as inliers.

    Row by row, the gap is h(rᵢ)/λ - rᵢuᵢ + λuᵢ²/2, a sum of terms that are never negative.
    """
    dual, infeasibility = dual_point(design, point, width, np.abs(point.residual) <= width + slack)
    size = np.abs(point.residual)
    within = np.minimum(size, penalty)
    same_side = dual * np.sign(point.residual)
    gap = penalty / 2 * np.square(within / penalty - same_side).sum() + (size - within) @ (1 - same_side)
    loss = huber_loss(point.residual, penalty)
    # A better fit θ′ may gain ‖Wᵀu‖ ‖θ′ - θ‖, and √n ‖θ′ - θ‖ ≤ ‖r‖ + ‖r′‖ with ‖r′‖ ≤ √(2λP) + 2P for a loss ≤ P.
    reach = float(np.linalg.norm(point.residual)) + sqrt(2 * penalty * loss) + 2 * loss
    gap += float(np.linalg.norm(infeasibility)) * reach / sqrt(len(size))
    return min(float(gap), loss)  # The dual point 0 proves the gap `loss`.


def dual_point(design: Design, point: Point, width: float, inliers: Bools) -> tuple[Floats, Floats]:
    """Return u with |u| ≤ 1 near clip(r / width), and its infeasibility Wᵀu, which is zero up to rounding.

    A sample of the inliers absorbs Wᵀu, because outliers at ±1 have no room to move. Any remaining part of Wᵀu is
    spread over all rows. Finally, u is divided by its largest magnitude if that exceeds 1.
    """
    dual = np.clip(point.residual / width, -1.0, 1.0)
    infeasibility = point.gradient / width
    near, enough = np.flatnonzero(inliers), _INLIERS_PER_UNKNOWN * max(design.unknowns, 1)
    near = near[sampled_numbers(len(near), enough)]
    dual[near], infeasibility = corrected_dual(design.take(near), dual[near], infeasibility)
    coef, constant = design.centred(infeasibility / len(dual))
    dual -= constant
    infeasibility = design.subtract(dual, coef, np.inf)
    shrink = max(float(np.abs(dual).max()), 1.0)
    return dual / shrink, infeasibility / shrink


def corrected_dual(rows: Floats, dual: Floats, infeasibility: Floats) -> tuple[Floats, Floats]:
    """Return corrected dual values of some rows, and the infeasibility Wᵀu of all rows after the correction.

    Corrections end when Wᵀu is zero or these rows cannot absorb more of it. Each correction is a projection. Rows that
    reach ±1 stay there, and the other rows are projected again.
    """
    free = np.ones(len(dual), dtype=np.bool_)
    for _ in range(_MAX_CORRECTIONS):
        left = np.abs(infeasibility).sum()
        if not free.any() or left <= EPS * len(dual):
            break
        some = rows[free]
        change = np.zeros(len(dual))
        change[free] = some @ newton_step(some.T @ some, infeasibility)
        moved = np.clip(dual - change, -1.0, 1.0)
        infeasibility = infeasibility + (moved - dual) @ rows
        still_free = free & (np.abs(moved) < 1)
        is_stuck = np.array_equal(still_free, free) and np.abs(infeasibility).sum() > left / 2
        dual, free = moved, still_free
        if is_stuck:
            break
    return dual, infeasibility


def all_if_half(count: int, rows: int) -> int:
    """Return `count`, or `rows` if `count` is at least half of `rows`."""
    return count if count < rows / 2 else rows


def sampled_numbers(rows: int, at_most: int) -> Index:
    """Return the numbers of the rows in a fixed sample, in order. If there are few rows, return all of them.

    The rows are cut into `at_most` runs of nearly equal length. The sample has one row of each run. The place in the
    run follows the Kronecker sequence of the golden ratio, so that the sample has no period in common with the rows.

    >>> sampled_numbers(4, 9), sampled_numbers(1000, 4)
    (array([0, 1, 2, 3]), array([  0, 404, 559, 963]))
    """
    count = min(rows, at_most)
    ends = np.arange(count + 1, dtype=np.int64) * rows // max(count, 1)
    place = (np.arange(count, dtype=np.uint64) * _GOLDEN) / 2.0**64
    return (ends[:-1] + (place * np.diff(ends)).astype(np.int64)).astype(np.intp)
