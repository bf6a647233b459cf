"""Conversion of arrays and columns of other libraries to NumPy arrays, without a copy where possible.

Supported inputs:

- torch tensors and JAX arrays in main memory: no copy;
- arrays on a device that supports DLPack (CuPy, torch on a GPU): one copy;
- columns of Arrow, pandas and polars, including fixed-length lists: no copy if the numbers are contiguous;
- tables of pandas and polars.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .data.arrow import as_array as arrow_as_array
from .data.arrow import is_list

# DLPack device types whose memory the CPU can read, and the names of other device types.
_READABLE = {1, 3, 11, 13}
_DEVICES = {2: "cuda", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm", 14: "oneapi"}


def as_numpy(values: Any, name: str) -> NDArray[Any]:
    """Return `values` as a NumPy array with its dtype unchanged, except that bfloat16 becomes float32."""
    if isinstance(values, np.ndarray) and values.dtype.name != "bfloat16":
        return np.asarray(values)  # Turns subclasses such as np.memmap into a plain array.
    column = _arrow_column(values)
    if column is not None and is_list(column.type):
        return arrow_as_array(column, name)
    try:
        array = np.asarray(values)
    except (RuntimeError, TypeError) as error:
        return _copy_or_raise(values, name, error)
    except ValueError as error:
        raise ValueError(f"{name} must be a rectangular array of numbers: {error}") from None
    if array.dtype.name == "bfloat16":  # The dtype of the package ml_dtypes, which JAX uses.
        return array.astype(np.float32)
    return array if array.dtype != object else _from_objects(values, array, name)


def _package(values: Any) -> str:
    return type(values).__module__.partition(".")[0]


def _arrow_column(values: Any) -> Any:
    """Return the Arrow column of `values`, a pyarrow or Arrow-backed pandas column; None for other values."""
    package = _package(values)
    if package == "pyarrow" and hasattr(values, "null_count"):
        return values
    if package == "pandas" and type(getattr(values, "dtype", None)).__name__ == "ArrowDtype":
        return values.array.__arrow_array__()
    return None


def _copy_or_raise(values: Any, name: str, error: Exception) -> NDArray[Any]:
    """Copy `values` from another device, or raise an error that says what to pass instead."""
    _reject_sparse(values, name)
    if str(getattr(values, "dtype", "")) == "torch.bfloat16" and not (values.requires_grad or values.is_meta):
        return np.asarray(values.float().cpu())  # NumPy has no bfloat16. float32 represents its values exactly.
    device = _device(values)
    if device is not None:
        return _copy_to_cpu(values, name, device)
    if getattr(values, "is_meta", False):
        raise TypeError(f"{name} must contain numbers, got a torch tensor without data, on the device meta") from None
    if _package(values) == "torch":  # The tensor requires a gradient, or NumPy lacks its dtype.
        wanted = f"{name}.detach().cpu().float().numpy()"
        raise TypeError(f"{name} must be an array, got a torch tensor that NumPy cannot read: pass {wanted}") from None
    raise TypeError(f"{name} must be an array of numbers, got {type(values).__name__}: {error}") from None


def _from_objects(values: Any, objects: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the numbers in `values`, or `objects`, their NumPy object array, if there is no known conversion."""
    _reject_sparse(values, name)
    device = _device(values)
    if device is not None:
        return _copy_to_cpu(values, name, device)
    if objects.ndim == 0:  # NumPy did not recognise an array.
        return np.from_dlpack(values) if hasattr(values, "__dlpack__") else objects
    if _package(values) == "pandas" and objects.ndim == 2:
        return _from_table(values, objects, name)
    if _package(values) in ("pandas", "polars") and objects.ndim == 1:
        return _from_lists(objects, name)
    return objects


def _reject_sparse(values: Any, name: str) -> None:
    is_sparse = "sparse" in type(values).__module__.split(".")
    if is_sparse or "sparse" in str(getattr(values, "layout", "")):  # Tensors of torch have a layout.
        raise TypeError(
            f"{name} must be a dense array, got a sparse one: reduce it to 100 to 500 dense columns with "
            "sklearn.decomposition.TruncatedSVD"
        )


def _device(values: Any) -> str | None:
    """Return the name of the device that holds the values, or None if the CPU can read them."""
    try:
        kind, number = values.__dlpack_device__()
    except (AttributeError, TypeError, ValueError, RuntimeError, BufferError):  # The library names no device.
        return None
    return None if int(kind) in _READABLE else f"{_DEVICES.get(int(kind), f'device {int(kind)}')}:{number}"


def _copy_to_cpu(values: Any, name: str, device: str) -> NDArray[Any]:
    try:
        return np.from_dlpack(values, device="cpu")
    except Exception as error:  # Every library and driver raises its own exception type.
        reason = f"could not be copied from there ({_first_line(error)})"
        way = "get()" if hasattr(values, "get") else "cpu()"
        raise TypeError(
            f"{name} must be in the processor's memory, got a {_package(values)} array on {device}, which {reason}: "
            f"pass {name}.{way}"
        ) from None


def _from_table(table: Any, objects: NDArray[Any], name: str) -> NDArray[Any]:
    """Return the numbers of a pandas table whose columns have different dtypes."""
    # Convert each column separately, so that nullable columns become numbers, with NaN for missing values.
    columns = [np.asarray(table.iloc[:, place]) for place in range(objects.shape[1])]
    for place, column in enumerate(columns):
        if column.dtype.kind not in "biuf":
            raise TypeError(f"{name} must be numbers, got dtype {column.dtype} in column {table.columns[place]!r}")
    return np.column_stack(columns)


def _from_lists(objects: NDArray[Any], name: str) -> NDArray[Any]:
    """Return a column of lists as a matrix (n, d); return other columns unchanged."""
    if not all(isinstance(entry, np.ndarray | list | tuple) for entry in objects):
        return objects
    try:
        return np.stack([np.asarray(entry) for entry in objects])
    except ValueError:
        lengths = sorted({len(entry) for entry in objects})
        raise ValueError(f"{name} must be lists of one length, got lengths {lengths[0]} to {lengths[-1]}") from None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
