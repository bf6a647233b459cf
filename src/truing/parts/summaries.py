"""Summaries of all rows, several of them in one pass.

A summary of a block is a few named arrays, and two of rows that follow one another are combined into one: block after
block within a part, then part after part, in order. So no bit depends on where a part was worked on. None grows with
the rows: where rows themselves are wanted, and there are too many, an even sample of them is kept.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..io.npz import Arrays
from ..moments import Moments
from .passes import Passes, ScoredBlock

Places = NDArray[np.uint64]

# Every row has a place in [0, 2^64): its number times 2^64 over the golden ratio, modulo 2^64. These Kronecker points
# are evenly spread over any run of rows, and never in step with a period of them: the rows up to a place are a sample.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
LAST_PLACE = 2**64 - 1


class Summary(Protocol):
    """What a pass finds out: a frozen value, sent to where the rows are."""

    def of(self, first: int, block: ScoredBlock) -> Arrays:
        """Return the summary of a block, whose first row has the number `first` among all rows; nothing if of none."""
        ...

    def combined(self, one: Arrays, other: Arrays) -> Arrays:
        """Return the summary of the rows of one and of the other, which follow them; either may be used up."""
        ...


class Reader:
    """Reads the parts, and counts how often: `passes_made`. `rows` is the number of all rows."""

    def __init__(self, passes: Passes, name: str) -> None:
        self._passes = passes
        self._name = name
        self._starts = tuple(accumulate(passes.rows, initial=0))
        self.rows = self._starts[-1]
        self.passes_made = 0

    def read(self, summaries: Mapping[str, Summary]) -> dict[str, Arrays]:
        """Return each summary of all rows, from one pass over them."""
        self.passes_made += 1
        work = OnePass(self._starts, tuple(summaries.items()))
        results = self._passes.results(f"{self._name}-{self.passes_made}", work)
        none: dict[str, Arrays] = {}
        whole = reduce(work.combined, map(_by_summary, results), none)
        return {name: whole.get(name, {}) for name in summaries}


@dataclass(frozen=True, eq=False)
class OnePass:
    """The work of a pass on one part: summaries by name, of parts whose first rows have the numbers `starts`."""

    starts: tuple[int, ...]
    summaries: tuple[tuple[str, Summary], ...]

    def __call__(self, part: int, blocks: Iterable[ScoredBlock]) -> Arrays:
        """Return the arrays of all summaries; none of a part without rows."""
        whole: dict[str, Arrays] = {}
        first = self.starts[part]
        for block in blocks:
            if len(block.scores):
                whole = self.combined(whole, {name: summary.of(first, block) for name, summary in self.summaries})
            first += len(block.scores)
        return {f"{name}.{array}": values for name, arrays in whole.items() for array, values in arrays.items()}

    def combined(self, one: dict[str, Arrays], other: dict[str, Arrays]) -> dict[str, Arrays]:
        """Return the summaries of both, of which either may have no rows."""
        whole = {}
        for name, summary in self.summaries:
            before, after = one.get(name), other.get(name)
            whole[name] = summary.combined(before, after) if before and after else before or after or {}
        return whole


def _by_summary(results: Arrays) -> dict[str, Arrays]:
    whole: dict[str, Arrays] = {}
    for name, values in results.items():
        summary, _, array = name.partition(".")
        whole.setdefault(summary, {})[array] = values
    return whole


def places_of(first: int, count: int) -> Places:
    """Return the places (count,) of rows that follow one another."""
    return np.arange(first, first + count, dtype=np.uint64) * _GOLDEN


def share_up_to(place: int) -> float:
    """Return the share of all rows that have places up to this."""
    return (place + 1) / (LAST_PLACE + 1)


def place_of_share(share: float) -> int:
    """Return the place up to which this share of all rows have theirs."""
    return min(LAST_PLACE, int(share * (LAST_PLACE + 1)))


def thinned(sample: Arrays, last: int, capacity: int) -> Arrays:
    """Return the rows of a sample with places up to `last`, or to half of that until no more than `capacity` are left.

    A sample has arrays of equally many rows, `places` among them. The result has `last` beside them.
    """
    places = sample["places"]
    while np.count_nonzero(places <= np.uint64(last)) > capacity:
        last //= 2
    chosen = places <= np.uint64(last)
    kept = sample if chosen.all() else {name: values[chosen] for name, values in sample.items()}
    return {**kept, "last": np.array(last, dtype=np.uint64)}


def combined_samples(one: Arrays, other: Arrays, capacity: int) -> Arrays:
    """Return the sample of the rows of both, up to the lower of their last places and of no more than `capacity`."""
    last = min(int(one["last"]), int(other["last"]))
    names = [name for name in one if name != "last"]
    return thinned({name: np.concatenate((one[name], other[name])) for name in names}, last, capacity)


def split(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def joined(arrays: Arrays, prefix: str) -> Arrays:
    """Return the arrays with a prefix before their names."""
    return {prefix + name: values for name, values in arrays.items()}


def arrays_of(moments: Moments) -> Arrays:
    """Return moments as arrays, without the parts that they remember."""
    return {name: np.asarray(value) for name, value in vars(moments).items() if name != "parts"}


def moments_of(arrays: Arrays) -> Moments:
    """Return the moments that `arrays_of` made arrays of."""
    return Moments(
        float(arrays["rows"]),
        arrays["mean"],
        arrays["comoment"],
        arrays["mean_low"],
        arrays["comoment_low"],
        arrays["rounding"],
    )
