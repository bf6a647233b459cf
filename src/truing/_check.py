"""Validation of array arguments.

Every public function validates its arguments here once and gets arrays of the right shape and a floating type. Values
are checked to be finite here, or later by the code that first reads them. Matrices keep float16 and float32; `blocks`
converts a few rows at a time, so a float64 copy of a whole input is never made.
"""

from collections.abc import Callable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arrays import as_numpy
from ._kernels import readable
from ._threads import add_blocks, map_blocks

Floats = NDArray[np.float64]
Matrix = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]
T = TypeVar("T")

# Larger numbers overflow when squared and summed, or divided by a small temperature.
LARGEST = 1e100

# A block of BLOCK_NUMBERS 64-bit numbers fits into the processor's cache. Small inputs are cut into smaller blocks, but
# not below the minimum, so that all threads are busy.
BLOCK_NUMBERS = 2**18
_MIN_BLOCK_NUMBERS = 2**17
_BLOCKS_OF_FEW_ROWS = 8

# Two float16 bit patterns: a mask of all bits except the sign, and infinity. As an integer, NaN exceeds infinity.
_BITS_OF_SIZE, _BITS_OF_INFINITY = 0x7FFF, 0x7C00

# Up to this size, a sum of squares is the fastest finiteness check.
_FEW_NUMBERS = 2**12


def as_matrix(values: ArrayLike, name: str) -> Matrix:
    """Return `values` as a finite (n, d) matrix with at least one row and one column."""
    matrix = as_matrix_unchecked(values, name)
    check_finite(matrix, name)
    return matrix


def as_matrix_unchecked(values: ArrayLike, name: str) -> Matrix:
    """Return `values` as a non-empty (n, d) matrix. The caller must check that all numbers are finite."""
    matrix = _as_floats(values, name)
    if matrix.ndim != 2:
        raise ValueError(f"{name} must be 2-D (n, d), got shape {matrix.shape}")
    if matrix.size == 0:
        raise ValueError(f"{name} must have at least one row and one column, got shape {matrix.shape}")
    return matrix


def as_vector(values: ArrayLike, name: str) -> Floats:
    """Return `values` as a finite, non-empty float64 vector (n,)."""
    vector = _as_floats(values, name)
    if vector.ndim != 1:
        raise ValueError(f"{name} must be 1-D (n,), got shape {vector.shape}")
    if vector.size == 0:
        raise ValueError(f"{name} must not be empty")
    check_finite(vector[:, None], name)
    return readable(vector.astype(np.float64, copy=False))


def reject(matrix: Matrix, name: str) -> NoReturn:
    """Raise the error of `check_finite` for a matrix in which an invalid number was read."""
    check_finite(matrix, name)
    raise ValueError(f"{name} must not change while truing reads them")


def check_finite(matrix: Matrix, name: str) -> None:
    """Reject NaN, infinities and numbers too large to square. The error names the first invalid number."""
    if matrix.size <= _FEW_NUMBERS and _have_small_squares(matrix):
        return

    def check(rows: slice) -> None:
        if not _are_finite(matrix[rows]):
            block = np.array(matrix[rows], dtype=np.float64)  # Another thread cannot change this copy.
            invalid = np.argwhere(~(np.abs(block) <= LARGEST))
            if not invalid.size:
                raise ValueError(f"{name} must not change while truing reads them")
            row, value = rows.start + invalid[0][0], block[tuple(invalid[0])]
            raise ValueError(f"{name} must be finite and at most {LARGEST:g} in size, got {value} in row {row}")

    map_blocks(check, row_blocks(matrix), uses_blas=False)


def check_rows(matrix: Matrix, rows: slice, name: str) -> None:
    """Reject invalid numbers in the given rows, right before these rows are read."""
    if not _are_finite(matrix[rows]):
        reject(matrix, name)


