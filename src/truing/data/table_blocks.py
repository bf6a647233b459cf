"""Read Parquet and Arrow tables in blocks of rows through pyarrow, in the memory of one or two blocks.

A Parquet file is decoded page by page. An Arrow file is memory-mapped to locate its columns. The numbers are then read
with ordinary reads, because mapped pages count as memory. A compressed record batch is read and unpacked at once.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
from numpy.typing import NDArray

from .drafts import check_readable, naming
from .names import Chosen, gather
from .npy import fill
from .npz import Arrays, check_size, reason
from .tables import (
    choose,
    columns_in,
    converted,
    dtypes_in,
    row_layout,
    unpacked_size,
)

# Number of bytes of a column to read from the file at a time.
BUFFER_BYTES = 2**18

Rows = tuple[np.dtype[Any], tuple[int, ...]]


@dataclass(frozen=True)
class _Source:
    """An open file of a table.

    `file` is for direct reads, and `disk` for reads by pyarrow. `mapped` is the file as mapped memory, or `disk` for
    Parquet and compressed files.
    """

    file: BinaryIO
    disk: Any
    mapped: Any
    size: int
    is_parquet: bool


def read_table_layout(
    path: Path, wanted: Sequence[str], ids: str | None = None
) -> tuple[int, dict[str, Rows], Chosen, list[str]]:
    """Return the rows, columns, matches and column names of a table, in the order of the fields of `Layout`.

    The width of a column of variable-length lists is the length of its first list, or 0 if the table has no rows.
    """
    with _opened(path) as source:
        if source.is_parquet:
            table = _parquet(source)
            schema, total = table.schema_arrow, table.metadata.num_rows
        else:
            schema = pyarrow.ipc.open_file(source.mapped).schema
            total = _count_arrow_rows(source, schema)
        chosen = choose(schema, wanted, ids)
        if ids in chosen:
            del chosen[ids]
        dtypes = dtypes_in(schema, chosen)
        columns = {
            name: row_layout(schema.field(name)) if columns == [name] else (dtypes[name], (len(columns),))
            for name, columns in chosen.items()
        }
        variable = [name for name, (_, shape) in columns.items() if shape is None]
        first = next(_pieces(source, variable, 1), {}) if variable else {}
        complete = {
            name: (dtype, (first[name].shape[1:] if name in first else (0,)) if shape is None else shape)
            for name, (dtype, shape) in columns.items()
        }
        return total, complete, chosen, schema.names


def read_table_blocks(path: Path, wanted: Sequence[str], rows: int, ids: str | None = None) -> Iterator[Arrays]:
    """Yield the wanted columns of a table, and its column of row identifiers, in blocks of `rows` rows."""
    with _opened(path) as source:
        yield from _regrouped(_pieces(source, wanted, rows, ids), rows)


@contextmanager
def _opened(path: Path) -> Iterator[_Source]:
    """Open a table. Errors name the file, and say whether it is empty or truncated."""
    kind = path.suffix.lower()
    with naming(path), check_readable(path).open("rb") as file:
        try:
            size = _check_complete(file, b"PAR1" if kind == ".parquet" else b"ARROW1")
            with pyarrow.OSFile(os.fsencode(path)) as disk:
                mapped = disk if kind == ".parquet" else _mapped(file) or disk
                yield _Source(file, disk, mapped, size, kind == ".parquet")
        except MemoryError:
            raise MemoryError(f"not enough memory to read {path}") from None
        except Exception as error:  # A damaged file may raise anything.
            raise ValueError(f"{path} must be a readable {kind} file: {reason(error)}") from None


def _check_complete(file: BinaryIO, magic: bytes) -> int:
    """Return the size of a file. Raise an error if it is empty, or if it begins with `magic` but ends otherwise."""
    size = file.seek(0, os.SEEK_END)
    if not size:
        raise ValueError("it is empty")
    file.seek(max(0, size - len(magic)))
    end = file.read()
    file.seek(0)
    if magic.startswith(file.read(len(magic))) and (end != magic or size < 2 * len(magic)):
        raise ValueError("it is truncated")
    return size


def _pieces(source: _Source, wanted: Sequence[str], rows: int, ids: str | None = None) -> Iterator[Arrays]:
    return (_parquet_pieces if source.is_parquet else _arrow_pieces)(source, wanted, rows, ids)


def _parquet(source: _Source) -> Any:
    return pyarrow.parquet.ParquetFile(
        source.disk, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True
    )


def _parquet_pieces(source: _Source, wanted: Sequence[str], rows: int, ids: str | None) -> Iterator[Arrays]:
    file = _parquet(source)
    schema = file.schema_arrow
    chosen = choose(schema, wanted, ids)
    dtypes = dtypes_in(schema, chosen)
    check_size(unpacked_size(file, columns_in(chosen)), source.size)
    for batch in file.iter_batches(batch_size=rows, columns=columns_in(chosen), use_threads=False):
        batch.validate(full=True)
        if batch.num_rows:
            yield gather(chosen, dtypes, partial(converted, batch, ids))


def _arrow_pieces(source: _Source, wanted: Sequence[str], rows: int, ids: str | None) -> Iterator[Arrays]:
    schema = pyarrow.ipc.open_file(source.mapped).schema
    chosen = choose(schema, wanted, ids)
    dtypes = dtypes_in(schema, chosen)
    numbers = _arrow_batches(source, source.mapped, schema, [name for name in columns_in(chosen) if name != ids])
    # Read strings from the file and not from the mapping, because mapped pages count as memory.
    words = _arrow_batches(source, source.disk, schema, [ids] if ids in chosen else [])
    unpacked = 0
    for batch, keys in zip_longest(numbers, words):
        present = [some for some in (batch, keys) if some is not None]
        unpacked += sum(some.nbytes for some in present)
        check_size(unpacked, source.size)
        for some in present:
            some.validate(full=True)
        for start in range(0, present[0].num_rows, rows):
            _check_not_cut(source)
            slices = [some.slice(start, rows) for some in present]
            yield gather(chosen, dtypes, partial(_read_column, source, slices, ids))


def _read_column(source: _Source, batches: Sequence[Any], ids: str | None, name: str) -> NDArray[Any]:
    if name == ids:
        return converted(batches[-1], ids, name)
    return _read_again(source, converted(batches[0], ids, name))


def _check_not_cut(source: _Source) -> None:
    """Raise an error if the file was cut after it was opened: reading mapped bytes beyond the end kills the process."""
    if os.fstat(source.file.fileno()).st_size < source.size:
        raise ValueError("it is truncated")


def _arrow_batches(source: _Source, opened: Any, schema: Any, chosen: Sequence[str]) -> Iterator[Any]:
    """Yield the record batches with only the chosen columns. Compressed columns are unpacked only if chosen."""
    options = pyarrow.ipc.IpcReadOptions(use_threads=False)
    if isinstance(opened, pyarrow.NativeFile):
        numbers = {name: number for number, name in enumerate(schema.names)}
        options.included_fields = [numbers[name] for name in chosen]
    reader = pyarrow.ipc.open_file(opened, options=options)
    for number in range(reader.num_record_batches if chosen else 0):
        _check_not_cut(source)
        yield reader.get_batch(number).select(chosen)


def _count_arrow_rows(source: _Source, schema: Any) -> int:
    """Return the number of rows of an Arrow file. Unpack only one column, preferably not a list column."""
    plain = [field.name for field in schema if not pyarrow.types.is_nested(field.type)]
    return sum(batch.num_rows for batch in _arrow_batches(source, source.mapped, schema, (plain or schema.names)[:1]))


def _mapped(file: BinaryIO) -> Any:
    """Return an Arrow file as a mapped buffer, or None for a compressed file: unpacking would read all mapped pages."""
    source = pyarrow.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    reader = pyarrow.ipc.open_file(source)
    if reader.num_record_batches:
        buffers = [buffer for column in reader.get_batch(0).columns for buffer in column.buffers() if buffer]
        if not all(_place(source, buffer.address) is not None for buffer in buffers if buffer.size):
            return None
    return source


def _place(source: Any, address: int) -> int | None:
    """Return the offset of an address in a mapped file, or None if the address is outside of the file."""
    place = address - source.address
    return place if 0 <= place < source.size else None


def _read_again(source: _Source, array: NDArray[Any]) -> NDArray[Any]:
    """Read mapped rows from the file. Return rows that are already in memory unchanged."""
    place = None if source.mapped is source.disk else _place(source.mapped, array.ctypes.data)
    if place is None or not array.size:
        return array
    copy = np.empty(array.shape, array.dtype)
    source.file.seek(place)
    fill(source.file, copy)
    return copy


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
    """Yield the pieces that have rows. Raise an error if the lengths of lists change between pieces."""
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
