"""Rows with their base scores, and uniform samples of such rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._check import Floats, Matrix
from ..outputs import Outputs
from . import Base, Head, base_name, base_scores

Numbers = NDArray[np.integer[Any]]


@dataclass(frozen=True, eq=False)
class BaseScore:
    """A base score with its temperature, and the head and the reference of in-distribution rows that it may need."""

    base: Base
    temperature: float = 1.0
    head: Head | None = None
    reference: Outputs | None = None

    @property
    def name(self) -> str:
        """The display name of the base score."""
        return base_name(self.base)

    def of(self, outputs: Outputs) -> Floats:
        """Return the base score of every row (n,)."""
        return base_scores(outputs, self.base, self.temperature, head=self.head, reference=self.reference)


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Features (n, d) and base scores (n,) of some rows."""

    features: Matrix
    scores: Floats

    @classmethod
    def joined(cls, parts: Sequence[ScoredRows]) -> ScoredRows:
        """Return the rows of one or more parts in order."""
        if len(parts) == 1:
            return parts[0]
        features = np.concatenate([part.features for part in parts])
        return cls(features, np.concatenate([part.scores for part in parts]))

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: NDArray[np.intp] | slice) -> ScoredRows:
        return ScoredRows(self.features[rows], self.scores[rows])

    def __add__(self, more: ScoredRows) -> ScoredRows:
        """Return these rows, followed by the rows of `more`."""
        return ScoredRows.joined((self, more))


@dataclass(frozen=True, eq=False)
class KeyedRows:
    """Features (n, d), base scores (n,) and keys (n,) of the rows of a uniform sample.

    Each row has a key, a uniform number computed from its row number. A sample with share p keeps the rows whose key is
    below p, so a table in memory and the same table in parts give the same sample.
    """

    features: Matrix
    scores: Floats
    keys: Floats

    @classmethod
    def of(cls, rows: ScoredRows, numbers: Numbers, share: float) -> KeyedRows:
        """Return the sample of rows with these row numbers (n,)."""
        keys = row_keys(numbers)
        if share >= 1:
            return cls(rows.features, rows.scores, keys)
        chosen = np.flatnonzero(keys < share)
        return cls(rows.features[chosen], rows.scores[chosen], keys[chosen])

    @classmethod
    def joined(cls, parts: Sequence[KeyedRows]) -> KeyedRows:
        """Return the rows of one or more samples in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("features", "scores", "keys"))
        )

    @property
    def rows(self) -> ScoredRows:
        """The sampled rows."""
        return ScoredRows(self.features, self.scores)

    def __len__(self) -> int:
        return len(self.keys)

    def __add__(self, more: KeyedRows) -> KeyedRows:
        """Return the rows of this sample, followed by the rows of `more`."""
        return KeyedRows.joined((self, more))

    def after(self, rows: int) -> KeyedRows:
        """Return the rows without the first `rows` rows."""
        return KeyedRows(self.features[rows:], self.scores[rows:], self.keys[rows:])

    def below(self, share: float) -> KeyedRows:
        """Return the rows whose key is below `share`."""
        keep = self.keys < share
        return self if keep.all() else KeyedRows(self.features[keep], self.scores[keep], self.keys[keep])


def row_keys(numbers: Numbers) -> Floats:
    """Return the keys (n,) of rows with these row numbers, uniform in [0, 1), computed by SplitMix64.

    >>> row_keys(np.arange(3)).round(3)
    array([0.883, 0.432, 0.026])
    """
    bits = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (bits ^ (bits >> np.uint64(31))) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def sampled(rows: ScoredRows, share: float, numbers: Numbers) -> ScoredRows:
    """Return the rows whose key is below `share`, given the row numbers (n,)."""
    return rows if share >= 1 else rows[np.flatnonzero(row_keys(numbers) < share)]
