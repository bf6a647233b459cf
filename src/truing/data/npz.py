"""Read and write named arrays in `.npz` and `.npy` files. Reading untrusted files is safe: no pickles, bounded memory.

truing writes files without compression. Compressed files of other programs are read up to a limit on their
unpacked size.
"""

import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from errno import EINVAL
from io import BytesIO
from os import SEEK_END
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .drafts import AnyPath, check_readable, naming, replacing
from .names import Chosen, check_contains, check_numbers, choose_columns, common_dtypes, gather
from .names import listing as listing
from .npy import HEADER_BYTES, Header, check_header, native, parse_header, read_array, read_rows

Arrays = dict[str, NDArray[Any]]

# A compressed file may unpack to this many times its size. Small files of constants compress better.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 2**26

# The directory of a zip has a name and at least 46 bytes for each array. Reading a very large directory is slow.
MAX_DIRECTORY_BYTES = 2**16

# The sizes of records at the end of a zip file. A comment may follow the last record. A large zip has two more records.
_END_RECORD, _MAX_COMMENT = 22, 2**16 - 1
_LARGE_LOCATOR, _LARGE_END_RECORD = 20, 56

# The compression methods that NumPy uses. Other methods unpack a whole chunk at once, in unbounded memory.
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# The array with the JSON header of a file that `truing.save` wrote.
ABOUT = "about"


@dataclass(frozen=True)
class InMemory:
    """The content of a file in memory, and its name in error messages."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


Source = AnyPath | InMemory


def write_npz(path: AnyPath, arrays: Arrays) -> None:
    """Write named arrays as an uncompressed `.npz`, atomically. Equal arrays give equal bytes."""
    with replacing(path) as file:
        write_npz_into(file, arrays)


def write_npz_into(file: BinaryIO, arrays: Arrays) -> None:
    """Write named arrays as an uncompressed `.npz` into an empty, seekable file."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_npz(
    path: Source, wanted: Sequence[str] | None = None, needed: str | None = None, *, at_most: int | None = None
) -> Arrays:
    """Read the wanted arrays of an `.npz`, or all of them.

    The arrays may take at most the larger of `MAX_EXPANSION` times the size of the file and `ALWAYS_ALLOWED_BYTES`, and
    at most `at_most` bytes. The directory is checked before any array is allocated, and the checksum of each array is
    checked while the array is read.
    """
    with _opened(path) as (archive, members, size):
        chosen = {name: member for name, member in members.items() if wanted is None or name in wanted}
        unpacked = sum(member.file_size for member in chosen.values())
        check_size(unpacked, size)
        if at_most is not None and unpacked > at_most:
            raise ValueError(f"it unpacks to {unpacked:,} bytes, more than the {at_most:,} allowed")
        arrays = {name: _read_member(archive, member) for name, member in chosen.items()}
    if needed is not None:
        check_contains(path, needed, list(members))
    return arrays


def read_npz_headers(path: AnyPath, wanted: Sequence[str]) -> tuple[Chosen, dict[str, Header], list[str]]:
    """Return the columns that each wanted name matches, their headers, and the names of all arrays of an `.npz`."""
    with _opened(path) as (archive, members, size):
        return *_choose(archive, members, wanted, size), list(members)


def read_npz_blocks(path: AnyPath, wanted: Sequence[str], rows: int) -> Iterator[Arrays]:
    """Yield the wanted arrays of an `.npz`, which have the same length, `rows` rows at a time.

    Each block is unpacked from all arrays. An array in column order is read into memory as a whole. All checksums are
    verified before the last block is yielded.
    """
    with _opened(path) as (archive, members, size), ExitStack() as stack:
        chosen, headers = _choose(archive, members, wanted, size)
        dtypes = common_dtypes(chosen, lambda column: headers[column].dtype.newbyteorder("="))
        in_memory = {
            column: native(_read_member(archive, members[column]))
            for column, header in headers.items()
            if not header.in_rows
        }
        streams = {
            column: stack.enter_context(_behind_header(archive, members[column], header))
            for column, header in headers.items()
            if header.in_rows
        }

        def read(column: str) -> NDArray[Any]:
            if column in in_memory:
                return in_memory[column][start : start + count]
            return read_rows(streams[column], headers[column], count)

        total = max((header.shape[0] for header in headers.values()), default=0)
        for start in range(0, total, rows):
            count = min(rows, total - start)
            block = gather(chosen, dtypes, read)
            if start + count == total:
                for stream in streams.values():
                    _verify_checksum(stream)
            yield block


def read_npy(path: AnyPath) -> NDArray[Any]:
    """Return the array of one `.npy` file of plain numbers as a memory map."""
    with reading_npy(path), check_readable(path).open("rb") as file:
        read_npy_header(file)
        return np.lib.format.open_memmap(path, mode="r")


def read_npy_header(file: BinaryIO) -> Header:
    """Read the header of an `.npy` file, check the file's size against it, and go to the first byte of the array."""
    header = parse_header(file.read(HEADER_BYTES))
    available = file.seek(0, SEEK_END) - header.length
    if available < header.size:
        raise ValueError(
            f"it is truncated: an array of shape {header.shape} needs {header.size} bytes, got {available}"
        )
    check_header(header, min(header.size, available))  # NumPy allows trailing bytes.
    file.seek(header.length)
    return header


