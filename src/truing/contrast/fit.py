"""`ContrastFit`: the score that a contrast learns, a function of features and base scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._check import Floats, counted
from .._warnings import Alert
from ..outputs import Outputs, as_outputs
from ..scores.rows import ScoredRows
from .standard import Standard

# A fit to fewer test rows than this gets a note.
_FEW_ROWS = 100

# Below this trust, the score is mostly the base score.
_LITTLE_TRUST = 0.5

# A fit with little trust gets a note if the shift of the bulk exceeds this number of standard errors.
_CLEAR_SHIFT = 6.0

# The smallest penalty at twice the distance limit. `steepness` adds more than twice the largest slope of the score, so
# distant rows always score low.
_STEEPNESS = 100.0


@dataclass(frozen=True, eq=False)
class Explanation:
    """The terms that add up to the score of each row. Negative terms are evidence that the row is out.

    `features` (n, d) is the contribution of each feature, `distance` (n,) the penalty of rows that are farther from the
    reference than any reference row, and `base` (n,) the standardised base score.
    """

    features: Floats
    distance: Floats
    base: Floats


@dataclass(frozen=True, eq=False)
class ContrastFit:
    r"""A score of rows: the standardised base score, plus a linear map of the standardised features.

    The score is $u + x^\top$ `coef` (d,), minus a penalty for rows that are clearly farther from the reference than
    any row of the learning half (`Standard`). `gain`, `trust`, `balance` and `shift` describe how `coef` was weighted
    (`contrast.tail`). `rows` is the number of test rows, or their total weight with decay. `reference_rows` is the size
    of the learning half. `scores_in` (m,) are the scores of the calibration half, which p-values are computed from.
    """

    standard: Standard
    coef: Floats
    gain: float
    trust: float
    balance: float
    shift: float
    rows: float
    reference_rows: int
    scores_in: Floats | None = None

    @property
    def base(self) -> str:
        """The name of the base score."""
        return self.standard.name

    @property
    def steepness(self) -> float:
        """The penalty of a row at twice the distance limit."""
        growth = np.sqrt(len(self.coef)) * float(np.linalg.norm(self.coef))
        return _STEEPNESS + 2 * self.standard.limit * float(growth)

    @property
    def size(self) -> float:
        """The magnitude of the numbers that scores are computed from, which bounds rounding errors."""
        smallest = 1.0 if self.base in ("msp", "kl_uniform") else 0.0  # Both scores are computed from numbers near 1.
        return max(abs(self.standard.score_origin), smallest) / self.standard.score_scale

    def predict(self, outputs: Outputs) -> Floats:
        """Return the score (n,) of every row; higher is more in-distribution."""
        return self.predict_scored(self.standard.scored(as_outputs(outputs, "outputs")))

    def predict_scored(self, rows: ScoredRows) -> Floats:
        """Return the score (n,) of rows whose base scores are already computed."""
        learned = self.standard.products(rows, self.coef)
        scores: Floats = self.standard.base_scores(rows) + learned - self._penalty(self.standard.distances(rows))
        return scores

    def explain(self, outputs: Outputs) -> Explanation:
        """Return the terms of the score of each row, relative to the mean reference row."""
        rows = self.standard.scored(as_outputs(outputs, "outputs"))
        features = self.standard.features(rows) * self.coef
        return Explanation(features, -self._penalty(self.standard.distances(rows)), self.standard.base_scores(rows))

    def notes(self) -> list[str]:
        """Return warnings to read before trusting the scores."""
        if self.rows == 0:
            return [f"nothing learned yet: rows are ranked by {self.base} alone"]
        notes = []
        if self.rows < _FEW_ROWS:
            notes.append(f"only {counted(self.rows)} to learn from: contrast needs hundreds")
        if self.shift > _CLEAR_SHIFT and self.trust < _LITTLE_TRUST:
            notes.append(
                Alert(
                    "the rows differ from the reference as a whole, but few look like outliers: check that the "
                    "reference still matches production"
                )
            )
        elif self.trust < _LITTLE_TRUST:
            notes.append(
                f"contrast learned little: rows are ranked mostly by {self.base}, with weight {self.trust:.2f} for "
                "the learned part"
            )
        return notes

    def _penalty(self, distances: Floats) -> Floats:
        penalty: Floats = self.steepness * np.maximum(distances / self.standard.limit - 1, 0.0)
        return penalty

    def __repr__(self) -> str:
        return (
            f"ContrastFit({counted(self.rows)} against {counted(self.reference_rows, 'reference row')}, base "
            f"{self.base}, trust {self.trust:.2f})"
        )
