"""A job: passes over a table, run locally or on a cluster, with results kept on disk until the job is done.

A stopped job resumes where it stopped: stored results are not computed again.
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
except ImportError:  # On Windows, nothing prevents a job from running twice at once.
    fcntl = None  # type: ignore[assignment]

BlockWork = Callable[[int, Iterable[RowBlock]], Arrays]
"""Returns the result of a part, given its number and its blocks of rows."""

Add = Callable[[Arrays, Arrays], Arrays]
Progress = Callable[[str, int, int], object]
"""Called with the name of a pass, the number of rows done, and the total number of rows."""


def no_progress(name: str, done: int, rows: int) -> None:
    """Ignore progress."""


IDENTITY, LOCK = "job.json", ".lock"
_UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Task:
    """Work on the parts of a table, which can be sent to another machine and called with the number of a part.

    Only the first pass may skip unreadable parts.
    """

    table: Table
    work: BlockWork
    is_first: bool

    def __call__(self, number: int, seen: Callable[[int], object] = lambda rows: None) -> Arrays:
        """Return the result of a part. `seen` is called with the number of rows of each block."""
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
    """Runs tasks. `sums_apart` is True if the runner should also add the results of groups of parts."""

    sums_apart: bool

    def run(self, task: Task, numbers: Sequence[int], seen: Callable[[int], object]) -> Iterator[tuple[int, Arrays]]:
        """Yield the number and the result of each of these parts, in any order."""

    def run_sums(
        self, task: Task, groups: Sequence[Sequence[int]], add: Add, seen: Callable[[int], object]
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield the number and the sum of each group, in any order. Within a group, results are added in turn."""


class Here:
    """Runs tasks in this process, one part after another, with all cores for each part."""

    sums_apart = False

    def run(self, task: Task, numbers: Sequence[int], seen: Callable[[int], object]) -> Iterator[tuple[int, Arrays]]:
        """Yield the number and the result of each of these parts."""
        for number in numbers:
            yield number, task(number, seen)

    def run_sums(
        self, task: Task, groups: Sequence[Sequence[int]], add: Add, seen: Callable[[int], object]
    ) -> Iterator[tuple[int, Arrays]]:
        """Yield the number and the sum of each group."""
        for place, group in enumerate(groups):
            yield place, in_turn((task(number, seen) for number in group), add)


@dataclass(frozen=True)
class Store:
    """A folder of results by pass and part. Without a folder nothing is stored."""

    folder: Path | None = None

    def has(self, name: str, number: int) -> bool:
        """Return whether a result is stored."""
        return self.folder is not None and self._path(name, number).exists()

    def read(self, name: str, number: int) -> Arrays | None:
        """Return a result, or None if it is missing or damaged."""
        if self.folder is None:
            return None
        try:
            return read_npz(self._path(name, number))
        except (ValueError, OSError):
            return None

    def write(self, name: str, number: int, arrays: Arrays) -> None:
        """Store a result."""
        if self.folder is not None:
            write_npz(self._path(name, number), arrays)

    def discard(self, name: str, number: int) -> None:
        """Remove a result."""
        if self.folder is not None:
            self._path(name, number).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the folder. The identity of the job and the lock are removed last."""
        if self.folder is not None and self.folder.is_dir():
            for file in sorted(self.folder.iterdir(), key=lambda file: (file.name == LOCK, file.name == IDENTITY)):
                file.unlink(missing_ok=True)
            with suppress(OSError):  # The same job may have started again.
                self.folder.rmdir()

    def _path(self, name: str, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}-{number:06}.npz"


@dataclass(frozen=True)
class Job:
    """Passes over a table, run by a runner, with results kept in a store."""

    table: Table
    runner: Runner = field(default_factory=Here)
    store: Store = field(default_factory=Store)
    progress: Progress = no_progress

    def results(self, name: str, work: BlockWork, *, is_first: bool = False) -> Iterator[Arrays]:
        """Yield the result of every part, in the order of the parts. The name identifies the pass."""
        task = Task(self.table, work, is_first)
        return self._in_order(name, range(len(self.table)), lambda left, seen: self.runner.run(task, left, seen))

    def total(self, name: str, work: BlockWork, add: Add, *, wide: bool = False) -> tuple[Arrays, Job]:
        """Return the sum of a first pass over all readable parts, and the job without the unreadable parts.

        A remote runner adds wide results where they are computed.
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
        """Yield the sums of groups of `FAN_IN` parts."""
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
        """Yield stored and newly computed results in the order of their numbers."""
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
            if number in stored:  # The stored result is damaged.
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
    """Open a job whose results are kept in a folder, if one is given, until the block succeeds.

    Invalid input removes the results too, because the input must change. After any other error the job can resume.
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
    """Claim a folder for the results of a job. Restore the folder if the input is invalid."""
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
    """Create a folder unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(f"{folder} must be a folder, got a file") from None


@contextmanager
def locked(folder: Path | None) -> Iterator[None]:
    """Create a folder and lock it against other processes during the block, if the system supports locks."""
    if folder is None or fcntl is None:
        if folder is not None:
            make_folder(folder)
        yield
        return
    with _lock(folder):
        yield


def _lock(folder: Path) -> BinaryIO:
    """Acquire the lock of a folder. Retry if the previous owner has just removed the lock or the folder."""
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
    """Return the identity of a job: its parts with their sizes and modification times, and its options."""
    own = {name: getattr(table, name) for name in ("called", "skip_bad_rows", "skip_bad_parts")}
    return {"format": VERSION, "parts": len(table), "files": digest(table.identity()), **own, **about}


def identity_of_base(base: Base) -> str:
    """Return a unique name for a base score. Functions get a random suffix, since two may share a name."""
    return base if isinstance(base, str) else f"{base_name(base)} {uuid4().hex}"


def digest(*things: Any) -> str:
    """Return a digest of plain values, arrays, `Outputs` and sequences of them."""
    hashed = sha256()
    for thing in things:
        if isinstance(thing, Outputs):
            for name, column in thing._columns().items():
                hashed.update(f"{name} {column.dtype} {column.shape}".encode())
                hashed.update(np.ascontiguousarray(column).data)
        elif isinstance(thing, np.ndarray):
            hashed.update(f"{thing.dtype} {thing.shape}".encode())
            hashed.update(np.ascontiguousarray(thing).data)
        elif isinstance(thing, dict):
            hashed.update(digest(*thing.items()).encode())
        elif isinstance(thing, tuple | list):
            hashed.update(digest(*thing).encode())
        else:
            hashed.update(repr(thing).encode())
    return hashed.hexdigest()


def check_same_job(folder: Path, identity: dict[str, Any]) -> None:
    """Record the identity of a job in its folder. Raise an error if the folder belongs to another job."""
    path = folder / IDENTITY
    if path.exists():
        try:
            stored = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            raise ValueError(f"{path} is damaged: remove the folder, or give another") from None
        if stored == identity:
            return
        what = ", ".join(key for key in identity if not isinstance(stored, dict) or stored.get(key) != identity[key])
        raise ValueError(
            f"{folder} holds results of another job, with a difference in {what}: give another folder, or remove it"
        )
    others = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    if others:
        raise ValueError(f"{folder} holds other files, such as {others[0]}: give a new or an empty folder")
    with replacing(check_writable(path)) as file:
        file.write(json.dumps(identity, indent=1).encode())
