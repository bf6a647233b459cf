"""The distance to known rows as a score."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .. import _kernels
from .._check import Floats, Matrix, as_count, as_matrix, by_rows
from .known import check_known
from .tiles import ROWS_AT_ONCE, by_blocks, by_tiles, empty_tile

# Known rows that a tile is compared with at a time.
_KNOWN_AT_ONCE = 256


def knn(
    features: ArrayLike, features_in: ArrayLike, *, neighbours: int | None = None, leave_out: bool = False
) -> Floats:
    r"""Distance to the k-th nearest known row, negated: $-\|u - v_{(k)}\|$ of features scaled to unit norm.

    Every known row is looked at. Rows of zeros stay zero. KNN (Sun, Ming, Zhu & Li, ICML 2022).

    Parameters
    ----------
    features
        The rows to score (n, d).
    features_in
        Known in-distribution rows (m, d).
    neighbours
        Which neighbour, k; by default one in a hundred known rows, at least 1 and at most the 50 that its authors
        take on CIFAR-10: a k above the known rows of a class looks into other classes.
    leave_out
        The rows to score are the known rows themselves, in the same order, and none is its own neighbour.

    >>> knn([[3.0, 0.0]], [[1.0, 0.0], [0.0, 2.0]], neighbours=2).round(3)
    array([-1.414])
    """
    z, z_in = as_matrix(features, "features"), as_matrix(features_in, "features_in")
    check_known(z, z_in, leave_out)
    k = _neighbours(neighbours, len(z_in), leave_out)
    kernels = _kernels.kernels
    if kernels is None:
        return -_plain_distances(z, z_in, k, leave_out)
    return -_distances(kernels, z, z_in, k, leave_out)


def default_neighbours(known: int) -> int:
    """Return which of so many known rows counts where none is named, from the nearest on."""
    return min(max(1, known // 100), 50)


def _neighbours(neighbours: int | None, known: int, leave_out: bool) -> int:
    if known <= leave_out:
        raise ValueError(f"features_in must have at least two rows for one to be left out, got {known}")
    if neighbours is None:
        return default_neighbours(known)
    k = as_count(neighbours, "neighbours")
    if k > known - leave_out:
        besides = " besides the row itself" if leave_out else ""
        raise ValueError(f"features_in must have {k} rows or more{besides} for {k} neighbours, got {known - leave_out}")
    return k


def _distances(kernels: _kernels.Kernels, z: Matrix, z_in: Matrix, k: int, leave_out: bool) -> Floats:
    """Return the distance of every row to the k-th nearest known row (n,)."""
    m, d = z_in.shape
    norms = _norms(kernels, z)
    known = _kernels.readable(z_in), _norms(kernels, z_in)
    at_once = min(m, _KNOWN_AT_ONCE)
    most_kept = min(m, 2 * k) + at_once

    def fill(rows: slice, distances: Floats) -> None:
        own = rows.start if leave_out else -1
        tiles = empty_tile(d), np.empty((at_once, d)), empty_tile(at_once), empty_tile(most_kept)
        counts, bounds = np.empty(ROWS_AT_ONCE, dtype=np.intp), np.empty(ROWS_AT_ONCE)
        given = _kernels.readable(z[rows]), norms[rows], *known, k, own
        kernels.with_blas("nearest_distances", *given, *tiles, counts, bounds, distances)

    return by_blocks(fill, len(z), d + m)


def _norms(kernels: _kernels.Kernels, features: Matrix) -> Floats:
    """Return the rows' Euclidean norms (n,), those of tiny numbers too."""

    def fill(rows: slice, norms: Floats) -> None:
        kernels("row_norms", _kernels.readable(features[rows]), np.empty(features.shape[1]), norms)

    return by_blocks(fill, *features.shape)


def _plain_distances(z: Matrix, z_in: Matrix, k: int, leave_out: bool) -> Floats:
    """Return the distance of every row to the k-th nearest known row (n,)."""
    norms_in = by_rows(_plain_norms, z_in)

    def formula(z: Floats, row: Floats) -> Floats:
        norms = _plain_norms(z)
        units = z / _divisors(norms)[:, None]
        nearest = np.full((len(z), k), np.inf)
        for start in range(0, len(z_in), _KNOWN_AT_ONCE):
            known = slice(start, start + _KNOWN_AT_ONCE)
            cosines = units @ z_in[known].astype(np.float64).T / _divisors(norms_in[known])
            squared = np.where(norms > 0, 1.0, 0.0)[:, None] + np.where(norms_in[known] > 0, 1.0, 0.0) - 2 * cosines
            if leave_out:
                squared[row == np.arange(start, start + squared.shape[1])] = np.inf
            nearest = np.partition(np.concatenate((nearest, squared), axis=1), k - 1, axis=1)[:, :k]
        return np.asarray(np.sqrt(np.maximum(nearest[:, k - 1], 0.0)))

    return by_tiles(formula, z, np.arange(float(len(z)))[:, None])


def _plain_norms(block: Floats) -> Floats:
    """Return the rows' Euclidean norms; squares of tiny numbers would vanish, so each row is scaled first."""
    largest = _divisors(np.abs(block).max(axis=1))
    norms: Floats = largest * np.sqrt(((block / largest[:, None]) ** 2).sum(axis=1))
    return norms


def _divisors(norms: Floats) -> Floats:
    """Return what to divide rows of these norms by."""
    return np.where(norms > 0, norms, 1.0)
