"""Products with many rows, a block at a time over the cores; few rows are one block, on the thread that calls.

A block's sum is `np.dot`'s: `@`, of the same bits, lets no other thread run where what it returns is short.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import _kernels
from .._check import BLOCK_NUMBERS, Bools, Floats, row_blocks, slices
from .._threads import FEWEST_BLOCKS, add_blocks, map_blocks

Number = TypeVar("Number", np.float32, np.float64)

_PASS_NUMBERS = 2**20  # Numbers in a block of a pass, at most,
_BLOCKS_OF_A_PASS, _FEWEST_ROWS = 16, 2048  # and fewer where there would be fewer blocks, but not fewer rows.
_GRAM_NUMBERS = 2**16  # Numbers in a block of a Gram matrix, at least,
_GRAM_ROWS_PER_COLUMN = 8  # and its rows for each column: adding the parts then costs little.


def fitted_values(rows: NDArray[Number], x: NDArray[Number]) -> NDArray[Number]:
    """Return rows @ x."""
    if are_few(rows):
        return rows @ x
    fitted = np.empty(len(rows), dtype=rows.dtype)

    def fill(where: slice) -> None:
        np.matmul(rows[where], x, out=fitted[where])

    map_blocks(fill, row_blocks(rows))
    return fitted


def weighted_sum(weights: NDArray[Number], rows: NDArray[Number]) -> NDArray[Number]:
    """Return Σ weightᵢ rowᵢ."""
    if are_few(rows):
        return weights @ rows
    total = np.zeros(rows.shape[1], dtype=rows.dtype)
    add_blocks(
        lambda where: np.dot(weights[where], rows[where]),
        row_blocks(rows),
        lambda part: np.add(total, part, out=total),
    )
    return total


def moved_residual(rows: Floats, residual: Floats, step: Floats, width: float = 0.0) -> tuple[Floats, Floats]:
    """Return the residual less rows @ step, and the sum of the rows times its signs, or times clip(it, ±width)."""
    moved = np.empty(len(rows))
    total = np.zeros(rows.shape[1])

    def move(where: slice) -> Floats:
        if _kernels.kernels is None:
            here = moved[where] = residual[where] - rows[where] @ step
            weights = np.clip(here, -width, width) if width > 0 else np.sign(here)
            return np.asarray(np.dot(weights, rows[where]))
        part = np.empty(rows.shape[1])
        some = _kernels.readable(rows[where])
        _kernels.kernels("huber_move", some, residual[where], step, float(width), moved[where], part)
        return part

    blocks = [slice(0, len(rows))] if are_few(rows) else pass_blocks(*rows.shape)
    add_blocks(move, blocks, lambda part: np.add(total, part, out=total))
    return moved, total


def pass_blocks(rows: int, columns: int) -> list[slice]:
    """Return so many rows, a block at a time, for a pass that makes no copy of them where it is compiled."""
    most = max(1, _PASS_NUMBERS // max(columns, 1))
    return slices(rows, min(max(rows // _BLOCKS_OF_A_PASS, _FEWEST_ROWS), most))


def gram_of_chosen(rows: Floats, chosen: Bools) -> Floats:
    """Return Σ rowᵢ rowᵢᵀ over the chosen rows."""
    k = rows.shape[1]
    index = np.flatnonzero(chosen)
    total = np.zeros((k, k))

    def products(where: slice) -> Floats:
        some = rows.take(index[where], axis=0)
        return np.asarray(np.dot(some.T, some))

    add_blocks(products, _gram_blocks(len(index), k), lambda part: np.add(total, part, out=total), fewest=2)
    return total


def _gram_blocks(rows: int, columns: int) -> list[slice]:
    numbers = min(max(rows * columns // _BLOCKS_OF_A_PASS, _GRAM_NUMBERS), BLOCK_NUMBERS)
    return slices(rows, max(numbers // max(columns, 1), _GRAM_ROWS_PER_COLUMN * columns, 1))


def are_few(rows: NDArray[Number]) -> bool:
    """Return whether rows are one block."""
    return rows.size < FEWEST_BLOCKS * BLOCK_NUMBERS
