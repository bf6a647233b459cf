"""One BLAS thread inside the kernels.

With two threads a tall-skinny product runs many times slower than with one. The setting belongs to
the whole process, so overlapping uses are counted: the first sets it, the last puts it back.
"""

import os
from functools import cache
from threading import Lock

import scipy.linalg  # noqa: F401  # SciPy brings a BLAS of its own, which must be loaded to be found.
from threadpoolctl import LibController, ThreadpoolController

_lock = Lock()
_users = 0
_before: list[tuple[LibController, int]] = []  # The libraries that had more threads, and how many.


class one_thread:  # noqa: N801  # It reads as what it does, as those of contextlib do.
    """Run the block with single-threaded BLAS; safe to nest and to use from many threads."""

    def __enter__(self) -> None:
        global _users, _before
        with _lock:
            if _users == 0:
                counts = [(library, library.get_num_threads()) for library in _libraries()]
                _before = [(library, count) for library, count in counts if count != 1]
                for library, _ in _before:
                    library.set_num_threads(1)
            _users += 1

    def __exit__(self, *raised: object) -> None:
        global _users
        with _lock:
            _users = max(_users - 1, 0)  # A child forked in the block leaves it uncounted.
            if _users == 0:
                for library, count in _before:
                    library.set_num_threads(count)


def _forget() -> None:
    """Start afresh in a forked child, with the counts of before: of the threads that used one it has at most this."""
    global _lock, _users
    for library, count in _before if _users else ():
        library.set_num_threads(count)
    _lock, _users = Lock(), 0


os.register_at_fork(after_in_child=_forget)


@cache
def _libraries() -> list[LibController]:
    # To find them takes a millisecond, to set them a few microseconds: less than a context of threadpoolctl's own.
    return list(ThreadpoolController().select(user_api="blas").lib_controllers)
