"""Named arrays in an `.npz` or an `.npy` file, from any source: never a pickle, never more than a file may hold.

What we write is stored uncompressed and sealed. What others wrote may be compressed, within bounds.
"""

import math
import warnings
import zipfile
from collections.abc import Sequence
from io import BytesIO
from os import SEEK_END
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .drafts import AnyPath, check_readable, naming, replacing
from .seal import BLANK, CHUNK_BYTES, check_seal, seal

Arrays = dict[str, NDArray[Any]]

# A compressed file may unpack to this many times its size; small ones of constants to more.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 2**26

# NumPy writes 128 bytes before most arrays, and itself reads no more than this.
HEADER_BYTES = 10_000

# Of a zip: a local header, the record at its end, and the longest comment that may follow.
LOCAL_HEADER, END_RECORD, MAX_COMMENT_BYTES = 30, 22, 2**16 - 1

# A message lists so many names.
MAX_NAMES_LISTED = 12


def write_npz(path: AnyPath, arrays: Arrays) -> None:
    """Write named arrays as an uncompressed, sealed `.npz`; equal arrays give equal bytes."""
    with replacing(path) as file:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.comment = BLANK
            for name, array in arrays.items():
                with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
        seal(file)


def read_npz(
    path: AnyPath, wanted: Sequence[str] | None = None, needed: str | None = None, *, compressed: bool = True
) -> Arrays:
    """Read the wanted arrays of an `.npz`, or all, when their sizes are within bounds.

    Without compression the arrays take no more memory than the file has bytes; with it, no more than `MAX_EXPANSION`
    as much, or `ALWAYS_ALLOWED_BYTES` where that is more. What the zip's directory says is checked before any of them
    is made, and again while they are read.
    """
    source = check_readable(path)
    with naming(path), source.open("rb") as file:
        check_seal(file, path)
        try:
            _check_end(file)
            with zipfile.ZipFile(file) as archive:
                members = _members(archive, compressed)
                chosen = {name: member for name, member in members.items() if wanted is None or name in wanted}
                check_size(sum(member.file_size for member in chosen.values()), source.stat().st_size)
                arrays = {name: _read_member(archive, member) for name, member in chosen.items()}
        except OSError:
            raise
        except MemoryError:
            raise MemoryError(f"not enough memory to read {path}") from None
        except Exception as error:  # A hostile file may raise anything: BadZipFile, zlib.error, EOFError, …
            raise ValueError(f"{path} must be an .npz file of plain arrays: {reason(error)}") from None
    if needed is not None:
        check_contains(path, needed, list(members))
    return arrays


def read_npy(path: AnyPath) -> NDArray[Any]:
    """Map one `.npy` file of plain numbers."""
    try:
        with naming(path), warnings.catch_warnings(action="ignore"):
            return np.lib.format.open_memmap(check_readable(path), mode="r")
    except (OSError, MemoryError):
        raise
    except Exception as error:  # A damaged header may raise anything.
        raise ValueError(f"{path} must be an .npy file of plain numbers: {reason(error)}") from None


def check_contains(path: AnyPath, needed: str, held: Sequence[str]) -> None:
    """Refuse a file without what is needed, telling what it holds."""
    if needed not in held:
        raise ValueError(f"{path} must hold {needed}, got {listing(held)}")


def listing(names: Sequence[str]) -> str:
    """Return some names, or the first of many, in a line."""
    more = len(names) - MAX_NAMES_LISTED
    return ", ".join(names[:MAX_NAMES_LISTED]) + (f" and {more} more" if more > 0 else "") or "nothing"


def check_size(unpacked: int, size: int) -> None:
    """Refuse what a file of some size unpacks to where it is beyond bounds."""
    most = max(MAX_EXPANSION * size, ALWAYS_ALLOWED_BYTES)
    if unpacked > most:
        raise ValueError(f"it unpacks to {unpacked:,} bytes, more than the {most:,} that a file of its size may")


def reason(error: Exception) -> str:
    """Return what an error of anyone's says, in a line."""
    return " ".join(str(error).split()) or type(error).__name__


def _check_end(file: BinaryIO) -> None:
    """Refuse an empty file, and a zip cut off in its last record, the comment, which `zipfile` would not notice."""
    size = file.seek(0, SEEK_END)
    if size == 0:
        raise ValueError("it is empty")
    file.seek(max(0, size - END_RECORD - MAX_COMMENT_BYTES))
    tail = file.read()
    start = tail.rfind(b"PK\x05\x06")
    comment = tail[start + END_RECORD :]
    if start >= 0 and len(comment) < int.from_bytes(tail[start + END_RECORD - 2 : start + END_RECORD], "little"):
        raise ValueError("it is cut short")


def _members(archive: zipfile.ZipFile, compressed: bool) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a zip by the names of their arrays, each name once and each byte in one of them."""
    members: dict[str, zipfile.ZipInfo] = {}
    end = 0
    for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise ValueError(f"it holds {name} twice")
        if member.header_offset < end:
            raise ValueError(f"{name} overlaps the array before it")
        _check_compression(member, name, compressed)
        end = member.header_offset + LOCAL_HEADER + member.compress_size
        members[name] = member
    return members


def _check_compression(member: zipfile.ZipInfo, name: str, compressed: bool) -> None:
    if member.compress_type == zipfile.ZIP_STORED:
        if member.file_size != member.compress_size:
            raise ValueError(f"{name} is not compressed, but of two sizes")
    elif not compressed:
        raise ValueError(f"{name} is compressed, and nothing that truing saves is")
    elif member.compress_type != zipfile.ZIP_DEFLATED:
        raise ValueError(f"{name} is compressed in a way that NumPy does not use")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as stream:
        start = stream.read(HEADER_BYTES)
        shape, by_columns, dtype, header = _parse_header(start)
        size = math.prod(shape) * dtype.itemsize
        # The shape is checked against the size at hand before anything is made of it.
        if min(shape, default=0) < 0 or header + size != member.file_size:
            raise ValueError(f"an array of shape {shape} wants {size} bytes, got {member.file_size - header}")
        data = np.empty(size, dtype=np.uint8)
        filled = len(start) - header
        data[:filled] = np.frombuffer(start, dtype=np.uint8, offset=header)
        while chunk := stream.read(CHUNK_BYTES):
            data[filled : filled + len(chunk)] = np.frombuffer(chunk, dtype=np.uint8)
            filled += len(chunk)
        if filled != size:
            raise ValueError(f"an array of shape {shape} wants {size} bytes, got {filled}")
    flat = data.view(dtype) if size else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if by_columns else "C")


def _parse_header(start: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return an `.npy` header's shape, order and type, and its length."""
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
    return shape, by_columns, dtype, stream.tell()
