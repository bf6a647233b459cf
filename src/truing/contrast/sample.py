"""`RowSample`: a uniform sample of bounded size of all rows seen. Samples can be added, decayed and windowed.

A sample keeps the rows whose key is below a share p (`KeyedRows`). Halving p removes about half of the rows. Dividing
the keys by a decay factor below 1 keeps about this share of the old rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..scores.rows import KeyedRows, ScoredRows

# The most rows and the most numbers (rows × features) that a fit uses.
MOST_ROWS = 100_000
MOST_NUMBERS = 2**25

# The most rows and numbers that a stream keeps. If there are more than `_MOST_BATCHES` batches, they are joined.
MOST_KEPT_ROWS = 8_192
MOST_KEPT_NUMBERS = 2**22
_MOST_BATCHES = 64


def share_of(rows: int, dimensions: int) -> float:
    """Return the share of `rows` rows that a fit uses."""
    return min(1.0, min(MOST_ROWS, max(MOST_NUMBERS // dimensions, 1)) / max(rows, 1))


@dataclass(frozen=True, eq=False)
class RowSample:
    """The kept rows of a stream in batches, oldest first. The keys of all kept rows are below `share`.

    `rows` is the total weight of the learned rows, and `seen` is their number without decay.
    """

    batches: tuple[KeyedRows, ...] = ()
    share: float = 1.0
    rows: float = 0.0
    seen: int = 0

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    @property
    def dimensions(self) -> int | None:
        """The number of features, or None without rows."""
        return self.batches[0].features.shape[1] if self.batches else None

    def joined(self) -> ScoredRows:
        """Return the kept rows."""
        return ScoredRows.joined([batch.rows for batch in self.batches])

    def with_rows(self, rows: KeyedRows, *, decay: float = 1.0, window: int | None = None) -> RowSample:
        """Return the sample after adding rows, decaying earlier rows, and dropping rows that left the window."""
        more = KeyedRows(np.array(rows.features, dtype=np.float64, order="C"), rows.scores.copy(), rows.keys)
        batches, weight = self.batches, self.rows
        if decay < 1:
            batches = tuple(KeyedRows(old.features, old.scores, old.keys / decay) for old in batches)
            batches = tuple(old for batch in batches if len(old := batch.below(self.share)))
            weight *= decay
        share = self.share
        if (decay < 1 or window is not None) and 2 * len(self) < _capacity(more.features.shape[1]):
            share = min(1.0, 2 * share)  # Old rows left the sample, so there is room for more new rows.
        sample = RowSample((*batches, more.below(share)), share, weight + len(rows), self.seen + len(rows))
        return sample._within(window)._bounded()

    def __add__(self, more: RowSample) -> RowSample:
        """Return a sample of the rows of both samples."""
        share = min(self.share, more.share)
        batches = tuple(batch.below(share) for batch in (*self.batches, *more.batches))
        return RowSample(batches, share, self.rows + more.rows, self.seen + more.seen)._bounded()

    def __sub__(self, old: RowSample) -> RowSample:
        """Return a sample of the rows added after `old`, an earlier sample of the same stream without decay."""
        rows, before = KeyedRows.joined(self.batches), KeyedRows.joined(old.batches).below(self.share)
        if not np.array_equal(rows.keys[: len(before)], before.keys):
            raise ValueError("the subtracted sample must be an earlier sample of the same stream, got other rows")
        added = rows.after(len(before))
        return RowSample((added,), self.share, self.rows - old.rows, self.seen - old.seen)

    def _within(self, window: int | None) -> RowSample:
        """Return the sample of the last `window` rows."""
        if window is None or self.rows <= window:
            return self
        spare = len(self) - math.ceil(window * self.share)
        batches = list(self.batches)
        while spare > 0:
            oldest = batches.pop(0)
            if len(oldest) > spare:
                batches.insert(0, oldest.after(spare))
            spare -= len(oldest)
        return replace(self, batches=tuple(batches), rows=float(window))

    def _bounded(self) -> RowSample:
        """Return the sample, thinned to the capacity, with its batches joined if there are many."""
        sample, width = self, self.dimensions or 1
        while len(sample) > _capacity(width):
            share = sample.share / 2
            sample = replace(sample, batches=tuple(batch.below(share) for batch in sample.batches), share=share)
        if len(sample.batches) > _MOST_BATCHES:
            sample = replace(sample, batches=(KeyedRows.joined(sample.batches),))
        return sample


def _capacity(dimensions: int) -> int:
    """Return the most rows that a stream keeps."""
    return max(min(MOST_KEPT_ROWS, MOST_KEPT_NUMBERS // dimensions), 1)
