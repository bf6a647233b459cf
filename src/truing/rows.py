"""Rows of features, scaled and centred as they are read: no copy of the whole is made."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ._blas import one_thread
from ._check import Floats, Matrix, blocks


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows scaleᵢ·zᵢ − origin, made in float64 as they are read and never stored whole."""

    features: Matrix
    scale: Floats | None = None
    origin: Floats | None = None

    @classmethod
    def unit(cls, features: Matrix) -> "Rows":
        """Return the rows divided by their Euclidean norms; rows of zeros stay zero."""
        norm = np.empty(len(features))
        for rows, block in blocks(features):
            norm[rows] = np.sqrt(np.einsum("ij,ij->i", block, block))
        return cls(features, scale=1 / np.where(norm > 0, norm, 1))

    def onto(self, basis: Floats) -> "Rows":
        """Return the rows' coordinates in `basis` (d, k), stored."""
        with one_thread():
            return Rows(np.concatenate([block @ basis for _, block in self.blocks()]))

    def blocks(self) -> Iterator[tuple[slice, Floats]]:
        """Yield (rows, those rows); views of the features where nothing is to be done to them."""
        for rows, block in blocks(self.features):
            yield rows, self._placed(block, rows)

    def about(self, point: Floats) -> "Rows":
        """Return the rows less `point`."""
        return replace(self, origin=point if self.origin is None else self.origin + point)

    def take(self, index: NDArray[np.intp]) -> Floats:
        """Return the rows at `index`."""
        return self._placed(self.features[index].astype(np.float64, copy=False), index)

    def _placed(self, block: Floats, rows: slice | NDArray[np.intp]) -> Floats:
        own = None if self.features.dtype == np.float64 else block  # A block of float64 may be the input itself.
        if self.scale is not None:
            block = own = np.multiply(block, self.scale[rows, None], out=own)
        return block if self.origin is None else np.subtract(block, self.origin, out=own)


def spread(n: int, count: int) -> NDArray[np.intp]:
    """Return `count` of n indices, a few perhaps twice, evenly spread and in step with no period of the rows."""
    golden = (5**0.5 - 1) / 2
    return np.sort((np.arange(count) * golden % 1 * n).astype(np.intp))
