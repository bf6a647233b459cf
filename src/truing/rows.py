"""Rows of features, scaled and centred as they are read: no copy of the whole is made."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
            block = np.asarray(features[rows], dtype=np.float64)
            square = np.einsum("ij,ij->i", block, block)
            norm[rows] = np.sqrt(square)
            small = np.flatnonzero(square < _SAFE_SUM_OF_SQUARES)
            if len(small):
                norm[rows][small] = _norms(block[small])

        map_blocks(fill, row_blocks(features))
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
        return self._transformed(np.asarray(self.features[rows], dtype=np.float64), rows)

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
        return self._transformed(self.features[index].astype(np.float64, copy=False), index)

    def read(self, rows: slice | NDArray[np.intp], out: Floats) -> None:
        """Write those rows into `out`."""
        out[:] = self.features[rows]
        if self.scale is not None:
            out *= self.scale[rows, None]
        if self.exponents is not None:
            np.ldexp(out, -self.exponents, out=out)
        if self.origin is not None:
            out -= self.origin

    def _transformed(self, block: Floats, rows: slice | NDArray[np.intp]) -> Floats:
        own = None if self.features.dtype == np.float64 else block  # A block of float64 may be the input itself.
        if self.scale is not None:
            block = own = np.multiply(block, self.scale[rows, None], out=own)
        if self.exponents is not None:
            block = own = np.ldexp(block, -self.exponents, out=own)
        return block if self.origin is None else np.subtract(block, self.origin, out=own)


def low_discrepancy_sample(n: int, count: int) -> NDArray[np.intp]:
    """Return `count` of n indices, a few perhaps twice, evenly spread and never in step with a period of the rows.

    It is the Kronecker sequence of the golden ratio.
    """
    golden = (5**0.5 - 1) / 2
    return np.sort((np.arange(count) * golden % 1 * n).astype(np.intp))


def _norms(block: Floats) -> Floats:
    """Return the norms of rows whose squares may underflow."""
    exponents = np.frexp(np.abs(block).max(axis=1))[1]
    exponents = np.maximum(exponents, -_MAX_EXPONENT)
    norms: Floats = np.ldexp(np.linalg.norm(np.ldexp(block, -exponents[:, None]), axis=1), exponents)
    return norms
