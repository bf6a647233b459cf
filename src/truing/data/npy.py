"""The `.npy` format: parse the header, and read arrays at once or in blocks of rows. Pickles are never loaded."""

import math
import warnings
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

# NumPy reads headers up to this length. Most headers take 128 bytes.
HEADER_BYTES = 10_000

MAGIC = b"\x93NUMPY"

# Number of bytes to read from a stream at a time.
CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class Header:
    """The header of an array: shape, memory order, type, and the length of the header in bytes."""

    shape: tuple[int, ...]
    by_columns: bool
    dtype: np.dtype[Any]
    length: int

    @property
    def size(self) -> int:
        """Size of the array in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def in_rows(self) -> bool:
        """Whether the array is stored row by row, so that rows can be read from a stream."""
        return not self.by_columns or len(self.shape) < 2


def parse_header(start: bytes) -> Header:
    """Parse the header at the start of an `.npy` file."""
    if not start:
        raise ValueError("it is empty")
    if MAGIC.startswith(start[: len(MAGIC)]) and len(start) < min(_header_end(start), HEADER_BYTES):
        raise ValueError("it is truncated within its header")
    stream = BytesIO(start)
    version = np.lib.format.read_magic(stream)
    with warnings.catch_warnings(action="ignore"):  # Parsing a damaged header may warn.
        if version == (1, 0):
            shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
        elif version in ((2, 0), (3, 0)):  # These versions differ only in the encoding of field names.
            shape, by_columns, dtype = np.lib.format.read_array_header_2_0(stream)
        else:
            raise ValueError(f"its .npy version {version} is not supported")
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are never loaded")
    return Header(shape, by_columns, dtype, stream.tell())


def _header_end(start: bytes) -> int:
    """Return where a header ends. A header has a magic string, a version, a length in 2 or 4 bytes, and a text."""
    length = start[8:10] if start[6:7] == b"\x01" else start[8:12]
    return 8 + len(length) + int.from_bytes(length, "little") if len(start) >= 12 else 12


def check_header(header: Header, size: int) -> None:
    """Raise an error unless the array takes exactly `size` bytes. Call this before allocating the array."""
    if min(header.shape, default=0) < 0 or header.size != size:
        raise ValueError(f"an array of shape {header.shape} needs {header.size} bytes, got {size}")


def read_array(stream: IO[bytes], header: Header) -> NDArray[Any]:
    """Read the whole array from a stream positioned after the header."""
    return _read(stream, header.shape, header.dtype, "C" if header.in_rows else "F")


def read_rows(stream: IO[bytes], header: Header, rows: int) -> NDArray[Any]:
    """Read the next rows from a stream, in native byte order."""
    return native(_read(stream, (rows, *header.shape[1:]), header.dtype, "C"))


def read_rows_by_columns(stream: IO[bytes], header: Header, start: int, rows: int) -> NDArray[Any]:
    """Read some rows of an array that is stored column by column, in native byte order."""
    columns = math.prod(header.shape[1:])
    pieces = np.empty((columns, rows), header.dtype)
    for column, piece in enumerate(pieces):
        stream.seek(header.length + (column * header.shape[0] + start) * header.dtype.itemsize)
        fill(stream, piece)
    return native(pieces.reshape(-1).reshape((rows, *header.shape[1:]), order="F"))


def fill(stream: IO[bytes], array: NDArray[Any]) -> None:
    """Fill a contiguous array with bytes from a stream."""
    data = array.reshape(-1).view(np.uint8)
    filled = 0
    while filled < data.size:
        read = stream.readinto(data[filled : filled + CHUNK_BYTES].data)  # type: ignore[attr-defined]
        if not read:
            raise ValueError(f"it is truncated: {data.size} bytes are expected, got {filled}")
        filled += read


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array in native byte order."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _read(stream: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any], order: Any) -> NDArray[Any]:
    array = np.empty(shape, dtype)
    if array.size:
        fill(stream, array)
    return array.reshape(-1).reshape(shape, order=order)
