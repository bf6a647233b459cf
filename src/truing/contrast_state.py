"""`ContrastState`: the state of a detector that contrasts learned rows with reference rows.

`ContrastState` has the same methods as `LinearState`. The state keeps a bounded sample of the learned rows, and solves
a new fit whenever a quarter of the learned rows is new. Most batches therefore cost one product with the coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike

from ._check import Floats, Matrix, check_finite
from .contrast import ContrastFit, RowSample, SplitReference, split
from .decisions.drift import DriftWatch
from .decisions.duplicates import on_near_duplicates
from .decisions.ranks import Ranks
from .decisions.row_keys import RowKeys
from .outputs import Outputs
from .scores import needs_reference
from .scores.rows import KeyedRows, ScoredRows
from .states import LinearState, Settings, Solved, Watched
from .steps import Fit, Sums, score_rows, solve_contrast, sum_rows

# A new fit is solved when this share of the learned rows is new.
_NEW_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Lesson:
    """A fit, solved after `seen` learned rows. Successive states share the lesson.

    `scores_in` (m,) are the fit's scores of the calibration half of the reference, in ascending order.
    """

    fit: ContrastFit
    scores_in: Floats
    seen: int

    @classmethod
    def of(cls, fit: ContrastFit, seen: int) -> Lesson:
        """Return the lesson with this fit."""
        assert fit.scores_in is not None
        return cls(fit, np.sort(fit.scores_in), seen)


@dataclass(frozen=True, eq=False)
class ContrastState:
    """A reference in two halves, a sample of the learned rows, and the fits learned from them.

    `lesson` is the latest fit. `deciding` is the fit that decides the last batch. Usually this fit was solved
    before the batch, so it contains neither the rows of the batch nor the calibration half. If a large batch has more
    rows than all earlier batches together, the fit contains the batch and the calibration half.

    `keys` recognise reference rows among other rows. `skipped_rows` counts rows that were too far from the reference to
    be learned. `reference_notes` are notes on the reference.
    """

    settings: Settings
    reference: SplitReference | None = None
    sample: RowSample = field(default_factory=RowSample)
    lesson: Lesson | None = None
    deciding: Lesson | None = None
    keys: RowKeys | None = None
    drift: DriftWatch | None = None
    skipped_rows: int = 0
    reference_notes: tuple[str, ...] = ()

    # The current fit never contains the calibration half of the reference.
    is_reference_in_fit = False

    @property
    def dimensions(self) -> int | None:
        """Number of feature columns, or None without a reference."""
        return None if self.reference is None else self.reference.standard.dimensions

    @property
    def classes(self) -> int | None:
        """Number of logits of the reference rows, or None if they have none."""
        return None if self.reference is None else self.reference.standard.classes or None

    @property
    def sums(self) -> RowSample | None:
        """The sample of the learned rows."""
        return self.sample if self.sample.rows else None

    @property
    def rows(self) -> float:
        """Weight of the learned rows."""
        return self.sample.rows

    def with_reference(self, reference: Outputs, groups: ArrayLike | None = None) -> ContrastState:
        """Return the state with these reference rows instead of any earlier reference.

        Learned rows stay, unless their base scores depend on the earlier reference.
        """
        to_learn, to_decide = (half._copied() for half in split(reference, groups=groups))
        settings = self.settings
        assert settings.base is not None
        state = ContrastState(
            settings,
            SplitReference.of(
                to_learn, to_decide, settings.base, settings.temperature, settings.head, settings.components
            ),
            RowSample() if needs_reference(settings.base) else self.sample,
            keys=RowKeys.of(to_learn.features, to_decide.features),
            drift=DriftWatch.of(to_decide.features, settings.drift_alarm),
            skipped_rows=self.skipped_rows,
            reference_notes=() if groups is not None else tuple(on_near_duplicates(reference.features)),
        )
        return state.renewed()

    def score_rows(self, outputs: Outputs) -> ScoredRows:
        """Return the rows with their base scores."""
        check_finite(outputs.features, "features")  # The caller's array may have changed since it was checked.
        standard = self._need_reference().standard
        standard.check(outputs)
        return score_rows(outputs, standard.base_score)

    def unlearned_rows(self, outputs: Outputs) -> ScoredRows:
        """Return rows that are only scored or decided, with their base scores."""
        return self.score_rows(outputs)

    def with_rows(self, rows: ScoredRows) -> ContrastState:
        """Return the state after learning these rows with weight 1. Garbage rows are only counted."""
        first = self.sample.seen + self.skipped_rows
        numbers = np.arange(first, first + len(rows))
        sums = sum_rows(rows, self._need_reference().guard, numbers, with_moments=False, share=1.0)
        state = replace(self, deciding=self._deciding(rows), skipped_rows=self.skipped_rows + sums.garbage_rows)
        if sums.sample is None:
            return state
        sample = self.sample.with_rows(sums.sample, decay=self.settings.decay, window=self.settings.window)
        state = replace(state, sample=sample)
        fewest = self._need_reference().fewest_to_learn
        is_due = sample.seen - self._need_lesson(self.lesson).seen >= max(_NEW_SHARE * sample.rows, fewest)
        return state.renewed() if is_due else state

    def with_sums(self, sums: RowSample) -> ContrastState:
        """Return the state after adding the learned rows of another detector."""
        if sums.dimensions != self._need_reference().standard.dimensions:
            raise ValueError(
                f"moments must have {self.dimensions} features, as the reference has, got {sums.dimensions}"
            )
        return replace(self, sample=self.sample + sums).renewed()

    def without_rows(self) -> ContrastState:
        """Return the state without learned rows; the drift alarm starts again."""
        drift = None
        if self.reference is not None:
            drift = DriftWatch.of(self.reference.to_decide.features, self.settings.drift_alarm)
        state = ContrastState(
            self.settings, self.reference, keys=self.keys, drift=drift, reference_notes=self.reference_notes
        )
        return state if self.reference is None else state.renewed()

    def solve(self, *, with_reference: bool) -> Solved:
        """Return the latest fit, which equals the base score before any rows are learned.

        With `with_reference`, return the fit that decides the last batch. This method solves nothing: both fits were
        solved when rows were learned or the reference was set.
        """
        lesson = self._need_lesson(self.deciding if with_reference else self.lesson)
        return Solved(lesson.fit, lesson.scores_in)

    def notes(self, features: Matrix, fit: Fit) -> list[str]:
        """Return notes on rows to decide (n, d), on the reference, and on the fit."""
        assert isinstance(fit, ContrastFit)
        shared = [] if self.keys is None else self.keys.notes(features)
        return [*shared, *self.reference_notes, *fit.notes()]

    def watched(self, base_scores: Floats, scores: Floats, p_values: Floats) -> Watched:
        """Return the values of rows (n,) that the drift alarm monitors: p-values by the base score.

        Unlike the fit, the base score does not change.
        """
        return Watched(Ranks(self._need_reference().calibration.scores, base_scores).p_values(), None)

    def _deciding(self, rows: ScoredRows) -> Lesson:
        """Return the fit that decides these rows, before the rows are learned."""
        reference = self._need_reference()
        if len(rows) <= max(self.sample.rows, reference.fewest_to_learn):
            return self._need_lesson(self.lesson)
        sample, share = reference.sample_of(self.sample.joined() + rows if len(self.sample) else rows)
        fit = solve_contrast(reference, sample, rows=self.sample.rows + len(rows), with_calibration=True, share=share)
        return Lesson.of(fit, self.sample.seen + len(rows))

    def renewed(self) -> ContrastState:
        """Return the state with a new fit of all learned rows."""
        rows = self.sample.joined() if len(self.sample) else None
        fit = solve_contrast(self._need_reference(), rows, rows=self.sample.rows, with_calibration=False)
        return replace(self, lesson=Lesson.of(fit, self.sample.seen))

    def for_repeated_rows(self) -> ContrastState:
        """Return the state whose `deciding` is valid for rows of any earlier batch.

        The latest fit may contain these rows but not the calibration half. The new `deciding` contains both.
        """
        sample = self.sample
        rows = sample.joined() if len(sample) else None
        fit = solve_contrast(
            self._need_reference(), rows, rows=sample.rows, with_calibration=len(sample) > 0, share=sample.share
        )
        return replace(self, deciding=Lesson.of(fit, sample.seen))

    def _need_lesson(self, lesson: Lesson | None) -> Lesson:
        self._need_reference()
        assert lesson is not None
        return lesson

    def _need_reference(self) -> SplitReference:
        if self.reference is None:
            raise ValueError("contrast needs in-distribution rows before it learns: call calibrate first")
        return self.reference


State = LinearState | ContrastState


def sample_of_job(sums: Sums, share: float) -> RowSample | None:
    """Return the sample of a finished job as the learned rows of a stream, or None if no rows were learned.

    `share` is the share of the job's rows that are in its sample. The result is thinned to the size of a stream's
    sample.
    """
    if sums.sample is None:
        return None
    whole = RowSample((sums.sample,), share, float(sums.learned_rows), sums.learned_rows)
    thinned = RowSample() + whole
    own = tuple(
        KeyedRows(np.array(rows.features, dtype=np.float64, order="C"), rows.scores.copy(), rows.keys.copy())
        for rows in thinned.batches
    )
    return replace(thinned, batches=own)
