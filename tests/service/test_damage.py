"""A damaged database is recovered to a state that it had, or refused. It is never silently different."""

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

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


class Writer:
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


# Where the pages of a database are: only in the log, in both files, in both files with a reused log, or in one file.
LAYOUTS: dict[str, list[str]] = {
    "log": [],
    "checkpointed": ["checkpoint"],
    "log used again": ["checkpoint", "learn"],
    "checkpointed twice": ["checkpoint", "learn", "checkpoint"],
    "closed": ["close"],
}


def build(folder: Path, kind: str, layout: str, *, batches: int = 6) -> Database:
    """Return a database of a kind of detector, as a crash would leave it. `batches` follow its last snapshot."""
    writer = Writer(folder, kind)
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
    for step in LAYOUTS[layout]:
        if step == "checkpoint":
            writer.checkpoint()
        elif step == "close":
            writer.engine.close()
        else:
            for name in "opqrs":
                writer.learn(name)
    writer.database.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    writer.engine.close()
    return writer.database


def flipped(data: bytes, rng: random.Random, *, within: int | None = None) -> bytes:
    bit = rng.randrange(8 * min(len(data), within or len(data)))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def cut(data: bytes, rng: random.Random, unit: int = 1) -> bytes:
    return data[: unit * rng.randrange(len(data) // unit)]


def zeroed(data: bytes, rng: random.Random) -> bytes:
    start = PAGE * rng.randrange(len(data) // PAGE)
    return data[:start] + bytes(PAGE) + data[start + PAGE :]


def swapped(data: bytes, rng: random.Random) -> bytes:
    pages = [data[start : start + PAGE] for start in range(0, len(data), PAGE)]
    one, other = rng.sample(range(len(pages)), 2)
    pages[one], pages[other] = pages[other], pages[one]
    return b"".join(pages)


def without_last_frames(data: bytes, rng: random.Random) -> bytes:
    return data[: LOG_HEADER + FRAME * rng.randrange((len(data) - LOG_HEADER) // FRAME)]


# Damage to one file. Only damage to the log may lead to an earlier state.
DAMAGES: dict[str, tuple[str, Callable[[bytes, random.Random], bytes]]] = {
    "a flipped bit": (MAIN, flipped),
    "a flipped bit in the schema": (MAIN, lambda data, rng: flipped(data, rng, within=PAGE)),
    "a cut file": (MAIN, cut),
    "missing pages": (MAIN, lambda data, rng: cut(data, rng, PAGE)),
    "a page of zeros": (MAIN, zeroed),
    "swapped pages": (MAIN, swapped),
    "a flipped bit in the log": (LOG, flipped),
    "a flipped bit in the header of the log": (LOG, lambda data, rng: flipped(data, rng, within=LOG_HEADER)),
    "a cut log": (LOG, cut),
    "missing frames": (LOG, without_last_frames),
    "zeros in the log": (LOG, zeroed),
    "an empty log": (LOG, lambda data, rng: b""),
    "a flipped bit in the index": (INDEX, flipped),
    "a cut index": (INDEX, cut),
}


def with_old_page(files: Files, rng: random.Random) -> Files:
    """Replace a page of the database by an earlier version from the log, as if a write had been lost."""
    frames = [files[LOG][start : start + FRAME] for start in range(LOG_HEADER, len(files[LOG]) - FRAME + 1, FRAME)]
    frame = rng.choice(frames)
    start = PAGE * (int.from_bytes(frame[:4]) - 1)
    main = files[MAIN].ljust(start + PAGE, b"\0")
    return files | {MAIN: main[:start] + frame[FRAME_HEADER:] + main[start + PAGE :]}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, if the system has one, because writing thousands of files to a disk would take long."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def outcome(folder: Path, database: Database, files: Files) -> str:
    """Load damaged files. Return refused, newest or earlier; fail if the state is not in the history."""
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    try:
        with closing(Store(folder / MAIN)) as store:
            contents = store.load()
            ids = {name for name in database.all_ids if store.find(name) is not None}
    except (ValueError, OSError) as error:
        return "refused" if MAIN in str(error) else f"refused without a name: {error}"
    assert fingerprint(contents) == database.states[contents.sequence]
    assert ids == database.ids[contents.sequence]
    return "newest" if contents.sequence == database.newest else "earlier"


def try_damages(parent: Path, kind: str, rounds: int) -> None:
    """Damage a database in every layout and every way. A failure names the round, the layout and the damage."""
    results: Counter[str] = Counter()
    for layout in LAYOUTS:
        folder = parent / layout
        folder.mkdir()
        database = build(folder, kind, layout)
        assert outcome(folder, database, database.files) == "newest"
        for count in range(rounds):
            for damage, (name, damaged) in DAMAGES.items():
                if name not in database.files:
                    continue
                case = f"{kind}, {layout}, {damage}, {count}"
                files = database.files | {name: damaged(database.files[name], random.Random(case))}
                result = outcome(folder, database, files)
                assert name == LOG or result != "earlier", case
                assert name != INDEX or result == "newest", case  # SQLite makes a new index.
                results[result] += 1
            if LOG in database.files:
                files = with_old_page(database.files, random.Random(f"{kind}, {layout}, {count}"))
                results[outcome(folder, database, files)] += 1
        if LOG in database.files:
            results[outcome(folder, database, {MAIN: database.files[MAIN]})] += 1
    assert set(results) == {"newest", "earlier", "refused"}
    assert results.total() >= 60 * rounds


@pytest.mark.parametrize("kind", ["rlr", "contrast"])
def test_a_damaged_database_has_an_earlier_state_or_is_rejected(folder, kind):
    try_damages(folder, kind, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dlr", "window", "contrast"])
def test_none_of_a_thousand_damages_goes_unnoticed(folder, kind):
    try_damages(folder, kind, 6)


def test_a_log_cut_after_any_frame_never_mixes_the_pages_of_two_commits(folder):
    results = set()
    for batches in range(6, 10):  # The first commits after a checkpoint start a new page of the table, or do not.
        one = folder / str(batches)
        one.mkdir()
        database = build(one, "dlr", "checkpointed twice", batches=batches)
        log = database.files[LOG]
        for frames in range(30):  # The five commits after the first checkpoint.
            cut = {MAIN: database.files[MAIN], LOG: log[: LOG_HEADER + FRAME * frames]}
            results.add(outcome(one, database, cut))
    assert results == {"newest", "earlier", "refused"}
