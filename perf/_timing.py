"""Median times of functions that take turns, and peak memory in a new process. BLAS runs on one thread."""

import ctypes
import multiprocessing
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import scipy.linalg  # noqa: F401  # Load SciPy's BLAS now, so that it is limited to one thread too.
from numpy.typing import ArrayLike
from threadpoolctl import threadpool_limits

REPEATS = 5
SLOW_SECONDS = 10.0  # A slower function runs only twice.
STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Measure:
    """A median, its unit (s, B or none) and the number of runs.

    Fewer than five runs are written in parentheses.

    >>> str(Measure(0.00123)), str(Measure(2.0, runs=5)), str(Measure(3.7e9, "B"))
    ('1.23 ms (1)', '2 s', '3.7 GB')
    """

    value: float
    unit: str = "s"
    runs: int = 1

    def __str__(self) -> str:
        runs = f" ({self.runs})" if self.unit == "s" and self.runs < REPEATS else ""
        return spelled(self.value, self.unit) + runs


def race(*functions: Callable[[], object], repeats: int = REPEATS) -> list[Measure]:
    """Return the median time of each function. The functions take turns, so noise affects all of them."""
    times: list[list[float]] = [[] for _ in functions]
    with threadpool_limits(1):
        for repeat in range(repeats):
            for function, taken in zip(functions, times, strict=True):
                if repeat > 1 and taken[0] > SLOW_SECONDS:
                    continue
                start = perf_counter()
                function()
                taken.append(perf_counter() - start)
    return [Measure(median(taken), runs=len(taken)) for taken in times]


def alone(work: Callable[..., object], arguments: Sequence[Any], small: Sequence[Any]) -> tuple[Measure, Measure]:
    """Return the time and the peak memory of work(*arguments) in a new process, without the memory of the arguments.

    The process runs work(*small) first, so that the memory of libraries and their buffers does not count.
    """
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        seconds, memory = pool.apply(_alone, (work, arguments, small))
    return Measure(seconds), Measure(float(memory), "B")


def _alone(work: Callable[..., object], arguments: Sequence[Any], small: Sequence[Any]) -> tuple[float, int]:
    with threadpool_limits(1):
        work(*small)
        if STATUS.exists():
            _return_free_memory()
            Path("/proc/self/clear_refs").write_text("5")  # Reset the peak.
        before, start = _peak_bytes(), perf_counter()
        work(*arguments)
        return perf_counter() - start, _peak_bytes() - before


def _return_free_memory() -> None:
    """Make the C library return free memory to the system: otherwise, reused memory would not count."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _peak_bytes() -> int:
    # On Linux, ru_maxrss of a child includes the memory of its parent.
    if STATUS.exists():
        return next(int(text.split()[1]) * 1024 for text in STATUS.read_text().splitlines() if "VmHWM" in text)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def difference(one: ArrayLike, other: ArrayLike) -> float:
    """Return the largest absolute difference."""
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def spelled(value: float, unit: str = "") -> str:
    """Return a number for people.

    >>> spelled(0.00123, "s"), spelled(3.7e9, "B"), spelled(5e-10), spelled(2087.3)
    ('1.23 ms', '3.7 GB', '5e-10', '2,087')
    """
    size, name = next((step for step in STEPS[unit] if value >= step[0]), STEPS[unit][-1])
    number = value / size
    return f"{number:,.0f} {name}".rstrip() if 100 <= number < 1e6 else f"{number:.3g} {name}".rstrip()


STEPS = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")),
    "": ((1.0, ""),),
}
