"""The columns that a contrast regresses on: where a row lies, how far out, and what the base scores say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .._check import BLOCK_NUMBERS, Floats, Matrix, as_block, rows_of_block, slices
from .._threads import map_blocks
from ..outputs import Outputs
from ..regression.least_squares import row_products
from ..scores import Base, Head, base_name, base_scores, copied_head, gen_energy_msp, looks_at_known
from ..scores.logits import as_temperature

# Scores of the logits that stand beside the base score.
BESIDE = ("gen", "energy", "msp")

# A column that varies less than this share of its size is constant but for rounding.
_CONSTANT = 1e-13

# Rows beyond these are taken to be there, lest a weight found among others be stretched without end: in standard
# deviations of the known rows for the scores beside the base score, in their root mean square for the distance.
FARTHEST_SCORE = 30.0
FARTHEST = 10.0

# A number whose square is in range.
_SQUARABLE = 1e150

# Rows made at once, at least: a block of fewer makes a poor matrix product.
_MIN_BLOCK_ROWS = 256

Classes = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """What columns are made of: features (n, d), base scores (n, s), and the predicted class (n,) of each row."""

    features: Matrix
    scores: Floats
    classes: Classes

    def __len__(self) -> int:
        return len(self.features)

    def widened(self) -> ScoredRows:
        """Return the same rows, their features in float64 where they are few: each fit of a stream scores them anew."""
        if self.features.size > BLOCK_NUMBERS:
            return self
        return replace(self, features=np.asarray(self.features, dtype=np.float64))

    def copied(self) -> ScoredRows:
        """Return a copy, which nobody else can change."""
        return ScoredRows(np.array(self.features, order="C"), self.scores.copy(), self.classes.copy())


@dataclass(frozen=True, eq=False)
class Columns:
    r"""A recipe for the columns (n, d + 1 + s) of a row: its direction, its distance, its scores.

    With the mean and the standard deviations of the known rows as `origin` and `scale` (d,), a row of features z is
    $r\,v$ with $v$ of length one, $r\,v = (z - \mathrm{origin}) / \mathrm{scale}$. Its columns are $v$, $r$, and the
    scores called `names`, the base score first, each less its known mean and over its known standard deviation,
    `score_origin` and `score_scale` (s,). No unit or offset of a feature or of a score changes them. The distance and
    the scores beside the base score are bounded, far outside of what known rows have. `classes` is the number of
    logits, 1 where there are none: the predicted class of a row is its largest logit.
    """

    base: Base
    temperature: float
    head: Head | None
    bank: Outputs | None
    names: tuple[str, ...]
    origin: Floats
    scale: Floats
    score_origin: Floats
    score_scale: Floats
    classes: int

    @classmethod
    def of(
        cls, known: Outputs, base: Base, temperature: float = 1.0, head: Head | None = None
    ) -> tuple[Columns, ScoredRows]:
        """Return the recipe with the means and deviations of `known` rows, and what it makes of these.

        They also serve as a score's bank, and each of them is then scored as if it were not in it.
        """
        name = base_name(base)
        head = copied_head(head)
        classes = 1 if known.logits is None else known.logits.shape[1]
        beside = scores_beside(name, classes)
        bank = known._copied() if looks_at_known(base) else None
        scores, predicted = _all_scores(known, base, beside, temperature, head, bank, leave_out=bank is not None)
        origin, scale = _mean_and_deviation(known.features)
        score_origin, score_scale = _mean_and_deviation(scores)
        columns = cls(
            base=base,
            temperature=temperature,
            head=head,
            bank=bank,
            names=(name, *beside),
            origin=origin,
            scale=np.where(scale > 0, scale, np.inf),  # What is constant in the known rows is no direction.
            score_origin=score_origin,
            score_scale=_usable(score_scale),
            classes=classes,
        )
        return columns, ScoredRows(known.features, scores, predicted)

    @property
    def dimensions(self) -> int:
        """Number of features."""
        return len(self.origin)

    @property
    def rounding(self) -> Floats:
        """What rounding may leave of each column's deviation (p,) where there is none."""
        of_scores = _CONSTANT * (1 + np.abs(self.score_origin) / self.score_scale)
        return np.append(np.full(self.dimensions + 1, _CONSTANT), of_scores)

    def __len__(self) -> int:
        return self.dimensions + 1 + len(self.names)

    def scored(self, outputs: Outputs) -> ScoredRows:
        """Return what the columns of these rows are made of."""
        self.check(outputs)
        scores, predicted = _all_scores(outputs, self.base, self.names[1:], self.temperature, self.head, self.bank)
        return ScoredRows(outputs.features, scores, predicted)

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

    def slices(self, rows: ScoredRows) -> list[slice]:
        """Return the blocks of rows whose columns are computed at a time."""
        return slices(len(rows), max(_MIN_BLOCK_ROWS, rows_of_block(len(rows), len(self) + 1)))

    def block(self, rows: ScoredRows, part: slice | Classes) -> Floats:
        """Return the columns of some rows."""
        return self._made(rows.features[part], rows.scores[part])

    def matrix(self, rows: ScoredRows) -> Floats:
        """Return the columns (n, p) of all rows."""
        return self._made(rows.features, rows.scores)

    def products(self, rows: ScoredRows, coef: Floats, of_class: Floats) -> Floats:
        """Return the columns' products with `coef`, and what is added for each class (c,); equal rows get the same."""
        if coef.shape != (len(self),) or of_class.shape != (self.classes,):
            wanted = f"{len(self)} coefficients and {self.classes} offsets of classes"
            raise ValueError(f"a contrast of these columns must have {wanted}, got {coef.shape} and {of_class.shape}")
        products = np.empty(len(rows))

        def fill(part: slice) -> None:
            products[part] = row_products(self.block(rows, part), coef) + of_class[rows.classes[part]]

        map_blocks(fill, self.slices(rows), uses_blas=False)
        return products

    def _made(self, features: Matrix, scores: Floats) -> Floats:
        """Return the columns (n, p): the formula above."""
        features = as_block(features)
        with np.errstate(over="ignore"):
            scaled = (features - self.origin) * self._factor
            if not (np.abs(scaled) <= _SQUARABLE).all():
                scaled = np.clip(scaled, -_SQUARABLE, _SQUARABLE)
            distance = np.sqrt(np.einsum("ij,ij->i", scaled, scaled))
        scaled /= np.where(distance > 0, distance, 1.0)[:, None]
        standard = (scores - self.score_origin) / self.score_scale
        farthest, farthest_score = self._bounds
        standard[:, 1:] = np.clip(standard[:, 1:], -farthest_score, farthest_score)
        return np.column_stack((scaled, np.minimum(distance, farthest), standard))

    @property
    def _factor(self) -> Floats:
        with np.errstate(over="ignore"):
            return np.minimum(1 / self.scale, np.finfo(np.float64).max)

    @property
    def _bounds(self) -> Floats:
        """The largest of a distance, and of a score beside the base score."""
        return np.array([FARTHEST * np.sqrt(self.dimensions), FARTHEST_SCORE])


