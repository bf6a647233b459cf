"""`LinearState`: the state of a detector by DLR or RLR, as a frozen value. Contrast has its own, `ContrastState`.

Both states have the same methods. `read` prepares outputs for the other methods. `with_reference`, `with_rows`,
`with_sums` and `without_rows` return a new state. `fit`, `scores` and `compared` return results; a state solves each of
its two fits, with and without the reference rows, at most once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ._check import Floats, Matrix, check_finite
from .decisions.distances import RowGuard, is_garbage
from .decisions.drift import DriftWatch
from .decisions.ranks import Ranks
from .decisions.row_keys import RowKeys
from .outputs import Outputs
from .regression.least_squares import LinearFit
from .regression.moments import Moments
from .regression.robust import fit_robust
from .scores import Base, Head, base_scores

METHODS = ("auto", "dlr", "rlr", "contrast")

# The base score of each method when no base score is given.
DEFAULT_BASE = {"dlr": "msp", "rlr": "msp", "contrast": "gen"}

NOTHING_LEARNED = "nothing learned yet: call learn first"

# Default window of RLR on a stream, in rows.
ROBUST_WINDOW = 2000

# If a column keeps less than this share of its sum of squares when rows leave a window, the subtraction lost too many
# digits, and the remaining rows are summed again.
_MIN_REMAINING_SHARE = 1e-4


@dataclass(frozen=True, eq=False)
class Settings:
    """The constructor arguments of a detector. With method auto, the base score may still be open."""

    base: Base | None
    method: str
    temperature: float
    intercept: bool
    components: int | None
    decay: float
    window: int | None
    keep: float
    same_mix: bool
    head: Head | None
    model: str | None
    drift_alarm: float | None = None

    def base_scores(self, outputs: Outputs) -> Floats:
        """Return the base score of every row (n,)."""
        assert self.base is not None
        return base_scores(outputs, self.base, self.temperature, head=self.head)

    def resolved(self, method: str) -> Settings:
        """Return the settings with a definite method and base score, if the method is auto."""
        if self.method != "auto":
            return self
        return replace(self, method=method, base=DEFAULT_BASE[method] if self.base is None else self.base)

    @property
    def watches_residuals(self) -> bool:
        """Whether the drift alarm monitors base minus trued scores. Only DLR has both in the same units."""
        return self.drift_alarm is not None and self.method == "dlr"


class Comparison(NamedTuple):
    """Scores of reference rows (m,), scores of the rows to decide (n,), and notes on the fit.

    `is_ordered` is True if `scores_in` is sorted. `size` is as in `Ranks`.
    """

    scores_in: Floats
    scores: Floats
    notes: list[str]
    is_ordered: bool = False
    size: float = 0.0

    def ranks(self) -> Ranks:
        """Return the ranks of the rows' scores among the scores of the reference rows."""
        return Ranks(self.scores_in, self.scores, self.is_ordered, self.size)


@dataclass(frozen=True, eq=False)
class Batch:
    """Features (b, d) and base scores (b,) of the rows of one batch."""

    features: Matrix
    scores: Floats

    @classmethod
    def of(cls, features: Matrix, scores: Floats) -> Batch:
        """Return a private copy of these rows."""
        batch = cls(np.array(features, order="C"), np.array(scores))
        check_finite(batch.features, "features")  # The caller's array may have changed since it was checked.
        return batch

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True, eq=False)
class Reference:
    """In-distribution rows: features (m, d), base scores (m,), and the moments of both."""

    features: Matrix
    scores: Floats
    moments: Moments

    @classmethod
    def of(cls, features: Matrix, scores: Floats) -> Reference:
        """Return the reference of these rows."""
        rows = Batch.of(features, scores)
        return cls(rows.features, rows.scores, Moments.of(rows.features, rows.scores))

    @cached_property
    def keys(self) -> RowKeys:
        """Keys that recognise reference rows among other rows."""
        return RowKeys.of(self.features)

    @cached_property
    def guard(self) -> RowGuard | None:
        """The guard that keeps garbage from being learned, or None if there are too few reference rows for it."""
        return RowGuard.of_reference(self.features, self.scores)

    def __len__(self) -> int:
        return len(self.scores)


class Solved(NamedTuple):
    """A fit, and its sorted scores (m,) of the reference rows, if there are any."""

    fit: LinearFit
    scores_in: Floats | None


