"""A state directory: its lock, its settings, its log and its snapshots, opened by recovering what they hold.

- `settings.npz`: what the detector was made with, and the key of the log's checksums.
- `snapshot-<sequence>.npz`: all up to a record; the two newest are kept.
- `log-<sequence>.truing`: a segment of the log, named after its first record.

The directory itself is locked while a process writes here: a file in it could be removed.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._check import as_count
from ..data.drafts import AnyPath
from ..decisions.thresholds import Rate
from ..detector import Detector
from ..saved import read, write
from .changes import after, group_of, rows_of
from .log import Damaged, Log, LogEnd, read_log, segment_path, segments, sync_folder
from .records import KEY_BYTES, Record, checksum_of
from .requests import SnapshotFacts
from .snapshots import Contents, Recent, read_snapshot, snapshots, write_snapshot

try:
    import fcntl
except ImportError:  # Not on Windows.
    fcntl = None  # type: ignore[assignment]

_FALSE_ALARM = 0.05

# The request ids of so many learned batches are remembered.
RECENT_IDS = 65_536

# The sums of so many take 32 GiB.
MAX_FEATURES = 65_536

_FORMAT = 3
_SETTINGS_KIND = "service settings"
_SNAPSHOTS_KEPT = 2


@dataclass(frozen=True, eq=False)
class Settings:
    """What a directory was made with: a detector that has learned nothing, the numbers of columns, and a secret.

    `key` is that of the checksums of the log's frames.
    """

    detector: Detector
    features: int
    classes: int | None
    key: bytes = field(repr=False)


class Recovered(NamedTuple):
    """What a directory holds: contents, recent request ids, how far the log was read, and what was found on the way.

    `damaged` are the snapshots that were passed over.
    """

    contents: Contents
    recent: Recent
    end: LogEnd
    notes: tuple[str, ...]
    damaged: tuple[Path, ...]


class Store:
    """A directory that holds one detector's state, open for one process.

    `contents` are what it holds, `recent` the request ids of the last `RECENT_IDS` batches that had one and were
    learned since a reset, with their rows' checksums; `recovery` says what was found on opening.

    Parameters
    ----------
    path
        The directory; it is made where there is none.
    detector
        One that has learned nothing, of the settings wanted. An existing directory of other settings is refused. None
        takes an existing directory as it is.
    features, classes
        How many columns features and logits have, at most 65,536 and at least two; no classes where rows come with
        scores of their own.
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
        sync: bool = True,
        segment_bytes: int = 2**26,
    ) -> None:
        self.folder = Path(path)
        _check_columns(features, classes)
        if detector is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
        self._lock = _locked(self.folder)
        try:
            settings = _settled(self.folder, detector, features, classes)
            self.features = settings.features
            self.classes = settings.classes
            self._key = settings.key
            found = recovered(self.folder, settings)
            self.contents = found.contents
            self.recent = found.recent
            self.recovery = found.notes
            self.log = Log(self.folder, found.end, segment_bytes=segment_bytes, sync=sync)
            self.snapshot = _tidied(self.folder, found.damaged)
        except BaseException:
            os.close(self._lock)
            raise

    def append(self, records: Sequence[Record], contents: Contents) -> None:
        """Make records durable, whose numbers follow, and take the contents after them as what there is."""
        self.log.append(records)
        for record in records:
            remember(self.recent, record)
        self.contents = replace(contents, sequence=records[-1].sequence, digest=self.log.digest)

    def begin_snapshot(self) -> tuple[Contents, Recent]:
        """Return what a snapshot is to hold, and begin another segment behind it."""
        self.log.rotate()
        return self.contents, dict(self.recent)

    def write_snapshot(self, contents: Contents, recent: Recent) -> SnapshotFacts:
        """Write a snapshot that was begun, then remove what the one before it holds; any thread may, one at a time."""
        path = write_snapshot(self.folder, contents, recent, self._key)
        self.snapshot = facts_of(path, contents.sequence)
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


