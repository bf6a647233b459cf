"""The distance to reference rows as a score."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .._check import Floats, Matrix, as_count, as_matrix, by_rows
from .reference import check_reference
from .tiles import by_tiles

# Number of reference rows that a tile is compared with at a time.
_REFERENCE_AT_ONCE = 1024


def knn(
    features: ArrayLike, features_in: ArrayLike, *, neighbours: int | None = None, leave_out: bool = False
) -> Floats:
    r"""Return the negated distance to the k-th nearest reference row, $-\|u - v_{(k)}\|$.

    Rows are scaled to unit norm; rows of zeros stay zero. The search is exact. KNN (Sun, Ming, Zhu & Li, ICML 2022).

    Parameters
    ----------
    features
        The rows to score (n, d).
    features_in
        The reference rows (m, d).
    neighbours
        The rank k of the neighbour: 1 is the nearest. The default is m / 100, but at least 1 and at most 50, the
        authors' choice for CIFAR-10. Choose k smaller than the number of reference rows per class: otherwise neighbours
        come from other classes.
    leave_out
        Whether the rows to score are the reference rows themselves, in the same order. No row is then its own
        neighbour.

    >>> knn([[3.0, 0.0]], [[1.0, 0.0], [0.0, 2.0]], neighbours=2).round(3)
    array([-1.414])
    """
    z, z_in = as_matrix(features, "features"), as_matrix(features_in, "features_in")
    check_reference(z, z_in, leave_out)
    k = _neighbours(neighbours, len(z_in), leave_out)
    return -_distances(z, z_in, k, leave_out)


def default_neighbours(rows_in: int) -> int:
    """Return the default number of neighbours for `rows_in` reference rows."""
    return min(max(1, rows_in // 100), 50)


def _neighbours(neighbours: int | None, rows_in: int, leave_out: bool) -> int:
    if rows_in <= leave_out:
        raise ValueError(f"features_in must have at least two rows with leave_out, got {rows_in}")
    if neighbours is None:
        return default_neighbours(rows_in)
    k = as_count(neighbours, "neighbours")
    if k > rows_in - leave_out:
        besides = " besides the row itself" if leave_out else ""
        raise ValueError(
            f"features_in must have {k} rows or more{besides} for {k} neighbours, got {rows_in - leave_out}"
        )
    return k


def _distances(z: Matrix, z_in: Matrix, k: int, leave_out: bool) -> Floats:
    """Return the distance of every row to the k-th nearest reference row (n,)."""
    norms_in = by_rows(_norms, z_in)

    def formula(z: Floats, row: Floats) -> Floats:
        norms = _norms(z)
        units = z / _divisors(norms)[:, None]
        nearest = np.empty((len(z), 0))
        for start in range(0, len(z_in), _REFERENCE_AT_ONCE):
            rows = slice(start, start + _REFERENCE_AT_ONCE)
            # |u - v|² = |u|² + |v|² - 2 uᵀv, where |u| and |v| are 1, or 0 for a row of zeros.
            squared = units @ (z_in[rows].astype(np.float64) / _divisors(norms_in[rows])[:, None]).T
            squared *= -2
            squared += (norms_in[rows] > 0).astype(np.float64)
            squared += (norms > 0).astype(np.float64)[:, None]
            if leave_out:
                squared[row == np.arange(start, start + squared.shape[1])] = np.inf
            if start > 0:
                squared = np.concatenate((nearest, squared), axis=1)
            squared.partition(min(k, squared.shape[1]) - 1, axis=1)
            nearest = squared[:, :k]
        return np.asarray(np.sqrt(np.maximum(nearest[:, k - 1], 0.0)))

    return by_tiles(formula, z, np.arange(float(len(z)))[:, None])


def _norms(block: Floats) -> Floats:
    """Return the Euclidean norms of the rows. Each row is scaled first, because squares of tiny numbers underflow."""
    largest = _divisors(np.abs(block).max(axis=1))
    norms: Floats = largest * np.sqrt(((block / largest[:, None]) ** 2).sum(axis=1))
    return norms


def _divisors(norms: Floats) -> Floats:
    """Return the norms, with 1 in place of 0."""
    return np.where(norms > 0, norms, 1.0)
