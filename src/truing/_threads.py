"""One BLAS thread inside the kernels.

With two threads a tall-skinny product runs many times slower than with one. The setting belongs to
the whole process, so overlapping uses are counted: the first sets it, the last puts it back.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

import scipy.linalg  # noqa: F401  # SciPy brings a BLAS of its own, which must be loaded to be found.
from threadpoolctl import LibController, ThreadpoolController

_lock = Lock()
_users = 0
_before: list[int] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block with single-threaded BLAS; safe to nest and to use from many threads."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = [library.get_num_threads() for library in _libraries()]
            _set([1] * len(_before))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _set(_before)


def _set(counts: list[int]) -> None:
    for library, count in zip(_libraries(), counts, strict=True):
        library.set_num_threads(count)


def _forget() -> None:
    """Start afresh in a forked child, where the threads that were counted are not."""
    global _lock, _users
    _lock, _users = Lock(), 0


os.register_at_fork(after_in_child=_forget)


@cache
def _libraries() -> list[LibController]:
    # To find them takes a millisecond, to set them a few microseconds: less than a context of threadpoolctl's own.
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
