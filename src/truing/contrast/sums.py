"""Sums over rows by predicted class: all that a contrast needs of them.

`ClassMoments` are kept and merged, to twice the working precision; `PlainSums` are what one fit is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._check import Floats
from .._threads import add_blocks
from ..moments import Moments
from .columns import Classes, Columns, ScoredRows

# Up to so many rows are added one by one in less time than a sparse matrix is made.
_FEW_ROWS = 128


@dataclass(frozen=True, eq=False)
class ClassMoments:
    """Moments of the columns (p,), and of each class its number of rows (c,) and its columns' sums (c, p) about 0.

    They add, subtract and decay as moments do.
    """

    moments: Moments
    counts: Floats
    sums: Floats

    @classmethod
    def of(cls, columns: Columns, rows: ScoredRows) -> ClassMoments:
        """Return the sums of these rows."""
        total: list[ClassMoments] = []

        def sums(part: slice) -> ClassMoments:
            return _of_block(columns.block(rows, part), rows.classes[part], columns.classes)

        def add(more: ClassMoments) -> None:
            total[:] = [total[0] + more if total else more]

        add_blocks(sums, columns.slices(rows), add)
        return total[0]

    @property
    def rows(self) -> float:
        """The rows' weight."""
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


def _of_block(block: Floats, classes: Classes, number: int) -> ClassMoments:
    counts = np.bincount(classes, minlength=number).astype(np.float64)
    return ClassMoments(Moments.of(block[:, :-1], block[:, -1]), counts, _class_sums(block, classes, number))


def _class_sums(block: Floats, classes: Classes, number: int) -> Floats:
    """Return the sums of each class's rows (c, p), added in their order."""
    n = len(block)
    if n <= _FEW_ROWS:
        few = np.zeros((number, block.shape[1]))
        for row, its_class in zip(block, classes.tolist(), strict=True):
            few[its_class] += row
        return few
    from scipy.sparse import csr_array

    membership = csr_array((np.ones(n), (classes, np.arange(n))), shape=(number, n))
    sums: Floats = membership @ block
    return sums
