"""Sums over rows by predicted class: all that a contrast needs of the rows.

`ClassMoments` are kept and merged; `PlainSums` are the dense sums behind one fit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._check import Floats
from .._threads import add_blocks
from ..regression.moments import Moments
from .columns import Classes, Columns, ScoredRows


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Moments of the columns (p,), and the number of rows (c,) and sums of the columns (c, p) of every class.

    They add, subtract and decay as moments do.
    """

    moments: Moments
    counts: Floats
    sums: Floats

    @classmethod
    def of(cls, columns: Columns, rows: ScoredRows) -> ClassMoments:
        """Return the sums of these rows."""
        parts: list[ClassMoments] = []

        def sums_of_block(part: slice) -> ClassMoments:
            block = columns.block(rows, part)
            by_class = _sums_by_class(block, rows.classes[part], columns.classes)
            counts = np.bincount(rows.classes[part], minlength=columns.classes).astype(np.float64)
            return cls(Moments.of(block[:, :-1], block[:, -1]), counts, by_class)

        def add(more: ClassMoments) -> None:
            parts[:] = [parts[0] + more] if parts else [more]

        add_blocks(sums_of_block, columns.slices(rows), add)
        return parts[0]

    @property
    def rows(self) -> float:
        """Weight of the rows."""
        return self.moments.rows

    def __add__(self, more: ClassMoments) -> ClassMoments:
        """Return the sums over both sets of rows."""
        return ClassMoments(self.moments + more.moments, self.counts + more.counts, self.sums + more.sums)

    def __sub__(self, old: ClassMoments) -> ClassMoments:
        """Return the sums over the rows that remain when `old` ones are taken away."""
        return ClassMoments(self.moments - old.moments, self.counts - old.counts, self.sums - old.sums)

    def decayed(self, factor: float) -> ClassMoments:
        """Return the sums with every row's weight multiplied by `factor`."""
        return ClassMoments(self.moments.decayed(factor), factor * self.counts, factor * self.sums)


@dataclass(frozen=True, eq=False)
class PlainSums:
    """Weight, mean (p,) and co-moment (p, p) of the columns, and of each class its rows (c,) and its sums (c, p)."""

    rows: float
    mean: Floats
    comoment: Floats
    counts: Floats
    sums: Floats

    @classmethod
    def of(cls, sums: ClassMoments) -> PlainSums:
        """Return the sums in working precision."""
        return cls(sums.rows, sums.moments.mean, sums.moments.comoment, sums.counts, sums.sums)

    def __add__(self, more: PlainSums) -> PlainSums:
        """Return the sums over both sets of rows (Chan, Golub & LeVeque 1983)."""
        rows = self.rows + more.rows
        step = more.mean - self.mean
        mean = self.mean + more.rows / rows * step
        comoment = self.comoment + more.comoment + (self.rows * more.rows / rows * step)[:, None] * step
        return PlainSums(rows, mean, comoment, self.counts + more.counts, self.sums + more.sums)

    def about(self, point: Floats) -> Floats:
        """Return the columns' sums (c, p) of each class about `point` (p,)."""
        return self.sums - self.counts[:, None] * point


def _sums_by_class(block: Floats, classes: Classes, number: int) -> Floats:
    """Return the sums of the rows of every class (c, p), added in row order."""
    by_class = np.zeros((number, block.shape[1]))
    np.add.at(by_class, classes, block)
    return by_class
