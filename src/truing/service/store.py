"""A state directory: its lock, its settings, its log and its snapshots, opened by recovering what they hold.

- `settings.npz`: what the detector was made with.
- `snapshot-<sequence>.npz`: all up to a record; the two newest are kept.
- `log-<sequence>.truing`: a segment of the log, named after its first record.
- `lock`: held while a process writes here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..detector import Detector
from ..io.archive import read_archive, write_archive
from ..io.drafts import AnyPath
from ..saved.detectors import restore_detector, store_detector
from ..threshold import Rate
from .changes import after
from .log import Damaged, Log, LogEnd, read_log, segments, sync_folder
from .records import Record
from .requests import SnapshotFacts
from .snapshots import Contents, read_snapshot, snapshots, write_snapshot

try:
    import fcntl
except ImportError:  # Not on Windows.
    fcntl = None  # type: ignore[assignment]

DEFAULT_RATE = Rate("false_alarm", 0.05)

# The request ids of so many learned batches are remembered.
RECENT_IDS = 65_536

_FORMAT = 1
_SETTINGS_KIND = "service settings"
_SNAPSHOTS_KEPT = 2


class Store:
    """A directory that holds one detector's state, open for one process.

    `contents` are what it holds, `recent` the request ids of the last `RECENT_IDS` learned batches that had one, with
    their rows' checksums; `recovery` says what was found on opening.

    Parameters
    ----------
    path
        The directory; it is made where there is none.
    detector
        One that has learned nothing, of the settings wanted. An existing directory of other settings is refused. None
        takes an existing directory as it is.
    features, classes
        How many columns features and logits have; no classes where rows come with scores of their own.
    rate
        The error rate that a new directory starts with: by default a false-alarm rate of 0.05.
    sync
        Whether what is written is synced before it is acknowledged.
    segment_bytes
        About how large a segment of the log becomes.
    """

    def __init__(
        self,
        path: AnyPath,
        detector: Detector | None = None,
        *,
        features: int | None = None,
        classes: int | None = None,
        rate: Rate = DEFAULT_RATE,
        sync: bool = True,
        segment_bytes: int = 2**26,
    ) -> None:
        self.folder = Path(path)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.folder)
        try:
            wanted, self.features, self.classes = _settled(self.folder, detector, features, classes)
            self.snapshot: SnapshotFacts | None = None
            self.contents, self.recent, end, notes = recovered(self.folder, Contents(wanted, rate))
            self.recovery = tuple(notes)
            self.log = Log(self.folder, end, segment_bytes=segment_bytes, sync=sync)
            self._snapshots_found()
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, records: Sequence[Record], contents: Contents) -> None:
        """Make records durable, whose numbers follow, and take the contents after them as what there is."""
        encoded = self.log.append(records)
        for record, one in zip(records, encoded, strict=True):
            remember(self.recent, record, one.arrays_checksum)
        self.contents = replace(contents, sequence=records[-1].sequence, digest=self.log.digest)

    def begin_snapshot(self) -> tuple[Contents, dict[str, int]]:
        """Return what a snapshot is to hold, and begin another segment behind it."""
        self.log.rotate()
        return self.contents, dict(self.recent)

    def write_snapshot(self, contents: Contents, recent: dict[str, int]) -> SnapshotFacts:
        """Write a snapshot that was begun, then remove what the one before it holds; any thread may, one at a time."""
        path = write_snapshot(self.folder, contents, recent)
        self.snapshot = _facts_of(path, contents.sequence)
        kept = list(snapshots(self.folder).items())
        for _, path in kept[_SNAPSHOTS_KEPT:]:
            path.unlink(missing_ok=True)
        if len(kept) >= _SNAPSHOTS_KEPT:
            self.log.remove_up_to(kept[_SNAPSHOTS_KEPT - 1][0])
        return self.snapshot

    def close(self) -> None:
        """Close the log and release the directory."""
        self.log.close()
        os.close(self._lock)

    def _snapshots_found(self) -> None:
        for sequence, path in snapshots(self.folder).items():
            self.snapshot = _facts_of(path, sequence)
            break


def recovered(folder: Path, fresh: Contents) -> tuple[Contents, dict[str, int], LogEnd, list[str]]:
    """Return what a directory holds: a snapshot and the records behind it, applied one after another.

    A newest snapshot that is damaged is passed over for the one before, whose log is kept for that. With no log at all,
    as in a backup, the snapshot is what there is.
    """
    notes: list[str] = []
    damaged: list[str] = []
    for path in snapshots(folder).values():
        try:
            contents, recent = read_snapshot(path)
        except (ValueError, KeyError, TypeError) as error:
            damaged.append(str(error))
            continue
        return _replayed(folder, contents, recent, notes, damaged)
    return _replayed(folder, fresh, {}, notes, damaged)


def remember(recent: dict[str, int], record: Record, checksum: int) -> None:
    """Add the request id of a learned batch to the recent ones, and forget the oldest beyond their number."""
    request_id = record.about.get("id")
    if request_id is None:
        return
    recent[request_id] = checksum
    if len(recent) > RECENT_IDS:
        del recent[next(iter(recent))]


def _replayed(
    folder: Path, contents: Contents, recent: dict[str, int], notes: list[str], damaged: list[str]
) -> tuple[Contents, dict[str, int], LogEnd, list[str]]:
    start = contents.sequence
    if not segments(folder):
        if damaged:
            raise Damaged(f"{damaged[0]}; there is no log to recover what it held")
        if start:
            notes.append(f"there is no log: the snapshot of the record {start} is all there is")
        return contents, recent, LogEnd(start, contents.digest), notes
    end = LogEnd()
    try:
        for found in read_log(folder, end, start):
            if found.sequence == start and found.digest != contents.digest:
                raise Damaged(f"{folder}: the log and the snapshot of the record {start} are not of one directory")
            if found.sequence > start:
                if found.sequence == start + 1 and found.before != contents.digest:
                    raise Damaged(f"{folder}: the log and the snapshot of the record {start} are not of one directory")
                assert found.record is not None
                contents = replace(after(contents, found.record), digest=found.digest)
                remember(recent, found.record, found.arrays_checksum)
    except Damaged as error:
        raise Damaged("; ".join([*damaged, str(error)]) + ": restore a backup") from None
    if end.sequence < start:
        raise Damaged(f"{folder}: the log ends at the record {end.sequence}, before the snapshot of the record {start}")
    if end.digest is None:  # An empty segment behind a snapshot.
        end.digest = contents.digest
    notes += [f"a snapshot was passed over: {why}" for why in damaged] + end.notes
    return contents, recent, end, notes


def _locked(folder: Path) -> int:
    if fcntl is None:
        raise OSError("a state directory needs file locks as POSIX has them, got a system without")
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise BlockingIOError(f"{folder} is in use by another process: one process writes to a state") from None
    return lock


def _settled(
    folder: Path, detector: Detector | None, features: int | None, classes: int | None
) -> tuple[Detector, int, int | None]:
    """Return the detector of a directory's settings; those that are wanted must be these, and are kept in a new one."""
    path = folder / "settings.npz"
    if not path.exists():
        if detector is None or features is None:
            raise ValueError(f"{folder} holds no state yet: a detector and its number of features must be given")
        if segments(folder) or snapshots(folder):
            raise Damaged(f"{folder} lacks its settings.npz: restore it from a backup")
        _check_fresh(detector)
        header, arrays = store_detector(detector)
        about = {"format": _FORMAT, "features": features, "classes": classes, "detector": header}
        write_archive(path, _SETTINGS_KIND, about, arrays)
        sync_folder(folder)
        return detector, features, classes
    kept, kept_features, kept_classes = read_settings(folder)
    if detector is not None:
        _check_fresh(detector)
        _check_same(folder, (kept, kept_features, kept_classes), (detector, features, classes))
    return kept, kept_features, kept_classes