def recovered(folder: Path, settings: Settings) -> Recovered:
    """Return what a directory holds: a snapshot and the records behind it, applied one after another.

    A newest snapshot that is damaged is passed over for the one before, whose log is kept for that. With no log at all,
    as in a backup, the snapshot is what there is.
    """
    damaged: dict[Path, str] = {}
    for path in snapshots(folder).values():
        try:
            contents, recent = read_snapshot(path, settings.key)
        except Damaged as error:
            raise Damaged(f"{error}: restore a backup") from None
        except (ValueError, KeyError, TypeError) as error:
            damaged[path] = f"{path.name} is damaged: {error}"
        else:
            return _replayed(folder, settings.key, contents, recent, damaged)
    return _replayed(folder, settings.key, fresh_contents(settings.detector), {}, damaged)


def fresh_contents(detector: Detector) -> Contents:
    """Return the contents of a new directory."""
    return Contents(detector, Rate("false_alarm", _FALSE_ALARM))


def remember(recent: Recent, record: Record) -> None:
    """Add the request id of a learned batch to the recent ones, and forget the oldest beyond their number.

    A reset forgets them all: their rows are no longer in the state.
    """
    if record.kind == "reset":
        recent.clear()
    request_id = record.about.get("id")
    if request_id is None:
        return
    recent[request_id] = checksum_of(rows_of(record))
    if len(recent) > RECENT_IDS:
        del recent[next(iter(recent))]


def _replayed(folder: Path, key: bytes, contents: Contents, recent: Recent, damaged: dict[Path, str]) -> Recovered:
    start = contents.sequence
    notes = [f"a snapshot was passed over: {why}" for why in damaged.values()]
    end = LogEnd(key, start, contents.digest)
    try:
        if not segments(folder):
            if damaged or not snapshots(folder):
                raise Damaged(f"{folder} lacks its log")
            notes.append(f"there is no log: the snapshot of the record {start} is all there is")
            return Recovered(contents, recent, end, tuple(notes), ())
        for records, digest in _groups_behind(folder, end, contents):
            contents = replace(after(contents, records), digest=digest)
            for record in records:
                remember(recent, record)
        if end.sequence < start:
            raise Damaged(f"{folder}: the log ends at the record {end.sequence}, before the snapshot of {start}")
    except Damaged as error:
        raise Damaged("; ".join([*damaged.values(), f"{error}: restore a backup"])) from None
    return Recovered(contents, recent, end, (*notes, *end.notes), tuple(damaged))


def _groups_behind(folder: Path, end: LogEnd, contents: Contents) -> Iterator[tuple[list[Record], bytes]]:
    """Yield the records of a log behind what there is, those together that were learned so, and the last's checksum."""
    start = contents.sequence
    group: list[Record] = []
    digest = contents.digest
    for found in read_log(folder, end, start, contents.digest):
        if found.sequence == start and found.digest != contents.digest:
            raise Damaged(f"{folder}: the log and the snapshot of the record {start} are not of one state")
        if found.record is None or found.sequence <= start:
            continue
        if group and group_of(group[0]) != group_of(found.record):
            yield group, digest
            group = []
        group.append(found.record)
        digest = found.digest
    if group:
        yield group, digest


def _tidied(folder: Path, damaged: tuple[Path, ...]) -> SnapshotFacts | None:
    """Put damaged snapshots out of the way, remove unfinished ones, and return the facts of the newest that is left."""
    for path in damaged:
        path.replace(path.with_name(f"damaged-{path.name}"))
    for draft in folder.glob(".truing-*.draft"):  # The directory is locked: whoever wrote it is gone.
        draft.unlink(missing_ok=True)
    return next((facts_of(path, sequence) for sequence, path in snapshots(folder).items()), None)