def as_number(
    value: float, name: str, *, above: float | None = None, at_least: float = -LARGEST, at_most: float = LARGEST
) -> float:
    """Return `value` as a float within the stated bounds."""
    # Plain floats skip the isinstance check against Real, which is slow.
    if type(value) is not float and (isinstance(value, bool | np.bool_) or not isinstance(value, Real)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = np.inf
    if not at_least <= number <= at_most or (above is not None and number <= above):
        low = f"at least {at_least:g}" if above is None else f"above {above:g}"
        raise ValueError(f"{name} must be {low} and at most {at_most:g}, got {value}")
    return number


def as_truth(value: bool, name: str) -> bool:
    """Return `value` as a bool; reject anything that is not a bool."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be true or false, got {type(value).__name__}")
    return bool(value)


def as_share(value: float, name: str) -> float:
    """Return `value` as a float in (0, 1]."""
    return as_number(value, name, above=0.0, at_most=1.0)


def as_count(value: int, name: str, *, at_most: int | None = None) -> int:
    """Return `value` as an int of at least 1."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if value < 1 or (at_most is not None and value > at_most):
        high = "" if at_most is None else f" and at most {at_most}"
        raise ValueError(f"{name} must be at least 1{high}, got {value}")
    return int(value)


def as_choice(value: str, name: str, choices: Mapping[str, T]) -> T:
    """Return `choices[value]`; reject an unknown name."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a name, got {type(value).__name__}")
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return choices[value]


def check_same_rows(**arrays: NDArray[Any] | None) -> None:
    """Reject arrays with different numbers of rows. The error lists each array and its row count."""
    rows = {name: len(array) for name, array in arrays.items() if array is not None}
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in rows.items())
        raise ValueError(f"{' and '.join(rows)} must have the same number of rows, got {counts}")


def counted(count: float, noun: str = "row") -> str:
    """Return a count with its noun, as text.

    >>> counted(1), counted(5_250_000.0)
    ('1 row', '5,250,000 rows')
    """
    return f"{count:,.0f} {noun}{'' if count == 1 else 's'}"


def row_blocks(*matrices: Matrix, copies: int = 1, most: int = BLOCK_NUMBERS) -> list[slice]:
    """Return slices of rows such that `copies` copies of one block hold at most `most` numbers."""
    widest = max([matrix.shape[1] for matrix in matrices])
    return slices(len(matrices[0]), max(1, rows_of_block(len(matrices[0]), widest * copies, most)))


def rows_of_block(rows: int, width: int, most: int = BLOCK_NUMBERS) -> int:
    """Return the number of rows in a block of at most `most` numbers; 0 if a single row has more numbers."""
    numbers = max(_MIN_BLOCK_NUMBERS, rows * width // _BLOCKS_OF_FEW_ROWS)
    return min(most, numbers) // width


def slices(rows: int, step: int) -> list[slice]:
    """Return slices that cover `rows` rows, `step` rows each.

    >>> slices(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    if 0 < rows <= step:
        return [slice(0, rows)]
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def blocks(*matrices: Matrix) -> Iterator[tuple[Any, ...]]:
    """Yield (rows, block of each matrix in float64) for every block of rows."""
    for rows in row_blocks(*matrices):
        yield rows, *(np.asarray(matrix[rows], dtype=np.float64) for matrix in matrices)


def by_rows(formula: Callable[..., Floats], *matrices: Matrix) -> Floats:
    """Apply `formula` to float64 blocks of rows on all cores and return one value per row (n,)."""
    scores = np.empty(len(matrices[0]))

    def fill(rows: slice) -> None:
        scores[rows] = formula(*(as_block(matrix[rows]) for matrix in matrices))

    map_blocks(fill, row_blocks(*matrices, copies=4), uses_blas=False)
    return scores


def as_block(rows: Matrix) -> Floats:
    """Return rows as contiguous float64, so that sums over a row do not depend on the memory layout."""
    return np.ascontiguousarray(rows, dtype=np.float64)


def sum_of_blocks(formula: Callable[..., Floats], *matrices: Matrix) -> Floats:
    """Apply `formula` to float64 blocks of rows on all cores and return the sum of the results, added in row order."""
    total: Any = 0.0

    def part(rows: slice) -> Floats:
        return formula(*(np.asarray(matrix[rows], dtype=np.float64) for matrix in matrices))

    def add(more: Floats) -> None:
        nonlocal total
        total = total + more

    add_blocks(part, row_blocks(*matrices), add)
    return np.asarray(total)


def _are_finite(block: Matrix) -> bool:
    if block.dtype == np.float16:  # NumPy compares integers much faster than halves.
        return bool((block.view(np.int16) & _BITS_OF_SIZE).max() < _BITS_OF_INFINITY)
    largest = LARGEST if block.dtype.itemsize == 8 else float(np.finfo(block.dtype).max)
    return bool(block.min() >= -largest and block.max() <= largest)  # NaN fails this comparison too.


def _have_small_squares(matrix: Matrix) -> bool:
    """Return True if the sum of squares proves that all numbers are valid. False proves nothing."""
    if matrix.dtype == np.float16:  # NumPy has no fast sum for float16.
        return False
    return float(np.vdot(matrix, matrix)) <= LARGEST**2  # NaN fails this comparison too; vdot never warns.


def _as_floats(values: ArrayLike, name: str) -> Matrix:
    # A view has its own shape, which no other thread can change while C code reads the numbers.
    array = values.view() if type(values) is np.ndarray else _read(values, name)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name} must be numbers, got dtype {array.dtype}")
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return array
    return array.astype(np.float64)


def _read(values: ArrayLike, name: str) -> NDArray[Any]:
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise ValueError(f"{name} must have no masked entries")
    if type(values).__name__ == "Outputs":
        raise TypeError(f"{name} must be an array, got Outputs: pass its features, logits or scores")
    return as_numpy(values, name)
