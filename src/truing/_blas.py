"""Single-threaded BLAS while row blocks are processed.

Row blocks already run on all cores (`_threads`). Additional BLAS threads make the product of a tall, narrow matrix
several times slower.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from threadpoolctl import LibController

_lock = RLock()
_users = 0
_restored: list[tuple["LibController", int]] = []


@contextmanager
def one_thread() -> Iterator[None]:
    """Run a `with` block with single-threaded BLAS. Blocks may be nested and may overlap in several threads.

    The first block to begin sets every BLAS library to one thread. The last block to end restores the earlier numbers
    of threads.

    This setting only affects speed. It is not reliable in these cases:

    - Other code changes the number of BLAS threads while a block runs. The last block to end overwrites the change.
    - Another thread holds threadpoolctl's control over OpenBLAS (from version 3.8 on). OpenBLAS keeps its setting.
    - A BLAS library is loaded after the first block. This library keeps its number of threads.
    - A build has a separate setting for each calling thread (OpenBLAS with OpenMP), and blocks overlap in several
      threads. The setting changes only in the first thread and is restored only in the last.
    - An interrupt arrives at the beginning or end of a block, or the process forks while another thread is in a block.
      BLAS may then stay at one thread for the rest of the process. With many short blocks this is not rare.
    """
    global _users
    with _lock:
        _users += 1
        if _users == 1:
            _restored[:] = [(library, n) for library in _libraries() if (n := library.get_num_threads()) != 1]
            _set_threads([(library, 1) for library, _ in _restored])
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _set_threads(_restored)


def pin_this_thread() -> None:
    """Set one BLAS thread for the current thread permanently, in builds with a setting for each thread."""
    with one_thread():
        _set_threads([(library, 1) for library in _libraries() if library.get_num_threads() != 1])


@cache
def _libraries() -> list["LibController"]:
    """Return the BLAS libraries whose number of threads can be read and set."""
    import scipy.linalg  # noqa: F401  # SciPy has a BLAS library of its own, which must be loaded to be found.
    from threadpoolctl import ThreadpoolController

    loaded = ThreadpoolController().select(user_api="blas").lib_controllers
    return [library for library in loaded if library.get_num_threads() is not None]


def _set_threads(numbers: list[tuple["LibController", int]]) -> None:
    for library, n in numbers:
        library.set_num_threads(n)
    _release_control()()


@cache
def _release_control() -> Callable[[], object]:
    """Return a function that allows other threads to set the number of OpenBLAS threads.

    Since threadpoolctl 3.8, only one thread has this right until the right is released.
    """
    import threadpoolctl

    return getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", lambda: None)


if hasattr(os, "register_at_fork"):  # A child must not inherit a lock that another thread holds.
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
