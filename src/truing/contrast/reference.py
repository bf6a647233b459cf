"""The reference in two halves: rows to learn from, and rows to decide against."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _linalg
from .._blas import one_thread
from .._check import Floats, as_count
from ..decisions.distances import GARBAGE_DISTANCE, is_garbage
from ..outputs import Outputs, check_same_model
from ..scores import Base, Head
from .fit import ContrastFit
from .ridge import FoldedCovariance
from .sample import sampled, share_of
from .standard import FEWEST_REFERENCE_ROWS, ScoredRows, Standard
from .tail import Learned, StandardRows, learn, tail_excess

# The seed of the split without a generator: the same input gives the same result.
_SEED = 20230

# The excess of rows in the tail, in standard errors, for which another base score is chosen.
_CLEAR_EXCESS = 1.0

# The smallest reference that can be split.
FEWEST_TO_SPLIT = 4

# The fewest rows at hand that a fit learns from. With fewer rows the score is the base score.
_FEWEST_ROWS = 20


@dataclass(frozen=True, eq=False)
class SplitReference:
    """Reference rows to learn from (A), and reference rows to decide against (B).

    `components` confines the learned part to the leading principal components of A.
    """

    to_learn: Outputs
    to_decide: Outputs
    standard: Standard
    learned: ScoredRows
    decided: ScoredRows
    components: int | None = None

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
        garbage = is_garbage(to_learn.features, np.ones(len(to_learn)), None)
        if garbage.any():
            to_learn = to_learn[np.flatnonzero(~garbage)]
        standard, learned = Standard.of(to_learn, base, temperature, head)
        if components is not None:
            components = as_count(components, "components", at_most=standard.dimensions)
        return cls(to_learn, to_decide, standard, learned, standard.scored(to_decide), components)

    def __len__(self) -> int:
        return len(self.to_learn) + len(self.to_decide)

    def fit(self, rows: ScoredRows) -> ContrastFit:
        """Return the contrast of A with the rows at hand and B."""
        return self.applied(self.learn_sampled(rows), rows=len(rows))

    def learn_sampled(self, rows: ScoredRows) -> Learned | None:
        """Return what was learned from the rows at hand and B, or from a sample if they are many."""
        share = self.share_of(len(rows))
        some = sampled(rows, share, self.numbers(np.arange(len(rows))))
        return self.learn(some, with_decided=True, share=share)

    def share_of(self, rows: int) -> float:
        """Return the share of `rows` rows at hand that a fit uses."""
        return share_of(len(self.decided) + rows, self.standard.dimensions)

    def numbers(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the numbers of rows at hand for sampling. Rows of B come first."""
        return len(self.decided) + rows

    def learn(self, rows: ScoredRows, *, with_decided: bool, share: float = 1.0) -> Learned | None:
        """Return what sets rows that look out apart from A, or None if there are too few rows to learn from.

        With `with_decided`, B joins the rows at hand; use it if the fit also scores these rows. Otherwise neither B nor
        the rows to decide may be part of the fit. `share` is the share of the rows at hand that `rows` hold.
        """
        if with_decided:
            rows = sampled(self.decided, share, np.arange(len(self.decided))) + rows
        rows = self.learnable(rows)
        if len(rows) < _FEWEST_ROWS or len(self.learned) < FEWEST_REFERENCE_ROWS:
            return None
        learned = learn(self._standard_learned, self._standardised(rows), self._covariance)
        return learned if self._basis is None else replace(learned, coef=self._basis @ learned.coef)

    def applied(self, learned: Learned | None, *, rows: float) -> ContrastFit:
        """Return the fit with a learned part, from `rows` rows at hand. Without one the score is the base score."""
        learned = Learned(np.zeros(self.standard.dimensions)) if learned is None else learned
        coef = learned.trust * learned.balance * learned.coef
        numbers = (learned.gain, learned.trust, learned.balance, learned.shift)
        fit = ContrastFit(self.standard, coef, *numbers, rows, len(self.to_learn))
        return replace(fit, scores_in=fit.predict_scored(self.decided))

    @property
    def fewest_to_learn(self) -> int:
        """The fewest rows that are worth a fit of their own."""
        return max(_FEWEST_ROWS, self.standard.dimensions // 8)

    def prepare(self) -> None:
        """Factor the covariance of A now rather than at the first fit."""
        if len(self.learned) >= FEWEST_REFERENCE_ROWS:
            _ = self._covariance

    def is_garbage(self, rows: ScoredRows) -> NDArray[np.bool_]:
        """Return which rows (n,) are so far from the reference that they are decided but not learned."""
        garbage: NDArray[np.bool_] = self.standard.distances(rows) > GARBAGE_DISTANCE
        return garbage

    def learnable(self, rows: ScoredRows) -> ScoredRows:
        """Return the rows that are not garbage."""
        garbage = self.is_garbage(rows)
        return rows[np.flatnonzero(~garbage)] if garbage.any() else rows

    def _standardised(self, rows: ScoredRows) -> StandardRows:
        features = self.standard.features(rows)
        if self._basis is not None:
            with one_thread():
                features = features @ self._basis
        return StandardRows(features, self.standard.base_scores(rows))

    @cached_property
    def _standard_learned(self) -> StandardRows:
        share = share_of(len(self.learned), self.standard.dimensions)
        return self._standardised(sampled(self.learned, share, np.arange(len(self.learned))))

    @cached_property
    def _covariance(self) -> FoldedCovariance:
        return FoldedCovariance.of(self._standard_learned.features, self._standard_learned.scores)

    @cached_property
    def _basis(self) -> Floats | None:
        """The leading principal components (d, k) of A, or None for all of them."""
        if self.components is None:
            return None
        features = self.standard.features(self.learned)
        with one_thread():
            if len(features) < features.shape[1]:
                basis: Floats = np.linalg.svd(features, full_matrices=False)[2][: self.components].T
                return basis
            d = features.shape[1]
            return np.asarray(_linalg.eigh(features.T @ features, subset_by_index=(d - self.components, d - 1))[1])


def split_reference(
    to_learn: Outputs,
    to_decide: Outputs,
    outputs: Outputs,
    base: Base | None,
    temperature: float = 1.0,
    head: Head | None = None,
    components: int | None = None,
) -> tuple[SplitReference, ScoredRows]:
    """Return the two halves under a base score, and the rows at hand with their base scores.

    Without a base score it is gen or, if there is a head, fdbd where fdbd puts clearly more of the rows at hand and of
    B into the tail.
    """
    bases = ("gen", "fdbd") if base is None and head is not None and temperature == 1.0 else (base or "gen",)
    halves = [SplitReference.of(to_learn, to_decide, one, temperature, head, components) for one in bases]
    rows = [one.standard.scored(outputs) for one in halves]
    if len(bases) == 1:
        return halves[0], rows[0]
    gen, fdbd = (
        tail_excess(one.learned.scores, np.append(one.decided.scores, some.scores))
        for one, some in zip(halves, rows, strict=True)
    )
    chosen = int(fdbd - max(gen, 0.0) > _CLEAR_EXCESS)
    return halves[chosen], rows[chosen]


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