def scores_beside(base: str, classes: int) -> tuple[str, ...]:
    """Return the names of the scores that stand beside a base score, where there are logits of two classes or more."""
    return tuple(name for name in BESIDE if name != base) if classes > 1 else ()


def _all_scores(
    outputs: Outputs,
    base: Base,
    beside: tuple[str, ...],
    temperature: float,
    head: Head | None,
    bank: Outputs | None,
    *,
    leave_out: bool = False,
) -> tuple[Floats, Classes]:
    """Return the base score and those beside it (n, s), and the predicted class (n,) of each row."""
    if beside and base == "gen" and as_temperature(temperature) == 1.0:  # It has the bits that it has by itself.
        return gen_energy_msp(outputs._need("logits"), ("gen", *beside))
    first = base_scores(outputs, base, temperature, head=head, bank=bank, leave_out=leave_out)
    if not beside:
        return first[:, None], outputs._predicted_classes()
    others, predicted = gen_energy_msp(outputs._need("logits"), beside)
    return np.column_stack((first, others)), predicted


def _usable(deviation: Floats) -> Floats:
    """Return what scores are divided by: a base score that is constant is left in its unit, others are left out."""
    scale = np.where(deviation > 0, deviation, np.inf)
    scale[0] = deviation[0] if deviation[0] > 0 else 1.0
    return scale


def _mean_and_deviation(matrix: Matrix) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of each column, 0 where that is but rounding."""
    mean, spread = _mean_and_spread(matrix)
    return mean, np.where(spread > _CONSTANT * np.abs(mean), spread, 0.0)


def _mean_and_spread(matrix: Matrix) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of each column, as they come out."""
    rows = matrix.astype(np.float64, order="C")  # Sums do not depend on how it lies in memory.
    first = rows[0].copy()
    rows -= first  # About a row's own value nothing is left of a constant column.
    about_first = rows.mean(axis=0)
    mean = first + about_first
    rows -= about_first
    largest = np.maximum(rows.max(axis=0), -rows.min(axis=0))
    unit = np.where(largest > 0, largest, 1.0)  # Squares of numbers of any size stay in range.
    rows /= unit
    return mean, np.sqrt(np.einsum("ij,ij->j", rows, rows) / len(rows)) * unit
