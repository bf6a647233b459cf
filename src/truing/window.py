"""The sums of the last batches of a stream, which forget older ones without any subtraction.

What is taken away from a sum leaves its rounding behind, and a batch of huge numbers leaves much. So nothing is taken
away here: the sums of the batches that remain are added up, in groups, at the cost of a few additions for each batch.

With n batches in the window, groups of g = ⌈√n⌉ batches follow one another. In steps:

1. A new batch is added to the sums of the group that is being filled.
2. Of the oldest group the sums of its last g − 1, g − 2, … batches are found from their rows when its first batch is
   to leave. Each batch that leaves then takes the largest of these sums with it.
3. The total is the sums of what is left of the oldest group, of the whole groups after it, and of the one being filled.

So the rows of n batches are kept, and about 2√n sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from math import isqrt
from operator import add
from typing import Any, Generic, Protocol, TypeVar


class Sums(Protocol):
    """What adds up."""

    def __add__(self, more: Any, /) -> Any: ...


Batch = TypeVar("Batch")
Sum = TypeVar("Sum", bound=Sums)


@dataclass(frozen=True, eq=False)
class Window(Generic[Batch, Sum]):
    """The last `size` batches at most, the oldest first, and their `total`; `learned` counts all batches so far.

    `leaving` are the sums of the last batches of the oldest group once some of it have left, the largest first;
    `whole` are those of the whole groups after it, `between` is their sum, and `newest` is that of the group being
    filled.
    """

    size: int
    summed: Callable[[Batch], Sum] = field(repr=False)
    learned: int = 0
    batches: tuple[Batch, ...] = ()
    leaving: tuple[Sum, ...] = ()
    whole: tuple[Sum, ...] = ()
    between: Sum | None = None
    newest: Sum | None = None

    @classmethod
    def of(
        cls, size: int, summed: Callable[[Batch], Sum], learned: int, batches: tuple[Batch, ...]
    ) -> Window[Batch, Sum]:
        """Return the window in which these are the last of so many batches, as if all had been learned by it."""
        first = learned - len(batches)
        group = _group(size)
        begins = -first % group  # Batches of the oldest group that are left, where some of it have left.
        leaving = _sums_to_the_end(batches[:begins], summed)
        ends = [*range(begins + group, len(batches) + 1, group)]
        whole = tuple(reduce(add, map(summed, batches[end - group : end])) for end in ends)
        rest = batches[ends[-1] if ends else begins :]
        newest = reduce(add, map(summed, rest)) if rest else None
        return cls(size, summed, learned, batches, leaving, whole, _total(*whole), newest)

    @property
    def total(self) -> Sum:
        """The sums of all batches in the window, of which there must be one."""
        total = _total(*self.leaving[:1], self.between, self.newest)
        assert total is not None
        return total

    def with_batch(self, batch: Batch) -> Window[Batch, Sum]:
        """Return the window after one more batch, and without the oldest where it is full."""
        group, learned = _group(self.size), self.learned + 1
        batches = (*self.batches, batch)[-self.size :]
        leaving, whole = self.leaving, self.whole
        newest: Sum | None = _total(self.newest, self.summed(batch))
        if learned > self.size:
            is_first_of_its_group = (learned - self.size - 1) % group == 0
            if is_first_of_its_group:
                leaving, whole = _sums_to_the_end(batches[: group - 1], self.summed), whole[1:]
            else:
                leaving = leaving[1:]
        if learned % group == 0 and newest is not None:
            whole, newest = (*whole, newest), None
        between = self.between if whole == self.whole else _total(*whole)
        return Window(self.size, self.summed, learned, batches, leaving, whole, between, newest)


def _group(size: int) -> int:
    """Return how many batches are in a group."""
    return isqrt(size - 1) + 1


def _sums_to_the_end(batches: tuple[Batch, ...], summed: Callable[[Batch], Sum]) -> tuple[Sum, ...]:
    """Return the sums of all these batches, of all but the first, and so on."""
    return tuple(accumulate(map(summed, reversed(batches)), add))[::-1]


def _total(*parts: Sum | None) -> Sum | None:
    present = [part for part in parts if part is not None]
    return reduce(add, present) if present else None
