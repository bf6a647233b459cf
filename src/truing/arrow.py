"""Parquet and Arrow tables <-> named columns, through pyarrow (the `parquet` extra).

A column of features or logits is a list column, its lists all of one length.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray

from .archive import Arrays, replacing


def read_table(path: Path, wanted: tuple[str, ...]) -> Arrays:
    """Read the wanted columns that the table has."""
    try:
        if path.suffix == ".parquet":
            held = pyarrow.parquet.read_schema(path).names
            table = pyarrow.parquet.read_table(path, columns=[name for name in wanted if name in held])
        else:
            with pyarrow.memory_map(str(path)) as source:
                table = pyarrow.ipc.open_file(source).read_all()
                table = table.select([name for name in wanted if name in table.column_names])
        table.validate(full=True)
        return {name: _as_array(table.column(name), name) for name in table.column_names}
    except Exception as error:  # A damaged file may raise anything.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} must be a readable {path.suffix} file: {reason}") from None


def write_table(path: Path, columns: Arrays) -> None:
    """Write columns (n,) or (n, d) as one table."""
    table = pyarrow.table({name: _as_column(np.ascontiguousarray(array)) for name, array in columns.items()})
    with replacing(path) as file:
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, file)
        else:
            with pyarrow.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)


def _as_array(column: Any, name: str) -> NDArray[Any]:
    array = column.combine_chunks()
    array = getattr(array, "storage", array)  # A tensor column keeps its lists there.
    flat, shape = array, [len(array)]
    if hasattr(array.type, "value_type"):
        flat = array.flatten()
        lengths = set(pyarrow.compute.list_value_length(array).to_pylist())
        if len(lengths) != 1:
            raise ValueError(f"{name} must be lists of one length, got lengths {sorted(map(str, lengths))}")
        shape.append(lengths.pop())
    if array.null_count or flat.null_count:
        raise ValueError(f"{name} must have no missing values, got {array.null_count + flat.null_count}")
    return np.asarray(flat.to_numpy(zero_copy_only=False).reshape(shape))


def _as_column(array: NDArray[Any]) -> Any:
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim == 1:
        return pyarrow.array(array)
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.shape[1])