@dataclass(frozen=True, eq=False)
class LinearState:
    """The reference and the learned rows: moments for DLR, the rows themselves for RLR.

    `joint` holds the moments of learned and reference rows together, so that a batch does not add the whole reference
    again. With decay or a window, `joint` is None and the sum is computed on demand. `held` holds the batches inside
    the window, oldest first; RLR always has a window. `classes` is the number of logits per row, or None until rows
    with logits are seen. `skipped_rows` counts garbage rows, which are scored and decided but not learned.
    """

    settings: Settings
    reference: Reference | None = None
    learned: Moments | None = None
    joint: Moments | None = None
    held: tuple[Batch, ...] = ()
    classes: int | None = None
    drift: DriftWatch | None = None
    skipped_rows: int = 0

    @property
    def dimensions(self) -> int | None:
        """Number of feature columns, or None until rows are seen."""
        if self.held:
            return int(self.held[0].features.shape[1])
        sums = self.learned or (None if self.reference is None else self.reference.moments)
        return None if sums is None else sums.dimensions

    @property
    def sums(self) -> Moments | None:
        """Moments of the learned rows; RLR has none."""
        return self.learned

    @property
    def rows(self) -> float:
        """Weight of the learned rows."""
        return float(sum(map(len, self.held))) if self.learned is None else self.learned.rows

    @property
    def feature_mean(self) -> Floats | None:
        """Mean (d,) of the learned features, or None until rows are learned."""
        if self.learned is not None:
            return self.learned.mean[:-1]
        if not self.held:
            return None
        mean: Floats = np.concatenate([batch.features for batch in self.held]).mean(axis=0, dtype=np.float64)
        return mean

    def read(self, outputs: Outputs) -> Outputs:
        """Return the rows unchanged. Only learning needs their base scores."""
        return outputs

    def with_reference(self, reference: Outputs, groups: ArrayLike | None = None) -> LinearState:
        """Return the state with these reference rows instead of any earlier reference. Groups change nothing here."""
        rows = Reference.of(reference.features, self.settings.base_scores(reference))
        drift = DriftWatch.of(rows.features, self.settings.drift_alarm)
        joint = self.learned + rows.moments if self.learned is not None and self.keeps_joint else None
        return replace(self, reference=rows, joint=joint, classes=_classes(self.classes, reference), drift=drift)

    def with_rows(self, rows: Outputs) -> LinearState:
        """Return the state after these rows were learned with weight 1, except for garbage rows.

        Garbage rows are counted and change nothing else. Reference rows are never skipped. In practice this
        does not favour either kind of row: a reference row is at most sqrt(m) deviations from the mean of the m
        reference rows, and rows of real networks stay far below `GARBAGE_DISTANCE`.
        """
        scores = self.settings.base_scores(rows)
        skipped = is_garbage(rows.features, scores, self._guard())
        if not skipped.any():
            return self._with_rows(rows, scores)
        check_finite(rows.features, "features")  # Infinities are invalid, not garbage.
        count = self.skipped_rows + int(np.count_nonzero(skipped))
        state = replace(self, classes=_classes(self.classes, rows), skipped_rows=count)
        return state if skipped.all() else state._with_rows(rows[~skipped], scores[~skipped])

    def _guard(self) -> RowGuard | None:
        """Return the guard by the scale of the reference, or else of the learned rows; None if they are too few."""
        guard = None if self.reference is None else self.reference.guard
        if guard is None and self.learned is not None:
            guard = RowGuard.of_learned(self.learned)
        elif guard is None and self.held:
            features = np.concatenate([batch.features for batch in self.held])
            guard = RowGuard.of_medians(features, np.concatenate([batch.scores for batch in self.held]))
        return guard

    def _with_rows(self, rows: Outputs, scores: Floats) -> LinearState:
        """Return the state after these rows with these base scores (n,) were learned."""
        held, leaving = self.held, self.held[:0]
        if self.settings.window is not None:
            held, leaving = slide(held, Batch.of(rows.features, scores), self.settings.window)
        learned = joint = None
        if self.settings.method == "dlr":
            more = Moments.of(rows.features, scores)
            learned, joint = self._learned_with(more), self._joint_with(more)
            if leaving:
                learned = _without(learned, leaving, held)
        return replace(self, learned=learned, joint=joint, held=held, classes=_classes(self.classes, rows))

    def with_sums(self, sums: Moments) -> LinearState:
        """Return the state with the moments of other rows added."""
        learned = sums if self.learned is None else self.learned + sums
        return replace(self, learned=learned, joint=self._joint_with(sums))

    def without_rows(self) -> LinearState:
        """Return the state without learned rows; the drift alarm starts again."""
        drift = None if self.reference is None else DriftWatch.of(self.reference.features, self.settings.drift_alarm)
        return LinearState(self.settings, self.reference, classes=self.classes, drift=drift)

    def fit(self, *, with_reference: bool) -> LinearFit:
        """Return the fit of the learned rows, with or without the reference rows."""
        return self._solved(with_reference).fit

    def scores(self, rows: Outputs) -> Floats:
        """Return the trued score (n,) of every row."""
        return self.fit(with_reference=True).predict(rows.features)

    def compared(self, rows: Outputs, *, with_reference: bool) -> Comparison:
        """Return the scores of the reference rows and of these rows, and notes on the fit."""
        fit, scores_in = self._solved(with_reference)
        assert scores_in is not None
        return Comparison(scores_in, fit.predict(rows.features), fit.notes(self.settings.components), is_ordered=True)

    def watched(self, base_scores: Floats, p_values: Floats) -> Floats:
        """Return the p-values (n,) that the drift alarm monitors."""
        return p_values

    def _learned_with(self, more: Moments) -> Moments:
        """Return the decayed moments of the learned rows plus the moments of one more batch."""
        if self.learned is None:
            return more
        earlier = self.learned if self.settings.decay == 1.0 else self.learned.decayed(self.settings.decay)
        return earlier + more

    @property
    def keeps_joint(self) -> bool:
        """Whether `joint` is maintained. Decay does not apply to the reference, and a window removes rows."""
        return self.settings.decay == 1.0 and self.settings.window is None

    def _joint_with(self, more: Moments) -> Moments | None:
        """Return the joint moments with one more batch, or None if they are not maintained."""
        if self.reference is None or not self.keeps_joint:
            return None
        return (self.reference.moments if self.joint is None else self.joint) + more

    def _solved(self, with_reference: bool) -> Solved:
        return self._with_reference if with_reference else self._without_reference

    @cached_property
    def _with_reference(self) -> Solved:
        return self._solve(self.reference)

    @cached_property
    def _without_reference(self) -> Solved:
        return self._solve(None)

    def _solve(self, reference: Reference | None) -> Solved:
        """Return the fit of the learned rows and the given reference rows.

        The reference alone is enough if all rows so far were garbage.
        """
        if not self.rows and (reference is None or not self.skipped_rows):
            raise ValueError(NOTHING_LEARNED)
        fit = self._robust_fit(reference) if self.settings.method == "rlr" else self._direct_fit(reference)
        return Solved(fit, None if self.reference is None else np.sort(fit.predict(self.reference.features)))

    def _direct_fit(self, reference: Reference | None) -> LinearFit:
        sums = self.learned
        if reference is not None:
            sums = self.joint or (reference.moments if sums is None else sums + reference.moments)
        assert sums is not None
        return sums.solve(self.settings.intercept, self.settings.components)

    def _robust_fit(self, reference: Reference | None) -> LinearFit:
        """Return the RLR fit of the rows in the window. At least one row is trusted."""
        batches: list[Batch | Reference] = [*self.held, *([] if reference is None else [reference])]
        scores = np.concatenate([batch.scores for batch in batches])
        components = self.settings.components
        return fit_robust(
            np.concatenate([batch.features for batch in batches]),
            scores,
            keep=max(self.settings.keep, 1 / len(scores)),
            intercept=self.settings.intercept,
            components=None if components is None else min(components, len(scores)),
        )


