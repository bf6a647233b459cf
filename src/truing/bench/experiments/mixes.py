"""A mix: rows of an in-distribution set and of another, with their base scores; drawn and split."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..._check import Floats, Matrix

Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Mix:
    """Rows of two sets, the in-distribution ones first, and each base score of them."""

    features: Matrix
    scores: dict[str, Floats]
    rows_in: int

    @property
    def rows_out(self) -> int:
        """Number of rows of the other set."""
        return len(self.features) - self.rows_in

    def take(self, inside: Index, outside: Index) -> "Mix":
        """Return those rows of each set."""
        rows = np.concatenate([inside, self.rows_in + outside])
        return Mix(self.features[rows], {base: scores[rows] for base, scores in self.scores.items()}, len(inside))

    def sample(self, rng: np.random.Generator, rows_in: int, rows_out: int) -> "Mix":
        """Return that many rows of each set, at random and without replacement."""
        return self.take(rng.permutation(self.rows_in)[:rows_in], rng.permutation(self.rows_out)[:rows_out])

    def halves(self, rng: np.random.Generator) -> tuple["Mix", "Mix"]:
        """Return both halves of each set, split at random."""
        inside, outside = rng.permutation(self.rows_in), rng.permutation(self.rows_out)
        middles = len(inside) // 2, len(outside) // 2
        return self.take(inside[: middles[0]], outside[: middles[1]]), self.take(
            inside[middles[0] :], outside[middles[1] :]
        )

    def split(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return (scores_in, scores_out)."""
        return scores[: self.rows_in], scores[self.rows_in :]
