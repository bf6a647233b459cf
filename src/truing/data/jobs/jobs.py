"""A job: passes over a table, run in this process or on a cluster, with results kept on disk until the job is done.

A stopped job resumes where it stopped: stored results are not computed again. Results of parts are added in the order
of the parts, `FAN_IN` at a time, so results are bit-identical on one machine and on a cluster.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from hashlib import sha256
from itertools import chain
from operator import add
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar
from uuid import uuid4

import numpy as np
from numpy.typing import ArrayLike

from ...contrast import Candidate, TailCounts
from ...outputs import Outputs
from ...run import Block, PartWork, Progress, no_progress
from ...saved import VERSION, as_arrays, from_arrays
from ...scores import Base, base_name
from ..drafts import AnyPath, check_writable, replacing
from ..npz import read_npz, write_npz
from .table import Table, UnreadableFileError, UnreadablePartError

try:
    import fcntl
except ImportError:  # On Windows, nothing prevents a job from running twice at once.
    fcntl = None  # type: ignore[assignment]

Result = TypeVar("Result")
Seen = Callable[[int], object]
"""Called with the number of rows that were read."""

# Number of results that are added at each level of the tree of sums.
FAN_IN = 16

# Above this number of features, the workers of a cluster add the sums of `FAN_IN` parts.
WIDE = 512

IDENTITY, LOCK = "_job.json", ".lock"
_RESULTS, _DRAFTS = f"*-{6 * '[0-9]'}*.npz", ".truing-*.draft"
_UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Task:
    """Work on the parts of a table. A task can be sent to another machine and is called with the number of a part.

    Only the first pass may skip unreadable parts.
    """

    table: Table
    work: PartWork
    is_first: bool = False

    def __call__(self, number: int, seen: Seen = lambda rows: None) -> Any:
        """Return the result of a part. `seen` is called with the number of rows of each block."""
        try:
            return self.work(number, self._blocks(number, seen))
        except (UnreadablePartError, UnreadableFileError) as error:
            if not (self.is_first and self.table.skip_bad_parts):
                raise
            return {_UNREADABLE: str(error)}

    def _blocks(self, number: int, seen: Seen) -> Iterator[Block]:
        for block in self.table.blocks(number):
            yield block
            seen(len(block.numbers))


class Runner(Protocol):
    """Runs tasks. `is_remote` is true if results move between machines."""

    is_remote: bool

    def run(self, task: Task, groups: Sequence[Sequence[int]], seen: Seen) -> Iterator[tuple[int, Any]]:
        """Yield the place of each group of parts, in any order, and the sum of the results of its parts."""


class InProcess:
    """Runs tasks in this process, one part after another, with all cores for each part."""

    is_remote = False

    def run(self, task: Task, groups: Sequence[Sequence[int]], seen: Seen) -> Iterator[tuple[int, Any]]:
        """Yield the place and the sum of each group."""
        for place, group in enumerate(groups):
            yield place, in_turn(task(number, seen) for number in group)


@dataclass(frozen=True)
class Store:
    """A folder of results by pass and part. Without a folder nothing is stored."""

    folder: Path | None = None

    def has(self, name: str, number: int) -> bool:
        """Return whether a result is stored."""
        return self.folder is not None and self._path(name, number).exists()

    def read(self, name: str, number: int) -> Any:
        """Return a result, or None if it is missing or damaged."""
        if self.folder is None:
            return None
        try:
            path = self._path(name, number)
            return from_arrays(read_npz(path), path).value
        except (ValueError, OSError):
            return None

    def write(self, name: str, number: int, result: Any) -> None:
        """Store a result."""
        if self.folder is not None:
            write_npz(self._path(name, number), as_arrays("result", result))

    def discard(self, name: str, number: int) -> None:
        """Remove a result."""
        if self.folder is not None:
            self._path(name, number).unlink(missing_ok=True)

    def is_empty(self) -> bool:
        """Return whether the folder has nothing but its lock."""
        return self.folder is not None and {file.name for file in self.folder.iterdir()} <= {LOCK}

    def remove(self) -> None:
        """Remove all results, then the identity and the lock, and then the folder if it has no other files.

        In this order, an interrupted removal can be repeated.
        """
        if self.folder is not None and self.folder.is_dir():
            for file in (*self.folder.glob(_RESULTS), *self.folder.glob(_DRAFTS)):
                file.unlink(missing_ok=True)
            for name in (IDENTITY, LOCK):
                (self.folder / name).unlink(missing_ok=True)
            with suppress(OSError):  # The folder has other files, or the same job has started again.
                self.folder.rmdir()

    def _path(self, name: str, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{name}-{number:06}.npz"


@dataclass(frozen=True)
class Job:
    """Passes over a table, run by a runner, with results kept in a store."""

    table: Table
    runner: Runner = field(default_factory=InProcess)
    store: Store = field(default_factory=Store)
    progress: Progress = no_progress

    @property
    def widths(self) -> dict[str, int]:
        """The number of entries per row of each column."""
        return self.table.widths

    @property
    def part_rows(self) -> tuple[int, ...]:
        """The number of rows of each part, including bad rows."""
        return self.table.part_rows

    def first_rows(self, count: int) -> Outputs | None:
        """Return the first rows of the table."""
        return self.table.first_rows(count)

    def tail_counts(self, candidates: Sequence[Candidate]) -> TailCounts:
        """Return the number of rows in the tail of each candidate, counted in one pass."""
        counts = TailCounts.none(candidates)
        for result in self.results("base", CountTails(tuple(candidates)), is_first=True):
            if not is_unreadable(result):
                counts = counts.plus(TailCounts(*result))
        return counts

    def results(self, name: str, work: PartWork, *, is_first: bool = False) -> Iterator[Any]:
        """Yield the result of every part, in the order of the parts. `name` identifies the pass over the table."""
        groups = [[number] for number in range(len(self.table))]
        return self._in_order(name, Task(self.table, work, is_first), groups)

    def total(self, name: str, work: PartWork) -> Any:
        """Return the sum of the results of all parts."""
        return total(self.results(name, work))

    def first_total(self, name: str, work: PartWork) -> tuple[Any, Job]:
        """Return the sum of the results of all readable parts, and the job without the unreadable parts."""
        if self.runner.is_remote and self.table.widths["features"] > WIDE and not self.table.skip_bad_parts:
            numbers = range(len(self.table))
            groups = [numbers[start : start + FAN_IN] for start in range(0, len(numbers), FAN_IN)]
            return total(self._in_order(f"{name}-group", Task(self.table, work), groups)), self
        bad: dict[int, str] = {}

        def readable() -> Iterator[Any]:
            for number, result in enumerate(self.results(name, work, is_first=True)):
                if is_unreadable(result):
                    bad[number] = unreadable_reason(result)
                else:
                    yield result

        results = readable()
        first = next(results, None)
        if first is None:
            raise ValueError(f"no part of the table can be read: {next(iter(bad.values()))}")
        total_result = total(chain((first,), results))
        table = self.table.only([number for number in range(len(self.table)) if number not in bad])
        table = replace(table, unreadable=(*table.unreadable, *bad.values()))
        return total_result, replace(self, table=table)

    def _in_order(self, name: str, task: Task, groups: Sequence[Sequence[int]]) -> Iterator[Any]:
        """Yield stored and newly computed results of the groups in order."""
        rows = sum(self.table.part_rows)
        stored = {place for place in range(len(groups)) if self.store.has(name, place)}
        done = sum(self.table.part_rows[number] for place in stored for number in groups[place])

        def seen(more: int) -> None:
            nonlocal done
            done += more
            self.progress(name, done, rows)

        def run(places: Sequence[int]) -> Iterator[tuple[int, Any]]:
            for made, result in self.runner.run(task, [groups[place] for place in places], seen):
                yield places[made], result

        coming = run([place for place in range(len(groups)) if place not in stored])
        waiting: dict[int, Any] = {}
        for place in range(len(groups)):
            kept = self.store.read(name, place) if place in stored else None
            if kept is not None:
                yield kept
                continue
            if place in stored:  # The stored result is damaged.
                coming = chain(run([place]), coming)
            while place not in waiting:
                made, result = next(coming)
                self.store.write(name, made, result)
                waiting[made] = result
            yield waiting.pop(place)


def is_unreadable(result: Any) -> bool:
    """Return whether a result of the first pass marks an unreadable part."""
    return isinstance(result, dict) and _UNREADABLE in result


def unreadable_reason(result: Any) -> str:
    """Return why a part cannot be read, from a result that `is_unreadable` recognises."""
    return str(result[_UNREADABLE])


@dataclass(frozen=True, eq=False)
class CountTails:
    """Work on a part: count its rows in the tail of each candidate."""

    candidates: tuple[Candidate, ...]

    def __call__(self, number: int, blocks: Iterable[Block]) -> TailCounts:
        """Return the counts of a part."""
        counts = TailCounts.none(self.candidates)
        for block in blocks:
            counts = counts.plus(TailCounts.of(block.outputs, self.candidates))
        return counts


def total(results: Iterable[Result]) -> Result:
    """Return the sum of all results, added as a tree: `FAN_IN` at a time, then `FAN_IN` of these sums, and so on.

    >>> total(["a", "b", "c"])
    'abc'
    """
    levels: list[list[Result]] = [[]]
    for result in results:
        levels[0].append(result)
        for height in range(len(levels)):
            if len(levels[height]) == FAN_IN:
                _carry(levels, height)
    for height in range(len(levels)):  # The last carry may add a level.
        if levels[height] and height + 1 < len(levels):
            _carry(levels, height)
    if not levels[-1]:
        raise ValueError("there must be at least one result, got none")
    return in_turn(levels[-1])


def in_turn(results: Iterable[Result]) -> Result:
    """Return the sum of the results, added one after another."""
    return reduce(add, results)


def _carry(levels: list[list[Result]], height: int) -> None:
    """Move the sum of a level to the level above."""
    if height + 1 == len(levels):
        levels.append([])
    levels[height + 1].append(in_turn(levels[height]))
    levels[height].clear()


@contextmanager
def job_over(
    table: Table, folder: AnyPath | None, runner: Runner | None, progress: Progress, **about: Any
) -> Iterator[Job]:
    """Open a job whose results are kept in `folder`, if given, until the `with` block succeeds.

    Results of invalid input are removed, too, because the input must change. After any other error, the job can resume.
    """
    store = Store(None if folder is None else Path(folder))
    with locked(store.folder):
        if store.folder is not None:
            check_same_job(store.folder, identity_of(table, **about))
        try:
            yield Job(table, runner or InProcess(), store, progress)
        except (ValueError, TypeError):
            store.remove()
            raise
        store.remove()


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
            raise OSError(f"{folder} is in use by another process that runs the same job") from None
        file.close()


def identity_of(table: Table, **about: Any) -> dict[str, Any]:
    """Return the identity of a job: its parts with their sizes and modification times, and its options."""
    return {
        "format": VERSION,
        "parts": len(table),
        "files": digest(table.identity()),
        **identity_of_columns(table),
        "skip_bad_rows": table.skip_bad_rows,
        "skip_bad_parts": table.skip_bad_parts,
        **about,
    }


def identity_of_columns(table: Table) -> dict[str, Any]:
    """Return the columns that a job reads, as part of its identity."""
    return {"called": table.called, "ids": table.ids}


def identity_of_base(base: Base | None) -> str | None:
    """Return a unique name for a base score. Functions get a random suffix, because two functions may share a name."""
    return base if base is None or isinstance(base, str) else f"{base_name(base)} {uuid4().hex}"


def digest_of_reference(reference: Outputs | None, groups: ArrayLike | None) -> str:
    """Return a digest of reference rows and their groups."""
    return digest(reference, None if groups is None else np.asarray(groups).tolist())


def digest(*things: Any) -> str:
    """Return a digest of plain values, arrays of numbers, `Outputs`, and lists and dicts of them."""
    hashed = sha256()
    for thing in things:
        # Digests have equal lengths, so different lists give different bytes.
        hashed.update(f"{_digest_of_one(thing)};".encode())
    return hashed.hexdigest()


def _digest_of_one(thing: Any) -> str:
    if isinstance(thing, Outputs):
        return digest(*thing._columns().items())
    if isinstance(thing, dict):
        return digest("dict", *thing.items())
    if isinstance(thing, tuple | list):
        return digest("list", *thing)
    if isinstance(thing, np.ndarray):
        content = np.ascontiguousarray(thing).tobytes()
        return sha256(f"{thing.dtype} {thing.shape} ".encode() + content).hexdigest()
    if isinstance(thing, np.generic):
        thing = thing.item()
    if thing is None or isinstance(thing, str | int | float):
        return sha256(f"{type(thing).__name__} {thing!r}".encode()).hexdigest()
    raise TypeError(f"a job must have options of plain values and arrays, got {type(thing).__name__}")


def recorded(folder: Path) -> dict[str, Any]:
    """Return the identity of the job that a folder belongs to, or an empty dict."""
    try:
        stored = json.loads((folder / IDENTITY).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def check_same_job(folder: Path, identity: dict[str, Any]) -> bool:
    """Record the identity of a job in its folder, and return whether the folder had no identity before.

    Raise an error if the folder belongs to another job or has other content.
    """
    path = folder / IDENTITY
    if path.exists():
        try:
            stored = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            raise ValueError(f"{path} is damaged: remove the folder, or give another folder") from None
        if stored == identity:
            return False
        raise ValueError(_other_job(folder, stored, identity))
    others = sorted(file.name for file in folder.iterdir() if not file.name.startswith("."))
    if others:
        raise ValueError(f"{folder} must be a new or empty folder, got one with other files, such as {others[0]}")
    with replacing(check_writable(path)) as file:
        file.write(json.dumps(identity, indent=1).encode())
    return True


def _other_job(folder: Path, stored: Any, identity: dict[str, Any]) -> str:
    """Return the error message for a folder that holds results of another job."""
    stored = stored if isinstance(stored, dict) else {}
    different = [key for key in identity if stored.get(key) != identity[key]]
    if "method" in different:
        different = ["method"]
    readable = [key for key in different if key in ("method", "base", "rate", "kind", "called", "ids", "parts")]
    values = [f"{key} {stored.get(key)} there, {identity[key]} here" for key in readable]
    message = f"{folder} holds results of another job, with a difference in {', '.join(different)}"
    message += f" ({'; '.join(values)})" if values else ""
    if set(different) <= {"parts", "files"}:
        return f"{message}: give another folder, or decide new parts with a saved detector and truing decide"
    return f"{message}: give another folder"
