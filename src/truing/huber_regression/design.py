"""The columns of a regression in coordinates in which they are orthonormal, and points in these coordinates.

Every problem is solved at one scale: scores and tiny columns are divided by powers of two, which rounds nothing, so
that no square under- or overflows. The rows are centred, and W = [rows − mean, 1] @ whitening has WᵀW = n·I.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .. import _kernels
from .._check import Bools, Floats, slices
from .._double import EPS
from .._threads import add_blocks, map_blocks
from ..moments import Moments
from ..rows import Rows
from .products import moved_residual, pass_blocks

# So few rows are gathered at a time.
ROWS_PER_GATHER = 2048
# A design of so few numbers is stored whole; only the certificate reads the rows again.
MAX_STORED_NUMBERS = 2**21

_ROWS_TOGETHER = 4  # That the kernel reads at a time.
_TINY_SQUARE = 1e-200  # A mean square below this may be what underflow has left.
_ILL_CONDITIONED = 1e-8  # Ratio of eigenvalues of a Gram matrix below which the smaller has lost half of its digits.
_ROUNDED_ENTRY = 2.0**-36  # Share of its largest entry below which those of a direction are but rounding.
_ROUNDING_SHARE = 2.0**-10  # A direction is dropped if rounding the features disturbs it by more than this share.


@dataclass(frozen=True, eq=False)
class Point:
    """A fit `theta` (k,), its `residual` (n,), and the `gradient` Wᵀ clip(residual, ±penalty) (k,)."""

    theta: Floats
    residual: Floats
    gradient: Floats


@dataclass(frozen=True, eq=False)
class Units:
    """What was done to scores and columns: scores = centre + 2^score_exponent · target, columns times 2^−exponents."""

    centre: float
    score_exponent: int
    exponents: NDArray[np.intc]
    intercept: bool

    @property
    def scaled_centre(self) -> float:
        """The size of the centre in units of the target."""
        return float(np.ldexp(abs(self.centre), -self.score_exponent))

    def in_callers_units(self, coef: Floats, shift: float, mean: Floats) -> tuple[Floats, float]:
        """Return coefficients and intercept in the caller's units, from those about the mean."""
        with np.errstate(over="ignore", under="ignore"):
            own: Floats = np.ldexp(coef, self.score_exponent - self.exponents)
            level = np.ldexp(np.longdouble(shift) - _dot(mean, coef), self.score_exponent)
            return own, float(level + self.centre) if self.intercept else 0.0

    def in_scaled_units(self, coef: Floats, intercept: float, mean: Floats) -> tuple[Floats, float]:
        """Return coefficients and constant about the mean in scaled units: the inverse of `in_callers_units`."""
        inner: Floats = np.ldexp(coef, self.exponents - self.score_exponent)
        level = np.longdouble(intercept) - self.centre if self.intercept else np.longdouble(0.0)
        return inner, float(np.ldexp(level, -self.score_exponent) + _dot(mean, inner))


