"""The durable state of one model in one SQLite database.

A commit appends changes. A snapshot stores the whole state, and deletes the changes that are no longer needed. Recovery
loads the newest snapshot and applies the later changes again. The result is bit-identical.

SQLite protects a commit against crashes, but it does not notice a flipped bit in its file. So every row has a checksum,
and a database is verified when it is opened. If the write-ahead log is damaged, SQLite drops the rest of it, and may
mix pages of two commits. So the head row records which change and which request ids belong together.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, reduce
from hashlib import sha256
from itertools import groupby
from operator import xor
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from ..data.drafts import sync_folder
from ..data.npz import InMemory
from ..decisions.thresholds import Rate
from ..detector import Detector
from ..saved import read, to_bytes
from ..stream import SolvedState
from .changes import Change, Contents, applied

# The request ids of at least this many learned batches are remembered.
REMEMBERED_IDS = 65_536

# Changes are kept from the second-newest snapshot on, so that each later state can be restored.
_SNAPSHOTS_WITH_CHANGES = 2

# Older snapshots are kept as well, one per hour, up to this total.
_SNAPSHOTS_KEPT = 12
_SECONDS_BETWEEN_SNAPSHOTS = 3600

# A snapshot is stored in parts of this size. SQLite stores at most 10^9 bytes in a value.
_PART_BYTES = 2**26

_APPLICATION_ID = 0x74727565  # "true"
_FORMAT = 1

_SCHEMA = """
CREATE TABLE settings (body BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE head (
    sequence INTEGER NOT NULL,      -- of the last change
    request_ids INTEGER NOT NULL,   -- exclusive or of the checksums of all request ids and branches
    checksum INTEGER NOT NULL
);
CREATE TABLE changes (
    sequence INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,          -- the sequence of the first change that was applied together with this one
    kind TEXT NOT NULL,
    body BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE request_ids (
    request_id TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    digest BLOB NOT NULL,           -- of the change, to recognise an id that is used for another change
    checksum INTEGER NOT NULL,
    UNIQUE (request_id, sequence)   -- a restore may return to a batch that was learned again
);
CREATE INDEX request_ids_by_sequence ON request_ids (sequence);
CREATE TABLE branches (             -- resets and restores, which are never deleted
    sequence INTEGER PRIMARY KEY,
    target INTEGER,                 -- the sequence to go back to; null for a reset
    checksum INTEGER NOT NULL
);
CREATE TABLE snapshots (
    sequence INTEGER PRIMARY KEY,
    time REAL NOT NULL,
    rows REAL NOT NULL,
    bytes INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE snapshot_parts (sequence INTEGER NOT NULL, part INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (sequence, part));
"""


@dataclass(frozen=True, eq=False)
class ModelSettings:
    """The settings of a model: a detector without learned rows, and the numbers of columns.

    `classes` is None for a model that takes no logits.
    """

    detector: Detector
    features: int
    classes: int | None


class Snapshot(NamedTuple):
    """A stored state: its sequence number, its time (seconds since 1970), its learned rows and its size in bytes."""

    sequence: int
    time: float
    rows: float
    bytes: int


@dataclass(frozen=True, eq=False)
class Encoded:
    """A change and its bytes. Equal changes have equal bytes."""

    change: Change
    body: bytes

    @classmethod
    def of(cls, change: Change) -> Encoded:
        """Encode a change."""
        return cls(change, to_bytes(change.kind, change.value))

    @cached_property
    def digest(self) -> bytes:
        """A digest of the bytes, to recognise a request id that is used for another change."""
        return sha256(self.body).digest()


class Store:
    """The open database of one model. One thread writes; `at` and `backup` may be called from any thread.

    Parameters
    ----------
    path
        The database. It must not exist if `settings` are given, and must exist otherwise.
    settings
        The settings of a new model.
    """

    def __init__(self, path: Path, settings: ModelSettings | None = None) -> None:
        self.path = path
        with _naming(path):
            self._connection = _connected(path) if settings is None else _created(path, settings)
            try:
                if settings is None:
                    _verify(self._connection, path)
                self.settings = _read_settings(self._connection, path)
            except BaseException:
                self._connection.close()
                raise
            self.warnings: list[str] = []
            self._spans = _spans(self._connection)
            status = path.stat()
            self._identity = status.st_dev, status.st_ino

    def load(self) -> Contents:
        """Return the state after the last change."""
        with _naming(self.path):
            try:
                return _contents_at(self._connection, self.settings, None, self.warnings)
            except ValueError as error:
                raise _damaged(self.path, str(error)) from None

    def at(self, sequence: int) -> Contents:
        """Return the state after the change `sequence`. It must have a snapshot, or be at least `oldest`."""
        with _reading(self.path) as connection:
            return _contents_at(connection, self.settings, sequence, [])

    def before(self, sequence: int) -> Contents:
        """Return an earlier state, to compute what was learned since.

        Raise a `LookupError` if the state is no longer stored, or if the model was reset or restored since.
        """
        with _reading(self.path) as connection:
            (changed,) = connection.execute("SELECT max(sequence) FROM branches").fetchone()
            if changed is not None and changed > sequence:
                raise LookupError(f"the model was reset or restored by change {changed}, after {sequence}")
            try:
                return _contents_at(connection, self.settings, sequence, [])
            except ValueError as error:
                raise LookupError(str(error)) from None

    def find(self, request_id: str) -> bytes | None:
        """Return the digest of the change with a request id, or None if the current state has no such change."""
        query = "SELECT sequence, digest FROM request_ids WHERE request_id = ?"
        try:
            rows = self._connection.execute(query, (request_id,)).fetchall()
        except sqlite3.Error as error:  # A damaged database is not an error of the client.
            raise OSError(f"{self.path.name}: {error}") from None
        return next((bytes(digest) for sequence, digest in rows if self._is_in_state(sequence)), None)

    def _is_in_state(self, sequence: int) -> bool:
        """Return whether a change belongs to the current state: no later reset or restore has removed it."""
        return any(after < sequence <= last for after, last in self._spans)

    def append(self, changes: Sequence[Encoded], first: int) -> None:
        """Commit changes that were applied together. Their sequence numbers start at `first`."""
        with self._transaction() as connection:
            (request_ids,) = connection.execute("SELECT request_ids FROM head").fetchone()
            for sequence, encoded in enumerate(changes, start=first):
                change, row = encoded.change, (sequence, first, encoded.change.kind, encoded.body)
                connection.execute("INSERT INTO changes VALUES (?, ?, ?, ?, ?)", (*row, _checksum(*row)))
                if change.kind in ("reset", "restore"):
                    branch = sequence, change.value
                    connection.execute("INSERT INTO branches VALUES (?, ?, ?)", (*branch, _checksum(*branch)))
                    request_ids ^= _checksum(*branch)
                if change.request_id is not None:
                    values = change.request_id, sequence, encoded.digest
                    checksum = _checksum(*values)
                    connection.execute("INSERT INTO request_ids VALUES (?, ?, ?, ?)", (*values, checksum))
                    request_ids ^= checksum
            _write_head(connection, first + len(changes) - 1, request_ids)
        if changes[-1].change.kind in ("reset", "restore"):
            self._spans = _spans(self._connection)

    def save_snapshot(self, contents: Contents) -> Snapshot:
        """Store the state, and delete the changes and snapshots that are no longer needed, in one transaction."""
        body = _encode_contents(contents)
        snapshot = Snapshot(contents.sequence, time.time(), contents.rows, len(body))
        with self._transaction() as connection:
            checksum = _checksum(*snapshot, body)
            connection.execute("DELETE FROM snapshot_parts WHERE sequence = ?", (snapshot.sequence,))
            connection.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?, ?)", (*snapshot, checksum))
            for part, start in enumerate(range(0, len(body), _PART_BYTES)):
                piece = memoryview(body)[start : start + _PART_BYTES]
                connection.execute("INSERT INTO snapshot_parts VALUES (?, ?, ?)", (snapshot.sequence, part, piece))
            _delete_old(connection)
        return snapshot

    def snapshots(self) -> list[Snapshot]:
        """Return the kept snapshots, the newest first."""
        with _reading(self.path) as connection:
            return _snapshots(connection)

    def oldest(self) -> int:
        """Return the sequence number of the oldest state after which all changes are kept."""
        with _reading(self.path) as connection:
            return _oldest_with_changes(connection)

    def bytes_of_changes(self, after: int) -> int:
        """Return the size of the changes after a sequence number."""
        query = "SELECT ifnull(sum(length(body)), 0) FROM changes WHERE sequence > ?"
        (size,) = self._connection.execute(query, (after,)).fetchone()
        return int(size)

    def bytes(self) -> int:
        """Return the size of the database and its write-ahead log."""
        size = 0
        for path in files_of(self.path):
            with suppress(FileNotFoundError):  # The model may be deleted at this moment.
                size += path.stat().st_size
        return size

    def probe(self) -> None:
        """Commit a transaction that changes nothing, to find out whether the disk can be written."""
        with self._transaction() as connection:
            connection.execute(f"PRAGMA user_version = {_FORMAT}")

    def close(self) -> None:
        """Close the database. SQLite then moves the write-ahead log into it."""
        self._connection.close()

    def _check_file(self) -> None:
        """Raise an error if the file was removed or replaced. SQLite would still write to the unlinked file."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            raise OSError(f"{self.path.name} was removed") from None
        except OSError as error:  # The message must not show the path.
            raise OSError(f"{self.path.name}: {error.strerror}") from None
        if (status.st_dev, status.st_ino) != self._identity:
            raise OSError(f"{self.path.name} was replaced by another file")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self._connection
        self._check_file()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def backup(path: Path, target: Path) -> None:
    """Copy a database that may be in use to a new file, by SQLite's online backup."""
    try:
        target.touch(0o600, exist_ok=False)  # As with the database, only the owner may read the copy.
    except FileExistsError:
        raise FileExistsError(f"{target} exists already: a backup needs a new file") from None
    with (
        _removed_on_error(target),
        _naming(path),
        closing(_connected(path, is_writer=False)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        source.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # Store everything in one file, without a write-ahead log.
        _verify(copy, path)


def files_of(path: Path) -> tuple[Path, Path, Path]:
    """Return the paths of the database, its write-ahead log, and the index of the log."""
    return path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")


def _connected(path: Path, *, is_writer: bool = True) -> sqlite3.Connection:
    mode = "rw" if is_writer else "ro"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=10)
    try:
        if is_writer:
            _set_up(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -8192")  # In KiB. A group of batches fits into the cache.
    connection.execute("PRAGMA journal_size_limit = 67108864")
    connection.execute("PRAGMA secure_delete = OFF")  # Overwriting deleted rows would take ten times as long.


def _created(path: Path, settings: ModelSettings) -> sqlite3.Connection:
    """Create the database of a new model. A failure leaves no partial database."""
    if path.exists():
        raise FileExistsError(f"{path.name} exists already")
    for leftover in files_of(path):  # SQLite would apply a leftover write-ahead log to the new database.
        leftover.unlink(missing_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    with _removed_on_error(draft), closing(sqlite3.connect(draft, isolation_level=None)) as connection:
        draft.chmod(0o600)
        connection.execute("PRAGMA page_size = 8192")  # For batches of 100 kB, this size is the fastest by 25 %.
        connection.executescript(f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_FORMAT};")
        connection.executescript(_SCHEMA)
        body = to_bytes("settings", {name: getattr(settings, name) for name in ("detector", "features", "classes")})
        connection.execute("INSERT INTO settings VALUES (?, ?)", (body, _checksum(body)))
        connection.execute("INSERT INTO head VALUES (0, 0, 0)")
        _write_head(connection, 0, 0)
    draft.replace(path)
    sync_folder(path.parent)
    return _connected(path)


def _verify(connection: sqlite3.Connection, path: Path) -> None:
    """Raise an error unless the file is an undamaged database of truing."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application_id != _APPLICATION_ID:
        raise ValueError(f"{path.name} must be a database of truing serve, got another database")
    if version != _FORMAT:
        raise ValueError(f"{path.name} has format {version}; this truing reads format {_FORMAT}")
    with closing(sqlite3.connect(":memory:")) as new:
        new.executescript(_SCHEMA)
        if _schema(connection) != _schema(new):  # The integrity check accepts a flipped bit that hides a table.
            raise _damaged(path, "the schema was changed")
    (result,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if result != "ok":
        raise _damaged(path, result)
    for request_id, sequence, digest, checksum in connection.execute("SELECT * FROM request_ids"):
        if _checksum(request_id, sequence, digest) != checksum:
            raise _damaged(path, f"the request id of change {sequence} has a wrong checksum")
    for sequence, target, checksum in connection.execute("SELECT * FROM branches"):
        if _checksum(sequence, target) != checksum:
            raise _damaged(path, f"the reset or restore {sequence} has a wrong checksum")
    head = _last_sequence(connection), _all_request_ids(connection)
    if connection.execute("SELECT * FROM head").fetchall() != [(*head, _checksum(*head))]:
        raise _damaged(path, "the last change and the request ids do not belong together")


def _schema(connection: sqlite3.Connection) -> list[Any]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


def _read_settings(connection: sqlite3.Connection, path: Path) -> ModelSettings:
    rows = connection.execute("SELECT body, checksum FROM settings").fetchall()
    if len(rows) != 1 or _checksum(rows[0][0]) != rows[0][1]:
        raise _damaged(path, "the settings have a wrong checksum")
    _, value, _ = read(InMemory(path.name, rows[0][0]))
    return ModelSettings(**value)


def _contents_at(
    connection: sqlite3.Connection, settings: ModelSettings, sequence: int | None, warnings: list[str]
) -> Contents:
    """Return the state at a sequence number (None for the last). Load a snapshot and apply the changes after it."""
    last = _last_sequence(connection)
    wanted = last if sequence is None else sequence
    if not 0 <= wanted <= last:
        raise ValueError(f"sequence must be from 0 to {last}, got {wanted}")
    oldest = _oldest_with_changes(connection)
    starts = [one.sequence for one in _snapshots(connection) if one.sequence <= wanted]
    for start in [*starts, *([0] if oldest == 0 else [])]:
        if start < oldest and start != wanted:
            break
        try:
            contents = _read_snapshot(connection, settings, start)
        except ValueError as error:
            warnings.append(f"{error}: an earlier snapshot was used")
            continue
        return _replayed(connection, settings, contents, wanted)
    if warnings:
        raise ValueError(f"{warnings[-1].partition(':')[0]}, and no earlier snapshot can replace it")
    raise ValueError(f"sequence must belong to a snapshot, or be from {oldest} to {last}, got {wanted}")


def _replayed(connection: sqlite3.Connection, settings: ModelSettings, contents: Contents, last: int) -> Contents:
    """Return the contents after the changes up to `last`, applied in the same groups as when they were committed."""
    rows = connection.execute(
        "SELECT * FROM changes WHERE sequence > ? AND sequence <= ? ORDER BY sequence", (contents.sequence, last)
    )

    def at(sequence: int) -> Contents:
        return _contents_at(connection, settings, sequence, [])

    for _, group in groupby(_checked_changes(rows, contents.sequence), key=lambda row: row[0]):
        contents = applied(contents, [change for _, change in group], at)
    if contents.sequence != last:
        raise ValueError(f"the changes after {contents.sequence} are missing")
    return contents


def _checked_changes(rows: Iterator[Any], before: int) -> Iterator[tuple[int, Change]]:
    """Yield the step and the change of each row. Raise an error if a row is missing or damaged."""
    for expected, (sequence, step, kind, body, checksum) in enumerate(rows, start=before + 1):
        if sequence != expected:
            raise ValueError(f"change {expected} is missing")
        if _checksum(sequence, step, kind, body) != checksum:
            raise ValueError(f"change {sequence} has a wrong checksum")
        _, value, _ = read(InMemory(f"change {sequence}", body))
        yield step, Change(kind, value)


def _read_snapshot(connection: sqlite3.Connection, settings: ModelSettings, sequence: int) -> Contents:
    """Return the contents of a snapshot, or of a new model for sequence 0."""
    row = connection.execute("SELECT * FROM snapshots WHERE sequence = ?", (sequence,)).fetchone()
    if row is None:
        return Contents(SolvedState(settings.detector.state))
    query = "SELECT body FROM snapshot_parts WHERE sequence = ? ORDER BY part"
    body = b"".join(part for (part,) in connection.execute(query, (sequence,)))
    if _checksum(*row[:-1], body) != row[-1]:
        raise ValueError(f"snapshot {sequence} has a wrong checksum")
    return _decode_contents(body, f"snapshot {sequence}")


def _encode_contents(contents: Contents) -> bytes:
    value = {
        "detector": contents.detector,
        "rate": (contents.rate.name, contents.rate.value),
        "sequence": contents.sequence,
        "rows_learned": contents.rows_learned,
        "batches": contents.batches,
    }
    return to_bytes("contents", value)


def _decode_contents(body: bytes, name: str) -> Contents:
    _, value, _ = read(InMemory(name, body))
    detector, rate = value.pop("detector"), value.pop("rate")
    return Contents(SolvedState(detector.state), Rate(*rate), **value)


def _snapshots(connection: sqlite3.Connection) -> list[Snapshot]:
    query = "SELECT sequence, time, rows, bytes FROM snapshots ORDER BY sequence DESC"
    return [Snapshot(*row) for row in connection.execute(query)]


def _last_sequence(connection: sqlite3.Connection) -> int:
    query = (
        "SELECT ifnull(max(sequence), 0) FROM (SELECT sequence FROM changes UNION ALL SELECT sequence FROM snapshots)"
    )
    (last,) = connection.execute(query).fetchone()
    return int(last)


def _oldest_with_changes(connection: sqlite3.Connection) -> int:
    """Return the oldest sequence number after which all changes are kept."""
    (first,) = connection.execute("SELECT min(sequence) FROM changes").fetchone()
    return _last_sequence(connection) if first is None else first - 1


def _delete_old(connection: sqlite3.Connection) -> None:
    """Delete old changes, snapshots and request ids."""
    snapshots = _snapshots(connection)
    if len(snapshots) >= _SNAPSHOTS_WITH_CHANGES:
        oldest = snapshots[_SNAPSHOTS_WITH_CHANGES - 1].sequence
        connection.execute("DELETE FROM changes WHERE sequence <= ?", (oldest,))
    for snapshot in thinned(snapshots):
        connection.execute("DELETE FROM snapshots WHERE sequence = ?", (snapshot.sequence,))
        connection.execute("DELETE FROM snapshot_parts WHERE sequence = ?", (snapshot.sequence,))
    query = "SELECT sequence FROM request_ids ORDER BY sequence DESC LIMIT 1 OFFSET ?"
    row = connection.execute(query, (REMEMBERED_IDS,)).fetchone()
    if row is not None:
        connection.execute("DELETE FROM request_ids WHERE sequence <= ?", row)
        _write_head(connection, snapshots[0].sequence, _all_request_ids(connection))


def thinned(snapshots: Sequence[Snapshot]) -> list[Snapshot]:
    """Return the snapshots to delete, given all snapshots, the newest first.

    Keep the two newest snapshots, and the newest of each earlier hour, at most twelve in all.
    """
    kept, deleted = list(snapshots[:_SNAPSHOTS_WITH_CHANGES]), []
    for snapshot in snapshots[_SNAPSHOTS_WITH_CHANGES:]:
        is_new_hour = snapshot.time // _SECONDS_BETWEEN_SNAPSHOTS != kept[-1].time // _SECONDS_BETWEEN_SNAPSHOTS
        if is_new_hour and len(kept) < _SNAPSHOTS_KEPT:
            kept.append(snapshot)
        else:
            deleted.append(snapshot)
    return deleted


def _write_head(connection: sqlite3.Connection, sequence: int, request_ids: int) -> None:
    values = sequence, request_ids
    connection.execute("UPDATE head SET sequence = ?, request_ids = ?, checksum = ?", (*values, _checksum(*values)))


def _all_request_ids(connection: sqlite3.Connection) -> int:
    """Return the exclusive or of the checksums of all request ids and branches."""
    query = "SELECT checksum FROM request_ids UNION ALL SELECT checksum FROM branches"
    return reduce(xor, (checksum for (checksum,) in connection.execute(query)), 0)


def _spans(connection: sqlite3.Connection) -> list[tuple[int, float]]:
    """Return the changes that belong to the current state, as pairs (after, last) of sequence numbers.

    Go back from the last change. A reset ends the search. A restore continues at its target.
    """
    spans: list[tuple[int, float]] = []
    last: float = math.inf
    for sequence, target in connection.execute("SELECT sequence, target FROM branches ORDER BY sequence DESC"):
        if sequence <= last:
            spans.append((sequence, last))
            if target is None:
                return spans
            last = target
    return [*spans, (0, last)]


def _checksum(*fields: Any) -> int:
    """Return the checksum of the fields of a row."""
    checksum = 0
    for one in fields:
        checksum = crc32(one if isinstance(one, bytes) else repr(one).encode(), checksum)
    return checksum


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path.name} is damaged: {why}: restore a backup")


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads one state of a database in use. SQLite's errors become `OSError`."""
    try:
        with closing(_connected(path, is_writer=False)) as connection:
            connection.execute("BEGIN")
            yield connection
    except sqlite3.Error as error:
        raise OSError(f"{path.name}: {error}") from None


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into a `ValueError` for a damaged file, or an `OSError` that names the file."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise OSError(f"{path.name}: {error}") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError, TypeError) as error:  # Damaged columns have wrong types.
        raise _damaged(path, str(error)) from None


@contextmanager
def _removed_on_error(path: Path) -> Iterator[None]:
    """Remove an incomplete file if the block fails, for example because the disk is full."""
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise
