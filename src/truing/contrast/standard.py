"""`Standard`: base scores and features, standardised by the learning half of the reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._check import LARGEST, Floats, Matrix, as_block, by_rows, row_blocks
from .._threads import map_blocks
from ..decisions.distances import RowScale
from ..outputs import Outputs
from ..regression.least_squares import row_products
from ..scores import Base, Head, base_name, base_scores, copied_head, needs_reference
from ..scores.rows import BaseScore, ScoredRows

# The distance limit, relative to the most distant reference row.
_MARGIN = 2.0

# Fewer reference rows than this are too few to learn from and set no distance limit.
FEWEST_REFERENCE_ROWS = 50

# Cap of the standardised base score: a score far above all reference scores adds no evidence.
HIGHEST_SCORE = 30.0

# Standardised features are clipped to this value. It is below the largest distance, so the distance penalty dominates.
_LARGEST_FEATURE = 1e90


@dataclass(frozen=True, eq=False)
class Standard:
    r"""A base score, and the means and standard deviations of reference rows.

    `scale` holds the mean and standard deviation of the features, `score_origin` and `score_scale` the mean and
    standard deviation of the base score. `limit`, the distance limit, is twice the largest distance of a reference row
    from the mean (`RowScale`). `classes` is the number of logits, or 0 without logits. `reference` holds the reference
    rows if the base score needs them.
    """

    base: Base
    temperature: float
    head: Head | None
    reference: Outputs | None
    scale: RowScale
    score_origin: float
    score_scale: float
    limit: float
    classes: int

    @classmethod
    def of(
        cls, reference: Outputs, base: Base, temperature: float = 1.0, head: Head | None = None
    ) -> tuple[Standard, ScoredRows]:
        """Return the standard of reference rows, and these rows with their base scores.

        If the base score needs a reference, as knn does, each reference row is scored by other reference rows only.
        """
        head = copied_head(head)
        kept = reference._copied() if needs_reference(base) else None
        scores = base_scores(reference, base, temperature, head=head, reference=kept, leave_out=kept is not None)
        scale, of_scores = RowScale.of(reference.features), RowScale.of(scores[:, None])
        standard = cls(
            base,
            temperature,
            head,
            kept,
            scale,
            score_origin=float(of_scores.mean[0]),
            score_scale=float(of_scores.deviation[0]),
            limit=_limit(scale.distances(reference.features)),
            classes=0 if reference.logits is None else reference.logits.shape[1],
        )
        return standard, ScoredRows(reference.features, scores)

    @property
    def name(self) -> str:
        """The name of the base score."""
        return base_name(self.base)

    @property
    def base_score(self) -> BaseScore:
        """The base score with its temperature, head and reference."""
        return BaseScore(self.base, self.temperature, self.head, self.reference)

    @property
    def dimensions(self) -> int:
        """The number of features."""
        return len(self.scale.mean)

    def scored(self, outputs: Outputs) -> ScoredRows:
        """Return rows with their base scores. Reject rows with another number of features or classes."""
        self.check(outputs)
        return ScoredRows(outputs.features, self.base_score.of(outputs))

    def check(self, outputs: Outputs) -> None:
        """Reject rows whose number of features or classes differs from the reference."""
        if outputs.features.shape[1] != self.dimensions:
            width = outputs.features.shape[1]
            raise ValueError(f"features must have {self.dimensions} columns, as the reference has, got {width}")
        classes = 0 if outputs.logits is None else outputs.logits.shape[1]
        if classes != self.classes:
            expected = f"{self.classes} logits" if self.classes else "no logits"
            raise ValueError(f"outputs must have {expected}, as the reference has, got {classes or 'none'}")

    def features(self, rows: ScoredRows) -> Floats:
        """Return the standardised features (n, d)."""
        standardised = np.empty(rows.features.shape)

        def fill(part: slice) -> None:
            standardised[part] = self._standardised(rows.features[part])

        map_blocks(fill, row_blocks(rows.features, copies=2), uses_blas=False)
        return standardised

    def base_scores(self, rows: ScoredRows) -> Floats:
        """Return the standardised base scores (n,)."""
        standardised: Floats = (rows.scores - self.score_origin) / self.score_scale
        return np.minimum(standardised, HIGHEST_SCORE)

    def distances(self, rows: ScoredRows) -> Floats:
        """Return the distance (n,) of each row from the mean of the reference."""
        return self.scale.distances(rows.features)

    def products(self, rows: ScoredRows, coef: Floats) -> Floats:
        """Return the products (n,) of the standardised features with `coef` (d,). Equal rows have equal products."""
        return by_rows(lambda block: row_products(self._standardised(block), coef), rows.features)

    def _standardised(self, features: Matrix) -> Floats:
        with np.errstate(over="ignore"):
            standardised = as_block(features) - self.scale.mean
            standardised /= self.scale.deviation
        return np.clip(standardised, -_LARGEST_FEATURE, _LARGEST_FEATURE, out=standardised)


def _limit(distances: Floats) -> float:
    """Return the distance limit, given the distances of the reference rows."""
    if len(distances) < FEWEST_REFERENCE_ROWS:
        return LARGEST
    return _MARGIN * float(distances.max()) or 1.0
