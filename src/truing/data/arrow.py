"""Convert Arrow columns to arrays through methods of the columns, without importing pyarrow."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .names import listing


def is_list(kind: Any) -> bool:
    """Return whether the values of an Arrow type are lists. Tensors count as lists, because Arrow stores them so."""
    return str(stored_as(kind)).partition("<")[0] in ("list", "large_list", "fixed_size_list")


def stored_as(kind: Any) -> Any:
    """Return the storage type of an Arrow type. Tensors are stored as lists."""
    return getattr(kind, "storage_type", kind)


def as_array(column: Any, name: str) -> NDArray[Any]:
    """Return an Arrow column as an array (n,), or (n, d) for lists of equal length.

    A column of numbers or of fixed-size lists is not copied if it has only one chunk.
    """
    array = column
    if hasattr(column, "num_chunks"):
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    array = getattr(array, "storage", array)  # A tensor column wraps a list column.
    if not len(array):
        raise ValueError(f"{name} must have at least one row, got none")
    flat, shape = array, [len(array)]
    if is_list(array.type):
        flat = array.flatten()
        lengths = array.value_lengths().unique().to_pylist()  # A missing list has length None.
        if len(lengths) != 1:
            raise ValueError(f"{name} must be lists of one length, got lengths {listing(sorted(map(str, lengths)))}")
        shape.append(lengths.pop())
    missing = array.null_count or flat.null_count
    if missing:
        raise ValueError(f"{name} must have no missing values, got {missing}")
    return np.asarray(flat.to_numpy(zero_copy_only=False).reshape(shape))
