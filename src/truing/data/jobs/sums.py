"""The first pass over a table: the base score of every row, and sums of features and scores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._check import Floats
from ...contrast import ScoredRows, SplitReference, Standard, sampled
from ...decisions.distances import GARBAGE_DISTANCE, RowGuard, is_garbage
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

    def scored(self, blocks: Iterable[RowBlock], guard: RowGuard | None) -> Iterator[ScoredBlock]:
        """Yield the features and the base scores of each block, without the rows that are garbage by the guard."""
        for block in blocks:
            rows = learnable(ScoredBlock(block.outputs.features, self.of(block.outputs)), guard)
            if len(rows.scores):
                yield rows


def learnable(rows: ScoredBlock, guard: RowGuard | None) -> ScoredBlock:
    """Return the rows that are not garbage by the guard: all rows if there is no guard."""
    if guard is None:
        return rows
    is_kept = ~is_garbage(rows.features, rows.scores, guard)
    return rows if is_kept.all() else ScoredBlock(rows.features[is_kept], rows.scores[is_kept])


@dataclass(frozen=True, eq=False)
class TableSums:
    """The result of the first pass over some parts.

    `part_rows` (k,) is the number of rows of each part, `garbage_rows` (k,) the number of those that are not learned
    because they are absurdly far from the reference, `sums` the moments of all rows, or a sample of the rows for a
    contrast (None without rows), `class_counts` (c,) the number of rows of each predicted class, and `lowest` and
    `highest` the range of the base scores. `share` is the share of the rows that a sample was drawn with.
    """

    part_rows: NDArray[np.int64]
    garbage_rows: NDArray[np.int64]
    sums: Moments | ScoredRows | None
    class_counts: NDArray[np.int64]
    lowest: float = np.inf
    highest: float = -np.inf
    share: float = 1.0

    @property
    def rows(self) -> int:
        """Number of rows of all parts."""
        return int(self.part_rows.sum())

    def __add__(self, more: TableSums) -> TableSums:
        """Return the result for both sets of parts."""
        return TableSums(
            np.concatenate((self.part_rows, more.part_rows)),
            np.concatenate((self.garbage_rows, more.garbage_rows)),
            _added(self.sums, more.sums),
            self.class_counts + more.class_counts,
            min(self.lowest, more.lowest),
            max(self.highest, more.highest),
            self.share,
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
    """Sums a part for direct regression: the moments of features and base scores, without garbage rows."""

    base: BaseScore
    classes: int
    guard: RowGuard | None = None

    def __call__(self, number: int, blocks: Iterable[RowBlock]) -> Arrays:
        """Return the summary of a part."""
        sums: Moments | None = None
        tally = _Tally(self.classes)
        for block in blocks:
            scores = self.base.of(block.outputs)
            rows = learnable(ScoredBlock(block.outputs.features, scores), self.guard)
            if len(rows.scores):
                sums = _added(sums, Moments.of(*rows))
            tally.count(scores, block.outputs._predicted_classes(), garbage_rows=len(scores) - len(rows.scores))
        return tally.summary(sums).stored()


@dataclass(frozen=True, eq=False)
class ContrastRows:
    """Samples the rows of a part for a contrast, as a contrast in memory does.

    `starts` (k,) is the number of rows before each part, counted from the reference rows to decide against.
    """

    standard: Standard
    share: float
    starts: NDArray[np.int64]

    @classmethod
    def of(cls, reference: SplitReference, part_rows: Sequence[int]) -> ContrastRows:
        """Return the work for parts with these numbers of rows."""
        rows = np.array(part_rows, dtype=np.int64)
        starts = reference.numbers(np.cumsum(rows) - rows)
        return cls(reference.standard, reference.share_of(int(rows.sum())), starts)

    def __call__(self, number: int, blocks: Iterable[RowBlock]) -> Arrays:
        """Return the summary of a part."""
        samples: list[ScoredRows] = []
        tally = _Tally(max(self.standard.classes, 1))
        for block in blocks:
            rows = self.standard.scored(block.outputs)
            samples.append(sampled(rows, self.share, self.starts[number] + block.numbers))
            garbage_rows = int(np.count_nonzero(self.standard.distances(rows) > GARBAGE_DISTANCE))
            tally.count(rows.scores, block.outputs._predicted_classes(), garbage_rows)
        return tally.summary(_joined(samples), self.share).stored()


class _Tally:
    """Counts rows by class and tracks the range of their base scores, block by block."""

    def __init__(self, classes: int) -> None:
        self._counts = np.zeros(classes, dtype=np.int64)
        self._garbage_rows = 0
        self._lowest, self._highest = np.inf, -np.inf

    def count(self, scores: Floats, classes: NDArray[np.intp], garbage_rows: int = 0) -> None:
        self._garbage_rows += garbage_rows
        self._counts += np.bincount(classes, minlength=len(self._counts))
        self._lowest = min(self._lowest, float(scores.min()))
        self._highest = max(self._highest, float(scores.max()))

    def summary(self, sums: Moments | ScoredRows | None, share: float = 1.0) -> TableSums:
        part_rows, garbage_rows = np.array([self._counts.sum()]), np.array([self._garbage_rows], dtype=np.int64)
        return TableSums(part_rows, garbage_rows, sums, self._counts, self._lowest, self._highest, share)


def _joined(samples: list[ScoredRows]) -> ScoredRows | None:
    """Return the rows of all samples in order, or None if there are no rows."""
    if not any(map(len, samples)):
        return None
    features = np.concatenate([sample.features for sample in samples])
    return ScoredRows(features, np.concatenate([sample.scores for sample in samples]))


def _added(one: Any, other: Any) -> Any:
    """Return the sum of two sums, either of which may be None."""
    if one is None or other is None:
        return other if one is None else one
    return one + other
