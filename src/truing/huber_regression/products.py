"""Products with many rows, a block at a time over the cores; few rows are one block, on the thread that calls."""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .. import _kernels
from .._check import BLOCK_NUMBERS, Bools, Floats, row_blocks, slices
from .._threads import FEWEST_BLOCKS, add_blocks, map_blocks

Number = TypeVar("Number", np.float32, np.float64)

_PASS_NUMBERS = 2**20  # Numbers in a block of a pass, at most,
_BLOCKS_OF_A_PASS, _FEWEST_ROWS = 16, 2048  # and fewer where there would be fewer blocks, but not fewer rows.
_GRAM_ROWS_PER_COLUMN = 8  # Rows of a block for each column, at least: adding the parts then costs little.


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
        lambda where: weights[where] @ rows[where], row_blocks(rows), lambda part: np.add(total, part, out=total)
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
            return np.asarray(weights @ rows[where])
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
    n, k = rows.shape
    step = max(BLOCK_NUMBERS // max(k, 1), _GRAM_ROWS_PER_COLUMN * k)
    if n < FEWEST_BLOCKS * step:
        return _gram(rows.compress(chosen, axis=0))
    total = np.zeros((k, k))

    def products(start: int) -> Floats:
        where = slice(start, start + step)
        return _gram(rows[where].compress(chosen[where], axis=0))

    add_blocks(products, range(0, n, step), lambda part: np.add(total, part, out=total))
    return total


def _gram(rows: Floats) -> Floats:
    return np.asarray(rows.T @ rows)


def are_few(rows: NDArray[Number]) -> bool:
    """Return whether rows are one block."""
    return rows.size < FEWEST_BLOCKS * BLOCK_NUMBERS
