"""A mix: rows of an in-distribution set and of another, with their base scores; drawn and split."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._check import Floats, Matrix
from ...outputs import Outputs

Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Mix:
    """Rows of two sets, the in-distribution ones first, and each base score of them.

    Where a case wants them there are `logits`, and `labels` (rows_in,), the true classes of the in-distribution rows.
    """

    features: Matrix
    scores: dict[str, Floats]
    rows_in: int
    logits: Matrix | None = None
    labels: NDArray[np.integer[Any]] | None = None

    @property
    def rows_out(self) -> int:
        """Number of rows of the other set."""
        return len(self.features) - self.rows_in

    def take(self, inside: Index, outside: Index) -> "Mix":
        """Return those rows of each set."""
        rows = np.concatenate([inside, self.rows_in + outside])
        return Mix(
            self.features[rows],
            {base: scores[rows] for base, scores in self.scores.items()},
            len(inside),
            None if self.logits is None else self.logits[rows],
            None if self.labels is None else self.labels[inside],
        )

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

    def with_known(self, rng: np.random.Generator, share: float) -> tuple["Mix", "Mix", "Mix"]:
        """Return a share of the in-distribution rows, another as large, and a mix of all other rows, at random."""
        inside, outside, none = rng.permutation(self.rows_in), rng.permutation(self.rows_out), np.arange(0)
        each = int(share * self.rows_in)
        known, held, others = inside[:each], inside[each : 2 * each], inside[2 * each :]
        return self.take(known, none), self.take(held, none), self.take(others, outside)

    def first(self, rows_in: int, rows_out: int) -> "Mix":
        """Return the first rows of each set."""
        return self.take(np.arange(rows_in), np.arange(rows_out))

    def outputs(self) -> Outputs:
        """Return what the network says of these rows."""
        return Outputs(self.features, self.logits)

    def classes(self) -> NDArray[np.integer[Any]]:
        """Return the class of each in-distribution row (rows_in,): its label, or else the largest logit."""
        if self.labels is not None:
            return self.labels
        predicted: Index = self.outputs()._need("logits")[: self.rows_in].argmax(axis=1)
        return predicted

    def split(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return (scores_in, scores_out)."""
        return scores[: self.rows_in], scores[self.rows_in :]
