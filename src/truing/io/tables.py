"""Parquet and Arrow tables <-> named columns, through pyarrow (the `parquet` extra).

A column of features or logits is a list column, its lists all of one length. What we write is sealed.
"""

import mmap
from collections.abc import Callable, Sequence
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray
from pyarrow.types import is_boolean, is_floating, is_integer, is_nested

from .arrow import as_array, is_list, stored_as
from .drafts import check_readable, naming, replacing
from .npz import Arrays, check_contains, check_size, reason
from .seal import BLANK, check_seal, seal

# Both kinds of file end in a footer, its length in four bytes, and these.
MAGIC = {".parquet": b"PAR1", ".arrow": b"ARROW1", ".feather": b"ARROW1"}


def read_table(path: Path, wanted: Sequence[str], needed: Sequence[str]) -> Arrays:
    """Read the wanted columns that the table has, of numbers."""
    arrays, held = _read_columns(path, wanted, _check_numbers, as_array)
    for name in needed:
        check_contains(path, name, held)
        if name not in arrays:
            raise ValueError(f"{path} must have at least one row, got none")
    return arrays


def read_ids(path: Path, name: str) -> NDArray[Any]:
    """Read a column of whole numbers, or of what can be written as words."""
    arrays, held = _read_columns(path, [name], _check_words, _as_ids)
    check_contains(path, name, held)
    return arrays[name]


def _read_columns(
    path: Path, wanted: Sequence[str], check: Callable[[str, Any], None], convert: Callable[[Any, str], NDArray[Any]]
) -> tuple[Arrays, list[str]]:
    """Return the wanted columns that a table has, their types checked, and the names of all."""
    kind = path.suffix.lower()
    with naming(path), check_readable(path).open("rb") as file:
        check_seal(file, path)
        size = path.stat().st_size
        try:
            # The map lives as long as what is made of it.
            source = pyarrow.BufferReader(pyarrow.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
            table, held = _read(source, kind, wanted, size, check)
            table.validate(full=True)
            # Copied, each column into one piece: others may cut the file short later.
            columns = {name: table.column(name).combine_chunks() for name in table.column_names if table.num_rows}
            arrays = {name: convert(column, name) for name, column in columns.items()}
        except MemoryError:
            raise MemoryError(f"not enough memory to read {path}") from None
        except Exception as error:  # A damaged file may raise anything.
            raise ValueError(f"{path} must be a readable {kind} file: {reason(error)}") from None
    return arrays, held


def _read(
    source: Any, kind: str, wanted: Sequence[str], size: int, check: Callable[[str, Any], None]
) -> tuple[Any, list[str]]:
    """Return the wanted columns of a table in a file of so many bytes, and the names of all."""
    if kind == ".parquet":
        file = pyarrow.parquet.ParquetFile(source, page_checksum_verification=True)
        schema = file.schema_arrow
        chosen = _chosen(schema, wanted, check)
        check_size(_unpacked(file.metadata, chosen), size)
        return file.read(columns=chosen), schema.names
    schema = pyarrow.ipc.open_file(source).schema
    chosen = _chosen(schema, wanted, check)
    # Only in what is chosen are the buffers unpacked.
    options = pyarrow.ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in chosen])
    reader = pyarrow.ipc.open_file(source, options=options)
    batches: list[Any] = []
    unpacked = 0
    for number in range(reader.num_record_batches):
        batches.append(reader.get_batch(number))
        unpacked += batches[-1].nbytes
        check_size(unpacked, size)
    return pyarrow.Table.from_batches(batches, reader.schema), schema.names


def _chosen(schema: Any, wanted: Sequence[str], check: Callable[[str, Any], None]) -> list[str]:
    """Return the wanted columns that there are, each once and of a type that will do."""
    chosen = [name for name in dict.fromkeys(wanted) if name in schema.names]
    for name in chosen:
        if schema.names.count(name) > 1:
            raise ValueError(f"it holds {name} {schema.names.count(name)} times")
        check(name, schema.field(name).type)
    return chosen


def _check_numbers(name: str, kind: Any) -> None:
    numbers = stored_as(kind)
    if is_list(kind):
        numbers = numbers.value_type
    if not (is_integer(numbers) or is_floating(numbers) or is_boolean(numbers)):
        raise ValueError(f"{name} must be plain numbers or lists of them, got {kind}")


def _check_words(name: str, kind: Any) -> None:
    if is_nested(stored_as(kind)):
        raise ValueError(f"{name} must be a whole number or a word in each row, got {kind}")


def _as_ids(column: Any, name: str) -> NDArray[Any]:
    if column.null_count:
        raise ValueError(f"{name} must have no missing values, got {column.null_count}")
    if is_integer(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    return np.array(column.cast(pyarrow.string()).to_pylist(), dtype=np.str_)


def _unpacked(metadata: Any, chosen: Sequence[str]) -> int:
    """Return how many bytes the chosen columns of a Parquet file are in memory, by what it says of itself."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    # Eight bytes a number: encodings, and not only compression, may pack any count of equal ones into a few.
    return sum(8 * chunk.num_values for chunk in chunks if chunk.path_in_schema.split(".")[0] in chosen)


def write_table(path: Path, columns: Arrays) -> None:
    """Write columns (n,) or (n, d) as one sealed table."""
    kind = path.suffix.lower()
    table = pyarrow.table({name: _as_column(np.ascontiguousarray(array)) for name, array in columns.items()})
    with replacing(path) as file:
        if kind == ".parquet":
            pyarrow.parquet.write_table(table, pyarrow.PythonFile(file, mode="w"), write_page_checksum=True)
        else:
            with pyarrow.ipc.new_file(pyarrow.PythonFile(file, mode="w"), table.schema) as writer:
                writer.write_table(table)
        _insert_before_footer(file, BLANK.ljust(-(-len(BLANK) // 8) * 8), MAGIC[kind])
        seal(file)


def _insert_before_footer(file: BinaryIO, text: bytes, magic: bytes) -> None:
    """Move the footer behind `text`: it holds places counted from the file's start, which stay as they are."""
    end = 4 + len(magic)
    file.seek(-end, SEEK_END)
    length = int.from_bytes(file.read(4), "little")
    start = file.seek(-end - length, SEEK_END)
    footer = file.read()
    file.seek(start)
    file.write(text + footer)


def _as_column(array: NDArray[Any]) -> Any:
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.ndim == 1:
        return pyarrow.array(array)
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.shape[1])
