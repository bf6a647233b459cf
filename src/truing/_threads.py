"""Row blocks over the cores.

Work on many rows is cut into fixed blocks, and a few threads, the calling one among them, take the blocks in turn:
NumPy and BLAS let other threads run meanwhile. What the blocks give is added up in the order of the blocks, whichever
thread was first, so that no bit of a result depends on the number of threads. Each thread has one BLAS thread.

Threads live as long as the call they help with, be it one pass over the rows or many (`kept_helpers`), so that there
is nothing to lose in a fork or to end with the interpreter. Errors are those of a loop: that of the first block that
fails.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from math import ceil
from numbers import Integral
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

import numpy as np

from ._blas import one_thread

Block = TypeVar("Block")
Part = TypeVar("Part")

# Fewer blocks are done before another thread has begun.
FEWEST_BLOCKS = 4

# Blocks for each thread that may be begun before the first of them is added.
_AHEAD = 2

# A helper that is asked for nothing for so long ends, should an interrupt have kept its caller from ending it.
_PATIENCE_SECONDS = 1.0

# Bytes up to which freed arrays are kept for the next ones: those of a block, but for rows of thousands of columns.
_LARGEST_KEPT = 2**23

# What Linux says of a container's processors (control groups, version 2): microseconds of them in so many of the clock.
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/cpu.max")

_chosen: int | None = None
_here = threading.local()  # Whether this thread works on blocks, who helps it, and who watches it.
_starting = threading.RLock()  # Reentrant, for signal handlers.


def threads(n: int | None) -> None:
    """Work on many rows with `n` threads from now on, in this process; with None as many as by default.

    The default is what the variable TRUING_THREADS says, or else the cores that this process may use, or the share of
    them that its container has. No bit of a result depends on the number. With 1 everything stays on the thread that
    calls.

    >>> threads(2)
    >>> threads(None)
    """
    global _chosen
    _chosen = None if n is None else _as_count(n, "n")


def count() -> int:
    """Return how many threads work on many rows."""
    if _chosen is not None:
        return _chosen
    named = os.environ.get("TRUING_THREADS", "").strip()
    if named:
        return _as_count(int(named) if named.isdecimal() else named, "TRUING_THREADS")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    container = _cores_of_container(_CONTAINER_LIMIT)
    return cores if container is None else min(cores, container)


def map_blocks(
    work: Callable[[Block], Part], blocks: Iterable[Block], *, fewest: int = FEWEST_BLOCKS, uses_blas: bool = True
) -> list[Part]:
    """Return `work` of every block, in order; `fewest` as in `add_blocks`.

    Work that does not use BLAS may say so: of one block it is then done at once.
    """
    waiting = list(blocks)
    if len(waiting) == 1 and not uses_blas:
        return [work(waiting[0])]
    parts: list[Part] = []
    add_blocks(work, waiting, parts.append, fewest=fewest)
    return parts


def add_blocks(
    work: Callable[[Block], Part],
    blocks: Iterable[Block],
    add: Callable[[Part], object],
    *,
    fewest: int = FEWEST_BLOCKS,
) -> None:
    """Do `work` on every block, and `add` what it gives, one at a time and in the order of the blocks.

    Parameters
    ----------
    work
        What several threads may do at once, each on a block of its own.
    blocks
        Such as slices of rows; they must not depend on the number of threads.
    add
        Called for each part, in any of the threads.
    fewest
        With fewer blocks, or within work of another call, all stays on the calling thread.
    """
    waiting = list(blocks)
    is_working = getattr(_here, "is_working", False)
    watcher: _Watcher | None = getattr(_here, "watcher", None)
    if watcher is not None and not is_working:
        add = watcher.told(add, len(waiting))
    is_alone = is_working or len(waiting) < max(fewest, 2)
    workers = 1 if is_alone else min(count(), len(waiting))
    with one_thread():
        if workers > 1:
            with kept_helpers() as helpers:
                _Shared(work, waiting, add, workers).run(helpers.some(workers - 1))
            return
        for block in waiting:
            add(work(block))


@contextmanager
def kept_helpers() -> Iterator["_Helpers"]:
    """Keep the threads that help this one with a pass over rows for the next passes, as long as the block runs.

    To start a thread and to wait for its end take as long as a small block does, and many short passes feel it.
    """
    outer: _Helpers | None = getattr(_here, "helpers", None)
    if outer is not None:
        yield outer
        return
    helpers = _here.helpers = _Helpers()
    try:
        yield helpers
    finally:
        _here.helpers = None
        helpers.end()


@contextmanager
def alone() -> Iterator[None]:
    """Keep the work of this thread on it, as long as the block runs: others have the other cores."""
    before, _here.is_working = getattr(_here, "is_working", False), True
    try:
        yield
    finally:
        _here.is_working = before


@contextmanager
def watched(tell: Callable[[int, int, int], object]) -> Iterator[None]:
    """Tell how far the work that this thread calls for is, as long as the block runs.

    `tell` is called in any thread, one call at a time, with the number of the pass over rows, the blocks done in it,
    and all its blocks.
    """
    before = getattr(_here, "watcher", None)
    _here.watcher = _Watcher(tell)
    try:
        yield
    finally:
        _here.watcher = before


class _Watcher:
    """Counts passes over rows, and the blocks of each."""

    def __init__(self, tell: Callable[[int, int, int], object]) -> None:
        self._tell = tell
        self._passes = 0

    def told(self, add: Callable[[Part], object], blocks: int) -> Callable[[Part], object]:
        """Return what adds a part and tells that it did."""
        self._passes += 1
        number, done = self._passes, 0

        def add_and_tell(part: Part) -> None:
            nonlocal done
            add(part)
            done += 1
            self._tell(number, done, blocks)

        return add_and_tell


class _Helper(threading.Thread):
    """A thread that takes blocks beside the one that called, of one pass after another."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._passes: SimpleQueue[_Shared[Any, Any] | None] = SimpleQueue()

    def ask(self, blocks: "_Shared[Any, Any] | None") -> None:
        """Ask for help with these blocks, or for none any more."""
        self._passes.put(blocks)

    def run(self) -> None:
        with suppress(Empty):
            while (blocks := self._passes.get(timeout=_PATIENCE_SECONDS)) is not None:
                blocks.help()
                del blocks  # Whoever called may want the memory while this thread waits.


