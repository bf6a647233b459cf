"""Read Parquet and Arrow tables in blocks of rows through pyarrow, in the memory of one or two blocks.

A Parquet file is decoded page by page. An Arrow file is memory-mapped to locate its columns, and the numbers are then
read with ordinary reads, because mapped pages count as memory. Compressed record batches are read and unpacked whole.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray

from .drafts import naming
from .npy import fill
from .npz import Arrays, check_size, reason
from .tables import choose, column_as_array, row_layout, unpacked_size

# Number of bytes of a column to read from the file at a time.
BUFFER_BYTES = 2**18

Rows = tuple[np.dtype[Any], tuple[int, ...]]


def read_table_layout(path: Path, wanted: Sequence[str]) -> tuple[int, dict[str, Rows], list[str]]:
    """Return the number of rows of a table, the type and row shape of the wanted columns, and all column names.

    The width of a column of variable-length lists is the length of its first list, or 0 without rows.
    """
    with _opened(path) as (file, source):
        if path.suffix.lower() == ".parquet":
            table = _parquet(source)
            schema, total = table.schema_arrow, table.metadata.num_rows
        else:
            schema = pyarrow.ipc.open_file(source).schema
            total = _count_arrow_rows(source, schema)
        columns = {name: row_layout(schema.field(name)) for name in choose(schema, wanted)}
        unknown = [name for name, (_, shape) in columns.items() if shape is None]
        first = next(_pieces(file, source, path, unknown, 1), {}) if unknown else {}
        found = {
            name: (dtype, (first[name].shape[1:] if name in first else (0,)) if shape is None else shape)
            for name, (dtype, shape) in columns.items()
        }
        return total, found, schema.names


def read_table_blocks(path: Path, wanted: Sequence[str], rows: int) -> Iterator[Arrays]:
    """Yield the wanted columns of a table in blocks of `rows` rows."""
    with _opened(path) as (file, source):
        yield from _regrouped(_pieces(file, source, path, wanted, rows), rows)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, Any]]:
    """Open a file twice, for direct reads and for pyarrow. Errors name the file."""
    kind = path.suffix.lower()
    with naming(path), path.open("rb") as file:
        try:
            with pyarrow.OSFile(os.fsencode(path)) as source:
                yield file, source if kind == ".parquet" else _mapped(file) or source
        except MemoryError:
            raise MemoryError(f"not enough memory to read {path}") from None
        except Exception as error:  # A damaged file may raise anything.
            raise ValueError(f"{path} must be a readable {kind} file: {reason(error)}") from None


def _pieces(file: BinaryIO, source: Any, path: Path, wanted: Sequence[str], rows: int) -> Iterator[Arrays]:
    size = path.stat().st_size
    if path.suffix.lower() == ".parquet":
        return _parquet_pieces(source, size, wanted, rows)
    return _arrow_pieces(file, source, size, wanted, rows)


def _parquet(source: Any) -> Any:
    return pyarrow.parquet.ParquetFile(
        source, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
    )


def _parquet_pieces(source: Any, size: int, wanted: Sequence[str], rows: int) -> Iterator[Arrays]:
    file = _parquet(source)
    chosen = choose(file.schema_arrow, wanted)
    check_size(unpacked_size(file, chosen), size)
    for batch in file.iter_batches(batch_size=rows, columns=chosen, use_threads=False):
        yield _arrays(batch)


def _arrow_pieces(file: BinaryIO, source: Any, size: int, wanted: Sequence[str], rows: int) -> Iterator[Arrays]:
    schema = pyarrow.ipc.open_file(source).schema
    unpacked = 0
    for batch in _arrow_batches(source, schema, choose(schema, wanted)):
        unpacked += batch.nbytes
        check_size(unpacked, size)
        arrays = _arrays(batch)
        for start in range(0, batch.num_rows, rows):
            yield {name: _read_again(file, source, array[start : start + rows]) for name, array in arrays.items()}


def _arrow_batches(source: Any, schema: Any, chosen: Sequence[str]) -> Iterator[Any]:
    """Yield the record batches with only the chosen columns. Other compressed columns are not unpacked."""
    options = pyarrow.ipc.IpcReadOptions(use_threads=False)
    if isinstance(source, pyarrow.NativeFile):
        options.included_fields = [schema.names.index(name) for name in chosen]
    reader = pyarrow.ipc.open_file(source, options=options)
    for number in range(reader.num_record_batches if chosen else 0):
        yield reader.get_batch(number).select(chosen)


def _count_arrow_rows(source: Any, schema: Any) -> int:
    """Return the number of rows of an Arrow file. Unpack only one column, preferably not a list column."""
    plain = [field.name for field in schema if not pyarrow.types.is_nested(field.type)]
    return sum(batch.num_rows for batch in _arrow_batches(source, schema, (plain or schema.names)[:1]))


def _mapped(file: BinaryIO) -> Any:
    """Return an Arrow file as a mapped buffer, or None if it is compressed, since unpacking touches all pages."""
    source = pyarrow.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    reader = pyarrow.ipc.open_file(source)
    if reader.num_record_batches:
        buffers = [buffer for column in reader.get_batch(0).columns for buffer in column.buffers() if buffer]
        if not all(_place(source, buffer.address) is not None for buffer in buffers if buffer.size):
            return None
    return source


def _place(source: Any, address: int) -> int | None:
    """Return the offset of an address in a mapped file, or None if it lies outside."""
    place = address - source.address
    return place if 0 <= place < source.size else None


def _read_again(file: BinaryIO, source: Any, array: NDArray[Any]) -> NDArray[Any]:
    """Read mapped rows from the file. Return rows that are already in memory unchanged."""
    place = None if isinstance(source, pyarrow.NativeFile) else _place(source, array.ctypes.data)
    if place is None or not array.size:
        return array
    copy = np.empty(array.shape, array.dtype)
    file.seek(place)
    fill(file, copy)
    return copy


def _arrays(batch: Any) -> Arrays:
    batch.validate(full=True)
    if not batch.num_rows:
        return {}
    return {field.name: column_as_array(batch.column(field.name), field) for field in batch.schema}


def _regrouped(pieces: Iterator[Arrays], rows: int) -> Iterator[Arrays]:
    """Regroup pieces of any length into blocks of `rows` rows. The last block may be shorter."""
    block: list[Arrays] = []
    missing = rows
    for piece in _of_equal_widths(pieces):
        start, length = 0, len(next(iter(piece.values())))
        while start < length:
            stop = min(length, start + missing)
            block.append({name: array[start:stop] for name, array in piece.items()})
            missing -= stop - start
            start = stop
            if not missing:
                yield _joined(block)
                block, missing = [], rows
    if block:
        yield _joined(block)


def _of_equal_widths(pieces: Iterator[Arrays]) -> Iterator[Arrays]:
    """Yield the pieces that have rows. Raise an error if the lists of a piece have another length than before."""
    lengths: dict[str, tuple[int, ...]] = {}
    for piece in pieces:
        for name, array in piece.items():
            first = lengths.setdefault(name, array.shape[1:])
            if array.shape[1:] != first:
                raise ValueError(f"{name} must be lists of one length, got lengths {first[0]}, {array.shape[1]}")
        if piece:
            yield piece


def _joined(pieces: list[Arrays]) -> Arrays:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
