"""Sums over rows by predicted class: all that a contrast needs of them.

`ClassMoments` are kept and merged, to twice the working precision; `PlainSums` are what one fit is made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import _kernels
from .._blas import one_thread
from .._check import Floats
from .._threads import add_blocks
from ..incremental import with_batch
from ..moments import Moments, ProductSums, mean_of_sample, rows_sampled_for_mean, summed_near_mean
from .columns import Classes, Columns, ScoredRows

# A batch of up to so many rows is added at once: it takes little memory.
_SMALL_BATCH = 256


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
        with one_thread(), np.errstate(invalid="ignore", over="ignore"):
            by_class: Floats = np.empty(0)

            def summed_about(shift: Floats) -> ProductSums:
                nonlocal by_class
                products, by_class = _summed(columns, rows, shift)
                return products

            sample = columns.block(rows, rows_sampled_for_mean(len(rows)))
            moments = summed_near_mean(mean_of_sample(sample), summed_about)
        return cls(moments, by_class[:, -1], by_class[:, :-1])

    @property
    def rows(self) -> float:
        """The rows' weight."""
        return self.moments.rows

    def with_batch(self, columns: Columns, rows: ScoredRows) -> ClassMoments:
        """Return the sums with these rows as well: of a few in less time than to sum them apart and merge."""
        if len(rows) > _SMALL_BATCH:
            return self + ClassMoments.of(columns, rows)
        block = columns.block(rows, slice(None))
        counts = np.bincount(rows.classes, minlength=columns.classes)
        by_class = _sums_by_class(block, rows.classes, columns.classes)
        moments = with_batch(self.moments, block[:, :-1], block[:, -1]).moments
        return ClassMoments(moments, self.counts + counts, self.sums + by_class)

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


def _summed(columns: Columns, rows: ScoredRows, shift: Floats) -> tuple[ProductSums, Floats]:
    """Return the sums of products about a shift, and of each class the columns' sums and its rows (c, p + 1)."""
    products, by_class = ProductSums(shift), np.zeros((columns.classes, len(columns) + 1))

    def sums(part: slice) -> tuple[Floats, Floats]:
        if products.by_kernel:
            return _by_kernel(columns, rows, part, products)
        block = columns.block_and_ones(rows, part)
        of_classes = _sums_by_class(block, rows.classes[part], columns.classes)
        return of_classes, products.of_block(block)  # In this order: the latter shifts the block.

    def add(more: tuple[Floats, Floats]) -> None:
        np.add(by_class, more[0], out=by_class)
        products.add(more[1])

    add_blocks(sums, columns.slices(rows), add)
    return products, by_class


def _by_kernel(columns: Columns, rows: ScoredRows, part: slice, products: ProductSums) -> tuple[Floats, Floats]:
    """Return the sums of each class's rows, and the sums of products."""
    kernels = _kernels.kernels
    assert kernels is not None
    p = len(products.shift)
    by_class, summed = np.zeros((columns.classes, p)), np.empty((p, p))
    of_rows = columns.for_kernel(rows, part)
    kernels("sum_columns", *of_rows, products.shift, *products.room(len(of_rows[0])), summed, by_class)
    return by_class, summed


def _sums_by_class(block: Floats, classes: Classes, number: int) -> Floats:
    """Return the sums of each class's rows (c, p + 1), added in their order."""
    by_class = np.zeros((number, block.shape[1]))
    np.add.at(by_class, classes, block)
    return by_class
