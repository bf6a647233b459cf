r"""Placements: how known rows rank among the rows at hand, which compares two scores without labels.

The chance that a known row outscores a row at hand is ½(1 − π) + π · AUROC, where π is the share of out rows: it orders
scores as their AUROC does. Known rows are weighted to the mix of predicted classes that the rows at hand have, so that
another mix of classes is not taken for out rows. Standard errors are those of DeLong, DeLong & Clarke-Pearson (1988);
for the difference of two scores on the same rows they count what the two have in common.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ._check import Floats
from .outputs import Outputs

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
    def of(cls, scores_in: Floats, scores: Floats, weights: Floats) -> "Placements":
        """Return those of rows by their scores, and by the scores and weights (m,) of known rows."""
        order = np.argsort(scores_in)
        below = np.concatenate(([0.0], np.cumsum(weights[order])))
        of_rows = 1 - _sum_of_sides(scores_in[order], scores, below) / (2 * below[-1])
        counts = np.arange(len(scores) + 1, dtype=np.float64)
        of_known = weights * _sum_of_sides(np.sort(scores), scores_in, counts) / (2 * below[-1])
        return cls(of_rows, of_known, len(scores) * weights / below[-1])

    @classmethod
    def none(cls, rows: int, known: int) -> "Placements":
        """Return those of rows of which nothing is known yet."""
        return cls(np.full(rows, 0.5), np.zeros(known), np.zeros(known))

    def put(self, part: slice, more: "Placements") -> None:
        """Take those of some of the rows."""
        self.of_rows[part] = more.of_rows
        np.add(self.of_known, more.of_known, out=self.of_known)
        np.add(self.most, more.most, out=self.most)

    @property
    def chance(self) -> float:
        """The chance that a known row outscores a row at hand of its class."""
        return float(self.of_rows.mean())

    @property
    def standard_error(self) -> float:
        """Of the chance."""
        of_rows = float(((self.of_rows - self.chance) ** 2).sum())
        of_known = float(((self.of_known - self.chance * self.most) ** 2).sum())
        return float(np.sqrt(of_rows + of_known)) / len(self.of_rows)

    def __sub__(self, before: "Placements") -> "Placements":
        """Return what another score of the same rows changes."""
        return Placements(self.of_rows - before.of_rows, self.of_known - before.of_known, self.most)


def class_weights(classes_in: Classes, classes: Classes) -> Floats:
    """Return weights of known rows (m,) that give them the mix of classes of the rows at hand, as far as they can."""
    number = int(max(classes_in.max(), classes.max())) + 1
    known, rows = np.bincount(classes_in, minlength=number), np.bincount(classes, minlength=number)
    weights: Floats = (rows / np.maximum(known, 1))[classes_in]
    return weights if weights.any() else np.ones(len(classes_in))


def predicted_classes(outputs: Outputs) -> Classes:
    """Return the predicted class (n,) of each row: its largest logit, and 0 where there are none."""
    if outputs.logits is None:
        return np.zeros(len(outputs), dtype=np.intp)
    classes: Classes = outputs.logits.argmax(axis=1)
    return classes


def _sum_of_sides(ordered: Floats, scores: Floats, below: Floats) -> Floats:
    """Return twice what lies below each score (n,), ties counted half, by what lies below each place in an order."""
    sides: Floats = below[np.searchsorted(ordered, scores)] + below[np.searchsorted(ordered, scores, side="right")]
    return sides
