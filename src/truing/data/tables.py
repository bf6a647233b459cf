"""Convert between named columns and Parquet or Arrow tables, through pyarrow (the `parquet` extra).

Features and logits are columns of lists of equal length, or columns of fixed-size binary values. Binary values are
little-endian float32 numbers, unless the metadata of the field has the `dtype` "<f2" or "<f8".
"""

from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray
from pyarrow.types import is_boolean, is_fixed_size_binary, is_fixed_size_list, is_floating, is_integer, is_nested

from .arrow import as_array, is_list, stored_as
from .drafts import replacing
from .names import Chosen, check_numbers, choose_columns, common_dtypes
from .npy import native
from .npz import Arrays

# The number types that a column of fixed-size binary values may declare.
PACKED = (b"<f2", b"<f4", b"<f8")

MAX_ID_LENGTH = 2**12


def choose(schema: Any, wanted: Sequence[str], ids: str | None = None) -> Chosen:
    """Return the columns that each wanted name and `ids` match. All columns except `ids` must hold numbers."""
    chosen = choose_columns(wanted, schema.names, ids)
    counts = Counter(schema.names)
    for name, columns in chosen.items():
        for column in columns:
            if counts[column] > 1:
                raise ValueError(f"it contains {column} {counts[column]} times")
        fields = [schema.field(column) for column in columns]
        if columns == [name]:
            (_check_ids if name == ids else _check_numbers)(fields[0])
        else:
            check_numbers(name, [f"{field.name} ({field.type})" for field in fields if not _is_number(field.type)])
    return chosen


def converted(batch: Any, ids: str | None, name: str) -> NDArray[Any]:
    """Return a column of a record batch as an array: row identifiers if its name is `ids`, otherwise numbers."""
    return (_ids_as_array if name == ids else _column_as_array)(batch.column(name), batch.schema.field(name))


def dtypes_in(schema: Any, chosen: Chosen) -> dict[str, np.dtype[Any]]:
    """Return, for each pattern, a type that can hold all its columns."""
    return common_dtypes(chosen, lambda column: row_layout(schema.field(column))[0])


def columns_in(chosen: Chosen) -> list[str]:
    """Return the names of all chosen columns."""
    return [column for columns in chosen.values() for column in columns]


def _is_number(kind: Any) -> bool:
    return bool(is_integer(kind) or is_floating(kind) or is_boolean(kind))


def _check_numbers(field: Any) -> None:
    """Raise an error unless a column holds numbers, lists of numbers, or binary values."""
    if is_fixed_size_binary(field.type):
        _packed_dtype(field)
        return
    numbers = stored_as(field.type)
    if is_list(field.type):
        numbers = numbers.value_type
    if not _is_number(numbers):
        raise ValueError(f"{field.name} must be numbers or lists of numbers, got {field.type}")


def _check_ids(field: Any) -> None:
    """Raise an error if a column cannot hold row identifiers."""
    if is_nested(stored_as(field.type)):
        raise ValueError(f"{field.name} must be an integer or a string in each row, got {field.type}")