class _Sized(Protocol):
    def __len__(self) -> int: ...


Rows = TypeVar("Rows", bound=_Sized)


def slide(held: tuple[Rows, ...], batch: Rows, window: int) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
    """Return the newest batches with at most `window` rows in total, and the batches that leave the window.

    The latest batch always stays, whatever its size.
    """
    batches = (*held, batch)
    rows, first = 0, len(batches)
    while first > 0 and (first == len(batches) or rows + len(batches[first - 1]) <= window):
        first -= 1
        rows += len(batches[first])
    return batches[first:], batches[:first]


def _without(learned: Moments, leaving: tuple[Batch, ...], held: tuple[Batch, ...]) -> Moments:
    """Return the moments of the rows in a window after some batches have left.

    Batches are subtracted if there are more rows than columns and enough digits remain. Otherwise the remaining rows
    are summed again.
    """
    if sum(map(len, held)) > learned.dimensions + 1:
        remaining = learned - _total([Moments.of(batch.features, batch.scores) for batch in leaving])
        if (remaining.squares >= _MIN_REMAINING_SHARE * learned.squares).all():
            return remaining
    features = np.concatenate([batch.features for batch in held])
    return Moments.of(features, np.concatenate([batch.scores for batch in held]))


def _total(sums: list[Moments]) -> Moments:
    """Return the sum of one or more moments."""
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total


def _classes(before: int | None, outputs: Outputs) -> int | None:
    """Return the number of logits per row; these rows determine it if no earlier row had logits."""
    return outputs.logits.shape[1] if before is None and outputs.logits is not None else before
