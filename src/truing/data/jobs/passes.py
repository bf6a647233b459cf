"""Sums of the results of many parts, added in an order that depends on the parts alone.

So a table gives the same bits on one machine and on many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TypeVar

# Results that are added up together; then so many of their sums, and so on.
FAN_IN = 16

Sum = TypeVar("Sum")


def total(parts: Iterable[Sum], add: Callable[[Sum, Sum], Sum]) -> Sum:
    """Return the sum of all parts: first of so many at a time, then of so many of these sums, and so on.

    >>> total(["a", "b", "c"], lambda one, other: f"({one}{other})")
    '((ab)c)'
    """
    levels: list[list[Sum]] = [[]]
    for part in parts:
        levels[0].append(part)
        for height in range(len(levels)):
            if len(levels[height]) == FAN_IN:
                _carry(levels, height, add)
    for height in range(len(levels)):  # One more level may come with the last sum.
        if levels[height] and height + 1 < len(levels):
            _carry(levels, height, add)
    if not levels[-1]:
        raise ValueError("parts must be one at least, got none")
    return in_turn(levels[-1], add)


def in_turn(parts: Iterable[Sum], add: Callable[[Sum, Sum], Sum]) -> Sum:
    """Return the sum of some parts, added one after another."""
    return reduce(add, parts)


def _carry(levels: list[list[Sum]], height: int, add: Callable[[Sum, Sum], Sum]) -> None:
    """Add up a level, and put the sum onto the level above."""
    if height + 1 == len(levels):
        levels.append([])
    levels[height + 1].append(in_turn(levels[height], add))
    levels[height].clear()
