"""The largest number of each row, and where it stands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import _kernels
from ._check import KERNEL_NUMBERS, Floats, Matrix, as_block, row_blocks
from ._threads import map_blocks

# Of so few numbers NumPy tells it before a kernel is called.
_FEW_NUMBERS = 2**9


def largest_of_rows(matrix: Matrix) -> tuple[Floats, NDArray[np.intp]]:
    """Return the largest number of each row of a finite matrix (n,) and its column (n,), the first of equal ones."""
    values, columns = np.empty(len(matrix)), np.empty(len(matrix), dtype=np.intp)

    def fill(rows: slice) -> None:
        if _kernels.kernels is not None and matrix.size > _FEW_NUMBERS:
            block, scratch = _kernels.readable(matrix[rows]), np.empty(_kernels.LANES * matrix.shape[1])
            _kernels.kernels("largest_of_rows", block, values[rows], columns[rows], scratch)
            return
        wide = as_block(matrix[rows])
        wide.argmax(axis=1, out=columns[rows])
        values[rows] = wide[np.arange(len(wide)), columns[rows]]

    map_blocks(fill, row_blocks(matrix, most=KERNEL_NUMBERS), uses_blas=False)
    return values, columns
