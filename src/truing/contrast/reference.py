"""The reference in two halves: rows to learn from, and rows to decide against."""

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

# The seed of the split without a generator: the same input gives the same result.
_SEED = 20230

# The smallest reference that can be split.
FEWEST_TO_SPLIT = 4

# The fewest rows at hand that a fit learns from. With fewer rows the score is the base score.
_FEWEST_ROWS = 20


@dataclass(frozen=True, eq=False)
class Evidence:
    """The reference rows that a fit learns from, in standard units, and their covariances, factored once.

    `basis` (d, k) confines the learned part to the leading principal components of these rows.
    """

    rows: ScoredRows
    covariance: FoldedCovariance
    basis: Floats | None

    @classmethod
    def of(cls, standard: Standard, learned: ScoredRows, components: int | None) -> Evidence | None:
        """Return the evidence of reference rows, or of a sample if they are many; None if they are too few."""
        if len(learned) < FEWEST_REFERENCE_ROWS:
            return None
        basis = None if components is None else _leading_components(standard.features(learned), components)
        share = share_of(len(learned), standard.dimensions)
        rows = _standardised(sampled(learned, share, np.arange(len(learned))), standard, basis)
        return cls(rows, FoldedCovariance.of(rows.features, rows.scores), basis)

    def learn(self, rows: ScoredRows, standard: Standard) -> Learned:
        """Return what sets the rows at hand that look out apart from the reference rows."""
        learned = learn(self.rows, _standardised(rows, standard, self.basis), self.covariance)
        return learned if self.basis is None else replace(learned, coef=self.basis @ learned.coef)


