"""An append-only log of records, in segments: written in groups, one sync for each, read back to the last whole record.

A write that fails is the last: what the system has kept of it is unknown (after a failed fsync a second one may succeed
though nothing was written), so nothing more is written until the log has been read anew.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from .records import (
    MARK,
    RECORD,
    SEAL,
    START,
    Found,
    Record,
    encode,
    encode_end,
    frame_at,
    frames_after,
    is_record_of_another_key,
)

# As many buffers as one call of the system takes.
_MAX_BUFFERS = 1024


class Damaged(ValueError):  # noqa: N818  # What a file is.
    """A log or a snapshot is not as it was written, and more than its unfinished end is lost."""


@dataclass
class LogEnd:
    """How far a log was read: the last sequence number, its frame's checksum, and what was found on the way.

    `key` is that of the checksums of its frames, a secret of the directory. `synced_bytes` of the last segment were
    known to be synced when it was written, `whole_bytes` of it are whole.
    """

    key: bytes = field(repr=False)
    sequence: int = 0
    digest: bytes | None = START
    synced: int = 0
    whole_bytes: int = 0
    synced_bytes: int = 0
    notes: list[str] = field(default_factory=list)


def segment_path(folder: Path, first: int) -> Path:
    """Return the file of the segment whose first record has this sequence number."""
    return folder / f"log-{first:020d}.truing"


def segments(folder: Path) -> dict[int, Path]:
    """Return the segments in a folder by the sequence number of their first record, in order."""
    found = {int(path.stem.removeprefix("log-")): path for path in folder.glob("log-" + "[0-9]" * 20 + ".truing")}
    return dict(sorted(found.items()))


def read_log(folder: Path, end: LogEnd, after: int, digest: bytes) -> Iterator[Found]:
    """Yield the records from the segment on that holds the one `after` a sequence number, and tell in `end` how far.

    `digest` is the checksum of the record with that number. A record that is not whole is the log's torn end, which is
    left out, if nothing says that it had been synced. Otherwise the log is damaged, and refused.
    """
    found = segments(folder)
    firsts = [first for first in found if first <= after + 1]
    if not firsts:
        raise Damaged(f"{folder} lacks the segment of its log that holds the record {after + 1}")
    wanted = [first for first in found if first >= firsts[-1]]
    end.sequence = wanted[0] - 1
    end.digest = digest if wanted[0] == after + 1 else START if wanted[0] == 1 else None
    for first, following in zip(wanted, [*wanted[1:], None], strict=True):
        path = found[first]
        if first != end.sequence + 1:
            raise Damaged(f"{folder} lacks a segment of its log: after the record {end.sequence} comes {path.name}")
        yield from _read_segment(path, end, following)


def _read_segment(path: Path, end: LogEnd, following: int | None) -> Iterator[Found]:
    """Yield the records of a segment; `following` is the number of the first record of the next, where there is one."""
    end.whole_bytes = end.synced_bytes = 0
    is_sealed = False
    with _mapped(path) as data:
        place = 0
        while place < len(data):
            found = frame_at(data, place, end.key) or _behind_damage(path, data, place, end, following)
            if found is None:
                break
            _check_order(path, found, end)
            if found.synced > end.synced:
                end.synced = found.synced
                end.synced_bytes = found.start
            if found.record is not None:
                end.sequence = found.sequence
                end.digest = found.digest
                yield found
            is_sealed = found.magic == SEAL
            end.whole_bytes = place = found.end
    if is_sealed and following is None:
        raise Damaged(f"{path.parent} lacks a segment of its log: {path.name} says that another follows")


def _behind_damage(path: Path, data: memoryview, bad: int, end: LogEnd, following: int | None) -> Found | None:
    """Return the frame to go on with behind one that is not whole, None where no record is left in the segment.

    A frame that follows the last whole record by its checksum shows that only a mark lies between. If not, and one says
    that what lies between had been synced, the log is damaged.
    """
    missing = end.sequence + 1
    for found in frames_after(data, bad + 1 + -(bad + 1) % 8, end.key):
        if found.magic == RECORD and found.sequence == missing and found.before == end.digest:
            end.notes.append(f"{path.name}: a damaged mark at byte {bad} was passed over; no record is missing")
            return found
        if found.synced >= missing:
            raise Damaged(f"{path} is damaged: the record {missing} at byte {bad} is not whole, and later ones are")
    if following == missing:
        end.notes.append(f"{path.name}: a damaged seal at byte {bad} was passed over; no record is missing")
        return None
    if following is not None:
        raise Damaged(f"{path} is damaged: the record {missing} at byte {bad} is not whole, and other segments follow")
    if is_record_of_another_key(data, bad, end.key):
        raise Damaged(
            f"{path} is damaged, or of another settings.npz: the record {missing} at byte {bad} is whole, and the "
            "checksum of its frame another"
        )
    torn = len(data) - bad
    end.notes.append(f"{path.name}: {torn} bytes of an unfinished write behind the record {end.sequence} were cut")
    return None


def _check_order(path: Path, found: Found, end: LogEnd) -> None:
    expected = end.sequence + (found.magic == RECORD)
    if found.sequence != expected or end.digest not in (None, found.before):
        raise Damaged(f"{path} is damaged: at byte {found.start} a record {expected} was to follow, which it does not")


class Log:
    """The writing end of a log that was read to its end.

    Parameters
    ----------
    folder
        Where the segments are.
    end
        How far it was read.
    segment_bytes
        A segment that has grown beyond this is followed by another.
    sync
        Whether a group is synced before `append` returns; if not, a power cut may lose it.
    """

    def __init__(self, folder: Path, end: LogEnd, *, segment_bytes: int, sync: bool) -> None:
        assert end.digest is not None
        self.folder = folder
        self.sequence = end.sequence
        self.digest = end.digest
        self.segment_bytes = segment_bytes
        self.why_broken = ""
        self._key = end.key
        self._sync = sync
        self._synced = end.sequence  # What was not is written again when the last segment is opened.
        self._is_marked = False
        found = segments(folder)
        self._full = {first: path.stat().st_size for first, path in list(found.items())[:-1]}
        if found:
            self._first, path = list(found.items())[-1]
            self._size = end.whole_bytes
            self._file = _reopened(path, end)
        else:
            self._file = self._new_segment()

    @property
    def total_bytes(self) -> int:
        """Size of all segments."""
        return sum(list(self._full.values())) + self._size

    def bytes_after(self, sequence: int) -> int:
        """Return the size of the segments that begin behind a sequence number; with a snapshot of it one does."""
        sizes = [*list(self._full.items()), (self._first, self._size)]
        return sum(size for first, size in sizes if first > sequence)

    @property
    def segments(self) -> int:
        """Number of segments."""
        return len(self._full) + 1

    def append(self, records: Sequence[Record]) -> None:
        """Write records, whose numbers follow, and return once they are synced."""
        self._check()
        buffers: list[bytes | memoryview] = []
        digest = self.digest
        for record in records:
            encoded = encode(record, before=digest, synced=self._synced, key=self._key)
            buffers += encoded.buffers
            digest = encoded.digest
        with self._stopping_on_failure():
            self._write(buffers)
            if self._sync:
                os.fdatasync(self._file)
                self._synced = records[-1].sequence
            self.sequence = records[-1].sequence
            self.digest = digest
            self._is_marked = False
            if self._size > self.segment_bytes:
                self._rotate()

    def mark(self) -> None:
        """Note in the log that all of it is synced; the note itself is synced with what comes next."""
        if self._is_marked or self._synced < self.sequence or not self.sequence:
            return
        self._check()
        with self._stopping_on_failure():
            self._write([encode_end(MARK, sequence=self.sequence, before=self.digest, key=self._key)])
            self._is_marked = True

    def rotate(self) -> None:
        """Begin another segment, unless the last one holds no record."""
        self._check()
        if self._first <= self.sequence:
            with self._stopping_on_failure():
                self._rotate()

    def remove_up_to(self, sequence: int) -> None:
        """Remove the segments all of whose records have a number up to this one."""
        firsts = [*self._full, self._first]
        removable = [first for first, following in pairwise(firsts) if following <= sequence + 1]
        for first in removable:
            segment_path(self.folder, first).unlink(missing_ok=True)
            del self._full[first]
        if removable:
            sync_folder(self.folder)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _check(self) -> None:
        if self.why_broken:
            raise OSError(f"the log takes nothing more after a write that failed: {self.why_broken}")

    @contextmanager
    def _stopping_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.why_broken = str(error) or type(error).__name__
            raise

    def _write(self, buffers: list[bytes | memoryview]) -> None:
        for start in range(0, len(buffers), _MAX_BUFFERS):
            self._size += _write_all(self._file, buffers[start : start + _MAX_BUFFERS])

    def _rotate(self) -> None:
        first, size, full = self._first, self._size, self._file
        self._file = self._new_segment()
        # Only now: a seal says that the next segment is there.
        seal = encode_end(SEAL, sequence=self.sequence, before=self.digest, key=self._key)
        size += _write_all(full, [seal])
        self._full[first] = size
        if self._sync:
            os.fdatasync(full)
        os.close(full)

    def _new_segment(self) -> int:
        self._first = self.sequence + 1
        self._size = 0
        path = segment_path(self.folder, self._first)
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        sync_folder(self.folder)
        return file


def sync_folder(folder: Path) -> None:
    """Make new, renamed and removed files of a folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_all(file: int, buffers: Sequence[bytes | memoryview]) -> int:
    """Write all buffers, in one call where the system takes them at once, and return how many bytes they have."""
    size = sum(len(buffer) for buffer in buffers)
    written = os.writev(file, buffers)
    if written < size:  # Such as when the disk is nearly full: the next call says why.
        rest = memoryview(b"".join(buffers))
        while written < size:
            written += os.write(file, rest[written:])
    return size


def _reopened(path: Path, end: LogEnd) -> int:
    """Return the last segment, open for more: its torn end cut, and what may not have been synced written again.

    Where a sync had failed before, what is read may be in memory alone and count as written.
    """
    with path.open("r+b") as file:
        file.truncate(end.whole_bytes)
        file.seek(end.synced_bytes)
        tail = file.read()
        file.seek(end.synced_bytes)
        file.write(tail)
        file.flush()
        os.fsync(file.fileno())
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


@contextmanager
def _mapped(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        if not path.stat().st_size:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            yield data
