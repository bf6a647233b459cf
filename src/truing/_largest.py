"""The largest number of each row, and where it stands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import _kernels
from ._check import KERNEL_NUMBERS, Floats, Matrix, as_block, check_finite, refuse, row_blocks
from ._threads import map_blocks

# Of so few numbers NumPy tells it before a kernel is called.
_FEW_NUMBERS = 2**9


def largest_of_rows(matrix: Matrix, name: str) -> tuple[Floats, NDArray[np.intp]]:
    """Return the largest number of each row (n,) and its column (n,), the first of equal ones.

    The matrix comes unchecked: numbers that are not finite are refused here, by its name.
    """
    kernels = _kernels.kernels if matrix.size > _FEW_NUMBERS else None
    if kernels is None:
        check_finite(matrix, name)
    values, columns = np.empty(len(matrix)), np.empty(len(matrix), dtype=np.intp)

    def fill(rows: slice) -> None:
        if kernels is None:
            wide = as_block(matrix[rows])
            wide.argmax(axis=1, out=columns[rows])
            values[rows] = wide[np.arange(len(wide)), columns[rows]]
            return
        block, lanes = _kernels.readable(matrix[rows]), _kernels.room_for_lanes(matrix.shape[1])
        refused = np.empty(1, dtype=np.int64)
        kernels("largest_of_rows", block, values[rows], columns[rows], lanes, refused)
        if refused[0]:
            refuse(matrix, name)

    map_blocks(fill, row_blocks(matrix, most=KERNEL_NUMBERS), uses_blas=False)
    return values, columns
