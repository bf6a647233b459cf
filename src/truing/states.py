"""States of a detector, as frozen values: `LinearState` for DLR and RLR, `ContrastState` for contrast.

Both states have the same methods. `read` prepares outputs for the other methods. `with_reference`, `with_rows`,
`with_sums` and `without_rows` return a new state. `fit`, `scores` and `compared` return results; a state solves each of
its two fits, with and without the reference rows, at most once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from ._check import Floats, Matrix, check_finite
from .contrast import ClassMoments, ContrastFit, ScoredRows, SplitReference, split
from .decisions.drift import DriftWatch
from .decisions.ranks import Ranks
from .decisions.row_keys import RowKeys
from .outputs import Outputs
from .regression.least_squares import LinearFit
from .regression.moments import Moments
from .regression.robust import fit_robust
from .scores import Base, Head, base_scores

METHODS = ("dlr", "rlr", "contrast")

NOTHING_LEARNED = "nothing learned yet: call learn first"

# Default window of RLR on a stream, in rows.
ROBUST_WINDOW = 2000

# If a column keeps less than this share of its sum of squares when rows leave a window, the subtraction lost too many
# digits, and the remaining rows are summed again.
_MIN_REMAINING_SHARE = 1e-4


@dataclass(frozen=True, eq=False)
class Settings:
    """The constructor arguments of a detector."""

    base: Base
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
        return base_scores(outputs, self.base, self.temperature, head=self.head)

    @property
    def watches_residuals(self) -> bool:
        """Whether the drift alarm monitors base minus trued scores. Only DLR has both in the same units."""
        return self.drift_alarm is not None and self.method == "dlr"


class Comparison(NamedTuple):
    """Scores of reference rows (m,), scores of the rows to decide (n,), and notes on the fit.

    `is_ordered` is True if `scores_in` is sorted.
    """

    scores_in: Floats
    scores: Floats
    notes: list[str]
    is_ordered: bool = False

    def ranks(self) -> Ranks:
        """Return the ranks of the rows' scores among the scores of the reference rows."""
        return Ranks(self.scores_in, self.scores, self.is_ordered)


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
    with logits are seen.
    """

    settings: Settings
    reference: Reference | None = None
    learned: Moments | None = None
    joint: Moments | None = None
    held: tuple[Batch, ...] = ()
    classes: int | None = None
    drift: DriftWatch | None = None

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

    def with_reference(self, reference: Outputs) -> LinearState:
        """Return the state with these reference rows instead of any earlier reference."""
        rows = Reference.of(reference.features, self.settings.base_scores(reference))
        drift = DriftWatch.of(rows.features, self.settings.drift_alarm)
        joint = self.learned + rows.moments if self.learned is not None and self.keeps_joint else None
        return replace(self, reference=rows, joint=joint, classes=_classes(self.classes, reference), drift=drift)

    def with_rows(self, rows: Outputs) -> LinearState:
        """Return the state after these rows were learned with weight 1."""
        scores = self.settings.base_scores(rows)
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
        """Return the fit of the learned rows and the given reference rows."""
        if not self.rows:
            raise ValueError(NOTHING_LEARNED)
        fit = self._robust_fit(reference) if self.settings.method == "rlr" else self._direct_fit(reference)
        return Solved(fit, None if self.reference is None else np.sort(fit.predict(self.reference.features)))

    def _direct_fit(self, reference: Reference | None) -> LinearFit:
        assert self.learned is not None
        sums = self.learned if reference is None else self.joint or self.learned + reference.moments
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


@dataclass(frozen=True, eq=False)
class ContrastState:
    """A reference in two halves and the sums of the learned rows; other fields as in `LinearState`.

    `keys` recognise reference rows among other rows.
    """

    settings: Settings
    reference: SplitReference | None = None
    learned: ClassMoments | None = None
    held: tuple[ScoredRows, ...] = ()
    keys: RowKeys | None = None
    drift: DriftWatch | None = None

    @property
    def dimensions(self) -> int | None:
        """Number of feature columns, or None without a reference."""
        return None if self.reference is None else self.reference.columns.dimensions

    @property
    def classes(self) -> int | None:
        """Number of logits of the reference rows, or None if they have none."""
        return None if self.reference is None or self.reference.columns.classes == 1 else self.reference.columns.classes

    @property
    def sums(self) -> ClassMoments | None:
        """Sums of the learned rows."""
        return self.learned

    @property
    def rows(self) -> float:
        """Weight of the learned rows."""
        return 0.0 if self.learned is None else self.learned.rows

    @property
    def feature_mean(self) -> None:
        """Contrast keeps no mean of the features."""
        return None

    def with_reference(self, reference: Outputs) -> ContrastState:
        """Return the state with these reference rows: one half to learn from, the other to decide against."""
        if self.learned is not None:
            raise ValueError(
                "reference cannot be replaced once a contrast has learned rows against it: make a new Detector"
            )
        to_learn, to_decide = (half._copied() for half in split(reference))
        settings = self.settings
        halves = SplitReference.of(to_learn, to_decide, settings.base, settings.temperature, settings.head)
        keys = RowKeys.of(to_learn.features, to_decide.features)
        drift = DriftWatch.of(to_decide.features, settings.drift_alarm)
        return ContrastState(settings, halves, keys=keys, drift=drift)

    def read(self, outputs: Outputs) -> ScoredRows:
        """Return the rows with every score that contrast uses."""
        check_finite(outputs.features, "features")  # The caller's array may have changed since it was checked.
        return self._need_reference().columns.scored(outputs)

    def with_rows(self, rows: ScoredRows) -> ContrastState:
        """Return the state after these rows were learned with weight 1."""
        columns, held = self._need_reference().columns, self.held
        more = ClassMoments.of(columns, rows)
        learned = more if self.learned is None else self.learned.decayed(self.settings.decay) + more
        if self.settings.window is not None:
            held, leaving = slide(held, rows.copied(), self.settings.window)
            if leaving:
                learned = _total([ClassMoments.of(columns, batch) for batch in held])
        return replace(self, learned=learned, held=held)

    def with_sums(self, sums: ClassMoments) -> ContrastState:
        """Return the state with the sums of other rows added. The columns must be the same."""
        columns = self._need_reference().columns
        width, classes = len(sums.moments.mean), len(sums.counts)
        if (width, classes) != (len(columns), columns.classes):
            wanted = f"{len(columns)} columns and {columns.classes} classes"
            raise ValueError(f"moments must have {wanted}, as the detector has, got {width} and {classes}")
        return replace(self, learned=sums if self.learned is None else self.learned + sums)

    def without_rows(self) -> ContrastState:
        """Return the state without learned rows; the drift alarm starts again."""
        drift = None
        if self.reference is not None:
            drift = DriftWatch.of(self.reference.rows_held.features, self.settings.drift_alarm)
        return ContrastState(self.settings, self.reference, keys=self.keys, drift=drift)

    def fit(self, *, with_reference: bool) -> ContrastFit:
        """Return the contrast of reference rows with learned rows, or the base score while nothing was learned.

        With `with_reference`, the held-back half of the reference is added to the learned rows.
        """
        return self._with_reference if with_reference else self._without_reference

    def scores(self, rows: ScoredRows) -> Floats:
        """Return the score (n,) of every row."""
        return self.fit(with_reference=True).predict_scored(rows)

    def compared(self, rows: ScoredRows, *, with_reference: bool) -> Comparison:
        """Return the scores of the held-back reference rows and of these rows, and notes on the fit."""
        fit = self.fit(with_reference=with_reference)
        assert fit.scores_in is not None
        return Comparison(fit.scores_in, fit.predict_scored(rows), fit.notes())

    @cached_property
    def _with_reference(self) -> ContrastFit:
        return self._contrast(with_held=True)

    @cached_property
    def _without_reference(self) -> ContrastFit:
        return self._contrast(with_held=False)

    def _contrast(self, *, with_held: bool) -> ContrastFit:
        reference, settings = self._need_reference(), self.settings
        return reference.contrast(
            self.learned, with_held=with_held, same_mix=settings.same_mix, components=settings.components
        )

    def _need_reference(self) -> SplitReference:
        if self.reference is None:
            raise ValueError("contrast needs known in-distribution rows before it learns: call calibrate first")
        return self.reference


State = LinearState | ContrastState


class _Sized(Protocol):
    def __len__(self) -> int: ...


Rows = TypeVar("Rows", bound=_Sized)
Sums = TypeVar("Sums", Moments, ClassMoments)


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


def _total(sums: list[Sums]) -> Sums:
    """Return the sum of one or more moments."""
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total


def notes_on_rows(state: State, features: Matrix) -> list[str]:
    """Return notes on rows to decide that also occur in the reference."""
    if isinstance(state, ContrastState):
        return [] if state.keys is None else state.keys.notes(features)
    return [] if state.reference is None else state.reference.keys.notes(features)


def _classes(before: int | None, outputs: Outputs) -> int | None:
    """Return the number of logits per row; these rows determine it if no earlier row had logits."""
    return outputs.logits.shape[1] if before is None and outputs.logits is not None else before