class _Helpers:
    """The helpers of one thread."""

    def __init__(self) -> None:
        self._all: list[_Helper] = []

    def some(self, wanted: int) -> list[_Helper]:
        """Return some helpers, old and new: all calls in the process together have no more than `count` says."""
        self._all = [helper for helper in self._all if helper.is_alive()]  # Those of a forked child's parent are not.
        with _starting:
            alive = sum(isinstance(thread, _Helper) for thread in threading.enumerate())
            try:
                for _ in range(min(wanted - len(self._all), count() - 1 - alive)):
                    helper = _Helper()
                    helper.start()
                    self._all.append(helper)
            except RuntimeError:
                pass  # There can be no more threads, and there need not be.
        return self._all[:wanted]

    def end(self) -> None:
        for helper in self._all:
            helper.ask(None)
        for helper in self._all:
            if helper.is_alive():
                helper.join(_PATIENCE_SECONDS)


class _Shared(Generic[Block, Part]):
    """Blocks that several threads take from, and parts that wait for their turn to be added.

    1. A thread takes the next block and works on it.
    2. It puts the part among those that are done.
    3. Unless another thread is doing so, it adds the parts whose turn has come.
    """

    def __init__(
        self, work: Callable[[Block], Part], blocks: list[Block], add: Callable[[Part], object], workers: int
    ) -> None:
        self._work = work
        self._blocks = blocks
        self._add = add
        self._workers = workers
        self._errors: Any = np.geterr()
        # Entered by itself: up to Python 3.13 an interrupt cannot come between a lock's own entry and what it guards,
        # as it can in the condition's, which is a function of Python's.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._helping = 0
        self._taken = 0
        self._added = 0
        self._done: dict[int, tuple[Part, None] | tuple[None, BaseException]] = {}
        self._is_adding = False
        self._is_over = False
        self._error: BaseException | None = None

    def run(self, helpers: list[_Helper]) -> None:
        try:
            for helper in helpers:
                helper.ask(self)
            self._take_blocks()
            self._wait_for_helpers()
        finally:  # An interrupt may come at any time.
            self._stop(None)
            self._wait_for_helpers()
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # Its traceback holds this object.

    def help(self) -> None:
        """Take blocks beside the caller, who waits for all who began before the last block was done, and no others."""
        with self._lock:
            if self._is_over:
                return
            self._helping += 1
        try:
            with one_thread(), np.errstate(**self._errors):
                self._take_blocks()
        except BaseException as error:  # Whoever called is to have it.
            self._stop(error)
        finally:
            with self._lock:
                self._helping -= 1
                self._changed.notify_all()

    def _wait_for_helpers(self) -> None:
        with self._lock:
            while self._helping:
                self._changed.wait()

    def _take_blocks(self) -> None:
        _here.is_working = True
        try:
            while (number := self._next()) is not None:
                try:
                    self._done[number] = self._work(self._blocks[number]), None
                except Exception as error:
                    self._done[number] = None, error
                self._add_in_order()
        finally:
            _here.is_working = False

    def _next(self) -> int | None:
        """Return the number of a block to work on, when it is not too far ahead of those that were added."""
        with self._lock:
            while not self._is_over and self._taken - self._added >= _AHEAD * self._workers:
                self._changed.wait()
            if self._is_over or self._taken == len(self._blocks):
                return None
            self._taken += 1
            return self._taken - 1

    def _add_in_order(self) -> None:
        with self._lock:
            if self._is_adding:
                return  # Whoever does so will find this part as well.
            self._is_adding = True
        while (part := self._next_part()) is not None:
            try:
                if part[1] is not None:
                    raise part[1]
                self._add(part[0])
            except Exception as error:
                self._stop(error)
            with self._lock:
                self._added += 1
                self._changed.notify_all()

    def _next_part(self) -> tuple[Part, None] | tuple[None, BaseException] | None:
        with self._lock:
            self._is_adding = not self._is_over and self._added in self._done
            return self._done.pop(self._added) if self._is_adding else None

    def _stop(self, error: BaseException | None) -> None:
        with self._lock:
            if not self._is_over:
                self._error = error
            self._is_over = True
            self._changed.notify_all()


