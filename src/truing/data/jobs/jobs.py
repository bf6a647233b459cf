"""A job: passes over a table, done here or elsewhere, whose results are kept on disk until it is over.

A job that was stopped, by whatever, goes on where it was: results that are there are not made again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from uuid import uuid4

import numpy as np

from ...outputs import Outputs
from ...saved import VERSION
from ...scores import Base, base_name
from ..drafts import AnyPath, check_writable, replacing
from ..npz import Arrays, read_npz, write_npz
from .passes import FAN_IN, in_turn, total
from .table import RowBlock, Table, UnreadableFileError, UnreadablePartError

try:
    import fcntl
except ImportError:  # Not on Windows, where nothing keeps a job from being run twice.
    fcntl = None  # type: ignore[assignment]

BlockWork = Callable[[int, Iterable[RowBlock]], Arrays]
"""What is done with a part, given its number and its rows."""

Add = Callable[[Arrays, Arrays], Arrays]
Progress = Callable[[str, int, int], object]
"""Told the name of a pass, the rows done in it, and all its rows."""


def no_progress(name: str, done: int, rows: int) -> None:
    """Tell nobody."""


IDENTITY, LOCK = "job.json", ".lock"
_UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Task:
    """A piece of work that can be sent to another machine: called with the number of a part.

    In the first pass, parts that cannot be read may be skipped.
    """

    table: Table
    work: BlockWork
    is_first: bool

    def __call__(self, number: int, seen: Callable[[int], object] = lambda rows: None) -> Arrays:
        """Return the work's result of a part, telling `seen` of the rows as they are read."""
        try:
            return self.work(number, self._blocks(number, seen))
        except (UnreadablePartError, UnreadableFileError) as error:
            if not (self.is_first and self.table.skip_bad_parts):
                raise
            return {_UNREADABLE: np.array(str(error))}

    def _blocks(self, number: int, seen: Callable[[int], object]) -> Iterator[RowBlock]:
        for block in self.table.blocks(number):
            yield block
            seen(len(block.numbers))


