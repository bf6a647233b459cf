"""Rows of features, scaled and centred as they are read: no copy of the whole is made."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from . import _kernels
from ._check import Floats, Matrix, row_blocks
from ._threads import map_blocks

# A sum of squares below this may have lost some of them to underflow.
_SAFE_SUM_OF_SQUARES = 1e-200
# The largest power of two by which a number is scaled.
_MAX_EXPONENT = 1000


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows scaleᵢ·zᵢ·2^−exponents − origin, made in float64 as they are read and never stored whole."""

    features: Matrix
    scale: Floats | None = None
    exponents: NDArray[np.intc] | None = None
    origin: Floats | None = None

    @classmethod
    def unit(cls, features: Matrix) -> "Rows":
        """Return the rows divided by their Euclidean norms; rows of zeros stay zero."""
        norm = np.empty(len(features))

        def fill(rows: slice) -> None:
            square = _sums_of_squares(features[rows])
            norm[rows] = np.sqrt(square)
            small = np.flatnonzero(square < _SAFE_SUM_OF_SQUARES)
            if len(small):
                norm[rows][small] = _norms(np.asarray(features[rows][small], dtype=np.float64))

        map_blocks(fill, row_blocks(features), uses_blas=False)
        largest = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            return cls(features, scale=np.minimum(1 / np.where(norm > 0, norm, 1), largest))

    def onto(self, basis: Floats) -> "Rows":
        """Return the rows' coordinates in `basis` (d, k), stored."""
        return Rows(np.concatenate(map_blocks(lambda rows: self.block(rows) @ basis, self.slices())))

    def slices(self) -> list[slice]:
        """Return which rows each block holds."""
        return row_blocks(self.features)

    def block(self, rows: slice) -> Floats:
        """Return those rows; a view of the features where nothing is to be done to them."""
        if self.is_plain and self.features.dtype == np.float64:
            return np.asarray(self.features[rows], dtype=np.float64)
        return self._read(rows)

    def unwidened(self, rows: slice) -> Matrix:
        """Return those rows, of the features' own type where nothing is to be done to them."""
        return self.features[rows] if self.is_plain else self.block(rows)

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield (rows, those rows)."""
        for rows in self.slices():
            yield rows, self.block(rows)

    def about(self, point: Floats) -> "Rows":
        """Return the rows less `point`."""
        return replace(self, origin=point if self.origin is None else self.origin + point)

    def with_columns_of_normal_size(self, suspects: NDArray[np.intp]) -> "Rows":
        """Return the rows with those of the suspected columns that hold only tiny numbers scaled by powers of two."""
        largest = np.zeros(len(suspects))
        for _, block in self.blocks():
            np.maximum(largest, np.abs(block[:, suspects]).max(axis=0), out=largest)
        exponents = np.zeros(self.features.shape[1], dtype=np.intc)
        exponents[suspects] = np.maximum(np.frexp(largest)[1], -_MAX_EXPONENT)
        if not exponents.any():
            return self
        origin = None if self.origin is None else np.ldexp(self.origin, -exponents)
        return replace(self, exponents=exponents, origin=origin)

    def take(self, index: NDArray[np.intp]) -> Floats:
        """Return the rows at `index`."""
        return self._read(index)

    def write(self, rows: slice | NDArray[np.intp], out: Floats) -> None:
        """Write those rows into `out`, whose rows are each in one piece."""
        features, scale, factors, origin = self.factors_of(rows)
        if _kernels.kernels is not None:
            _kernels.kernels("write_rows", features, scale, factors, origin, out)
            return
        np.multiply(features, scale[:, None], out=out)
        out *= factors
        out -= origin

    def factors_of(self, rows: slice | NDArray[np.intp]) -> tuple[Matrix, Floats, Floats, Floats]:
        """Return features (m, d), scale (m,), factors (d,), origin (d,): a row is number · scale · factor − origin."""
        d = self.features.shape[1]
        features = _kernels.readable(self.features[rows])
        return (
            features,
            np.ones(len(features)) if self.scale is None else self.scale[rows],
            np.ones(d) if self.exponents is None else np.ldexp(1.0, -self.exponents),
            np.zeros(d) if self.origin is None else self.origin,
        )

    @property
    def is_plain(self) -> bool:
        """Whether the rows are the features as they are."""
        return self.scale is None and self.exponents is None and self.origin is None

    def _read(self, rows: slice | NDArray[np.intp]) -> Floats:
        count = rows.stop - rows.start if isinstance(rows, slice) else len(rows)
        block = np.empty((count, self.features.shape[1]))
        self.write(rows, block)
        return block


def low_discrepancy_sample(n: int, count: int) -> NDArray[np.intp]:
    """Return `count` of n indices, a few perhaps twice, evenly spread and never in step with a period of the rows.

    It is the Kronecker sequence of the golden ratio.
    """
    golden = (5**0.5 - 1) / 2
    return np.sort((np.arange(count) * golden % 1 * n).astype(np.intp))


def _sums_of_squares(rows: Matrix) -> Floats:
    """Return the sum of the squares of each row."""
    if _kernels.kernels is None:
        block = np.asarray(rows, dtype=np.float64)
        return np.asarray(np.einsum("ij,ij->i", block, block))
    squares = np.empty(len(rows))
    _kernels.kernels("row_squares", _kernels.readable(rows), np.empty(rows.shape[1]), squares)
    return squares


def _norms(block: Floats) -> Floats:
    """Return the norms of rows whose squares may underflow."""
    exponents = np.frexp(np.abs(block).max(axis=1))[1]
    exponents = np.maximum(exponents, -_MAX_EXPONENT)
    norms: Floats = np.ldexp(np.linalg.norm(np.ldexp(block, -exponents[:, None]), axis=1), exponents)
    return norms
