"""The two halves of a reference: the learning half, and the calibration half that scores are ranked against."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _linalg
from .._blas import one_thread
from .._check import Floats, as_count
from ..decisions.distances import RowGuard, is_garbage
from ..outputs import Outputs, check_same_model
from ..scores import Base, Head
from ..scores.rows import ScoredRows, sampled
from .fit import ContrastFit
from .ridge import FoldedCovariance
from .sample import share_of
from .standard import FEWEST_REFERENCE_ROWS, Standard
from .tail import Learned, learn

# The seed of the split if no generator is given: the same input gives the same result.
_SEED = 20230

# The smallest reference that can be split.
FEWEST_TO_SPLIT = 4

# The fewest test rows that a fit learns from. With fewer rows, the score is the base score.
_FEWEST_ROWS = 20


@dataclass(frozen=True, eq=False)
class Evidence:
    """The standardised learning half of a reference, and its covariances, factored once.

    `basis` (d, k) holds the leading principal components of the learning half. With a basis, the learned direction lies
    in the span of the basis.
    """

    rows: ScoredRows
    covariance: FoldedCovariance
    basis: Floats | None

    @classmethod
    def of(cls, standard: Standard, reference: ScoredRows, components: int | None) -> Evidence | None:
        """Return the evidence of the learning half, sampled if the half is large, or None if the half is too small."""
        if len(reference) < FEWEST_REFERENCE_ROWS:
            return None
        basis = None if components is None else _leading_components(standard.features(reference), components)
        share = share_of(len(reference), standard.dimensions)
        rows = _standardised(sampled(reference, share, np.arange(len(reference))), standard, basis)
        return cls(rows, FoldedCovariance.of(rows.features, rows.scores), basis)

    def learn(self, rows: ScoredRows, standard: Standard) -> Learned:
        """Return how the test rows that look out differ from the reference rows."""
        learned = learn(self.rows, _standardised(rows, standard, self.basis), self.covariance)
        return learned if self.basis is None else replace(learned, coef=self.basis @ learned.coef)


@dataclass(frozen=True, eq=False)
class SplitReference:
    """A reference in two halves: `to_learn`, the learning half A, and `to_decide`, the calibration half B.

    `learning` and `calibration` are A and B with their base scores. With `components`, the learned direction lies in
    the span of the leading principal components of A. `evidence` is None if A has too few rows to learn from.
    """

    to_learn: Outputs
    to_decide: Outputs
    standard: Standard
    learning: ScoredRows
    calibration: ScoredRows
    components: int | None
    evidence: Evidence | None

    @classmethod
    def of(
        cls,
        to_learn: Outputs,
        to_decide: Outputs,
        base: Base,
        temperature: float = 1.0,
        head: Head | None = None,
        components: int | None = None,
    ) -> SplitReference:
        """Return the two halves, scored by a base score. Garbage rows of A are left out."""
        guard = RowGuard.of_medians(to_learn.features, np.ones(len(to_learn)))
        garbage = is_garbage(to_learn.features, np.ones(len(to_learn)), guard)
        if garbage.any():
            to_learn = to_learn[np.flatnonzero(~garbage)]
        standard, learning = Standard.of(to_learn, base, temperature, head)
        if components is not None:
            components = as_count(components, "components", at_most=standard.dimensions)
        evidence = Evidence.of(standard, learning, components)
        return cls(to_learn, to_decide, standard, learning, standard.scored(to_decide), components, evidence)

    def __len__(self) -> int:
        return len(self.to_learn) + len(self.to_decide)

    @property
    def guard(self) -> RowGuard:
        """The test for garbage rows, by the distance of their features from the reference."""
        return RowGuard(self.standard.scale, None)

    def fit(self, rows: ScoredRows) -> ContrastFit:
        """Return the contrast of A with the test rows and B."""
        sample, share = self.sample_of(rows)
        return self.applied(self.learn(sample, with_calibration=True, share=share), rows=len(rows))

    def sample_of(self, rows: ScoredRows) -> tuple[ScoredRows, float]:
        """Return a sample of the test rows and its share; the share is 1 unless the test rows and B are many."""
        share = self.share_of(len(rows))
        return sampled(rows, share, len(self.calibration) + np.arange(len(rows))), share

    def share_of(self, rows: int) -> float:
        """Return the share of the rows that a fit uses, given the number of test rows. The rows of B count as well."""
        return share_of(len(self.calibration) + rows, self.standard.dimensions)

    def learn(self, rows: ScoredRows, *, with_calibration: bool, share: float = 1.0) -> Learned | None:
        """Return how rows that look out differ from A, or None if there are too few rows to learn from.

        `with_calibration` adds B to the test rows. Set it if the fit also decides the test rows. Otherwise neither B
        nor the rows to decide may be part of the fit. `share` is the share of all test rows that are in `rows`.
        """
        if with_calibration:
            rows = sampled(self.calibration, share, np.arange(len(self.calibration))) + rows
        garbage = is_garbage(rows.features, rows.scores, self.guard)
        if garbage.any():
            rows = rows[np.flatnonzero(~garbage)]
        if len(rows) < _FEWEST_ROWS or self.evidence is None:
            return None
        return self.evidence.learn(rows, self.standard)

    def applied(self, learned: Learned | None, *, rows: float) -> ContrastFit:
        """Return the fit with a part learned from `rows` test rows. If `learned` is None, scores are base scores."""
        learned = Learned(np.zeros(self.standard.dimensions)) if learned is None else learned
        coef = learned.trust * learned.balance * learned.coef
        numbers = (learned.gain, learned.trust, learned.balance, learned.shift)
        return self.with_scores_in(ContrastFit(self.standard, coef, *numbers, rows, len(self.to_learn)))

    def with_scores_in(self, fit: ContrastFit) -> ContrastFit:
        """Return the fit with its scores of B."""
        return replace(fit, scores_in=fit.predict_scored(self.calibration))

    @property
    def fewest_to_learn(self) -> int:
        """The smallest number of rows for which a fit is computed."""
        return max(_FEWEST_ROWS, self.standard.dimensions // 8)


def _standardised(rows: ScoredRows, standard: Standard, basis: Floats | None) -> ScoredRows:
    """Return rows with standardised base scores and features, projected onto a basis (d, k) if there is one."""
    features = standard.features(rows)
    if basis is not None:
        with one_thread():
            features = features @ basis
    return ScoredRows(features, standard.base_scores(rows))


def _leading_components(features: Floats, components: int) -> Floats:
    """Return the leading principal components (d, k) of standardised features (m, d)."""
    d = features.shape[1]
    with one_thread():
        if len(features) < d:
            basis: Floats = np.linalg.svd(features, full_matrices=False)[2][:components].T
            return basis
        return _linalg.leading_eigenvectors(features.T @ features, components)[1]


def check_distinct(outputs: Outputs, reference: Outputs, name: str = "reference") -> None:
    """Reject reference rows that are identical to the test rows, or that come from another model."""
    if outputs.features.shape == reference.features.shape and np.array_equal(outputs.features, reference.features):
        raise ValueError(f"{name} must differ from outputs, got the same rows")
    check_same_model(outputs, reference, name)


def split(
    reference: Outputs, rng: np.random.Generator | None = None, groups: ArrayLike | None = None
) -> tuple[Outputs, Outputs]:
    """Return two random halves of the reference: the learning half and the calibration half.

    With `groups`, one label per row, the rows of a group stay together.
    """
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {type(rng).__name__}")
    if len(reference) < FEWEST_TO_SPLIT:
        raise ValueError(
            f"reference must have at least {FEWEST_TO_SPLIT} rows to be split in half, got {len(reference)}"
        )
    rng = np.random.default_rng(_SEED) if rng is None else rng
    if groups is None:
        order = rng.permutation(len(reference))
        half = len(reference) // 2
        return reference[np.sort(order[:half])], reference[np.sort(order[half:])]
    numbers = group_numbers(groups, len(reference))
    order = rng.permutation(int(numbers.max()) + 1)
    sizes = np.bincount(numbers)[order]
    # Put whole groups into the first half until it has about half of the rows.
    first = 1 + int(np.argmin(np.abs(np.cumsum(sizes)[:-1] - len(reference) / 2)))
    is_first = np.isin(numbers, order[:first])
    return reference[np.flatnonzero(is_first)], reference[np.flatnonzero(~is_first)]


def group_numbers(groups: ArrayLike, rows: int) -> NDArray[np.intp]:
    """Return the group number (n,) of each row. Reject missing labels, a wrong number of labels, and a single group."""
    labels = np.asarray(groups)
    if labels.shape != (rows,):
        raise ValueError(f"groups must have shape ({rows},), one label per reference row, got shape {labels.shape}")
    values = list(groups) if isinstance(groups, list | tuple) else labels.tolist()
    missing = [row for row, label in enumerate(values) if label is None or label != label or str(label) == "NaT"]
    if missing:
        raise ValueError(f"groups must have no missing labels, got {values[missing[0]]} in row {missing[0]}")
    names, numbers = np.unique(labels.astype(str) if labels.dtype == object else labels, return_inverse=True)
    if len(names) < 2:
        raise ValueError("groups must have at least 2 different labels, got 1: one group cannot be split in half")
    return np.asarray(numbers.reshape(-1), dtype=np.intp)