@dataclass(frozen=True, eq=False)
class SplitReference:
    """Reference rows to learn from (A), and reference rows to decide against (B).

    `learned` and `decided` are A and B with their base scores. `components` confines the learned part to the leading
    principal components of A. `evidence` is None if A has too few rows to learn from.
    """

    to_learn: Outputs
    to_decide: Outputs
    standard: Standard
    learned: ScoredRows
    decided: ScoredRows
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
        """Return the two halves under a base score. Garbage rows of A are left out."""
        guard = RowGuard.of_medians(to_learn.features, np.ones(len(to_learn)))
        garbage = is_garbage(to_learn.features, np.ones(len(to_learn)), guard)
        if garbage.any():
            to_learn = to_learn[np.flatnonzero(~garbage)]
        standard, learned = Standard.of(to_learn, base, temperature, head)
        if components is not None:
            components = as_count(components, "components", at_most=standard.dimensions)
        evidence = Evidence.of(standard, learned, components)
        return cls(to_learn, to_decide, standard, learned, standard.scored(to_decide), components, evidence)

    def __len__(self) -> int:
        return len(self.to_learn) + len(self.to_decide)

    @property
    def guard(self) -> RowGuard:
        """Recognises rows so far from the reference that they are decided but not learned, by their features."""
        return RowGuard(self.standard.scale, None)

    def fit(self, rows: ScoredRows) -> ContrastFit:
        """Return the contrast of A with the rows at hand and B."""
        some, share = self.some_of(rows)
        return self.applied(self.learn(some, with_decided=True, share=share), rows=len(rows))

    def some_of(self, rows: ScoredRows) -> tuple[ScoredRows, float]:
        """Return the rows at hand, or a sample if they are many with B, and the share of rows in it."""
        share = self.share_of(len(rows))
        return sampled(rows, share, len(self.decided) + np.arange(len(rows))), share

    def share_of(self, rows: int) -> float:
        """Return the share of `rows` rows at hand that a fit uses. For sampling, rows of B are numbered first."""
        return share_of(len(self.decided) + rows, self.standard.dimensions)

    def learn(self, rows: ScoredRows, *, with_decided: bool, share: float = 1.0) -> Learned | None:
        """Return what sets rows that look out apart from A, or None if there are too few rows to learn from.

        With `with_decided`, B joins the rows at hand; use it if the fit also scores these rows. Otherwise neither B nor
        the rows to decide may be part of the fit. `share` is the share of the rows at hand that `rows` hold.
        """
        if with_decided:
            rows = sampled(self.decided, share, np.arange(len(self.decided))) + rows
        garbage = is_garbage(rows.features, rows.scores, self.guard)
        if garbage.any():
            rows = rows[np.flatnonzero(~garbage)]
        if len(rows) < _FEWEST_ROWS or self.evidence is None:
            return None
        return self.evidence.learn(rows, self.standard)

    def applied(self, learned: Learned | None, *, rows: float) -> ContrastFit:
        """Return the fit with a learned part, from `rows` rows at hand. Without one the score is the base score."""
        learned = Learned(np.zeros(self.standard.dimensions)) if learned is None else learned
        coef = learned.trust * learned.balance * learned.coef
        numbers = (learned.gain, learned.trust, learned.balance, learned.shift)
        return self.with_scores_in(ContrastFit(self.standard, coef, *numbers, rows, len(self.to_learn)))

    def with_scores_in(self, fit: ContrastFit) -> ContrastFit:
        """Return the fit with its scores of B."""
        return replace(fit, scores_in=fit.predict_scored(self.decided))

    @property
    def fewest_to_learn(self) -> int:
        """The fewest rows that are worth a fit of their own."""
        return max(_FEWEST_ROWS, self.standard.dimensions // 8)


def _standardised(rows: ScoredRows, standard: Standard, basis: Floats | None) -> ScoredRows:
    """Return the rows with standardised features, in coordinates of a basis (d, k) if there is one, and base scores."""
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
        return np.asarray(_linalg.eigh(features.T @ features, subset_by_index=(d - components, d - 1))[1])


def check_apart(outputs: Outputs, reference: Outputs, name: str = "reference") -> None:
    """Reject reference rows that are identical to the rows at hand, or that come from another model."""
    if outputs.features.shape == reference.features.shape and np.array_equal(outputs.features, reference.features):
        raise ValueError(f"{name} must not be the outputs themselves, got the same rows")
    check_same_model(outputs, reference, name)


def split(
    reference: Outputs, rng: np.random.Generator | None = None, groups: ArrayLike | None = None
) -> tuple[Outputs, Outputs]:
    """Return two random halves of the reference: to learn from, and to decide against.

    With `groups`, one label per row, the rows of a group stay together.
    """
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {type(rng).__name__}")
    if len(reference) < FEWEST_TO_SPLIT:
        raise ValueError(f"reference must have at least {FEWEST_TO_SPLIT} rows to be split, got {len(reference)}")
    rng = np.random.default_rng(_SEED) if rng is None else rng
    if groups is None:
        order = rng.permutation(len(reference))
        half = len(reference) // 2
        return reference[np.sort(order[:half])], reference[np.sort(order[half:])]
    numbers = group_numbers(groups, len(reference))
    order = rng.permutation(int(numbers.max()) + 1)
    sizes = np.bincount(numbers)[order]
    # Fill the first half with whole groups up to the number of rows that is nearest to half.
    first = 1 + int(np.argmin(np.abs(np.cumsum(sizes)[:-1] - len(reference) / 2)))
    is_first = np.isin(numbers, order[:first])
    return reference[np.flatnonzero(is_first)], reference[np.flatnonzero(~is_first)]


def group_numbers(groups: ArrayLike, rows: int) -> NDArray[np.intp]:
    """Return the number (n,) of each row's group. Reject labels that are not one per row, or a single group."""
    labels = np.asarray(groups)
    if labels.shape != (rows,):
        raise ValueError(f"groups must hold one label per reference row, ({rows},), got shape {labels.shape}")
    given = list(groups) if isinstance(groups, list | tuple) else labels.tolist()
    missing = [row for row, label in enumerate(given) if label is None or label != label or str(label) == "NaT"]
    if missing:
        raise ValueError(f"groups must have no missing labels, got {given[missing[0]]} in row {missing[0]}")
    names, numbers = np.unique(labels.astype(str) if labels.dtype == object else labels, return_inverse=True)
    if len(names) < 2:
        raise ValueError("groups must name at least 2 groups, got 1: a reference of one group cannot be split")
    return np.asarray(numbers.reshape(-1), dtype=np.intp)