@contextmanager
def reading_npy(path: AnyPath) -> Iterator[None]:
    """Add the name of the `.npy` file to errors in this block."""
    try:
        with naming(path):
            yield
    except OSError:
        raise
    except MemoryError:
        raise MemoryError(f"not enough memory to read {path}") from None
    except Exception as error:  # A damaged header may raise anything.
        raise ValueError(f"{path} must be an .npy file of plain numbers: {reason(error)}") from None


def kind_of(arrays: Arrays) -> str | None:
    """Return the kind of value that `truing.save` stored in these arrays, or None for other arrays."""
    try:
        about = json.loads(arrays[ABOUT].tobytes())
        return str(about["kind"]) if "truing" in about else None
    except (KeyError, ValueError, TypeError, RecursionError):
        return None


def check_size(unpacked: int, size: int) -> None:
    """Raise an error if a file of `size` bytes unpacks to more bytes than allowed."""
    most = max(MAX_EXPANSION * size, ALWAYS_ALLOWED_BYTES)
    if unpacked > most:
        raise ValueError(f"it unpacks to {unpacked:,} bytes, more than the {most:,} allowed for a file of this size")


def reason(error: Exception) -> str:
    """Return the message of any exception in one line."""
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _opened(path: Source) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo], int]]:
    """Open an `.npz`; yield the archive, its members by array name, and its size. Errors name the file."""
    with naming(path), _open(path) as file:
        try:
            size = file.seek(0, SEEK_END)
            if size == 0:
                raise ValueError("it is empty")
            _check_directory(file, size)
            with zipfile.ZipFile(file) as archive:
                yield archive, _members(archive), size
        except OSError as error:
            if error.errno == EINVAL:  # A damaged directory made zipfile seek to a negative offset.
                raise ValueError(f"{path} must be an .npz file of plain arrays: its directory is damaged") from None
            raise
        except MemoryError:
            raise MemoryError(f"not enough memory to read {path}") from None
        except Exception as error:  # A hostile file may raise anything: BadZipFile, zlib.error, EOFError, …
            raise ValueError(f"{path} must be an .npz file of plain arrays: {reason(error)}") from None


def _open(path: Source) -> BinaryIO:
    return BytesIO(path.content) if isinstance(path, InMemory) else check_readable(path).open("rb")


def _choose(
    archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], wanted: Sequence[str], size: int
) -> tuple[Chosen, dict[str, Header]]:
    """Return the columns that each wanted name matches, and their headers, after checking their total size."""
    chosen = choose_columns(wanted, list(members))
    check_size(sum(members[column].file_size for columns in chosen.values() for column in columns), size)
    headers = {column: _read_header(archive, members[column]) for columns in chosen.values() for column in columns}
    for name, columns in chosen.items():
        others = [column for column in columns if not _is_column_of_numbers(headers[column])]
        if columns != [name]:
            check_numbers(name, others)
    return chosen, headers


def _is_column_of_numbers(header: Header) -> bool:
    return len(header.shape) == 1 and header.dtype.kind in "fiub"


def _check_directory(file: BinaryIO, size: int) -> None:
    """Reject a zip with a large directory before `zipfile` reads it. The last records of the zip state its size."""
    file.seek(max(0, size - _END_RECORD - _MAX_COMMENT - _LARGE_LOCATOR - _LARGE_END_RECORD))
    tail = file.read()
    end = len(tail) - _END_RECORD
    if tail[max(0, end) :][:4] != b"PK\x05\x06" or tail[-2:] != b"\0\0":  # A comment may follow the last record.
        end = tail.rfind(b"PK\x05\x06")
    if end < 0 or len(tail) - end < _END_RECORD:
        file.seek(0)
        raise ValueError("it is truncated" if b"PK".startswith(file.read(2)) else "it is not a zip file")
    directory = int.from_bytes(tail[end + 12 : end + 16], "little")
    locator = end - _LARGE_LOCATOR
    if tail[max(0, locator) : end].startswith(b"PK\x06\x07"):
        large = tail[max(0, locator - _LARGE_END_RECORD) : locator]
        if not large.startswith(b"PK\x06\x06"):
            raise ValueError("its last records are damaged")
        directory = int.from_bytes(large[40:48], "little")
    if directory > MAX_DIRECTORY_BYTES:
        wanted = f"{MAX_DIRECTORY_BYTES:,} bytes, enough for a few hundred arrays"
        raise ValueError(f"its directory must be at most {wanted}, got {directory:,}")


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the members of a zip by array name, after checking each name against the member's local header."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise ValueError(f"it contains {name} twice")
        if member.compress_type not in _COMPRESSIONS:
            raise ValueError(f"{name} must be stored or deflated, got another compression")
        archive.open(member).close()  # `zipfile` compares the two names.
        members[name] = member
    return members


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    header = _read_header(archive, member)
    with _behind_header(archive, member, header) as stream:
        array = read_array(stream, header)
        _verify_checksum(stream)
    return array


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Header:
    with archive.open(member) as stream:
        header = parse_header(stream.read(HEADER_BYTES))
    check_header(header, member.file_size - header.length)
    return header


def _behind_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo, header: Header) -> IO[bytes]:
    stream = archive.open(member)
    stream.read(header.length)
    return stream


def _verify_checksum(stream: IO[bytes]) -> None:
    """Read to the end of a member, where `zipfile` verifies the checksum."""
    if stream.read(1):
        raise ValueError("an array is longer than its header says")