def _ids_as_array(column: Any, field: Any) -> NDArray[Any]:
    """Return a column of row identifiers (n,) as integers or strings."""
    if column.null_count:
        raise ValueError(f"{field.name} must have no missing values, got {column.null_count}")
    if is_integer(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    try:
        words = column.cast(pyarrow.string()).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{field.name} must be integers or strings, got {field.type}: {error}") from None
    longest = max(map(len, words), default=0)
    if longest > MAX_ID_LENGTH:  # NumPy allocates the length of the longest string for every string.
        raise ValueError(f"{field.name} must be strings of at most {MAX_ID_LENGTH} characters, got {longest}")
    return np.array(words, dtype=np.str_)


def _column_as_array(column: Any, field: Any) -> NDArray[Any]:
    """Return an Arrow column as an array (n,), or (n, d) for lists or binary values, without a copy if possible."""
    if not is_fixed_size_binary(field.type):
        return as_array(column, field.name)
    if column.null_count:
        raise ValueError(f"{field.name} must have no missing values, got {column.null_count}")
    width = field.type.byte_width
    data = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
    return native(data.view(_packed_dtype(field)).reshape(len(column), -1))


def row_layout(field: Any) -> tuple[np.dtype[Any], tuple[int, ...] | None]:
    """Return the type and row shape of a column. The shape is None for lists of variable length."""
    if is_fixed_size_binary(field.type):
        dtype = _packed_dtype(field)
        return dtype.newbyteorder("="), (field.type.byte_width // dtype.itemsize,)
    kind = stored_as(field.type)
    if not is_list(kind):
        return _array_dtype(kind), ()
    return _array_dtype(kind.value_type), (kind.list_size,) if is_fixed_size_list(kind) else None


def _array_dtype(kind: Any) -> np.dtype[Any]:
    """Return the NumPy type of an Arrow type. `to_pandas_dtype` needs pandas in older versions of pyarrow."""
    dtype: np.dtype[Any] = pyarrow.array([], kind).to_numpy(zero_copy_only=False).dtype
    return dtype


def unpacked_size(file: Any, chosen: Sequence[str]) -> int:
    """Return an estimate of the size in memory of the chosen columns of a Parquet file, from its metadata."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    # Count eight bytes per number: an encoding can pack any number of equal values into a few bytes.
    fields, leaves = file.schema_arrow, file.schema
    widths = {name: _value_bytes(fields.field(name).type) for name in chosen}
    columns = {number: widths.get(_column_of(leaves.column(number).path, widths), 0) for number in range(len(leaves))}
    return sum(
        width * group.column(number).num_values for group in groups for number, width in columns.items() if width
    )


def _column_of(path: str, names: Container[str]) -> str:
    """Return the column of a Parquet path such as features.list.element. Names of columns may contain dots."""
    while path not in names and "." in path:
        path = path.rpartition(".")[0]
    return path


def _value_bytes(kind: Any) -> int:
    return int(kind.byte_width) if is_fixed_size_binary(kind) else 8


def _packed_dtype(field: Any) -> np.dtype[Any]:
    """Return the number type of a column of fixed-size binary values."""
    name = (field.metadata or {}).get(b"dtype", b"<f4")
    if name not in PACKED:
        raise ValueError(f"{field.name} must declare a dtype of <f2, <f4 or <f8, got {name.decode(errors='replace')}")
    dtype: np.dtype[Any] = np.dtype(name.decode())
    width = field.type.byte_width
    if width < 1 or width % dtype.itemsize:
        raise ValueError(f"{field.name} must be whole {dtype.name} numbers, got {width} bytes per row")
    return dtype


def write_table(path: Path, columns: Arrays) -> None:
    """Write columns (n,) or (n, d) as one table, atomically."""
    with replacing(path) as file, writing_table(file, path.suffix.lower(), columns) as write:
        write(columns)


@contextmanager
def writing_table(file: BinaryIO, kind: str, columns: Arrays) -> Iterator[Callable[[Arrays], None]]:
    """Open a table with the layout of these columns, and yield a function that writes a block of rows."""
    sink = pyarrow.PythonFile(file, mode="w")
    schema = _as_table(columns).schema
    with _writer(sink, kind, schema) as writer:
        yield lambda block: writer.write_table(_as_table(block))


def _writer(sink: Any, kind: str, schema: Any) -> Any:
    if kind == ".parquet":
        return pyarrow.parquet.ParquetWriter(sink, schema, write_page_checksum=True)
    return pyarrow.ipc.new_file(sink, schema)


def _as_table(columns: Arrays) -> Any:
    return pyarrow.table({name: _as_column(np.ascontiguousarray(array)) for name, array in columns.items()})


def _as_column(array: NDArray[Any]) -> Any:
    array = native(array)
    if array.ndim == 1:
        return pyarrow.array(array)
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.shape[1])