@dataclass(frozen=True, eq=False)
class Design:
    """W = [rows, 1] @ whitening, the rows being about their mean; `stored` is W itself, where it is small.

    `least_squares` is the fit of least squares.
    """

    rows: Rows
    mean: Floats
    whitening: Floats
    units: Units
    least_squares: Floats
    stored: Floats | None = None

    @classmethod
    def of(cls, rows: Rows, target: Floats, centre: float, score_exponent: int, intercept: bool) -> "Design":
        """Return the design of the rows, from one pass over them; more where columns are tiny or all but collinear."""
        n, d = rows.features.shape
        moments = Moments._of_rows(rows, target)
        tiny = np.flatnonzero(np.diag(moments.comoment)[:-1] / n + moments.mean[:-1] ** 2 < _TINY_SQUARE)
        if len(tiny):
            scaled = rows.with_columns_of_normal_size(tiny)
            if scaled is not rows:
                rows = scaled
                moments = Moments._of_rows(rows, target)
        mean = moments.mean[:-1]
        exponents = np.zeros(d, dtype=np.intc) if rows.exponents is None else rows.exponents
        units = Units(centre, score_exponent, exponents, intercept)
        centred = rows.about(mean)
        whitening = whitening_map(moments, lambda map_: _gram_of(centred, map_), intercept)
        cross = np.append(moments.comoment[-1, :-1] / n, moments.mean[-1])
        design = cls(centred, mean, whitening, units, least_squares=whitening.T @ cross)
        if len(target) * design.unknowns > MAX_STORED_NUMBERS:
            return design
        stored = design.take(np.arange(len(target)))
        return replace(design, stored=stored, least_squares=target @ stored / len(target))

    @property
    def unknowns(self) -> int:
        """The number of columns of W."""
        return int(self.whitening.shape[1])

    def in_callers_units(self, theta: Floats) -> tuple[Floats, float]:
        """Return the coefficients and the intercept of a fit, as the caller is given them."""
        full = self.whitening @ theta
        return self.units.in_callers_units(full[:-1], float(full[-1]), self.mean)

    def point(self, target: Floats, theta: Floats, penalty: float) -> Point:
        """Return the point at `theta`."""
        if self.stored is None:
            return self.point_of_rows(target, theta, penalty)
        return Point(theta, *moved_residual(self.stored, target, theta, penalty))

    def point_of_rows(self, target: Floats, theta: Floats, penalty: float) -> Point:
        """Return the point at `theta`, from the rows themselves and the numbers that the caller is given."""
        coef, shift = self.units.in_scaled_units(*self.in_callers_units(theta), self.mean)
        residual = target - shift
        return Point(theta, residual, self.descend(residual, coef, penalty))

    def descend(self, values: Floats, coef: Floats, width: float) -> Floats:
        """Take rows @ coef off the values (n,), in place, and return Wᵀ clip(values, ±width)."""
        total = np.zeros(len(self.whitening))
        add_blocks(
            lambda where: self._descend(where, values[where], coef, width),
            pass_blocks(*self.rows.features.shape),
            lambda part: np.add(total, part, out=total),
        )
        return total @ self.whitening

    def _descend(self, where: slice, values: Floats, coef: Floats, width: float) -> Floats:
        """Return that of some rows, before the whitening."""
        if _kernels.kernels is not None:
            sums = np.empty(len(coef) + 1)
            room = np.empty(_ROWS_TOGETHER * len(coef))
            _kernels.kernels("huber_descend", *self.rows.factors_of(where), coef, float(width), values, sums, room)
            return sums
        block = self.rows.block(where)
        values -= block @ coef
        weight = np.clip(values, -width, width)
        return np.append(np.dot(weight, block), weight.sum())  # Not @: see products.py.

    def rounding(self, target: Floats, theta: Floats, index: NDArray[np.intp] | None = None) -> Floats:
        """Return what rounding may have added to each residual, or to those at `index`, to within a small factor."""
        coef, shift = self.units.in_scaled_units(*self.in_callers_units(theta), self.mean)
        level = 2 * abs(shift) + float(np.abs(self.mean) @ np.abs(coef)) + self.units.scaled_centre
        if index is not None:
            some = self.rows.take(index)
            sizes: Floats = np.abs(target[index]) + np.abs(some, out=some) @ np.abs(coef) + level
            return EPS * sizes
        size = np.abs(target) + level

        def enlarge(where: slice) -> None:
            size[where] += np.abs(self.rows.block(where)) @ np.abs(coef)

        map_blocks(enlarge, self.rows.slices())
        scaled: Floats = EPS * size
        return scaled

    def take(self, index: NDArray[np.intp]) -> Floats:
        """Return the rows of W at `index`."""
        if self.stored is not None:
            return self.stored if len(index) == len(self.stored) else self.stored[index]
        part = np.empty((len(index), self.unknowns))
        everything = len(index) == len(self.rows.features)

        def gather(some: slice) -> None:
            np.matmul(self._with_ones(some if everything else index[some]), self.whitening, out=part[some])

        map_blocks(gather, slices(len(index), ROWS_PER_GATHER))
        return part

    def gram(self, chosen: Bools) -> Floats:
        """Return Σ wᵢ wᵢᵀ over the chosen rows."""
        if not chosen.any():
            return np.zeros((self.unknowns, self.unknowns))
        raw = np.zeros((len(self.whitening), len(self.whitening)))
        index = np.flatnonzero(chosen)

        def products(some: slice) -> Floats:
            part = self._with_ones(index[some])
            return np.asarray(np.dot(part.T, part))  # Not @: see products.py.

        add_blocks(products, slices(len(index), ROWS_PER_GATHER), lambda more: np.add(raw, more, out=raw))
        return self.whitening.T @ raw @ self.whitening

    def _with_ones(self, where: slice | NDArray[np.intp]) -> Floats:
        """Return those rows of [rows, 1]."""
        count = where.stop - where.start if isinstance(where, slice) else len(where)
        block = np.empty((count, len(self.whitening)))
        self.rows.write(where, block[:, :-1])
        block[:, -1] = 1.0
        return block


