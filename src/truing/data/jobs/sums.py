"""The first pass over a table: the base score of every row, and sums of features and scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._check import Floats
from ...contrast import ClassMoments, Columns
from ...outputs import Outputs
from ...regression.moments import Moments
from ...regression.robust import ScoredBlock
from ...saved import as_arrays, from_arrays
from ...scores import Base, Head, base_scores
from ..npz import Arrays
from .table import RowBlock

_KIND = "table sums"


@dataclass(frozen=True, eq=False)
class BaseScore:
    """A base score with its temperature, head and bank."""

    base: Base
    temperature: float = 1.0
    head: Head | None = None
    bank: Outputs | None = None

    def of(self, outputs: Outputs) -> Floats:
        """Return the base score of every row (n,)."""
        return base_scores(outputs, self.base, self.temperature, head=self.head, bank=self.bank)

    def scored(self, blocks: Iterable[RowBlock]) -> Iterator[ScoredBlock]:
        """Yield the features and the base scores of each block."""
        for block in blocks:
            yield ScoredBlock(block.outputs.features, self.of(block.outputs))


@dataclass(frozen=True, eq=False)
class TableSums:
    """The result of the first pass over some parts.

    `part_rows` (k,) is the number of rows of each part, `sums` the sums over all rows (None without rows),
    `class_counts` (c,) the number of rows of each predicted class, and `lowest` and `highest` the range of the base
    scores.
    """

    part_rows: NDArray[np.int64]
    sums: Moments | ClassMoments | None
    class_counts: NDArray[np.int64]
    lowest: float = np.inf
    highest: float = -np.inf

    @property
    def rows(self) -> int:
        """Number of rows of all parts."""
        return int(self.part_rows.sum())

    def __add__(self, more: TableSums) -> TableSums:
        """Return the result for both sets of parts."""
        return TableSums(
            np.concatenate((self.part_rows, more.part_rows)),
            _added(self.sums, more.sums),
            self.class_counts + more.class_counts,
            min(self.lowest, more.lowest),
            max(self.highest, more.highest),
        )

    def stored(self) -> Arrays:
        """Return these sums as arrays."""
        return as_arrays(_KIND, {field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def restored(cls, arrays: Arrays) -> TableSums:
        """Return the sums from the arrays that `stored` returned."""
        return cls(**from_arrays(arrays, "a stored result").value)


def add_stored(one: Arrays, other: Arrays) -> Arrays:
    """Return the sum of two stored summaries, stored."""
    return (TableSums.restored(one) + TableSums.restored(other)).stored()


@dataclass(frozen=True, eq=False)
class DirectSums:
    """Sums a part for direct regression: the moments of features and base scores."""

    base: BaseScore
    classes: int

    def __call__(self, number: int, blocks: Iterable[RowBlock]) -> Arrays:
        """Return the summary of a part."""
        sums: Moments | None = None
        tally = _Tally(self.classes)
        for block in blocks:
            scores = self.base.of(block.outputs)
            sums = _added(sums, Moments.of(block.outputs.features, scores))
            tally.count(scores, block.outputs._predicted_classes())
        return tally.summary(sums).stored()


@dataclass(frozen=True, eq=False)
class ContrastSums:
    """Sums a part for a contrast: sums of its columns by class."""

    columns: Columns

    def __call__(self, number: int, blocks: Iterable[RowBlock]) -> Arrays:
        """Return the summary of a part."""
        sums: ClassMoments | None = None
        tally = _Tally(self.columns.classes)
        for block in blocks:
            rows = self.columns.scored(block.outputs)
            sums = _added(sums, ClassMoments.of(self.columns, rows))
            tally.count(rows.scores[:, 0], rows.classes)
        return tally.summary(sums).stored()


class _Tally:
    """Counts rows by class and tracks the range of their base scores, block by block."""

    def __init__(self, classes: int) -> None:
        self._counts = np.zeros(classes, dtype=np.int64)
        self._lowest, self._highest = np.inf, -np.inf

    def count(self, scores: Floats, classes: NDArray[np.intp]) -> None:
        self._counts += np.bincount(classes, minlength=len(self._counts))
        self._lowest = min(self._lowest, float(scores.min()))
        self._highest = max(self._highest, float(scores.max()))

    def summary(self, sums: Moments | ClassMoments | None) -> TableSums:
        return TableSums(np.array([self._counts.sum()]), sums, self._counts, self._lowest, self._highest)


def _added(one: Any, other: Any) -> Any:
    """Return the sum of two sums, either of which may be None."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
