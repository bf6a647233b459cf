"""Arrays and columns of other libraries -> NumPy arrays, without a copy where there need be none.

Read are tensors of torch and arrays of JAX (the memory is shared), arrays on a device that DLPack brings to the
processor (CuPy's, and torch's on a GPU: one copy), columns of Arrow, pandas and polars (shared where all numbers lie in
one piece, lists of fixed length included), and tables of pandas and polars.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .data.arrow import as_array as arrow_as_array
from .data.arrow import is_list

# DLPack's numbers of devices whose memory the processor reads, and the names of others.
_READABLE = {1, 3, 11, 13}
_DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 14: "oneapi"}


def as_numpy(values: Any, name: str) -> NDArray[Any]:
    """Return `values` as an array of whatever type it has."""
    if isinstance(values, np.ndarray):
        return np.asarray(values)  # A matrix or a mapped file is an array like any other.
    column = _arrow_column(values)
    if column is not None and is_list(column.type):
        return arrow_as_array(column, name)
    try:
        array = np.asarray(values)
    except (RuntimeError, TypeError) as error:
        return _unreadable(values, name, error)
    except ValueError as error:
        raise ValueError(f"{name} must be a rectangular array of numbers: {error}") from None
    return array if array.dtype != object else _from_objects(values, array, name)


def _package(values: Any) -> str:
    return type(values).__module__.partition(".")[0]


def _arrow_column(values: Any) -> Any:
    """Return the Arrow column that the values are, in pandas too, or None."""
    package = _package(values)
    if package == "pyarrow" and hasattr(values, "null_count"):
        return values
    if package == "pandas" and type(getattr(values, "dtype", None)).__name__ == "ArrowDtype":
        return values.array.__arrow_array__()
    return None


def _unreadable(values: Any, name: str, error: Exception) -> NDArray[Any]:
    """Return what NumPy will not read as it is, from another device, or say what to give in its place."""
    _refuse_sparse(values, name)
    device = _device(values)
    if device is not None:
        return _brought_here(values, name, device)
    if getattr(values, "is_meta", False):
        raise TypeError(f"{name} must hold numbers, got a torch tensor on the device meta, which has none") from None
    if _package(values) == "torch":  # In a graph of gradients, or of a type that NumPy lacks.
        wanted = f"{name}.detach().cpu().float().numpy()"
        raise TypeError(f"{name} must be an array, got a torch tensor that NumPy cannot read: give {wanted}") from None
    raise TypeError(f"{name} must be an array of numbers, got {type(values).__name__}: {error}") from None


def _from_objects(values: Any, objects: NDArray[Any], name: str) -> NDArray[Any]:
    """Return numbers of what NumPy reads as objects, where these hold any."""
    _refuse_sparse(values, name)
    device = _device(values)
    if device is not None:
        return _brought_here(values, name, device)
    if objects.ndim == 0:  # NumPy saw no array in it at all.
        return np.from_dlpack(values) if hasattr(values, "__dlpack__") else objects
    if _package(values) == "pandas" and objects.ndim == 2:
        return _from_table(values, objects, name)
    if _package(values) in ("pandas", "polars") and objects.ndim == 1:
        return _from_lists(objects, name)
    return objects


def _refuse_sparse(values: Any, name: str) -> None:
    if "sparse" in type(values).__module__.split("."):
        dense = "toarray" if hasattr(values, "toarray") else "todense"
    elif "sparse" in str(getattr(values, "layout", "")):  # As torch says it.
        dense = "to_dense"
    else:
        return
    raise TypeError(f"{name} must be a dense array, got a sparse one: give {name}.{dense}()")


def _device(values: Any) -> str | None:
    """Return the name of the device that holds the values, where the processor cannot read them."""
    try:
        kind, number = values.__dlpack_device__()
    except (AttributeError, TypeError, ValueError, RuntimeError, BufferError):  # It has none, or none that is known.
        return None
    return None if int(kind) in _READABLE else f"{_DEVICES.get(int(kind), f'device {int(kind)}')}:{number}"


def _brought_here(values: Any, name: str, device: str) -> NDArray[Any]:
    try:
        return np.from_dlpack(values, device="cpu")
    except Exception as error:  # Every library, and every driver, has its own.
        reason = f"could not be copied from there ({_first_line(error)})"
        way = "get()" if hasattr(values, "get") else "cpu()"
        raise TypeError(
            f"{name} must be in the processor's memory, got a {_package(values)} array on {device}, which {reason}: "
            f"give {name}.{way}"
        ) from None


def _from_table(table: Any, objects: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the numbers of a table of pandas whose columns are of several types."""
    # Column by column, numbers with a mask of missing ones are numbers, those NaN.
    columns = [np.asarray(table.iloc[:, place]) for place in range(objects.shape[1])]
    for place, column in enumerate(columns):
        if column.dtype.kind not in "biuf":
            raise TypeError(f"{name} must be numbers, got dtype {column.dtype} in column {table.columns[place]!r}")
    return np.column_stack(columns)


def _from_lists(objects: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the numbers (n, d) of a column of lists, and other columns as they are."""
    if not all(isinstance(entry, np.ndarray | list | tuple) for entry in objects):
        return objects
    try:
        return np.stack([np.asarray(entry) for entry in objects])
    except ValueError:
        lengths = sorted({len(entry) for entry in objects})
        raise ValueError(f"{name} must be lists of one length, got lengths {lengths[0]} to {lengths[-1]}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