class Runner(Protocol):
    """Where work is done. `sums_apart` says whether sums of some parts should be made there too."""

    sums_apart: bool

    def run(self, task: Task, numbers: Sequence[int], seen: Callable[[int], object]) -> Iterator[tuple[int, Arrays]]:
        """Yield the number of each of these parts and its result, in any order."""

    def run_sums(
        self, task: Task, groups: Sequence[Sequence[int]], add: Add, seen: Callable[[int], object]
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield the number of each group and the sum of its parts' results, added in turn, in any order."""


class Here:
    """Parts are worked on one after another in this process, which uses all cores for each."""

    sums_apart = False

    def run(self, task: Task, numbers: Sequence[int], seen: Callable[[int], object]) -> Iterator[tuple[int, Arrays]]:
        """Yield the number of each of these parts and its result."""
        for number in numbers:
            yield number, task(number, seen)

    def run_sums(
        self, task: Task, groups: Sequence[Sequence[int]], add: Add, seen: Callable[[int], object]
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield the number of each group and its sum."""
        for place, group in enumerate(groups):
            yield place, in_turn((task(number, seen) for number in group), add)


@dataclass(frozen=True)
class Store:
    """A folder of results, by the pass and the part they are of; None keeps nothing."""

    folder: Path | None = None

    def has(self, name: str, number: int) -> bool:
        """Return whether there is a result."""
        return self.folder is not None and self._path(name, number).exists()

    def read(self, name: str, number: int) -> Arrays | None:
        """Return a result, None where there is none that is whole."""
        if self.folder is None:
            return None
        try:
            return read_npz(self._path(name, number))
        except (ValueError, OSError):
            return None

    def write(self, name: str, number: int, arrays: Arrays) -> None:
        """Keep a result."""
        if self.folder is not None:
            write_npz(self._path(name, number), arrays)

    def discard(self, name: str, number: int) -> None:
        """Forget a result."""
        if self.folder is not None:
            self._path(name, number).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all of it, once the job is over; what says of which job it is goes last."""
        if self.folder is not None and self.folder.is_dir():
            for file in sorted(self.folder.iterdir(), key=lambda file: (file.name == LOCK, file.name == IDENTITY)):
                file.unlink(missing_ok=True)
            with suppress(OSError):  # The same job may have been begun anew.
                self.folder.rmdir()

    def _path(self, name: str, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}-{number:06}.npz"


@dataclass(frozen=True)
class Job:
    """Passes over a table by a runner, their results kept in a store."""

    table: Table
    runner: Runner = field(default_factory=Here)
    store: Store = field(default_factory=Store)
    progress: Progress = no_progress

    def results(self, name: str, work: BlockWork, *, is_first: bool = False) -> Iterator[Arrays]:
        """Yield the work's result of every part, in the order of the parts; a name stands for one pass."""
        task = Task(self.table, work, is_first)
        return self._in_order(name, range(len(self.table)), lambda left, seen: self.runner.run(task, left, seen))

    def total(self, name: str, work: BlockWork, add: Add, *, wide: bool = False) -> tuple[Arrays, Job]:
        """Return the sum of a first pass over all parts that can be read, and the job without the others.

        Wide results are added where they are made, if that is elsewhere.
        """
        bad: dict[Path, str] = {}

        def readable() -> Iterator[Arrays]:
            for part, arrays in zip(self.table.parts, self.results(name, work, is_first=True), strict=True):
                if _UNREADABLE in arrays:
                    bad[part] = str(arrays[_UNREADABLE])
                else:
                    yield arrays

        if wide and self.runner.sums_apart and not self.table.skip_bad_parts:
            return total(self._sums_apart(name, work, add), add), self
        results = readable()
        first = next(results, None)
        if first is None:
            raise ValueError(f"a table must have one part that can be read, got none: {next(iter(bad.values()))}")
        whole = total(chain((first,), results), add)
        parts = tuple(part for part in self.table.parts if part not in bad)
        table = replace(self.table, parts=parts, unreadable=(*self.table.unreadable, *bad.values()))
        return whole, replace(self, table=table)

    def _sums_apart(self, name: str, work: BlockWork, add: Add) -> Iterator[Arrays]:
        """Yield the sums of so many parts at a time."""
        task, numbers = Task(self.table, work, is_first=True), range(len(self.table))
        groups = [numbers[start : start + FAN_IN] for start in range(0, len(numbers), FAN_IN)]

        def run(left: Sequence[int], seen: Callable[[int], object]) -> Iterator[tuple[int, Arrays]]:
            for place, arrays in self.runner.run_sums(task, [groups[number] for number in left], add, seen):
                yield left[place], arrays

        return self._in_order(f"{name}-group", range(len(groups)), run)

    def _in_order(
        self,
        name: str,
        numbers: Sequence[int],
        run: Callable[[Sequence[int], Callable[[int], object]], Iterator[tuple[int, Arrays]]],
    ) -> Iterator[Arrays]:
        """Yield results in the order of their numbers: those that are stored, and those that are made meanwhile."""
        done, rows = 0, sum(self.table.rows_of(number) for number in range(len(self.table)))

        def seen(more: int) -> None:
            nonlocal done
            done += more
            self.progress(name, done, rows)

        stored = {number for number in numbers if self.store.has(name, number)}
        coming = run([number for number in numbers if number not in stored], seen)
        waiting: dict[int, Arrays] = {}
        for number in numbers:
            kept = self.store.read(name, number) if number in stored else None
            if kept is not None:
                yield kept
                continue
            if number in stored:  # It is there, and damaged.
                coming = chain(run([number], seen), coming)
            while number not in waiting:
                made, arrays = next(coming)
                self.store.write(name, made, arrays)
                waiting[made] = arrays
            yield waiting.pop(number)


@contextmanager
def job_over(
    table: Table, folder: AnyPath | None, runner: Runner | None, progress: Progress, **about: Any
) -> Iterator[Job]:
    """Open a job whose results are kept in a folder, if one is given, until the block ends well.

    They are removed as well where the input will not do, since it must change; anything else may be tried again.
    """
    store = Store(None if folder is None else Path(folder))
    with locked(store.folder):
        if store.folder is not None:
            check_same_job(store.folder, identity_of(table, **about))
        try:
            yield Job(table, runner or Here(), store, progress)
        except (ValueError, TypeError):
            store.remove()
            raise
        store.remove()


@contextmanager
def results_in(folder: Path, identity: dict[str, Any]) -> Iterator[None]:
    """Take a folder for the results of a job; leave it as it was where the input will not do."""
    is_new = not folder.exists()
    make_folder(folder)
    before = set(folder.iterdir())
    check_same_job(folder, identity)
    try:
        yield
    except (ValueError, TypeError):
        if folder / IDENTITY not in before:
            for file in set(folder.iterdir()) - before:
                if file.is_file():
                    file.unlink()
            if is_new:
                with suppress(OSError):
                    folder.rmdir()
        raise


def make_folder(folder: Path) -> None:
    """Make a folder, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(f"{folder} must be a folder, got a file") from None


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Make a folder, and keep other processes from it as long as the block runs, where files can be locked."""
    if folder is None or fcntl is None:
        if folder is not None:
            make_folder(folder)
        yield
        return
    with _lock(folder):
        yield


def _lock(folder: Path) -> BinaryIO:
    """Return the folder's lock, held. Who held it before may have removed it, folder and all, just now."""
    while True:
        make_folder(folder)
        try:
            file = (folder / LOCK).open("wb")
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_nlink:
                return file
        except BlockingIOError:
            file.close()
            raise OSError(f"{folder} is in use: the same job runs elsewhere") from None
        file.close()


def identity_of(table: Table, **about: Any) -> dict[str, Any]:
    """Return what tells a job from others: the parts with their sizes and times, and what is done with them."""
    own = {name: getattr(table, name) for name in ("called", "skip_bad_rows", "skip_bad_parts")}
    return {"format": VERSION, "parts": len(table), "files": digest(table.identity()), **own, **about}


def identity_of_base(base: Base) -> str:
    """Return a name for a base score that no other has: two functions of one name cannot be told apart."""
    return base if isinstance(base, str) else f"{base_name(base)} {uuid4().hex}"


def digest(*things: Any) -> str:
    """Return a digest of plain values, arrays, `Outputs` and sequences of them."""
    found = sha256()
    for thing in things:
        if isinstance(thing, Outputs):
            for name, column in thing._columns().items():
                found.update(f"{name} {column.dtype} {column.shape}".encode())
                found.update(np.ascontiguousarray(column).data)
        elif isinstance(thing, np.ndarray):
            found.update(f"{thing.dtype} {thing.shape}".encode())
            found.update(np.ascontiguousarray(thing).data)
        elif isinstance(thing, dict):
            found.update(digest(*thing.items()).encode())
        elif isinstance(thing, tuple | list):
            found.update(digest(*thing).encode())
        else:
            found.update(repr(thing).encode())
    return found.hexdigest()


def check_same_job(folder: Path, identity: dict[str, Any]) -> None:
    """Say in a folder what job its files are of, or refuse it where they are of another."""
    path = folder / IDENTITY
    if path.exists():
        try:
            found = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            raise ValueError(f"{path} is damaged: remove the folder, or give another") from None
        if found == identity:
            return
        what = ", ".join(key for key in identity if not isinstance(found, dict) or found.get(key) != identity[key])
        raise ValueError(
            f"{folder} holds results of another job, with a difference in {what}: give another folder, or remove it"
        )
    others = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    if others:
        raise ValueError(f"{folder} holds other files, such as {others[0]}: give a new or an empty folder")
    with replacing(check_writable(path)) as file:
        file.write(json.dumps(identity, indent=1).encode())
