"""Scores of features, a block of rows at a time, and in it a tile where there are matrix products.

By the kernels of heads.c and neighbours.c, or by NumPy.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .. import _kernels
from .._check import Floats, Matrix, check_rows, rows_of_block, slices
from .._threads import map_blocks

# A multiple of the rows that BLAS kernels take at a time; with 96 a product is about as fast as in one piece.
ROWS_AT_ONCE = 96

# Of many rows a thread takes so many times what the cache holds, of which a tile needs little, as long as there are
# this many blocks: between two of them it waits for the interpreter.
_MANY_TIMES = 4
_ENOUGH_BLOCKS = 32

# Copies in float64 that NumPy makes of a block, where it is not taken in tiles.
_COPIES = 4


def by_blocks(
    fill: Callable[[slice, Floats], object], rows: int, width: int, *, tile: int = ROWS_AT_ONCE, **unchecked: Matrix
) -> Floats:
    """Return scores of so many rows that `fill` writes for a block of them, whole tiles, at a time, on all cores.

    Of a row it reads and makes `width` numbers. Matrices that come unchecked are checked a block at a time, by name.
    """
    scores = np.empty(rows)

    def check_and_fill(block: slice) -> None:
        for name, matrix in unchecked.items():
            check_rows(matrix, block, name)
        fill(block, scores[block])

    if _kernels.kernels is None:
        together = rows_of_block(rows, _COPIES * width)
    else:
        in_cache = rows_of_block(rows, width)
        together = max(in_cache, min(_MANY_TIMES * in_cache, rows // _ENOUGH_BLOCKS))
    step = max(1, together // tile) * tile
    map_blocks(check_and_fill, slices(rows, step))
    return scores


def empty_tile(columns: int) -> Floats:
    """Return room for a tile of rows, and for the few numbers more that fill up the last vector of a row."""
    return np.empty((ROWS_AT_ONCE, columns + -columns % 4))


def by_tiles(formula: Callable[..., Floats], *matrices: Matrix) -> Floats:
    """Return `formula` of every row (n,), in float64; equal rows get the same score, to the bit.

    BLAS may round a row of a product in another way beside other rows, or fewer. So every tile has the same shape: the
    last is filled up with its first row. A row that the formula is not defined for comes out as NaN or infinite.
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
        return by_blocks(fill, len(matrices[0]), sum(matrix.shape[1] for matrix in matrices))


def check_defined(scores: Floats, wanted: str) -> Floats:
    """Return the scores, or name the first row that has none and what is wanted of it."""
    if not np.isfinite(scores).all():
        row = int(np.argmin(np.isfinite(scores)))
        raise ValueError(f"{wanted}: row {row} gives {scores[row]}")
    return scores
