"""The `.npy` layout, a header and then the numbers, and its rows a block at a time. Never a pickle."""

import math
import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

# NumPy writes 128 bytes before most arrays, and reads headers up to this length.
HEADER_BYTES = 10_000

# The bytes that are read from a stream at a time.
CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Header:
    """What stands before the numbers: their shape, order and type; and its own length in bytes."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    length: int

    @property
    def size(self) -> int:
        """How many bytes the numbers are."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def in_rows(self) -> bool:
        """Whether rows stand one after another, so that they can be read from a stream."""
        return not self.by_columns or len(self.shape) < 2


def parse_header(start: bytes) -> Header:
    """Return the header that stands at the start of an `.npy` file."""
    stream = BytesIO(start)
    version = np.lib.format.read_magic(stream)
    with warnings.catch_warnings(action="ignore"):  # A damaged header may be odd Python.
        if version == (1, 0):
            shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version in ((2, 0), (3, 0)):  # They differ in the encoding of field names alone.
            shape, by_columns, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"its .npy version {version} is unknown")
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are never loaded")
    return Header(shape, by_columns, dtype, stream.tell())


def check_header(header: Header, size: int) -> None:
    """Refuse a header whose numbers are not the so many bytes at hand, before anything is made of its shape."""
    if min(header.shape, default=0) < 0 or header.size != size:
        raise ValueError(f"an array of shape {header.shape} wants {header.size} bytes, got {size}")


def read_array(stream: IO[bytes], header: Header) -> NDArray[Any]:
    """Read the whole array from a stream that stands behind its header."""
    return _read(stream, header.shape, header.dtype, "C" if header.in_rows else "F")


def read_rows(stream: IO[bytes], header: Header, rows: int) -> NDArray[Any]:
    """Read the next rows, in the machine's own byte order, from a stream that stands before them."""
    return native(_read(stream, (rows, *header.shape[1:]), header.dtype, "C"))


def read_rows_by_columns(stream: IO[bytes], header: Header, start: int, rows: int) -> NDArray[Any]:
    """Read some rows of an array that stands column by column in a file, a piece of each column."""
    columns = math.prod(header.shape[1:])
    pieces = np.empty((columns, rows), header.dtype)
    for column, piece in enumerate(pieces):
        stream.seek(header.length + (column * header.shape[0] + start) * header.dtype.itemsize)
        fill(stream, piece)
    return native(pieces.reshape(-1).reshape((rows, *header.shape[1:]), order="F"))


def fill(stream: IO[bytes], array: NDArray[Any]) -> None:
    """Read as many bytes as a contiguous array has."""
    data = array.reshape(-1).view(np.uint8)
    filled = 0
    while filled < data.size:
        read = stream.readinto(data[filled : filled + CHUNK_BYTES].data)  # type: ignore[attr-defined]
        if not read:
            raise ValueError(f"it is cut short: {data.size} bytes are wanted, got {filled}")
        filled += read


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in the machine's own byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _read(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], order: Any) -> NDArray[Any]:
    array = np.empty(shape, dtype)
    if array.size:
        fill(stream, array)
    return array.reshape(-1).reshape(shape, order=order)