def _locked(folder: Path) -> int:
    if fcntl is None:
        raise OSError("a state directory needs file locks as POSIX has them, got a system without")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no state directory {folder}")
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise BlockingIOError(f"{folder} is in use by another process: one process writes to a state") from None
    except OSError as error:
        os.close(lock)
        raise OSError(
            error.errno, f"{error.strerror}: a state directory must be one that can be locked", folder
        ) from None
    return lock


def _settled(folder: Path, detector: Detector | None, features: int | None, classes: int | None) -> Settings:
    """Return a directory's settings; those that are wanted must be these, and are kept in a new one."""
    path = folder / "settings.npz"
    if not path.exists():
        if detector is None or features is None:
            raise ValueError(f"{folder} holds no state yet: a detector and its number of features must be given")
        if snapshots(folder) or any(segment.stat().st_size for segment in segments(folder).values()):
            raise Damaged(f"{folder} lacks its settings.npz: restore it from a backup")
        _check_fresh(detector)
        segment_path(folder, 1).touch(0o600)  # First: a directory with settings and without a log has lost it.
        settings = Settings(detector, features, classes, secrets.token_bytes(KEY_BYTES))
        _write_settings(path, settings)
        return settings
    kept = read_settings(folder)
    if detector is not None:
        _check_fresh(detector)
        _check_same(folder, kept, detector, features, classes)
    return kept


def _write_settings(path: Path, settings: Settings) -> None:
    value = {field.name: getattr(settings, field.name) for field in fields(settings)}
    write(path, _SETTINGS_KIND, value | {"format": _FORMAT, "key": settings.key.hex()})  # Which syncs the directory.
    path.chmod(0o600)  # A client who reads the key can make frames.


def read_settings(folder: Path) -> Settings:
    """Return a directory's settings."""
    kind, value, _ = read(folder / "settings.npz")
    if kind != _SETTINGS_KIND or value.get("format") != _FORMAT:
        raise ValueError(f"{folder} must hold a state of format {_FORMAT}, got {kind}")
    key = value.get("key")
    if not isinstance(key, str) or re.fullmatch(f"[0-9a-f]{{{2 * KEY_BYTES}}}", key) is None:
        raise ValueError(f"{folder / 'settings.npz'} must hold a key of {KEY_BYTES} bytes, got none")
    return Settings(value["detector"], value["features"], value["classes"], bytes.fromhex(key))


def _check_columns(features: int | None, classes: int | None) -> None:
    if features is not None:
        as_count(features, "features", at_most=MAX_FEATURES)
    if classes is not None:
        if classes < 2:
            raise ValueError(f"classes must be at least 2, or none where rows have scores of their own, got {classes}")
        as_count(classes, "classes")


def _check_fresh(detector: Detector) -> None:
    if detector.state.rows or detector.reference is not None:
        raise ValueError("detector must have learned nothing and have no reference: a state directory holds its own")


def _check_same(folder: Path, kept: Settings, wanted: Detector, features: int | None, classes: int | None) -> None:
    """Refuse settings other than those kept, and say which."""
    differences = [
        f"{name} {before!r}, got {now!r}"
        for name, before, now in (("features", kept.features, features), ("classes", kept.classes, classes))
        if now is not None and before != now
    ]
    for name, before in vars(kept.detector.settings).items():
        now = getattr(wanted.settings, name)
        if name == "head":
            differences += ["another head"] * (_head_bytes(before) != _head_bytes(now))
        elif before != now:
            differences.append(f"{name} {before!r}, got {now!r}")
    if differences:
        raise ValueError(
            f"{folder} holds a state with {'; '.join(differences)}: start with its settings, or take another directory"
        )


def _head_bytes(head: Any) -> list[bytes]:
    return [np.asarray(part).tobytes() for part in head or ()]


def facts_of(path: Path, sequence: int) -> SnapshotFacts:
    """Return the facts of a snapshot by its file."""
    status = path.stat()
    return SnapshotFacts(sequence, status.st_size, status.st_mtime, path.name)
