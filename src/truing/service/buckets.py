"""Numbers over time in bounded memory: equal spans of time in a ring, the newest in place of the oldest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .._check import Floats


class Buckets:
    """The newest `length` spans of so many `seconds`: in each, counts add up and gauges keep their last value.

    A span is told by its number, its start in units of `seconds` since the epoch, so that whoever has all spans before
    some number asks for the rest, and goes on asking after a restart.

    >>> buckets = Buckets(10, length=3, counts=["rows"], gauges=["height"])
    >>> buckets.add(100.0, {"rows": 2.0})
    >>> buckets.add(109.0, {"rows": 3.0})
    >>> buckets.put(110.0, {"height": 7.0})
    >>> numbers, values = buckets.between(10, 11)
    >>> numbers.tolist(), values["rows"].tolist(), values["height"].tolist()
    ([10, 11], [5.0, 0.0], [nan, 7.0])
    """

    def __init__(self, seconds: int, *, length: int, counts: Sequence[str], gauges: Sequence[str]) -> None:
        self.seconds = seconds
        self.length = length
        self._numbers = np.full(length, -1)
        self._values = {name: np.zeros(length) for name in counts} | {name: np.full(length, np.nan) for name in gauges}
        self._empty = dict.fromkeys(counts, 0.0) | dict.fromkeys(gauges, np.nan)

    def number_at(self, time: float) -> int:
        """Return the number of the span that a time lies in."""
        return int(time // self.seconds)

    def add(self, time: float, counts: Mapping[str, float]) -> None:
        """Add counts to the span of this time."""
        place = self._place(self.number_at(time))
        for name, count in counts.items():
            self._values[name][place] += count

    def put(self, time: float, gauges: Mapping[str, float]) -> None:
        """Set gauges of the span of this time."""
        place = self._place(self.number_at(time))
        for name, value in gauges.items():
            self._values[name][place] = value

    def between(self, first: int, last: int) -> tuple[NDArray[np.int_], dict[str, Floats]]:
        """Return the numbers of the spans from first to last that anything was put into, in order, and their values."""
        held = np.flatnonzero((self._numbers >= max(first, last - self.length + 1)) & (self._numbers <= last))
        places = held[np.argsort(self._numbers[held])]
        return self._numbers[places], {name: values[places] for name, values in self._values.items()}

    def _place(self, number: int) -> int:
        """Return where a span is kept, emptied if another one was kept there."""
        place = number % self.length
        # Another one may be a later one, too: a clock that was set back must not stop the numbers.
        if self._numbers[place] != number:
            self._numbers[place] = number
            for name, empty in self._empty.items():
                self._values[name][place] = empty
        return place
