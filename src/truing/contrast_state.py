"""`ContrastState`: the state of a detector that contrasts learned rows with reference rows.

It has the same methods as `LinearState`. Learned rows are kept as a bounded sample. The fit is renewed when the learned
rows have grown by a quarter, so that most batches cost one product with the coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from ._check import Floats, Matrix, check_finite
from .contrast import ContrastFit, Learned, RowSample, ScoredRows, SplitReference, split
from .decisions.drift import DriftWatch
from .decisions.duplicates import on_near_duplicates
from .decisions.ranks import Ranks
from .decisions.row_keys import RowKeys
from .outputs import Outputs
from .scores import looks_at_known
from .states import Comparison, LinearState, Settings

# The fit is renewed when this share of the learned rows is new.
_NEW_SHARE = 0.25


@dataclass(frozen=True, eq=False)
class Lesson:
    """What was learned from rows of weight `rows`, when `seen` rows had been seen.

    The fit is computed once and serves many states.
    """

    reference: SplitReference
    learned: Learned | None
    rows: float
    seen: int = 0

    @cached_property
    def fit(self) -> ContrastFit:
        """The fit with this learned part."""
        return self.reference.applied(self.learned, rows=self.rows)


@dataclass(frozen=True, eq=False)
class ContrastState:
    """A reference in two halves, a sample of the learned rows, and what was learned from them.

    `deciding` decides the rows of the last batch: it treats them and the reference rows alike. Usually it is the lesson
    before the batch and contains neither. If the batch is larger than all earlier rows together, it contains both.
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

    @property
    def feature_mean(self) -> None:
        """Contrast keeps no mean of the features."""
        return None

    def with_reference(self, reference: Outputs, groups: ArrayLike | None = None) -> ContrastState:
        """Return the state with these reference rows instead of any earlier reference.

        Learned rows stay, unless their base scores depend on the earlier reference.
        """
        to_learn, to_decide = (half._copied() for half in split(reference, groups=groups))
        settings = self.settings
        assert settings.base is not None
        halves = SplitReference.of(
            to_learn, to_decide, settings.base, settings.temperature, settings.head, settings.components
        )
        halves.prepare()
        sample = RowSample() if looks_at_known(settings.base) else self.sample
        keys = RowKeys.of(to_learn.features, to_decide.features)
        drift = DriftWatch.of(to_decide.features, settings.drift_alarm)
        notes = () if groups is not None else tuple(on_near_duplicates(reference.features))
        state = ContrastState(
            settings,
            halves,
            sample,
            keys=keys,
            drift=drift,
            skipped_rows=self.skipped_rows,
            reference_notes=notes,
        )
        return state._renewed()

    def read(self, outputs: Outputs) -> ScoredRows:
        """Return the rows with their base scores."""
        check_finite(outputs.features, "features")  # The caller's array may have changed since it was checked.
        return self._need_reference().standard.scored(outputs)

    def with_rows(self, rows: ScoredRows) -> ContrastState:
        """Return the state after these rows were learned with weight 1."""
        garbage = self._need_reference().is_garbage(rows)
        learnable = rows[np.flatnonzero(~garbage)]
        skipped = self.skipped_rows + int(garbage.sum())
        state = replace(self, deciding=self._deciding(rows), skipped_rows=skipped)
        if len(learnable) == 0:
            return state
        sample = self.sample.with_rows(learnable, decay=self.settings.decay, window=self.settings.window)
        state = replace(state, sample=sample)
        fewest = self._need_reference().fewest_to_learn
        is_due = sample.seen - self._need_lesson(self.lesson).seen >= max(_NEW_SHARE * sample.rows, fewest)
        return state._renewed() if is_due else state

    def with_sums(self, sums: RowSample) -> ContrastState:
        """Return the state with the rows of another detector added."""
        if sums.dimensions != self._need_reference().standard.dimensions:
            raise ValueError(
                f"moments must have {self.dimensions} features, as the reference has, got {sums.dimensions}"
            )
        return replace(self, sample=self.sample + sums)._renewed()

    def without_rows(self) -> ContrastState:
        """Return the state without learned rows; the drift alarm starts again."""
        drift = None
        if self.reference is not None:
            drift = DriftWatch.of(self.reference.to_decide.features, self.settings.drift_alarm)
        state = ContrastState(
            self.settings, self.reference, keys=self.keys, drift=drift, reference_notes=self.reference_notes
        )
        return state if self.reference is None else state._renewed()

    def fit(self, *, with_reference: bool = False) -> ContrastFit:
        """Return the fit of the learned rows, or the base score while nothing was learned.

        The reference rows that decisions compare with are in no fit, so `with_reference` changes nothing.
        """
        return self._need_lesson(self.lesson).fit

    def scores(self, rows: ScoredRows) -> Floats:
        """Return the score (n,) of every row."""
        return self.fit().predict_scored(rows)

    def compared(self, rows: ScoredRows, *, with_reference: bool) -> Comparison:
        """Return the scores of the reference rows to decide against, of these rows, and notes on the fit.

        `with_reference` is for the rows of the last batch.
        """
        fit = self._need_lesson(self.deciding if with_reference else self.lesson).fit
        assert fit.ordered_scores_in is not None
        notes = [*self.reference_notes, *fit.notes()]
        return Comparison(fit.ordered_scores_in, fit.predict_scored(rows), notes, is_ordered=True, size=fit.size)

    def watched(self, base_scores: Floats, p_values: Floats) -> Floats:
        """Return the p-values (n,) that the drift alarm monitors: by the base score, which never changes."""
        return Ranks(self._need_reference().decided.scores, base_scores).p_values()

    def _deciding(self, rows: ScoredRows) -> Lesson:
        """Return what decides these rows, which are learned next."""
        reference = self._need_reference()
        if len(rows) <= max(self.sample.rows, reference.fewest_to_learn):
            return self._need_lesson(self.lesson)
        at_hand = self.sample.joined() + rows if len(self.sample) else rows
        rows_learned, seen = self.sample.rows + len(rows), self.sample.seen + len(rows)
        return Lesson(reference, reference.learn_sampled(at_hand), rows_learned, seen)

    def _renewed(self) -> ContrastState:
        """Return the state with a new fit of the learned rows."""
        reference = self._need_reference()
        learned = reference.learn(self.sample.joined(), with_decided=False) if len(self.sample) else None
        return replace(self, lesson=Lesson(reference, learned, self.sample.rows, self.sample.seen))

    def _need_lesson(self, lesson: Lesson | None) -> Lesson:
        self._need_reference()
        assert lesson is not None
        return lesson

    def _need_reference(self) -> SplitReference:
        if self.reference is None:
            raise ValueError("contrast needs in-distribution rows before it learns: call calibrate first")
        return self.reference


State = LinearState | ContrastState


def notes_on_rows(state: State, features: Matrix) -> list[str]:
    """Return notes on rows to decide that also occur in the reference."""
    if isinstance(state, ContrastState):
        return [] if state.keys is None else state.keys.notes(features)
    return [] if state.reference is None else state.reference.keys.notes(features)
