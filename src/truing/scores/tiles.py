"""Formulas with matrix products, a tile of rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._check import Floats, Matrix, slices
from .._threads import map_blocks

# A multiple of the rows that BLAS kernels take at a time; with 96 a product is about as fast as in one piece.
ROWS_AT_ONCE = 96

# Tiles of rows that a thread takes together.
_ROWS_A_BLOCK = 16 * ROWS_AT_ONCE


def by_tiles(formula: Callable[..., Floats], *matrices: Matrix) -> Floats:
    """Return `formula` of every row (n,), in float64; equal rows get the same score, to the bit.

    BLAS may round a row of a product in another way beside other rows, or fewer. So every tile has the same shape: the
    last is filled up with its first row. A row that the formula is not defined for comes out as NaN or infinite.
    """
    scores = np.empty(len(matrices[0]))

    def fill(rows: slice) -> None:
        tiles = [np.empty((ROWS_AT_ONCE, matrix.shape[1])) for matrix in matrices]
        for start in range(rows.start, rows.stop, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows.stop - start)
            for tile, matrix in zip(tiles, matrices, strict=True):
                tile[:count] = matrix[start : start + count]
                tile[count:] = tile[0]
            scores[start : start + count] = formula(*tiles)[:count]

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        map_blocks(fill, slices(len(scores), _ROWS_A_BLOCK))
    return scores


def check_defined(scores: Floats, wanted: str) -> Floats:
    """Return the scores, or name the first row that has none and what is wanted of it."""
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores)))
        raise ValueError(f"{wanted}: row {row} gives {scores[row]}")
    return scores
