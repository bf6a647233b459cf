r"""Placements: ranks of reference rows among test rows, which compare two scores without labels.

The probability that a reference row outscores a test row is ½(1 − π) + π · AUROC, where π is the share of out rows. The
score with the higher probability therefore also has the higher AUROC. Reference rows are weighted to the frequencies of
the predicted classes among the test rows, so that different class frequencies are not mistaken for out rows. Standard
errors follow DeLong, DeLong & Clarke-Pearson (1988) and account for the correlation of two scores of the same rows.
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
    """The weighted share of reference rows that outscore each test row, `of_rows` (n,); a tie counts as one half.

    `of_reference` (m,) is the contribution of each reference row to the sum of these shares, and `most` (m,) is its
    contribution if it outscores every test row.
    """

    of_rows: Floats
    of_reference: Floats
    most: Floats

    @property
    def chance(self) -> float:
        """The probability that a reference row, drawn by weight, outscores a test row."""
        return self.sums().chance

    @property
    def standard_error(self) -> float:
        """The standard error of `chance`."""
        return self.sums().standard_error

    def sums(self) -> PlacementSums:
        """Return the sums from which the probability and its standard error are computed."""
        about_half = self.of_rows - 0.5
        squares = float(np.einsum("i,i->", about_half, about_half))
        return PlacementSums(len(self.of_rows), float(self.of_rows.sum()), squares, self.of_reference, self.most)

    def __sub__(self, before: Placements) -> Placements:
        """Return the change from the placements by another score of the same rows."""
        return Placements(self.of_rows - before.of_rows, self.of_reference - before.of_reference, self.most)


@dataclass(frozen=True, eq=False)
class PlacementSums:
    """Sums over test rows: their number, the sum of their shares, and the sum of the squares of (share - ½).

    `of_reference` and `most` (m,) have the same meaning as in `Placements`. Sums over different test rows with the same
    reference can be added.
    """

    rows: int
    total: float
    squares: float
    of_reference: Floats
    most: Floats

    @property
    def chance(self) -> float:
        """The probability that a reference row, drawn by weight, outscores a test row."""
        return self.total / self.rows

    @property
    def standard_error(self) -> float:
        """The standard error of `chance`."""
        of_rows = max(0.0, self.squares - self.rows * (self.chance - 0.5) ** 2)
        of_reference = float(((self.of_reference - self.chance * self.most) ** 2).sum())
        return float(np.sqrt(of_rows + of_reference)) / self.rows

    def __add__(self, more: PlacementSums) -> PlacementSums:
        """Return the sums over both sets of rows."""
        return PlacementSums(
            self.rows + more.rows,
            self.total + more.total,
            self.squares + more.squares,
            self.of_reference + more.of_reference,
            self.most + more.most,
        )


def placements(ranks: Ranks, weights: Sequence[Floats]) -> tuple[Placements, ...]:
    """Return the placements of test rows from their ranks, for each weighting (m,) of the reference rows."""
    m, n = len(ranks.ordered), len(ranks.below)
    counts = np.bincount(ranks.below, minlength=m + 1) + np.bincount(ranks.up_to, minlength=m + 1)
    outscored = np.empty(m)
    outscored[ranks.order] = np.cumsum(counts)[:m] / 2
    results = []
    for weighting in weights:
        share = weighting / weighting.sum()
        below = np.concatenate(([0.0], np.cumsum(share[ranks.order])))
        of_rows = np.empty(n)

        def place(part: slice, below: Floats = below, of_rows: Floats = of_rows) -> None:
            of_rows[part] = 1 - (below[ranks.below[part]] + below[ranks.up_to[part]]) / 2

        map_blocks(place, row_blocks(of_rows[:, None]))
        results.append(Placements(of_rows, share * outscored, n * share))
    return tuple(results)


def weights_to_mix(classes_in: Classes, counts: Classes) -> Floats:
    """Return weights of reference rows (m,) that match the number of test rows in each class (c,)."""
    number = max(int(classes_in.max()) + 1, len(counts))
    counts_in, rows = np.bincount(classes_in, minlength=number), np.zeros(number)
    rows[: len(counts)] = counts
    weights: Floats = (rows / np.maximum(counts_in, 1))[classes_in]
    return weights if weights.any() else np.ones(len(classes_in))