def _after_fork_in_child() -> None:
    global _starting
    _starting = threading.RLock()  # Another thread may have held the old one.


if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _keep_freed_memory() -> None:
    """Have glibc's malloc keep what a block's arrays free, for those of the next block.

    This changes how the whole process keeps freed memory, that of other libraries too. At first glibc gives arrays of
    128 KiB or more back to the system, and each new one has to be mapped and zeroed, a page at a time and one thread
    after another. Once an array has been freed, others up to its size come from the heap, of which up to twice that
    size may stay free at the end (mallopt(3), M_MMAP_THRESHOLD). The array here is never written to, and so costs
    nothing. A threshold that was set by MALLOC_MMAP_THRESHOLD_ stays; other C libraries are left as they are.
    """
    np.empty(_LARGEST_KEPT, dtype=np.uint8)


_keep_freed_memory()


@cache
def _cores_of_container(limit: Path) -> int | None:
    """Return how many cores the container of this process may use, if that is limited: more threads would only wait."""
    try:
        quota, period = limit.read_text().split()
        return None if quota == "max" else max(1, ceil(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):  # There is no such file, or it says something else.
        return None


def _as_count(value: object, name: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        kind = repr(value) if isinstance(value, str) else type(value).__name__
        raise TypeError(f"{name} must be a whole number of threads, got {kind}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)
