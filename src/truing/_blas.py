"""One BLAS thread inside the kernels.

With two threads a tall-skinny product runs many times slower than with one. Where the setting belongs to the whole
process, overlapping uses share it: the first pins it, the last puts it back. Where it belongs to a thread, each
thread does so for itself.

The libraries are found by threadpoolctl and set by their own functions, since threadpoolctl lets one thread at a
time set OpenBLAS (from 3.8 on) and ignores the others. Nothing here may be left half done by a signal: a handler
can run between any two steps, and use `one_thread` itself or raise.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from threading import RLock, Thread, get_ident, local
from typing import TYPE_CHECKING
from weakref import ref

if TYPE_CHECKING:
    from threadpoolctl import LibController

# What openblas_get_parallel answers of a build whose threads are OpenMP's.
_OPENMP = 2


class one_thread:  # noqa: N801  # It reads as what it does, as those of contextlib do.
    """Run the block with single-threaded BLAS, in any thread, nested or overlapping; make a new one for each block."""

    __slots__ = ("__weakref__", "_joined")

    def __init__(self) -> None:
        self._joined: tuple[tuple[_Pins, _Pin], ...] = ()

    def __enter__(self) -> None:
        try:
            with _lock:
                for pins in _all_pins():
                    pins.join(self)
        except BaseException:
            self._leave()
            raise

    def __exit__(self, *raised: object) -> None:
        try:
            self._leave()
        finally:
            if self._joined:
                self._leave()

    def _leave(self) -> None:
        if not self._joined:
            return
        with _lock:
            for pins, pin in self._joined:
                pins.leave(pin, self)
            self._joined = ()


@dataclass(frozen=True, eq=False)
class Library:
    """A BLAS library's own functions that tell and set how many threads it uses, of the process or of one thread."""

    get: Callable[[], int]
    set: Callable[[int], object]
    is_per_thread: bool


@dataclass(eq=False, slots=True)
class _Pin:
    """The counts that were not one when it was set to one, and the blocks that rely on it with their threads."""

    before: list[tuple[Library, int]]
    users: dict["ref[one_thread]", int] = field(default_factory=dict)

    def is_in_use(self) -> bool:
        # An interrupt just before `__exit__` does anything leaves a block that ended without leaving.
        return any(user() is not None for user in list(self.users))

    def release(self) -> None:
        for library, count in self.before:
            if library.get() == 1:  # Otherwise someone else has set it since, and has the last word.
                library.set(count)


class _Pins:
    """The pins on the libraries of the process, or of one thread; the latest last.

    There is one as long as only `one_thread` sets the libraries. When a block begins and finds that someone else has
    set them since, it adds a pin, released when the last block that relies on it ends. Each step leaves a state from
    which the next `leave` finds its way: what a pin will restore is noted before the libraries are set, it is
    forgotten after they are put back, and to leave twice is to leave once.
    """

    def __init__(self, libraries: list[Library], thread: int | None = None) -> None:
        self.libraries = libraries
        self.thread = thread
        self._stack: list[_Pin] = []

    def join(self, user: one_thread) -> None:
        self._release_unused()
        latest = self._stack[-1:]
        before = [(library, count) for library in self.libraries if (count := library.get()) != 1]
        if not before:
            if latest:
                self._add_user(latest[0], user)
            return  # With no pin there is nothing to put back.
        pin = _Pin(before)
        self._add_user(pin, user)
        self._stack.append(pin)
        for library, _ in before:
            library.set(1)

    def leave(self, pin: _Pin, user: one_thread) -> None:
        pin.users.pop(ref(user), None)
        self._release_unused()

    def leave_to_this_thread(self) -> None:
        """Drop every use by another thread: a forked child has only the one that forked."""
        for pin in self._stack:
            for user, thread in list(pin.users.items()):
                if thread != get_ident():
                    del pin.users[user]
        self._release_unused()

    def _add_user(self, pin: _Pin, user: one_thread) -> None:
        user._joined += ((self, pin),)
        pin.users[ref(user)] = get_ident()

    def _release_unused(self) -> None:
        if self.thread not in (None, get_ident()):
            return  # Another thread cannot set the libraries of this one, which will when it next leaves a block.
        while (latest := self._stack[-1:]) and not latest[0].is_in_use():
            latest[0].release()
            if latest[0] in self._stack:  # Otherwise a handler came to this first.
                self._stack.remove(latest[0])


# Reentrant, for signal handlers and finalizers that run while it is held.
_lock = RLock()
_of_process: _Pins | None = None
_of_thread = local()
_set_by_thread: list[Library] = []
_is_searching = False


