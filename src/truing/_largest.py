"""The largest number of each row of a matrix, and its column."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ._check import LARGEST, Floats, Matrix, reject, row_blocks
from ._kernels import KERNEL_NUMBERS, kernels, readable
from ._threads import map_blocks


def largest_of_rows(matrix: Matrix, name: str) -> tuple[Floats, NDArray[np.intp]]:
    """Return the largest number of each row (n,) and its column (n,). In a tie, the first column counts.

    Raise an error with the `name` of the matrix if a number is not finite.
    """
    values, columns = np.empty(len(matrix)), np.empty(len(matrix))

    def fill(rows: slice) -> None:
        if not kernels.largest_columns(readable(matrix[rows]), LARGEST, values[rows], columns[rows]):
            reject(matrix, name)

    map_blocks(fill, row_blocks(matrix, most=KERNEL_NUMBERS), uses_blas=False)
    return values, columns.astype(np.intp)
