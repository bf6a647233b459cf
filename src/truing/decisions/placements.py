r"""Placements: how known rows rank among the rows at hand, which compares two scores without labels.

The chance that a known row outscores a row at hand is ½(1 − π) + π · AUROC, where π is the share of out rows: it orders
scores as their AUROC does. Known rows are weighted to the mix of predicted classes that the rows at hand have, so that
another mix of classes is not taken for out rows. Standard errors are those of DeLong, DeLong & Clarke-Pearson (1988);
for the difference of two scores on the same rows they count what the two have in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._check import Floats, row_blocks
from .._threads import map_blocks
from .ranks import Ranks

Classes = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Placements:
    """Of every row at hand (n,) the weighted share of known rows that outscore it, ties counted half.

    `of_known` (m,) is what each known row adds to the sum of these shares, and `most` (m,) what it adds where it
    outscores every row.
    """

    of_rows: Floats
    of_known: Floats
    most: Floats

    @classmethod
    def none(cls, rows: int, known: int) -> Placements:
        """Return those of rows of which nothing is known yet."""
        return cls(np.full(rows, 0.5), np.zeros(known), np.zeros(known))

    def put(self, part: slice, more: Placements) -> None:
        """Take those of some of the rows."""
        self.of_rows[part] = more.of_rows
        np.add(self.of_known, more.of_known, out=self.of_known)
        np.add(self.most, more.most, out=self.most)

    @property
    def chance(self) -> float:
        """The chance that a known row, drawn by its weight, outscores a row at hand."""
        return self.sums().chance

    @property
    def standard_error(self) -> float:
        """Of the chance."""
        return self.sums().standard_error

    def sums(self) -> PlacementSums:
        """Return what the chance and its standard error are made of."""
        about_half = self.of_rows - 0.5
        squares = float(np.einsum("i,i->", about_half, about_half))
        return PlacementSums(len(self.of_rows), float(self.of_rows.sum()), squares, self.of_known, self.most)

    def __sub__(self, before: Placements) -> Placements:
        """Return what another score of the same rows changes."""
        return Placements(self.of_rows - before.of_rows, self.of_known - before.of_known, self.most)


@dataclass(frozen=True, eq=False)
class PlacementSums:
    """Of some rows at hand their number, the sum of their shares, and of the squares of these less ½.

    `of_known` and `most` (m,) are those of `Placements`. Sums of other rows against the same known ones add up.
    """

    rows: int
    total: float
    squares: float
    of_known: Floats
    most: Floats

    @property
    def chance(self) -> float:
        """The chance that a known row, drawn by its weight, outscores a row at hand."""
        return self.total / self.rows

    @property
    def standard_error(self) -> float:
        """Of the chance."""
        of_rows = max(0.0, self.squares - self.rows * (self.chance - 0.5) ** 2)
        of_known = float(((self.of_known - self.chance * self.most) ** 2).sum())
        return float(np.sqrt(of_rows + of_known)) / self.rows

    def __add__(self, more: PlacementSums) -> PlacementSums:
        """Return the sums over both sets of rows."""
        return PlacementSums(
            self.rows + more.rows,
            self.total + more.total,
            self.squares + more.squares,
            self.of_known + more.of_known,
            self.most + more.most,
        )


def placements(ranks: Ranks, weights: Sequence[Floats]) -> tuple[Placements, ...]:
    """Return those of rows by their ranks among known rows, for each way to weigh the latter (m,)."""
    m, n = len(ranks.ordered), len(ranks.below)
    counts = np.bincount(ranks.below, minlength=m + 1) + np.bincount(ranks.up_to, minlength=m + 1)
    outscored = np.empty(m)
    outscored[ranks.order] = np.cumsum(counts)[:m] / 2
    found = []
    for way in weights:
        share = way / way.sum()
        below = np.concatenate(([0.0], np.cumsum(share[ranks.order])))
        of_rows = np.empty(n)

        def place(part: slice, below: Floats = below, of_rows: Floats = of_rows) -> None:
            of_rows[part] = 1 - (below[ranks.below[part]] + below[ranks.up_to[part]]) / 2

        map_blocks(place, row_blocks(of_rows[:, None]))
        found.append(Placements(of_rows, share * outscored, n * share))
    return tuple(found)


def chance_alike(ranks: Ranks) -> float:
    """Return the chance that a known row outscores a row, by their ranks, where all known rows weigh the same."""
    outscored = int(ranks.below.sum()) + int(ranks.up_to.sum())
    return 1 - outscored / (2 * len(ranks.scores_in) * len(ranks.scores))


def class_weights(classes_in: Classes, classes: Classes) -> Floats:
    """Return weights of known rows (m,) that give them the mix of classes of the rows at hand, as far as they can."""
    return weights_to_mix(classes_in, np.bincount(classes))


def weights_to_mix(classes_in: Classes, counts: Classes) -> Floats:
    """Return such weights for a mix that is told by the number of rows of each class (c,)."""
    number = max(int(classes_in.max()) + 1, len(counts))
    known, rows = np.bincount(classes_in, minlength=number), np.zeros(number)
    rows[: len(counts)] = counts
    weights: Floats = (rows / np.maximum(known, 1))[classes_in]
    return weights if weights.any() else np.ones(len(classes_in))