def read_settings(folder: Path) -> tuple[Detector, int, int | None]:
    """Return a directory's settings: a detector that has learned nothing, and the numbers of columns."""
    kind, about, arrays = read_archive(folder / "settings.npz")
    if kind != _SETTINGS_KIND or about["format"] != _FORMAT:
        raise ValueError(f"{folder} must hold a state of format {_FORMAT}, got {kind} {about.get('format')}")
    return restore_detector(about["detector"], arrays), about["features"], about["classes"]


def _check_fresh(detector: Detector) -> None:
    if detector.moments is not None or detector.reference is not None:
        raise ValueError("detector must have learned nothing and have no reference: a state directory holds its own")


def _check_same(folder: Path, kept: tuple[Detector, int, int | None], wanted: tuple[Any, ...]) -> None:
    """Refuse settings other than those kept, and say which."""
    differences = [
        f"{name} {before!r}, got {now!r}"
        for name, before, now in (("features", kept[1], wanted[1]), ("classes", kept[2], wanted[2]))
        if now is not None and before != now
    ]
    header_kept, arrays_kept = store_detector(kept[0])
    header_wanted, arrays_wanted = store_detector(wanted[0])
    differences += [
        f"{name} {header_kept[name]!r}, got {header_wanted[name]!r}"
        for name in header_kept
        if header_kept[name] != header_wanted[name]
    ]
    if {name: array.tobytes() for name, array in arrays_kept.items()} != {
        name: array.tobytes() for name, array in arrays_wanted.items()
    }:
        differences.append("another head")
    if differences:
        raise ValueError(
            f"{folder} holds a state with {'; '.join(differences)}: start with its settings, or take another directory"
        )


def _facts_of(path: Path, sequence: int) -> SnapshotFacts:
    status = path.stat()
    return SnapshotFacts(sequence, status.st_size, status.st_mtime or time.time(), path.name)
