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
from threadpoolctl import ThreadpoolController

_lock = Lock()
_users = 0
_limit = None


@contextmanager
def one_thread() -> Iterator[None]:
    """Run the block with single-threaded BLAS; safe to nest and to use from many threads."""
    global _users, _limit
    with _lock:
        if _users == 0:
            _limit = _controller().limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _limit.restore_original_limits()


def _forget() -> None:
    """Start afresh in a forked child, where the threads that were counted are not."""
    global _lock, _users
    _lock, _users = Lock(), 0


os.register_at_fork(after_in_child=_forget)


@cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # Costs a millisecond to make and a fiftieth of that to use.