def whitening_map(moments: Moments, gram_of: Callable[[Floats], Floats], intercept: bool) -> Floats:
    """Return the whitening (d + 1, k): k combinations of the columns of [rows, 1] that are orthonormal.

    Directions in which the rows vary no more than rounding them does are left out. The Gram matrix tells them from
    others only down to the root of the rounding error; below that the rows are read again in the coordinates found:
    `gram_of` has the Gram matrix over n of the columns [rows − mean, 1] @ whitening.
    """
    n, d = moments.rows, moments.dimensions
    mean, moment = moments.mean[:-1], moments.comoment[:-1, :-1] / n
    constant = np.zeros(d) if intercept else mean  # What the features add to the constant column.
    # Columns of one size lose equally much to rounding, and so does any direction.
    size = np.abs(mean) + np.sqrt(np.maximum(np.diag(moment), 0.0))
    live = np.flatnonzero(size > 0)
    if not len(live):
        return np.eye(d + 1)[:, d:] if intercept else np.zeros((d + 1, 0))
    scale = 1 / size[live, None]
    level = constant[live, None] * scale
    values, vectors = np.linalg.eigh(scale * moment[np.ix_(live, live)] * scale.T + level * level.T)
    floor = (d + n**0.5) * EPS * max(values[-1], EPS**2)
    coef = np.zeros((d, len(live)))
    coef[live] = scale * (vectors / np.sqrt(np.maximum(values, floor)))
    if values[0] <= _ILL_CONDITIONED * values[-1]:
        values, vectors = np.linalg.eigh(gram_of(np.vstack([coef, constant @ coef])))
        coef = coef @ (vectors / np.sqrt(np.maximum(values, EPS * floor)))
    # What rounding the features to double precision adds to each direction, whose own size is one.
    rounding = EPS * np.linalg.norm(size[:, None] * coef, axis=0)
    kept = rounding <= _ROUNDING_SHARE
    coef = _without_null_part(coef[:, kept], coef[:, ~kept], size)
    whitening = np.vstack([coef, _dot(constant, coef).astype(np.float64)])
    return np.column_stack([whitening, np.eye(d + 1)[:, d]]) if intercept else whitening


def _gram_of(rows: Rows, whitening: Floats) -> Floats:
    """Return WᵀW / n for the columns [rows, 1] @ whitening."""
    gram = np.zeros((whitening.shape[1], whitening.shape[1]))

    def products(where: slice) -> Floats:
        white = rows.block(where) @ whitening[:-1] + whitening[-1]
        square: Floats = white.T @ white
        return square

    def add(more: Floats) -> None:
        nonlocal gram
        gram += more

    add_blocks(products, rows.slices(), add)
    return gram / len(rows.features)


def _without_null_part(coef: Floats, null: Floats, size: Floats) -> Floats:
    """Return the combinations without their part in directions that leave every row unchanged: those of least norm."""
    if not null.size or not coef.size:
        return coef
    entries = np.abs(null) * size[:, None]
    # In columns of tiny numbers the rounding of a direction would outweigh it.
    clean = np.where(entries > _ROUNDED_ENTRY * entries.max(axis=0), null, 0.0)
    directions = clean / np.linalg.norm(clean, axis=0)
    shortest: Floats = coef - directions @ np.linalg.lstsq(directions, coef, rcond=None)[0]
    return shortest


def _dot(one: Floats, other: Floats) -> NDArray[np.longdouble]:
    """Return the product with the digits that extended precision has."""
    return np.asarray(one.astype(np.longdouble) @ other.astype(np.longdouble))
