"""Databases with a known history, and ways to damage their files."""

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truing.service.changes import Change, Contents, learning
from truing.service.engine import Engine
from truing.service.models import settings_of
from truing.service.store import Store

from .batches import CLASSES, DETECTORS, FEATURES, batch, bits, calibrate

MAIN, LOG, INDEX = "m.sqlite3", "m.sqlite3-wal", "m.sqlite3-shm"
PAGE, FRAME, LOG_HEADER, FRAME_HEADER = 8192, 8216, 32, 24

Files = dict[str, bytes]


def fingerprint(contents: Contents) -> tuple[Any, ...]:
    """Return everything that a state contains, to compare states."""
    rate = contents.rate.name, contents.rate.value
    return bits(contents.detector), rate, contents.rows_learned, contents.batches


@dataclass
class Database:
    """The files of a database, and its true history: the state and the request ids by sequence number."""

    files: Files = field(default_factory=dict)
    states: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    ids: dict[int, frozenset[str]] = field(default_factory=dict)

    @property
    def newest(self) -> int:
        return max(self.states)

    @property
    def all_ids(self) -> frozenset[str]:
        return frozenset().union(*self.ids.values())


class _Writer:
    """An engine, and a record of its states and changes."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.path = folder / MAIN
        self.database = Database()
        store = Store(self.path, settings_of(FEATURES, CLASSES, **DETECTORS[kind]))
        self.engine = Engine("m", store, listeners=[lambda event: self._record()])
        self._ids: frozenset[str] = frozenset()
        self._record()
        calibrate(self.engine, 230)

    def learn(self, *names: str) -> None:
        """Learn batches, which the engine may commit together."""
        first = self.engine.contents.sequence + 1
        for future in [self.engine.submit(learning(batch(name), name)) for name in names]:
            future.result(60)
        for sequence, name in enumerate(names, start=first):
            self._ids = self.database.ids[sequence] = self._ids | {name}

    def change(self, kind: str, value: Any = None) -> None:
        self.engine.submit(Change(kind, value)).result(60)
        if kind in ("reset", "restore"):
            self._ids = self.database.ids[value or 0]
        self.database.ids[self.engine.contents.sequence] = self._ids

    def snapshot(self) -> None:
        self.engine.snapshot().result(60)

    def checkpoint(self) -> None:
        """Copy the pages of the write-ahead log to the database. The log stays as it is until the next commit."""
        with closing(sqlite3.connect(self.path)) as connection:
            busy, pages, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            assert not busy
            assert pages == copied > 0

    def _record(self) -> None:
        contents = self.engine.contents
        self.database.states.setdefault(contents.sequence, fingerprint(contents))
        self.database.ids.setdefault(contents.sequence, self._ids)


def _in_log(writer: _Writer, batches: int) -> None:
    writer.learn("a")
    writer.learn("b", "c", "d")
    writer.snapshot()
    writer.change("rate", ("accept", 0.9))
    writer.learn("e", "f")
    writer.snapshot()
    writer.change("restore", 5)
    writer.learn("g")
    writer.change("reset")
    writer.learn("h", "i")
    writer.snapshot()
    for number in range(batches):
        writer.learn(f"j{number}")


def _checkpointed(writer: _Writer, batches: int) -> None:
    _in_log(writer, batches)
    writer.checkpoint()


def _log_used_again(writer: _Writer, batches: int) -> None:
    _checkpointed(writer, batches)
    for name in "opqrs":
        writer.learn(name)


def _checkpointed_twice(writer: _Writer, batches: int) -> None:
    _log_used_again(writer, batches)
    writer.checkpoint()


def _closed(writer: _Writer, batches: int) -> None:
    _in_log(writer, batches)
    writer.engine.close()


# Where the pages of a database are: only in the log, in both files, in both files with a reused log, or in one file.
LAYOUTS: dict[str, Callable[[_Writer, int], None]] = {
    "log": _in_log,
    "checkpointed": _checkpointed,
    "log used again": _log_used_again,
    "checkpointed twice": _checkpointed_twice,
    "closed": _closed,
}


def build(folder: Path, kind: str, layout: str, *, batches: int = 6) -> Database:
    """Return a database of a kind of detector, as a crash would leave it. `batches` follow its last snapshot."""
    writer = _Writer(folder, kind)
    LAYOUTS[layout](writer, batches)
    writer.database.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    writer.engine.close()
    return writer.database


def _flipped(data: bytes, rng: random.Random, *, within: int | None = None) -> bytes:
    bit = rng.randrange(8 * min(len(data), within or len(data)))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def _cut(data: bytes, rng: random.Random, unit: int = 1) -> bytes:
    return data[: unit * rng.randrange(len(data) // unit)]


def _zeroed(data: bytes, rng: random.Random) -> bytes:
    start = PAGE * rng.randrange(len(data) // PAGE)
    return data[:start] + bytes(PAGE) + data[start + PAGE :]


def _swapped(data: bytes, rng: random.Random) -> bytes:
    pages = [data[start : start + PAGE] for start in range(0, len(data), PAGE)]
    one, other = rng.sample(range(len(pages)), 2)
    pages[one], pages[other] = pages[other], pages[one]
    return b"".join(pages)


def _without_last_frames(data: bytes, rng: random.Random) -> bytes:
    return data[: LOG_HEADER + FRAME * rng.randrange((len(data) - LOG_HEADER) // FRAME)]


# Damage to one file. Only damage to the log may lead to an earlier state.
DAMAGES: dict[str, tuple[str, Callable[[bytes, random.Random], bytes]]] = {
    "a flipped bit": (MAIN, _flipped),
    "a flipped bit in the schema": (MAIN, lambda data, rng: _flipped(data, rng, within=PAGE)),
    "a cut file": (MAIN, _cut),
    "missing pages": (MAIN, lambda data, rng: _cut(data, rng, PAGE)),
    "a page of zeros": (MAIN, _zeroed),
    "swapped pages": (MAIN, _swapped),
    "a flipped bit in the log": (LOG, _flipped),
    "a flipped bit in the header of the log": (LOG, lambda data, rng: _flipped(data, rng, within=LOG_HEADER)),
    "a cut log": (LOG, _cut),
    "missing frames": (LOG, _without_last_frames),
    "zeros in the log": (LOG, _zeroed),
    "an empty log": (LOG, lambda data, rng: b""),
    "a flipped bit in the index": (INDEX, _flipped),
    "a cut index": (INDEX, _cut),
}


def with_old_page(files: Files, rng: random.Random) -> Files:
    """Replace a page of the database by an earlier version from the log, as if a write had been lost."""
    frames = [files[LOG][start : start + FRAME] for start in range(LOG_HEADER, len(files[LOG]) - FRAME + 1, FRAME)]
    frame = rng.choice(frames)
    start = PAGE * (int.from_bytes(frame[:4]) - 1)
    main = files[MAIN].ljust(start + PAGE, b"\0")
    return files | {MAIN: main[:start] + frame[FRAME_HEADER:] + main[start + PAGE :]}
