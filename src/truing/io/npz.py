"""Named arrays in an `.npz` or an `.npy` file, from any source: never a pickle, never more than a file may hold.

What we write is stored uncompressed and sealed. What others wrote may be compressed, within bounds.
"""

import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from os import SEEK_END
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .drafts import AnyPath, check_readable, naming, replacing
from .npy import HEADER_BYTES, Header, check_header, native, parse_header, read_array, read_rows
from .seal import BLANK, check_seal, seal

Arrays = dict[str, NDArray[Any]]

# A compressed file may unpack to this many times its size; small ones of constants to more.
MAX_EXPANSION = 100
ALWAYS_ALLOWED_BYTES = 2**26

# Of a zip: a local header, the record at its end, and the longest comment that may follow.
LOCAL_HEADER, END_RECORD, MAX_COMMENT_BYTES = 30, 22, 2**16 - 1

# Of a large zip: the record that has its sizes, and the one that follows it and says that it is there.
LARGE_END_RECORD, LARGE_END_LOCATOR = 56, 20

# The directory of a zip, with a name and 46 bytes or more for each array: beyond this it takes long to read.
MAX_DIRECTORY_BYTES = 2**16

# A message lists so many names.
MAX_NAMES_LISTED = 12


@dataclass(frozen=True)
class InMemory:
    """The bytes of a file that is in memory and not on a disk, and what errors call it."""

    name: str
    content: bytes

    def __str__(self) -> str:
        return self.name


Source = AnyPath | InMemory


def write_npz(path: AnyPath, arrays: Arrays) -> None:
    """Write named arrays as an uncompressed, sealed `.npz`; equal arrays give equal bytes."""
    with replacing(path) as file:
        write_npz_into(file, arrays)


def write_npz_into(file: BinaryIO, arrays: Arrays) -> None:
    """Write such an `.npz` into an empty file that is open for reading and writing."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = BLANK
        for name, array in arrays.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
    seal(file)


def read_npz(
    path: Source,
    wanted: Sequence[str] | None = None,
    needed: str | None = None,
    *,
    compressed: bool = True,
    at_most: int | None = None,
) -> Arrays:
    """Read the wanted arrays of an `.npz`, or all, when their sizes are within bounds.

    Without compression the arrays take no more memory than the file has bytes; with it, no more than `MAX_EXPANSION`
    as much, or `ALWAYS_ALLOWED_BYTES` where that is more; in any case no more than `at_most` bytes, where that is
    given. What the zip's directory says is checked before any of them is made, and again while they are read.
    """
    with _opened(path, compressed) as (archive, members, size):
        chosen = _choose(members, wanted, size)
        unpacked = sum(member.file_size for member in chosen.values())
        if at_most is not None and unpacked > at_most:
            raise ValueError(f"it unpacks to {unpacked:,} bytes, more than the {at_most:,} that are allowed")
        arrays = {name: _read_member(archive, member) for name, member in chosen.items()}
    if needed is not None:
        check_contains(path, needed, list(members))
    return arrays


def read_npz_headers(path: AnyPath, wanted: Sequence[str]) -> tuple[dict[str, Header], list[str]]:
    """Read the headers of the wanted arrays that an `.npz` holds, and the names of all; its seal is not checked."""
    with _opened(path, sealed=False) as (archive, members, size):
        chosen = _choose(members, wanted, size)
        return {name: _read_header(archive, member) for name, member in chosen.items()}, list(members)


def read_npz_blocks(path: AnyPath, wanted: Sequence[str], rows: int) -> Iterator[Arrays]:
    """Yield the wanted arrays of an `.npz`, all of one length, so many rows at a time; its seal is not checked.

    They are unpacked side by side. One that stands column by column is read whole: its rows are nowhere together.
    The last block comes when the checksums of all arrays have been found right.
    """
    with _opened(path, sealed=False) as (archive, members, size), ExitStack() as stack:
        chosen = _choose(members, wanted, size)
        headers = {name: _read_header(archive, member) for name, member in chosen.items()}
        held = {name: native(_read_member(archive, chosen[name])) for name, of in headers.items() if not of.in_rows}
        streams = {
            name: stack.enter_context(_behind_header(archive, chosen[name], of))
            for name, of in headers.items()
            if of.in_rows
        }
        total = max((header.shape[0] for header in headers.values()), default=0)
        for start in range(0, total, rows):
            count = min(rows, total - start)
            block = {name: array[start : start + count] for name, array in held.items()}
            block |= {name: read_rows(stream, headers[name], count) for name, stream in streams.items()}
            if start + count == total:
                for stream in streams.values():
                    _check_sum(stream)
            yield {name: block[name] for name in headers}


def read_npy(path: AnyPath) -> NDArray[Any]:
    """Map one `.npy` file of plain numbers."""
    try:
        with naming(path), warnings.catch_warnings(action="ignore"):
            return np.lib.format.open_memmap(check_readable(path), mode="r")
    except (OSError, MemoryError):
        raise
    except Exception as error:  # A damaged header may raise anything.
        raise ValueError(f"{path} must be an .npy file of plain numbers: {reason(error)}") from None


def check_contains(path: Source, needed: str, held: Sequence[str]) -> None:
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


@contextmanager
def _opened(
    path: Source, compressed: bool = True, sealed: bool = True
) -> Iterator[tuple[zipfile.ZipFile, dict[str, zipfile.ZipInfo], int]]:
    """Open an `.npz`: its members by the names of their arrays, and its size. What is wrong with it names it."""
    with naming(path), _open(path) as file:
        if sealed:
            check_seal(file, path)
        try:
            size = _check_end(file)
            with zipfile.ZipFile(file) as archive:
                yield archive, _members(archive, compressed), size
        except OSError:
            raise
        except MemoryError:
            raise MemoryError(f"not enough memory to read {path}") from None
        except Exception as error:  # A hostile file may raise anything: BadZipFile, zlib.error, EOFError, …
            raise ValueError(f"{path} must be an .npz file of plain arrays: {reason(error)}") from None


def _open(path: Source) -> BinaryIO:
    return BytesIO(path.content) if isinstance(path, InMemory) else check_readable(path).open("rb")


def _choose(members: dict[str, zipfile.ZipInfo], wanted: Sequence[str] | None, size: int) -> dict[str, zipfile.ZipInfo]:
    """Return the wanted members, or all, when they unpack to no more than a file of the size may."""
    chosen = {name: member for name, member in members.items() if wanted is None or name in wanted}
    check_size(sum(member.file_size for member in chosen.values()), size)
    return chosen


def _check_end(file: BinaryIO) -> int:
    """Return a file's size. An empty one is refused, and a zip that `zipfile` would accept: cut off in its last record.

    So is one with a directory that it would take long over.
    """
    size = file.seek(0, SEEK_END)
    if size == 0:
        raise ValueError("it is empty")
    file.seek(max(0, size - END_RECORD - MAX_COMMENT_BYTES))
    tail = file.read()
    start = tail.rfind(b"PK\x05\x06")
    comment = tail[start + END_RECORD :]
    if start >= 0 and len(comment) < int.from_bytes(tail[start + END_RECORD - 2 : start + END_RECORD], "little"):
        raise ValueError("it is cut short")
    if start >= 0:
        end = size - len(tail) + start
        begin = max(0, end - LARGE_END_LOCATOR - LARGE_END_RECORD)
        file.seek(begin)
        _check_directory(file.read(end + END_RECORD - begin))
    return size


def _check_directory(records: bytes) -> None:
    """Refuse a large directory by the records at the end of a zip, which have its size."""
    directory = int.from_bytes(records[-END_RECORD:][12:16], "little")
    large = records[: -END_RECORD - LARGE_END_LOCATOR]
    if large.startswith(b"PK\x06\x06"):
        directory = max(directory, int.from_bytes(large[40:48], "little"))
    if directory > MAX_DIRECTORY_BYTES:
        wanted = f"{MAX_DIRECTORY_BYTES:,} bytes, enough for some hundred arrays"
        raise ValueError(f"its list of arrays must be at most {wanted}, got {directory:,}")


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
    header = _read_header(archive, member)
    with _behind_header(archive, member, header) as stream:
        array = read_array(stream, header)
        _check_sum(stream)
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


def _check_sum(stream: IO[bytes]) -> None:
    """Come to the end of a member, where `zipfile` compares its checksum."""
    if stream.read(1):
        raise ValueError("an array is longer than its header says")
