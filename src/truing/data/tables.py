"""Parquet and Arrow tables <-> named columns, through pyarrow (the `parquet` extra).

A column of features or logits is a column of lists of equal length, or a column of fixed-size binary values. Binary
values are little-endian float32 numbers, unless the field's metadata has `dtype` "<f2" or "<f8".
"""

import mmap
from collections.abc import Callable, Iterator, Sequence
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
from .drafts import check_readable, naming, replacing
from .npy import native
from .npz import Arrays, check_contains, check_size, reason

Check = Callable[[Any], None]
"""Raises an error if the type of a column, given by its field, is not supported."""

# The number types that a column of fixed-size binary values may declare.
PACKED = (b"<f2", b"<f4", b"<f8")


def read_table(path: Path, wanted: Sequence[str], needed: Sequence[str]) -> Arrays:
    """Read the wanted columns of a table as arrays of numbers."""
    arrays, held = _read_columns(path, wanted, check_numbers, column_as_array)
    for name in needed:
        _check_read(path, name, arrays, held)
    return arrays


def read_ids(path: Path, name: str) -> NDArray[Any]:
    """Read a column of integers, or of values that can be cast to strings."""
    arrays, held = _read_columns(path, [name], check_words, ids_as_array)
    _check_read(path, name, arrays, held)
    return arrays[name]


def _check_read(path: Path, name: str, arrays: Arrays, held: list[str]) -> None:
    """Raise an error if a file does not contain a column, or has no rows."""
    check_contains(path, name, held)
    if name not in arrays:
        raise ValueError(f"{path} must have at least one row, got none")


def _read_columns(
    path: Path, wanted: Sequence[str], check: Check, convert: Callable[[Any, Any], NDArray[Any]]
) -> tuple[Arrays, list[str]]:
    """Return the wanted columns of a table, after checking their types, and the names of all columns."""
    kind = path.suffix.lower()
    with naming(path), check_readable(path).open("rb") as file:
        size = path.stat().st_size
        try:
            # The buffer keeps the mapping alive.
            source = pyarrow.BufferReader(pyarrow.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
            table, held = _read(source, kind, wanted, size, check)
            table.validate(full=True)
            # Copy each column into one chunk, since the file may be truncated later.
            columns = {name: table.column(name).combine_chunks() for name in table.column_names if table.num_rows}
            arrays = {name: convert(column, table.field(name)) for name, column in columns.items()}
        except MemoryError:
            raise MemoryError(f"not enough memory to read {path}") from None
        except Exception as error:  # A damaged file may raise anything.
            raise ValueError(f"{path} must be a readable {kind} file: {reason(error)}") from None
    return arrays, held


def _read(source: Any, kind: str, wanted: Sequence[str], size: int, check: Check) -> tuple[Any, list[str]]:
    """Return the wanted columns of a table in a file of `size` bytes, and the names of all columns."""
    if kind == ".parquet":
        file = pyarrow.parquet.ParquetFile(source, page_checksum_verification=True)
        schema = file.schema_arrow
        chosen = choose(schema, wanted, check)
        check_size(unpacked_size(file, chosen), size)
        return file.read(columns=chosen), schema.names
    schema = pyarrow.ipc.open_file(source).schema
    chosen = choose(schema, wanted, check)
    if not chosen:  # For pyarrow, no included fields are all fields.
        return pyarrow.schema([]).empty_table(), schema.names
    # Decompress only the buffers of the chosen columns.
    options = pyarrow.ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in chosen])
    reader = pyarrow.ipc.open_file(source, options=options)
    batches: list[Any] = []
    unpacked = 0
    for number in range(reader.num_record_batches):
        batches.append(reader.get_batch(number))
        unpacked += batches[-1].nbytes
        check_size(unpacked, size)
    return pyarrow.Table.from_batches(batches, reader.schema), schema.names


def choose(schema: Any, wanted: Sequence[str], check: Check | None = None) -> list[str]:
    """Return the wanted columns of a schema, checked to be unique and of a valid type, by default numbers."""
    chosen = [name for name in dict.fromkeys(wanted) if name in schema.names]
    for name in chosen:
        if schema.names.count(name) > 1:
            raise ValueError(f"it holds {name} {schema.names.count(name)} times")
        (check or check_numbers)(schema.field(name))
    return chosen


def check_numbers(field: Any) -> None:
    """Raise an error unless a column holds numbers, lists of numbers, or binary values."""
    if is_fixed_size_binary(field.type):
        _packed_dtype(field)
        return
    numbers = stored_as(field.type)
    if is_list(field.type):
        numbers = numbers.value_type
    if not (is_integer(numbers) or is_floating(numbers) or is_boolean(numbers)):
        raise ValueError(f"{field.name} must be plain numbers or lists of them, got {field.type}")


def check_words(field: Any) -> None:
    """Raise an error if a column cannot hold row identifiers."""
    if is_nested(stored_as(field.type)):
        raise ValueError(f"{field.name} must be a whole number or a word in each row, got {field.type}")


def ids_as_array(column: Any, field: Any) -> NDArray[Any]:
    """Return a column of row identifiers (n,) as integers or strings."""
    if column.null_count:
        raise ValueError(f"{field.name} must have no missing values, got {column.null_count}")
    if is_integer(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.array(column.cast(pyarrow.string()).to_pylist(), dtype=np.str_)


def column_as_array(column: Any, field: Any) -> NDArray[Any]:
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
        return np.dtype(kind.to_pandas_dtype()), ()
    return np.dtype(kind.value_type.to_pandas_dtype()), (kind.list_size,) if is_fixed_size_list(kind) else None


def unpacked_size(file: Any, chosen: Sequence[str]) -> int:
    """Return an estimate of the size in memory of the chosen columns of a Parquet file, from its metadata."""
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    # Count eight bytes per number: an encoding can pack any number of equal values into a few bytes.
    widths = {name: _value_bytes(file.schema_arrow.field(name).type) for name in chosen}
    return sum(widths.get(chunk.path_in_schema.split(".")[0], 0) * chunk.num_values for chunk in chunks)


def _value_bytes(kind: Any) -> int:
    return int(kind.byte_width) if is_fixed_size_binary(kind) else 8


def _packed_dtype(field: Any) -> np.dtype[Any]:
    """Return the number type of a column of fixed-size binary values."""
    name = (field.metadata or {}).get(b"dtype", b"<f4")
    if name not in PACKED:
        raise ValueError(f"{field.name} must say a dtype of <f2, <f4 or <f8, got {name.decode(errors='replace')}")
    dtype: np.dtype[Any] = np.dtype(name.decode())
    width = field.type.byte_width
    if width < 1 or width % dtype.itemsize:
        raise ValueError(f"{field.name} must be whole {dtype.name} numbers, got {width} bytes a row")
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
