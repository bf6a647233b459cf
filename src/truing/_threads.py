"""Row blocks on all cores.

Work on many rows is cut into fixed blocks, which run on one thread pool; NumPy and BLAS release the interpreter lock
meanwhile. The calling thread adds the results in block order, so results do not depend on the number of threads.

Limits: a forked child starts its own pool, but it cannot continue a call that was running when the process forked.
After the main thread has ended, Python's pools accept no more work: join the threads that use truing, or set
`threads(1)`.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from functools import cache
from math import ceil
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ._blas import one_thread, pin_this_thread

Block = TypeVar("Block")
Part = TypeVar("Part")

# Work on fewer blocks than this stays on the calling thread.
FEWEST_BLOCKS = 4

# Number of blocks per thread submitted in advance. This bounds the memory of results that wait for an earlier block.
_AHEAD = 2

# The CPU limit of a Linux container (control groups, version 2): microseconds of CPU time per period.
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/cpu.max")

_chosen: int | None = None
_pool: tuple[tuple[int, int], ThreadPoolExecutor] | None = None  # ((process id, number of threads), pool)


class _Local(threading.local):
    """Settings of one thread. If `is_alone`, all work of the thread stays on it."""

    is_alone = False


_local = _Local()


def threads(n: int | None) -> None:
    """Set the number of threads that this process uses for many rows; None restores the default.

    The default is the environment variable TRUING_THREADS if it is set, otherwise the number of cores that this
    process or its container may use. Results are bitwise equal for every number of threads. With 1, all work stays on
    the calling thread.

    >>> threads(2)
    >>> threads(None)
    """
    global _chosen
    _chosen = None if n is None else _as_count(n, "n")


def count() -> int:
    """Return the number of threads that work on many rows."""
    if _chosen is not None:
        return _chosen
    named = os.environ.get("TRUING_THREADS", "").strip()
    if named:
        return _as_count(int(named) if named.isdecimal() else named, "TRUING_THREADS")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, container_cores(_CONTAINER_LIMIT) or cores)


def map_blocks(
    work: Callable[[Block], Part], blocks: Iterable[Block], *, fewest: int = FEWEST_BLOCKS, uses_blas: bool = True
) -> list[Part]:
    """Return `work(block)` of every block, in order. A single block that does not use BLAS skips all setup."""
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
    """Call `add(work(block))` for every block. If blocks fail, raise the error of the first one in block order.

    Parameters
    ----------
    work
        Runs in several threads at once, on one block each.
    blocks
        For example slices of rows. They must not depend on the number of threads.
    add
        Runs in the calling thread, in block order.
    fewest
        Work on fewer blocks than this stays on the calling thread.
    """
    waiting = list(blocks)
    is_alone = _local.is_alone or len(waiting) < max(fewest, 2)
    workers = 1 if is_alone else min(count(), len(waiting))
    with one_thread(), closing(_results(work, waiting, workers)) as parts:
        for part in parts:
            add(part)


@contextmanager
def alone() -> Iterator[None]:
    """Inside the `with` block, keep all work of the current thread on this thread."""
    before, _local.is_alone = _local.is_alone, True
    try:
        yield
    finally:
        _local.is_alone = before


def _results(work: Callable[[Block], Part], blocks: list[Block], workers: int) -> Generator[Part, None, None]:
    """Yield `work(block)` in block order. If closed early, cancel blocks not yet started and wait for the rest."""
    if workers == 1:
        yield from map(work, blocks)
        return
    floating_point_errors: Any = np.geterr()

    def run(block: Block) -> Part:
        with alone(), np.errstate(**floating_point_errors):
            return work(block)

    pool = _shared_pool()
    pending: deque[Future[Part]] = deque()
    try:
        for block in blocks:
            pending.append(pool.submit(run, block))
            if len(pending) == _AHEAD * workers:
                yield pending[0].result()
                pending.popleft()
        while pending:
            yield pending[0].result()
            pending.popleft()
    finally:
        wait([future for future in pending if not future.cancel()])


def _shared_pool() -> ThreadPoolExecutor:
    """Return the pool of this process. Calls that use a replaced pool can finish before its threads end."""
    global _pool
    key = os.getpid(), count()
    current = _pool
    if current is None or current[0] != key:
        _pool = current = key, ThreadPoolExecutor(key[1], "truing", initializer=pin_this_thread)
    return current[1]


@cache
def container_cores(limit: Path) -> int | None:
    """Return the number of cores that the container of this process may use, or None without a limit."""
    try:
        quota, period = limit.read_text().split()
        return None if quota == "max" else max(1, ceil(int(quota) / int(period)))
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _as_count(value: object, name: str) -> int:
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        kind = repr(value) if isinstance(value, str) else type(value).__name__
        raise TypeError(f"{name} must be a whole number of threads, got {kind}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return int(value)
