"""The columns that a contrast regresses on: where a row lies, how far out, and what the base scores say of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .._check import Floats, Matrix, rows_of_block, slices
from ..least_squares import row_products
from ..outputs import Outputs
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

    def copied(self) -> ScoredRows:
        """Return a copy, which nobody else can change."""
        return ScoredRows(np.array(self.features, order="C"), self.scores.copy(), self.classes.copy())


@dataclass(frozen=True, eq=False)
class ColumnsApart:
    """The columns of some rows: `scaled` (n, d) over its length, the `distance` (n,), is the direction.

    `others` (n, 1 + s) are the columns behind it, and `classes` (n,) the predicted classes.
    """

    scaled: Floats
    distance: Floats
    others: Floats
    classes: Classes

    def times(self, coef: Floats) -> Floats:
        """Return the columns' products with `coef` (n,); rows that are equal get the same, to the bit."""
        d = self.scaled.shape[1]
        products = row_products(self.scaled, coef[:d])
        products /= np.where(self.distance > 0, self.distance, 1.0)
        for column, weight in zip(self.others.T, coef[d:], strict=True):
            products += weight * column
        return products


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
        scores = _all_scores(known, base, beside, temperature, head, bank, leave_out=bank is not None)
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
        return columns, ScoredRows(known.features, scores, known._predicted_classes())

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
        scores = _all_scores(outputs, self.base, self.names[1:], self.temperature, self.head, self.bank)
        return ScoredRows(outputs.features, scores, outputs._predicted_classes())

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
        """Return the blocks of rows whose columns are made at once, such that the cache holds them."""
        return slices(len(rows), max(_MIN_BLOCK_ROWS, rows_of_block(len(rows), len(self) + 1)))

    def block(self, rows: ScoredRows, part: slice | Classes) -> Floats:
        """Return the columns of some rows."""
        return self._made(rows.features[part], rows.scores[part], len(self))

    def block_and_ones(self, rows: ScoredRows, part: slice) -> Floats:
        """Return the columns of some rows (n, p + 1), with a column of ones behind them."""
        block = self._made(rows.features[part], rows.scores[part], len(self) + 1)
        block[:, -1] = 1.0
        return block

    def matrix(self, rows: ScoredRows) -> Floats:
        """Return the columns (n, p) of all rows."""
        return self._made(rows.features, rows.scores, len(self))

    def apart(self, rows: ScoredRows, part: slice = slice(None)) -> ColumnsApart:
        """Return the columns of some rows, all by default, with directions that are not yet brought to length one."""
        scaled, distance = self._scaled(rows.features[part], self.dimensions)
        return ColumnsApart(scaled, distance, self._others(distance, rows.scores[part]), rows.classes[part])

    def _made(self, features: Matrix, scores: Floats, width: int) -> Floats:
        """Return the columns, in a block of that width."""
        block, distance = self._scaled(features, width)
        block *= (1 / np.where(distance > 0, distance, 1.0))[:, None]
        block[:, self.dimensions : len(self)] = self._others(distance, scores)
        return block

    def _scaled(self, features: Matrix, width: int) -> tuple[Floats, Floats]:
        """Return features less the origin and over the scale, in a block of that width, and the rows' lengths (n,).

        What is done to the directions is done to the whole block, of which the other columns are 0: NumPy takes twice
        as long for some of the columns as for all.
        """
        d = self.dimensions
        block = np.empty((len(features), width))
        block[:, :d] = features
        block[:, d:] = 0.0
        origin, factor = self._origin_and_factor
        block -= origin[:width]
        with np.errstate(over="ignore"):
            block *= factor[:width]
            square = np.einsum("ij,ij->i", block, block)
        if not square.max() <= _SQUARABLE**2:
            np.clip(block, -_SQUARABLE, _SQUARABLE, out=block)
            square = np.einsum("ij,ij->i", block, block)
        return block, np.sqrt(square)

    @cached_property
    def _origin_and_factor(self) -> tuple[Floats, Floats]:
        """The origin and 1 / scale, and behind them 0 and 1 for the columns that are no directions."""
        others = len(self) + 1 - self.dimensions
        with np.errstate(over="ignore"):
            factor = np.minimum(1 / self.scale, np.finfo(np.float64).max)
        return np.append(self.origin, np.zeros(others)), np.append(factor, np.ones(others))

    def _others(self, distance: Floats, scores: Floats) -> Floats:
        """Return the columns that are no directions (n, 1 + s): the distance and the scores, bounded."""
        others = np.empty((1 + len(self.names), len(scores)))  # A column in one piece: NumPy is slow with short rows.
        np.minimum(distance, FARTHEST * np.sqrt(self.dimensions), out=others[0])
        standard = others[1:]
        standard[:] = scores.T
        standard -= self.score_origin[:, None]
        standard /= self.score_scale[:, None]
        np.clip(standard[1:], -FARTHEST_SCORE, FARTHEST_SCORE, out=standard[1:])
        return others.T


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
) -> Floats:
    """Return the base score and those beside it (n, s)."""
    if beside and base in BESIDE and as_temperature(temperature) == 1.0:
        return gen_energy_msp(outputs._need("logits"), (str(base), *beside))
    first = base_scores(outputs, base, temperature, head=head, bank=bank, leave_out=leave_out)
    return np.column_stack((first, gen_energy_msp(outputs._need("logits"), beside))) if beside else first[:, None]


def _usable(deviation: Floats) -> Floats:
    """Return what scores are divided by: a base score that is constant is left in its unit, others are left out."""
    scale = np.where(deviation > 0, deviation, np.inf)
    scale[0] = deviation[0] if deviation[0] > 0 else 1.0
    return scale


def _mean_and_deviation(matrix: Matrix) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of each column, 0 where that is but rounding."""
    rows = matrix.astype(np.float64)
    first = rows[0].copy()
    rows -= first  # About a row's own value nothing is left of a constant column.
    about_first = rows.mean(axis=0)
    mean = first + about_first
    rows -= about_first
    largest = np.maximum(rows.max(axis=0), -rows.min(axis=0))
    unit = np.where(largest > 0, largest, 1.0)  # Squares of numbers of any size stay in range.
    rows /= unit
    spread = np.sqrt(np.einsum("ij,ij->j", rows, rows) / len(rows)) * unit
    return mean, np.where(spread > _CONSTANT * np.abs(mean), spread, 0.0)