def _all_pins() -> list[_Pins]:
    """Return the pins of the process and, where a library is set by thread, those of this thread."""
    if _of_process is None and not _is_searching:
        _search()
    if _of_process is None:
        return []  # A signal came during the search, which must not begin again within itself.
    if not _set_by_thread:
        return [_of_process]
    if not hasattr(_of_thread, "pins"):
        _of_thread.pins = _Pins(_set_by_thread, get_ident())
    return [_of_process, _of_thread.pins]


def _search() -> None:
    """Find the libraries, once: that takes a millisecond, to set them a microsecond."""
    global _is_searching, _of_process, _set_by_thread
    _is_searching = True
    try:
        found = libraries()
        _set_by_thread = [library for library in found if library.is_per_thread]
        _of_process = _Pins([library for library in found if not library.is_per_thread])
    finally:
        _is_searching = False


def _after_fork_in_child() -> None:
    global _lock, _is_searching
    _lock, _is_searching = RLock(), False  # Another thread may have held the old one, or searched.
    if _of_process is not None:
        _of_process.leave_to_this_thread()


if hasattr(os, "register_at_fork"):  # Windows has no fork.
    os.register_at_fork(after_in_child=_after_fork_in_child)


def libraries() -> list[Library]:
    """Return the BLAS libraries that can be set; those that cannot, such as Accelerate, run as they are."""
    import scipy.linalg  # noqa: F401  # SciPy brings a BLAS of its own, which must be loaded to be found.
    from threadpoolctl import ThreadpoolController

    try:
        controllers = ThreadpoolController().select(user_api="blas").lib_controllers
    except TimeoutError:  # Raised by a signal handler of the user's.
        raise
    except (AttributeError, NotImplementedError, OSError):  # On a platform it does not know, only the speed suffers.
        return []
    return [library for library in map(_library, controllers) if library is not None]


def _library(controller: "LibController") -> Library | None:
    """Return the functions of a library, or None where it has none that work."""
    if controller.internal_api == "mkl":
        return _mkl(controller.dynlib)
    if controller.internal_api == "openblas":
        return _openblas(controller.dynlib)
    return _probed(controller.get_num_threads, controller.set_num_threads)


def _mkl(dynlib: ctypes.CDLL) -> Library | None:
    swap = _function(dynlib, "MKL_Set_Num_Threads_Local", argument=True)
    if swap is None:
        return None

    def get() -> int:
        # Returns what the thread had, 0 where it follows the process; there is no function that only tells.
        count: int = swap(1)
        swap(count)
        return count

    return Library(get, swap, is_per_thread=True)


def _openblas(dynlib: ctypes.CDLL) -> Library | None:
    # Some builds put something before or after every name.
    for before, after in product(("", "scipy_"), ("", "64_", "_64")):
        get = _function(dynlib, f"{before}openblas_get_num_threads{after}")
        put = _function(dynlib, f"{before}openblas_set_num_threads{after}", argument=True)
        if get is not None and put is not None:
            layer = _function(dynlib, f"{before}openblas_get_parallel{after}")
            if layer is not None and layer() == _OPENMP:
                return _openmp(dynlib) or _probed(get, put)
            return Library(get, put, is_per_thread=False)
    return None


def _openmp(dynlib: ctypes.CDLL) -> Library | None:
    # What OpenBLAS asks at each call; its own setting is ignored before 0.3.34 if built with OpenMP.
    get = _function(dynlib, "omp_get_max_threads")
    put = _function(dynlib, "omp_set_num_threads", argument=True)
    return None if get is None or put is None else _probed(get, put)


def _probed(get: Callable[[], int], put: Callable[[int], object]) -> Library | None:
    """Return a library of which versions differ in what a setting holds for: set it in another thread, and look."""
    try:
        before = get()
        put(before)
        other = Thread(target=put, args=(2 if before == 1 else 1,))
        other.start()
    except Exception:  # A controller that anyone may have registered, or an interpreter that is shutting down.
        return None
    other.join()
    is_per_thread = get() == before
    if not is_per_thread:
        put(before)
    return Library(get, put, is_per_thread)


def _function(dynlib: ctypes.CDLL, name: str, *, argument: bool = False) -> Callable[..., int] | None:
    # Called with the GIL held, as they return at once: to give it up may cost a switch of threads at every call.
    kind = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_int] * argument)
    try:
        return kind((name, dynlib))
    except AttributeError:
        return None
