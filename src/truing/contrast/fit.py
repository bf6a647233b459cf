"""ContrastFit: what a contrast found, a linear map from columns to a score."""

from __future__ import annotations

from dataclasses import dataclass

from .._check import Floats, counted
from ..outputs import Outputs, as_outputs
from .columns import Columns, ScoredRows

# Fewer rows at hand say little.
_FEW_ROWS = 100

# A contrast that is less sure than this that there is something to learn keeps to its prior score.
_LITTLE_TRUST = 0.5


@dataclass(frozen=True, eq=False)
class Explanation:
    """What made rows look in or out: terms of each row's score, which is their sum.

    `features` (n, d) is the part of the direction in which the row lies, feature by feature, `distance` (n,) that of
    how far out it lies, `scores` that of each base score by name (n,), and `predicted_class` (n,) that of its class.
    Negative terms speak for out.
    """

    features: Floats
    distance: Floats
    scores: dict[str, Floats]
    predicted_class: Floats


@dataclass(frozen=True, eq=False)
class ContrastFit:
    r"""A linear map from the columns of `columns` to a score, about a `centre`, and an offset for each class.

    The score is $(x - \mathrm{centre})^\top$ `coef` (p,) + `class_offsets` (c,); the centre is the known rows' mean.
    `prior` names the prior score, and `prior_coef` (p,) is its part of the coefficients. `log_evidence` is the log
    Bayes factor for a departure from the prior score, `trust` its posterior probability, which the departure is weighed
    by, `evidence_share` the departure's share of the score's variance, `directions` the effective number of directions
    that it uses, and `out_share` the estimated share of out rows among the `rows` at hand. `known_rows` were learned
    from. `scores_in` (m,) are the scores of the known rows that were held back to decide against.
    """

    columns: Columns
    coef: Floats
    class_offsets: Floats
    centre: Floats
    prior: str
    prior_coef: Floats
    log_evidence: float
    trust: float
    evidence_share: float
    directions: float
    out_share: float
    rows: float
    known_rows: float
    scores_in: Floats | None = None

    def predict(self, outputs: Outputs) -> Floats:
        """Return the score (n,) of every row; higher is more in-distribution."""
        return self.predict_scored(self.columns.scored(as_outputs(outputs, "outputs")))

    def predict_scored(self, rows: ScoredRows) -> Floats:
        """Return the score (n,) of rows whose base scores are known."""
        of_class = self.class_offsets - float(self.centre @ self.coef)
        return self.columns.products(rows, self.coef, of_class)

    def explain(self, outputs: Outputs) -> Explanation:
        """Return what each part of a row adds to its score, compared with the mean known row."""
        rows = self.columns.scored(as_outputs(outputs, "outputs"))
        d = self.columns.dimensions
        parts = (self.columns.matrix(rows) - self.centre) * self.coef
        scores = {name: parts[:, d + 1 + place] for place, name in enumerate(self.columns.names)}
        return Explanation(parts[:, :d], parts[:, d], scores, self.class_offsets[rows.classes])

    def notes(self) -> list[str]:
        """Return what a user should know before trusting it."""
        if self.rows == 0:
            return [f"nothing learned yet: rows are ranked by {self.prior} alone"]
        notes = []
        if self.rows < _FEW_ROWS:
            notes.append(f"few rows to learn from, {self.rows:,.10g}: what sets out rows apart shows in hundreds")
        if self.trust < _LITTLE_TRUST:
            notes.append(
                f"little tells the rows at hand from known ones: they are ranked much as {self.prior} ranks them, the "
                f"evidence weighed by {self.trust:.2g}"
            )
        return notes

    def __repr__(self) -> str:
        return (
            f"ContrastFit({counted(self.rows)} against {counted(self.known_rows)} known, prior {self.prior}, "
            f"{self.evidence_share:.0%} evidence, about {self.out_share:.0%} out)"
        )
