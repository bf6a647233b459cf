"""Compute scores of features on all cores: by blocks of rows, or by tiles of equal shape for matrix products."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._check import Floats, Matrix, check_rows, rows_of_block, slices
from .._threads import map_blocks

# Rows of a tile. With fewer rows, NumPy's overhead per call dominates; with more, a small batch pays for a large tile.
ROWS_AT_ONCE = 256

# Copies of a block in float64 that fit into the processor's cache.
_COPIES = 4


def by_blocks(
    fill: Callable[[slice, Floats], object], rows: int, width: int, *, tile: int = 1, **unchecked: Matrix
) -> Floats:
    """Return the scores (rows,) that `fill` writes for one block of rows at a time.

    The size of a block is a multiple of `tile` rows. `width` is the number of values per row that `fill` reads and
    computes. The `unchecked` matrices are checked for invalid numbers block by block, and errors use their names.
    """
    scores = np.empty(rows)

    def check_and_fill(block: slice) -> None:
        for name, matrix in unchecked.items():
            check_rows(matrix, block, name)
        fill(block, scores[block])

    step = max(1, rows_of_block(rows, _COPIES * width) // tile) * tile
    map_blocks(check_and_fill, slices(rows, step))
    return scores


def by_tiles(formula: Callable[..., Floats], *matrices: Matrix) -> Floats:
    """Return `formula` of every row (n,), in float64. Equal rows get bitwise equal scores.

    When BLAS multiplies matrices, the rounding of one row may depend on the number and values of the other rows.
    Therefore every tile has the same shape: the last tile is filled up with copies of its first row. A row for which
    the formula is undefined gets NaN or infinity.
    """

    def fill(rows: slice, scores: Floats) -> None:
        tiles = [np.empty((ROWS_AT_ONCE, matrix.shape[1])) for matrix in matrices]
        for start in range(rows.start, rows.stop, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, rows.stop - start)
            for tile, matrix in zip(tiles, matrices, strict=True):
                tile[:count] = matrix[start : start + count]
                tile[count:] = tile[0]
            scores[start - rows.start :][:count] = formula(*tiles)[:count]

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return by_blocks(fill, len(matrices[0]), sum(matrix.shape[1] for matrix in matrices), tile=ROWS_AT_ONCE)


def check_defined(scores: Floats, wanted: str) -> Floats:
    """Return the scores. If one is not finite, raise an error that names its row and says what was expected."""
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores)))
        raise ValueError(f"{wanted}: row {row} gives {scores[row]}")
    return scores
