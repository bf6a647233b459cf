"""`LinearState`: the frozen state of a detector that uses DLR or RLR. The state of a contrast is `ContrastState`.

Both states have the same methods, and use the four steps of `steps.py`. `score_rows` returns rows with their base
scores. `with_reference`, `with_rows`, `with_sums` and `without_rows` return a new state. `solve` returns the fit that
decides rows, and its scores of the reference rows. A state caches nothing: a `Detector` keeps the fits of its state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ._check import Floats, Matrix, check_finite
from ._warnings import Alert
from .decisions.distances import RowGuard
from .decisions.drift import DriftWatch
from .decisions.row_keys import RowKeys
from .outputs import Outputs
from .regression.least_squares import LinearFit
from .regression.moments import Moments
from .scores import Base, Head
from .scores.rows import BaseScore, ScoredRows
from .steps import Fit, FitOptions, Sums, score_rows, solve_fit, sum_rows

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
    """The constructor arguments of a detector. The base score may be None while the method is auto."""

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

    @property
    def base_score(self) -> BaseScore:
        """The base score, without reference rows."""
        assert self.base is not None
        return BaseScore(self.base, self.temperature, self.head)

    def resolved(self, method: str) -> Settings:
        """Return the settings with this method and its default base score if the method is auto."""
        if self.method != "auto":
            return self
        return replace(self, method=method, base=DEFAULT_BASE[method] if self.base is None else self.base)


@dataclass(frozen=True, eq=False)
class Reference:
    """In-distribution rows: features (m, d), base scores (m,), and values that are computed from them once.

    `moments` are the moments of features and base scores. `keys` recognise reference rows among other rows. `guard`
    recognises garbage rows, and is None if there are too few reference rows.
    """

    features: Matrix
    scores: Floats
    moments: Moments
    keys: RowKeys
    guard: RowGuard | None

    @classmethod
    def of(cls, features: Matrix, scores: Floats) -> Reference:
        """Return the reference of these rows."""
        rows = private_copy(ScoredRows(features, scores))
        return cls(
            rows.features,
            rows.scores,
            Moments.of(rows.features, rows.scores),
            RowKeys.of(rows.features),
            RowGuard.of_reference(rows.features, rows.scores),
        )

    @property
    def rows(self) -> ScoredRows:
        """The reference rows."""
        return ScoredRows(self.features, self.scores)

    def __len__(self) -> int:
        return len(self.scores)


class Solved(NamedTuple):
    """A fit, and its scores (m,) of the reference rows in ascending order, if there is a reference."""

    fit: Fit
    scores_in: Floats | None


class Watched(NamedTuple):
    """The values that the drift alarm monitors: one p-value and, for DLR, one residual per row (n,)."""

    p_values: Floats
    residuals: Floats | None


@dataclass(frozen=True, eq=False)
class LinearState:
    """The reference and the learned rows: moments for DLR, the rows themselves for RLR.

    `joint` holds the moments of learned and reference rows together, so that a new batch need not add the whole
    reference again. With decay or a window, `joint` is None and the sum is computed when needed. `window_batches` holds
    the batches inside the window, oldest first; RLR always has a window. `classes` is the number of logits per row, or
    None until the first rows with logits. `skipped_rows` counts garbage rows, which are decided but not learned.
    `reference_notes` are notes on the reference. `auto_settings` are the original settings if the method was auto and
    became dlr.
    """

    settings: Settings
    reference: Reference | None = None
    learned: Moments | None = None
    joint: Moments | None = None
    window_batches: tuple[ScoredRows, ...] = ()
    classes: int | None = None
    drift: DriftWatch | None = None
    skipped_rows: int = 0
    reference_notes: tuple[str, ...] = ()
    auto_settings: Settings | None = None

    # The current fit contains the reference rows, so it also decides learned rows.
    is_reference_in_fit = True

    @property
    def dimensions(self) -> int | None:
        """Number of feature columns, or None until the first rows."""
        if self.window_batches:
            return int(self.window_batches[0].features.shape[1])
        sums = self.learned or (None if self.reference is None else self.reference.moments)
        return None if sums is None else sums.dimensions

    @property
    def sums(self) -> Moments | None:
        """Moments of the learned rows, or None for RLR."""
        return self.learned

    @property
    def rows(self) -> float:
        """Weight of the learned rows."""
        return float(sum(map(len, self.window_batches))) if self.learned is None else self.learned.rows

    @property
    def feature_mean(self) -> Floats | None:
        """Mean (d,) of the learned features, or None until rows are learned."""
        if self.learned is not None:
            return self.learned.mean[:-1]
        if not self.window_batches:
            return None
        mean: Floats = ScoredRows.joined(self.window_batches).features.mean(axis=0, dtype=np.float64)
        return mean

    def score_rows(self, outputs: Outputs) -> ScoredRows:
        """Return the rows with their base scores."""
        return score_rows(outputs, self.settings.base_score)

    def unlearned_rows(self, outputs: Outputs) -> ScoredRows:
        """Return rows that are only scored or decided. A linear fit needs no base scores: they are NaN."""
        return ScoredRows(outputs.features, np.full(len(outputs), np.nan))

    def with_reference(self, reference: Outputs, groups: ArrayLike | None = None) -> LinearState:
        """Return the state with these reference rows instead of any earlier reference. Groups are not used."""
        rows = self.score_rows(reference)
        scored = Reference.of(rows.features, rows.scores)
        return replace(
            self,
            reference=scored,
            joint=self.learned + scored.moments if self.learned is not None and self.keeps_joint else None,
            classes=classes_after(self.classes, reference),
            drift=DriftWatch.of(scored.features, self.settings.drift_alarm),
            reference_notes=() if groups is None else (GROUPS_NOT_USED,),
        )

    def with_rows(self, rows: ScoredRows) -> LinearState:
        """Return the state after learning these rows with weight 1. Garbage rows are only counted.

        Reference rows are never skipped. In practice, this treats reference rows and in-distribution test rows alike:
        rows of real networks stay far below `GARBAGE_DISTANCE`.
        """
        sums = self._sums_of(rows)
        state = self
        if sums.garbage_rows:
            check_finite(rows.features, "features")  # Infinities are invalid, not garbage.
            state = replace(self, skipped_rows=self.skipped_rows + sums.garbage_rows)
        return state._with_sums(sums) if sums.learned_rows else state

    def _sums_of(self, rows: ScoredRows) -> Sums:
        """Return the sums of a batch: moments for DLR, and the rows themselves if there is a window."""
        with_moments, guard = self.settings.method == "dlr", self._guard(rows)
        if self.settings.window is None:
            return sum_rows(rows, guard, with_moments=with_moments)
        return sum_rows(rows, guard, np.arange(len(rows)), with_moments=with_moments, share=1.0)

    def _guard(self, rows: ScoredRows) -> RowGuard | None:
        """Return the guard for these rows, or None if there are too few rows to derive a guard from.

        The guard is derived from the reference if possible, else from the learned rows, else from these rows.
        """
        guard = None if self.reference is None else self.reference.guard
        if guard is None and self.learned is not None:
            guard = RowGuard.of_learned(self.learned)
        elif guard is None and self.window_batches:
            window = ScoredRows.joined(self.window_batches)
            guard = RowGuard.of_medians(window.features, window.scores)
        return guard or RowGuard.of_medians(rows.features, rows.scores)

    def _with_sums(self, sums: Sums) -> LinearState:
        """Return the state after a batch with these sums was learned."""
        batches, leaving = self.window_batches, self.window_batches[:0]
        if sums.sample is not None and self.settings.window is not None:
            batches, leaving = slide(batches, private_copy(sums.sample.rows), self.settings.window)
        learned = joint = None
        if sums.moments is not None:
            learned, joint = self._learned_with(sums.moments), self._joint_with(sums.moments)
            if leaving:
                learned = _without(learned, leaving, batches)
        return replace(self, learned=learned, joint=joint, window_batches=batches)

    def with_sums(self, sums: Moments) -> LinearState:
        """Return the state after adding the moments of other rows."""
        learned = sums if self.learned is None else self.learned + sums
        return replace(self, learned=learned, joint=self._joint_with(sums))

    def without_rows(self) -> LinearState:
        """Return the state without learned rows; the drift alarm starts again."""
        drift = None if self.reference is None else DriftWatch.of(self.reference.features, self.settings.drift_alarm)
        return replace(self, learned=None, joint=None, window_batches=(), drift=drift, skipped_rows=0)

    def renewed(self) -> LinearState:
        """Return the state itself: its fits always include all learned rows."""
        return self

    def solve(self, *, with_reference: bool) -> Solved:
        """Return the fit of the learned rows, with or without the reference rows.

        If all rows so far were garbage, the fit uses the reference alone.
        """
        reference = self.reference if with_reference else None
        if not self.rows and (reference is None or not self.skipped_rows):
            raise ValueError(NOTHING_LEARNED)
        fit = self._robust_fit(reference) if self.settings.method == "rlr" else self._direct_fit(reference)
        return Solved(fit, None if self.reference is None else np.sort(fit.predict(self.reference.features)))

    def notes(self, features: Matrix, fit: Fit) -> list[str]:
        """Return notes on rows to decide (n, d), on the reference, and on the fit."""
        assert isinstance(fit, LinearFit)
        shared = [] if self.reference is None else self.reference.keys.notes(features)
        return [*shared, *self.reference_notes, *fit.notes(self.settings.components)]

    def watched(self, base_scores: Floats, scores: Floats, p_values: Floats) -> Watched:
        """Return the values of decided rows (n,) that the drift alarm monitors.

        Only DLR has residuals, because only its base scores and trued scores have the same units.
        """
        return Watched(p_values, base_scores - scores if self.settings.method == "dlr" else None)

    def _learned_with(self, more: Moments) -> Moments:
        """Return the decayed moments of the learned rows plus the moments of one more batch."""
        if self.learned is None:
            return more
        earlier = self.learned if self.settings.decay == 1.0 else self.learned.decayed(self.settings.decay)
        return earlier + more

    @property
    def keeps_joint(self) -> bool:
        """Whether `joint` is maintained. Decay and a window change the weight of learned rows, not of the reference."""
        return self.settings.decay == 1.0 and self.settings.window is None

    def _joint_with(self, more: Moments) -> Moments | None:
        """Return the joint moments with one more batch, or None if joint moments are not maintained."""
        if self.reference is None or not self.keeps_joint:
            return None
        return (self.reference.moments if self.joint is None else self.joint) + more

    def _direct_fit(self, reference: Reference | None) -> LinearFit:
        sums = self.learned
        if reference is not None:
            sums = self.joint or (reference.moments if sums is None else sums + reference.moments)
        return solve_fit(self._options(), sums)

    def _robust_fit(self, reference: Reference | None) -> LinearFit:
        """Return the RLR fit of the rows in the window. The fit keeps at least one row."""
        rows = ScoredRows.joined([*self.window_batches, *([] if reference is None else [reference.rows])])
        options = self._options()
        options = options._replace(
            keep=max(options.keep, 1 / len(rows)),
            components=None if options.components is None else min(options.components, len(rows)),
        )
        moments = Moments.of(rows.features, rows.scores) if options.keep >= 1 else None
        return solve_fit(options, moments, rows)

    def _options(self) -> FitOptions:
        settings = self.settings
        return FitOptions(settings.method, settings.intercept, settings.components, settings.keep)


GROUPS_NOT_USED = Alert("groups were not used: this method does not split the reference")


def private_copy(rows: ScoredRows) -> ScoredRows:
    """Return a copy of rows for a state to keep. Reject numbers that are not finite."""
    copied = ScoredRows(np.array(rows.features, order="C"), np.array(rows.scores))
    check_finite(copied.features, "features")  # The caller's array may have changed since it was checked.
    return copied


def classes_after(before: int | None, outputs: Outputs) -> int | None:
    """Return the number of logits per row: `before`, or the number in these rows if no earlier row had logits."""
    return outputs.logits.shape[1] if before is None and outputs.logits is not None else before


class _Sized(Protocol):
    def __len__(self) -> int: ...


Rows = TypeVar("Rows", bound=_Sized)


def slide(batches: tuple[Rows, ...], batch: Rows, window: int) -> tuple[tuple[Rows, ...], tuple[Rows, ...]]:
    """Return the newest batches with at most `window` rows in total, and the batches that leave the window.

    The latest batch stays even if it is larger than the window.
    """
    batches = (*batches, batch)
    rows, first = 0, len(batches)
    while first > 0 and (first == len(batches) or rows + len(batches[first - 1]) <= window):
        first -= 1
        rows += len(batches[first])
    return batches[first:], batches[:first]


def _without(learned: Moments, leaving: tuple[ScoredRows, ...], remaining: tuple[ScoredRows, ...]) -> Moments:
    """Return the moments of the remaining rows of a window.

    Subtract the batches that leave if there are more rows than columns and if enough digits remain. Otherwise sum the
    remaining rows again.
    """
    if sum(map(len, remaining)) > learned.dimensions + 1:
        difference = learned - _total([Moments.of(batch.features, batch.scores) for batch in leaving])
        if (difference.squares >= _MIN_REMAINING_SHARE * learned.squares).all():
            return difference
    rows = ScoredRows.joined(remaining)
    return Moments.of(rows.features, rows.scores)


def _total(sums: list[Moments]) -> Moments:
    """Return the sum of one or more moments."""
    total = sums[0]
    for more in sums[1:]:
        total = total + more
    return total
