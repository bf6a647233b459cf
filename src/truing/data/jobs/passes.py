"""Sums of the results of many parts, in an order that depends only on the parts.

A table therefore gives the same bits on one machine and on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeVar

# Number of results that are added at each level of the tree of sums.
FAN_IN = 16

Sum = TypeVar("Sum")


def total(parts: Iterable[Sum], add: Callable[[Sum, Sum], Sum]) -> Sum:
    """Return the sum of all parts, added as a tree: `FAN_IN` parts at a time, then `FAN_IN` of these sums, and so on.

    >>> total(["a", "b", "c"], lambda one, other: f"({one}{other})")
    '((ab)c)'
    """
    levels: list[list[Sum]] = [[]]
    for part in parts:
        levels[0].append(part)
        for height in range(len(levels)):
            if len(levels[height]) == FAN_IN:
                _carry(levels, height, add)
    for height in range(len(levels)):  # The last carry may add a level.
        if levels[height] and height + 1 < len(levels):
            _carry(levels, height, add)
    if not levels[-1]:
        raise ValueError("parts must be one at least, got none")
    return in_turn(levels[-1], add)


def in_turn(parts: Iterable[Sum], add: Callable[[Sum, Sum], Sum]) -> Sum:
    """Return the sum of the parts, added one after another."""
    return reduce(add, parts)


def _carry(levels: list[list[Sum]], height: int, add: Callable[[Sum, Sum], Sum]) -> None:
    """Move the sum of a level to the level above."""
    if height + 1 == len(levels):
        levels.append([])
    levels[height + 1].append(in_turn(levels[height], add))
    levels[height].clear()
