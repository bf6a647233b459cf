"""A mix: in-distribution rows and out-of-distribution rows with their base scores, and ways to split it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._check import Floats, Matrix
from ...outputs import Outputs

Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Mix:
    """Rows of two sets, the in-distribution rows first, and their base scores.

    `logits` are present if the case uses logits. Then `labels` (rows_in,) are the true classes of the in-distribution
    rows, if the files have labels.
    """

    features: Matrix
    scores: dict[str, Floats]
    rows_in: int
    logits: Matrix | None = None
    labels: NDArray[np.integer[Any]] | None = None

    @property
    def rows_out(self) -> int:
        """Number of out-of-distribution rows."""
        return len(self.features) - self.rows_in

    def take(self, inside: Index, outside: Index) -> "Mix":
        """Return the selected rows of each set."""
        rows = np.concatenate([inside, self.rows_in + outside])
        return Mix(
            self.features[rows],
            {base: scores[rows] for base, scores in self.scores.items()},
            len(inside),
            None if self.logits is None else self.logits[rows],
            None if self.labels is None else self.labels[inside],
        )

    def sample(self, rng: np.random.Generator, rows_in: int, rows_out: int) -> "Mix":
        """Return a random sample of each set, without replacement."""
        return self.take(rng.permutation(self.rows_in)[:rows_in], rng.permutation(self.rows_out)[:rows_out])

    def halves(self, rng: np.random.Generator) -> tuple["Mix", "Mix"]:
        """Return two random halves of the mix."""
        inside, outside = rng.permutation(self.rows_in), rng.permutation(self.rows_out)
        middles = len(inside) // 2, len(outside) // 2
        return self.take(inside[: middles[0]], outside[: middles[1]]), self.take(
            inside[middles[0] :], outside[middles[1] :]
        )

    def with_reference(self, rng: np.random.Generator, share: float) -> tuple["Mix", "Mix", "Mix"]:
        """Return the learning half and the calibration half of a random reference, and the remaining rows.

        Each half is a `share` of the in-distribution rows.
        """
        inside, outside, none = rng.permutation(self.rows_in), rng.permutation(self.rows_out), np.arange(0)
        each = int(share * self.rows_in)
        learning, calibration, others = inside[:each], inside[each : 2 * each], inside[2 * each :]
        return self.take(learning, none), self.take(calibration, none), self.take(others, outside)

    def outputs(self) -> Outputs:
        """Return the features and logits of these rows."""
        return Outputs(self.features, self.logits)

    def classes(self) -> NDArray[np.integer[Any]]:
        """Return the class of each in-distribution row (rows_in,): the label, or without labels the predicted class."""
        if self.labels is not None:
            return self.labels
        predicted: Index = self.outputs()._need("logits")[: self.rows_in].argmax(axis=1)
        return predicted

    def split(self, scores: Floats) -> tuple[Floats, Floats]:
        """Split scores of all rows into (scores_in, scores_out)."""
        return scores[: self.rows_in], scores[self.rows_in :]
