"""The columns that a contrast regresses on: where a row lies, how far out, and what the base scores say of it."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .._check import BLOCK_NUMBERS, Floats
from ..outputs import Outputs
from ..scores import NEEDS, Base, Head, base_name, base_scores

# Scores of the logits that stand beside the base score.
BESIDE = ("gen", "energy", "msp")

# A column that varies less than this share of its size, or of the largest column's, is taken for constant.
_CONSTANT = 1e-13

# Rows that are made at once at least: sums of blocks are added, and that costs as much as some thousand rows.
_LEAST_ROWS = 8192

Classes = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Columns:
    r"""A recipe for the columns (n, d + 1 + s) of a row: its direction, its distance, its scores.

    With the mean and the standard deviations of the known rows as `origin` and `scale` (d,), a row of features z is
    $r\,v$ with $v$ of length one, $r\,v = (z - \mathrm{origin}) / \mathrm{scale}$. Its columns are $v$, $r$, and the
    scores called `names`, the base score first. No unit or offset of a feature changes them. `classes` is the number of
    logits, 1 where there are none: the predicted class of a row is its largest logit.
    """

    base: Base
    temperature: float
    head: Head | None
    bank: Outputs | None
    names: tuple[str, ...]
    origin: Floats
    scale: Floats
    classes: int

    @classmethod
    def of(cls, known: Outputs, base: Base, temperature: float = 1.0, head: Head | None = None) -> "Columns":
        """Return the recipe with the origin and scale of `known` rows, which also serve as a score's bank."""
        features = known.features
        first = features[0].astype(np.float64)
        # About a row's own value nothing is left of a constant column.
        origin = first + (features - first).mean(axis=0)
        deviation = np.abs(features - origin)
        largest = deviation.max(axis=0)
        unit = np.where(largest > 0, largest, 1.0)
        spread = np.sqrt(((deviation / unit) ** 2).mean(axis=0)) * unit
        varies = spread > _CONSTANT * np.abs(origin)
        name = base_name(base)
        beside = () if known.logits is None else tuple(other for other in BESIDE if other != name)
        return cls(
            base=base,
            temperature=temperature,
            head=head,
            bank=known if isinstance(base, str) and "bank" in NEEDS.get(base, ()) else None,
            names=(name, *beside),
            origin=origin,
            scale=np.where(varies, np.where(spread > 0, spread, 1.0), np.inf),
            classes=1 if known.logits is None else known.logits.shape[1],
        )

    @property
    def dimensions(self) -> int:
        """Number of features."""
        return len(self.origin)

    def __len__(self) -> int:
        return self.dimensions + 1 + len(self.names)

    def scores(self, outputs: Outputs, *, leave_out: bool = False) -> Floats:
        """Return the scores (n, s) of these rows; `leave_out` says that they are the bank's own."""
        scores = np.empty((len(outputs), len(self.names)))
        needed = {"head": self.head, "bank": self.bank, "leave_out": leave_out and self.bank is not None}
        scores[:, 0] = base_scores(outputs, self.base, self.temperature, **needed)  # type: ignore[arg-type]
        for place, name in enumerate(self.names[1:], start=1):
            scores[:, place] = base_scores(outputs, name)
        return scores

    def predicted(self, outputs: Outputs) -> Classes:
        """Return the predicted class (n,) of these rows, 0 where there are no logits."""
        if outputs.logits is None:
            return np.zeros(len(outputs), dtype=np.intp)
        predicted: Classes = outputs.logits.argmax(axis=1)
        return predicted

    def blocks(self, outputs: Outputs, *, leave_out: bool = False) -> Iterator[tuple[slice, Floats, Classes]]:
        """Yield (rows, their columns, their predicted classes), some rows at a time."""
        self.check(outputs)
        scores, classes = self.scores(outputs, leave_out=leave_out), self.predicted(outputs)
        d = self.dimensions
        size = max(_LEAST_ROWS, BLOCK_NUMBERS // len(self))
        for start in range(0, len(outputs), size):
            rows = slice(start, min(start + size, len(outputs)))
            block = np.empty((rows.stop - start, len(self)))
            np.subtract(outputs.features[rows], self.origin, out=block[:, :d])
            block[:, :d] /= self.scale
            distance = np.sqrt(np.einsum("ij,ij->i", block[:, :d], block[:, :d]))
            block[:, :d] /= np.where(distance > 0, distance, 1.0)[:, None]
            block[:, d] = distance
            block[:, d + 1 :] = scores[rows]
            yield rows, block, classes[rows]

    def check(self, outputs: Outputs) -> None:
        """Refuse rows of another width, or of another number of classes."""
        if outputs.features.shape[1] != self.dimensions:
            found = outputs.features.shape[1]
            raise ValueError(f"features must have {self.dimensions} columns, as the reference has, got {found}")
        classes = 1 if outputs.logits is None else outputs.logits.shape[1]
        if classes != self.classes:
            wanted = "no logits" if self.classes == 1 else f"{self.classes} logits"
            found = "none" if outputs.logits is None else str(classes)
            raise ValueError(f"outputs must have {wanted}, as the reference has, got {found}")
