"""What a detector knows at one time, frozen: under direct regression, under robust regression, and under a contrast.

All answer to the same calls. `read` makes of outputs what the state learns and scores; `with_reference`, `with_rows`
and `with_sums` return a new state, the latter two with the same guards; `fit`, `scores` and `compared` return what it
says.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from ._check import BLOCK_NUMBERS, Floats, Matrix, check_finite
from .contrast import ClassMoments, ContrastFit, ScoredRows, SplitReference, split
from .guards import Guards
from .incremental import IncrementalMoments
from .least_squares import LinearFit
from .merged import Digests, digests_of, with_merged
from .moments import Moments
from .outputs import Outputs
from .ranks import Ranks
from .robust_sums import Batch, RobustSums, Trust
from .row_keys import RowKeys
from .scores import Base, Head, base_scores
from .stream_fdr import fewest_rows_in
from .window import Window

METHODS = ("dlr", "rlr", "contrast")


@dataclass(frozen=True, eq=False)
class Settings:
    """What a detector was made with."""

    base: Base
    method: str
    temperature: float
    intercept: bool
    components: int | None
    tolerance: float
    decay: float
    window: int | None
    keep: float
    same_mix: bool
    head: Head | None
    model: str | None
    stream_fdr: float | None = None
    drift_alarm: float | None = None

    def base_scores(self, outputs: Outputs) -> Floats:
        """Return the base score of every row (n,)."""
        return base_scores(outputs, self.base, self.temperature, head=self.head)

    @property
    def is_guarded(self) -> bool:
        """Whether decisions change what watches the stream."""
        return self.stream_fdr is not None or self.drift_alarm is not None

    @property
    def watches_residuals(self) -> bool:
        """Whether the drift alarm sees base scores less trued ones, which must be in the same units."""
        return self.drift_alarm is not None and self.method == "dlr"

    @property
    def trust(self) -> Trust:
        """How robust regression tells rows to trust."""
        return Trust(self.keep, self.intercept, self.components)


class Comparison(NamedTuple):
    """Scores of known rows (m,), scores of rows to decide (n,), and what a user should know of the fit behind both.

    `is_ordered` says that the scores of known rows ascend.
    """

    scores_in: Floats
    scores: Floats
    notes: list[str]
    is_ordered: bool = False

    def ranks(self) -> Ranks:
        """Return the ranks of the rows' scores among those of known rows."""
        return Ranks(self.scores_in, self.scores, self.is_ordered)


@dataclass(frozen=True, eq=False)
class Reference:
    """Known in-distribution rows: features (m, d), base scores (m,), and the moments of both."""

    features: Matrix
    scores: Floats
    moments: Moments

    @classmethod
    def of(cls, features: Matrix, scores: Floats) -> Reference:
        """Return the reference of these rows."""
        # Copied, so that nobody else can change them, and always in the same order of memory.
        matrix, vector = np.array(features, order="C"), np.array(scores)
        return cls(matrix, vector, Moments.of(matrix, vector))

    @cached_property
    def keys(self) -> RowKeys:
        """Keys of the rows, made when a decision first asks for them."""
        return RowKeys.of(self.features)

    @cached_property
    def wide_features(self) -> Matrix:
        """The features, in float64 where they are few: every change of a fit scores them anew."""
        return np.asarray(self.features, dtype=np.float64) if self.features.size <= BLOCK_NUMBERS else self.features

    def __len__(self) -> int:
        return len(self.scores)


class _LinearState:
    """What states have in common whose fit is linear in the features."""

    reference: Reference | None
    _scores_in: dict[bool, Floats]

    def fit(self, settings: Settings, *, with_reference: bool) -> LinearFit:
        """Return the fit of learned rows, and of the reference where there is one and it is wanted."""
        raise NotImplementedError

    def read(self, outputs: Outputs) -> Outputs:
        """Return the rows as they are: their base score is needed when they are learned, and not to be scored."""
        return outputs

    def scores(self, rows: Outputs, settings: Settings) -> Floats:
        """Return the trued score (n,) of every row."""
        return self.fit(settings, with_reference=True).predict(rows.features)

    def compared(self, rows: Outputs, settings: Settings, *, with_reference: bool) -> Comparison:
        """Return the scores of known rows, those of these rows, and notes."""
        assert self.reference is not None
        fit = self.fit(settings, with_reference=with_reference)
        if with_reference not in self._scores_in:
            # In ascending order, so that they are put in order once for all batches.
            self._scores_in[with_reference] = np.sort(fit.predict(self.reference.wide_features))
        scores_in, scores = self._scores_in[with_reference], fit.predict(rows.features)
        return Comparison(scores_in, scores, fit.notes(settings.components), is_ordered=True)


@dataclass(frozen=True, eq=False)
class DirectState(_LinearState):
    """Sums of learned rows; `joined` is what was learned and the reference, where there are both.

    `classes` is the number of logits of the rows it was given, None as long as none had any. `window` has the last
    batches, where only these count, and `merged` tells the sums that were added.
    """

    reference: Reference | None = None
    learned: IncrementalMoments | None = None
    joined: IncrementalMoments | None = None
    classes: int | None = None
    window: Window[Batch, Moments] | None = None
    merged: Digests = ()
    guards: Guards = field(default_factory=Guards)
    _fits: dict[bool, LinearFit] = field(default_factory=dict)
    _scores_in: dict[bool, Floats] = field(default_factory=dict)

    @property
    def dimensions(self) -> int | None:
        """Number of feature columns, once there are any."""
        sums = self.learned or self.reference
        return None if sums is None else sums.moments.dimensions

    @property
    def sums(self) -> Moments | None:
        """Moments of the learned rows."""
        return None if self.learned is None else self.learned.moments

    def with_reference(self, reference: Outputs, settings: Settings) -> DirectState:
        """Return the state with these known rows in place of earlier ones."""
        known = Reference.of(reference.features, settings.base_scores(reference))
        classes = _classes(self.classes, reference)
        return DirectState(known, self.learned, _joined(self.learned, known), classes, self.window, self.merged)

    def with_rows(self, rows: Outputs, settings: Settings) -> DirectState:
        """Return the state in which these rows are learned, with weight 1."""
        features, scores = rows.features, settings.base_scores(rows)
        classes = _classes(self.classes, rows)
        if settings.window is not None:
            window = (self.window or Window(settings.window, Batch.moments)).with_batch(Batch.of(features, scores))
            learned = IncrementalMoments.of(window.total)
            return self._with_sums(learned, _joined(learned, self.reference), settings, classes, window)
        follow = settings.intercept and settings.components is None
        if self.learned is None:
            learned = IncrementalMoments.of_rows(features, scores, follow=follow)
        else:
            learned = self.learned.updated(features, scores, settings.decay, follow=follow)
        if self.joined is None or self.reference is None or settings.decay != 1.0:  # A reference is never decayed.
            joined = _joined(learned, self.reference)
        elif len(features) >= features.shape[1]:  # To add sums takes less time than to sum the rows again.
            joined = self.joined.grown_to(learned.moments + self.reference.moments, follow=follow)
        else:
            joined = self.joined.updated(features, scores, 1.0, follow=follow)
        return self._with_sums(learned, joined, settings, classes)

    def with_sums(self, sums: Moments, settings: Settings) -> DirectState:
        """Return the state with the moments of other rows added, with weight 1."""
        merged = with_merged(self.merged, self.sums, sums)
        both = sums if self.learned is None else self.learned.moments + sums
        learned = IncrementalMoments.of(both.told_by(digests_of(sums)))  # So that others can tell what is in these.
        joined = _joined(learned, self.reference)
        return replace(self._with_sums(learned, joined, settings, self.classes), merged=merged)

    def _with_sums(
        self,
        learned: IncrementalMoments,
        joined: IncrementalMoments | None,
        settings: Settings,
        classes: int | None,
        window: Window[Batch, Moments] | None = None,
    ) -> DirectState:
        """Return the state with these sums, whose principal components follow those of the sums before."""
        if settings.components is not None and settings.tolerance > 0:  # Of the sums that scores come from.
            if joined is None:
                learned = learned.with_components(self.learned, settings.components, settings.tolerance)
            else:
                joined = joined.with_components(self.joined, settings.components, settings.tolerance)
        return DirectState(self.reference, learned, joined, classes, window, self.merged, self.guards)

    def without_rows(self) -> DirectState:
        """Return the state without anything learned."""
        return DirectState(self.reference, classes=self.classes)

    def fit(self, settings: Settings, *, with_reference: bool) -> LinearFit:
        """Return the fit of learned rows, and of the reference where there is one and it is wanted."""
        if self.learned is None:
            raise ValueError(_NOTHING_LEARNED)
        if with_reference not in self._fits:
            sums = self.joined if with_reference and self.joined is not None else self.learned
            self._fits[with_reference] = sums.solve(settings.intercept, settings.components)
        return self._fits[with_reference]


@dataclass(frozen=True, eq=False)
class RobustState(_LinearState):
    """The last rows learned, and sums of those before them; the rest is as in direct regression."""

    reference: Reference | None = None
    learned: RobustSums | None = None
    classes: int | None = None
    merged: Digests = ()
    guards: Guards = field(default_factory=Guards)
    _fits: dict[bool, LinearFit] = field(default_factory=dict)
    _scores_in: dict[bool, Floats] = field(default_factory=dict)

    @property
    def dimensions(self) -> int | None:
        """Number of feature columns, once there are any."""
        if self.learned is not None:
            return self.learned.dimensions
        return None if self.reference is None else self.reference.moments.dimensions

    @property
    def sums(self) -> RobustSums | None:
        """What was learned."""
        return self.learned

    def with_reference(self, reference: Outputs, settings: Settings) -> RobustState:
        """Return the state with these known rows in place of earlier ones."""
        known = Reference.of(reference.features, settings.base_scores(reference))
        return RobustState(known, self.learned, _classes(self.classes, reference), self.merged)

    def with_rows(self, rows: Outputs, settings: Settings) -> RobustState:
        """Return the state in which these rows are learned."""
        batch = Batch.of(rows.features, settings.base_scores(rows))
        if self.learned is None:
            learned = RobustSums((batch,))
        else:
            learned = self.learned.with_batch(batch, settings.trust, settings.window)
        return RobustState(self.reference, learned, _classes(self.classes, rows), self.merged, self.guards)

    def with_sums(self, sums: RobustSums, settings: Settings) -> RobustState:
        """Return the state with what others learned added."""
        merged = with_merged(self.merged, self.sums, sums)
        learned = sums if self.learned is None else self.learned + sums
        return RobustState(self.reference, learned, self.classes, merged, self.guards)

    def without_rows(self) -> RobustState:
        """Return the state without anything learned."""
        return RobustState(self.reference, classes=self.classes)

    def fit(self, settings: Settings, *, with_reference: bool) -> LinearFit:
        """Return the fit of trusted rows; the reference is among those to be trusted where it is wanted."""
        if self.learned is None:
            raise ValueError(_NOTHING_LEARNED)
        if with_reference not in self._fits:
            wanted = self.reference if with_reference else None
            known = None if wanted is None else Batch(wanted.features, wanted.scores)
            self._fits[with_reference] = self.learned.fit(settings.trust, known)
        return self._fits[with_reference]


@dataclass(frozen=True, eq=False)
class ContrastState:
    """Known rows in two parts, and the sums of learned rows; the rest is as in direct regression."""

    reference: SplitReference | None = None
    learned: ClassMoments | None = None
    keys: RowKeys | None = None
    window: Window[ScoredRows, ClassMoments] | None = None
    merged: Digests = ()
    guards: Guards = field(default_factory=Guards)
    _fits: dict[bool, ContrastFit] = field(default_factory=dict)

    @property
    def dimensions(self) -> int | None:
        """Number of feature columns, once there are any."""
        return None if self.reference is None else self.reference.columns.dimensions

    @property
    def classes(self) -> int | None:
        """Number of logits of the rows it was given, None where they have none."""
        return None if self.reference is None or self.reference.columns.classes == 1 else self.reference.columns.classes

    @property
    def sums(self) -> ClassMoments | None:
        """Sums of the learned rows."""
        return self.learned

    def with_reference(self, reference: Outputs, settings: Settings) -> ContrastState:
        """Return the state with these known rows, of which one half is learned from."""
        return self.with_parts(*split(reference), settings)

    def with_parts(self, known: Outputs, held: Outputs, settings: Settings) -> ContrastState:
        """Return the state with known rows to learn from, and others to decide against."""
        if self.learned is not None:
            raise ValueError(
                "reference cannot be replaced once a contrast has learned rows against it: make a new Detector"
            )
        known, held = known._copied(), held._copied()
        parts = SplitReference.of(known, held, settings.base, settings.temperature, settings.head)
        parts = replace(parts, held_scored=parts.held_scored.widened())
        return ContrastState(parts, None, RowKeys.of(known.features, held.features))

    def read(self, outputs: Outputs) -> ScoredRows:
        """Return the rows with all scores that the contrast looks at."""
        check_finite(outputs.features, "features")  # They may have changed since their check.
        return self._need_reference().columns.scored(outputs)

    def with_rows(self, rows: ScoredRows, settings: Settings) -> ContrastState:
        """Return the state in which these rows are learned, with weight 1."""
        parts = self._need_reference()
        if settings.window is not None:
            window = (self.window or self.empty_window(settings.window)).with_batch(rows.copied())
            return ContrastState(parts, window.total, self.keys, window, guards=self.guards)
        if self.learned is None:
            learned = ClassMoments.of(parts.columns, rows)
        else:
            learned = self.learned.decayed(settings.decay).with_batch(parts.columns, rows)
        return ContrastState(parts, learned, self.keys, merged=self.merged, guards=self.guards)

    def empty_window(self, size: int) -> Window[ScoredRows, ClassMoments]:
        """Return a window of so many batches, before the first."""
        return Window(size, partial(ClassMoments.of, self._need_reference().columns))

    def with_sums(self, sums: ClassMoments, settings: Settings) -> ContrastState:
        """Return the state with the sums of other rows added, which must be of the same columns."""
        columns = self._need_reference().columns
        width, classes = len(sums.moments.mean), len(sums.counts)
        if (width, classes) != (len(columns), columns.classes):
            wanted = f"{len(columns)} columns and {columns.classes} classes"
            raise ValueError(f"moments must be of {wanted}, as the detector is, got {width} and {classes}")
        merged = with_merged(self.merged, self.sums, sums)
        both = sums if self.learned is None else self.learned + sums
        learned = replace(both, moments=both.moments.told_by(digests_of(sums)))
        return ContrastState(self.reference, learned, self.keys, merged=merged, guards=self.guards)

    def without_rows(self) -> ContrastState:
        """Return the state without anything learned."""
        return ContrastState(self.reference, keys=self.keys)

    def fit(self, settings: Settings, *, with_reference: bool) -> ContrastFit:
        """Return the contrast of known rows with learned ones, and with the known ones held back if wanted.

        As long as nothing was learned it is the base score.
        """
        if with_reference not in self._fits:
            self._fits[with_reference] = self._need_reference().contrast(
                self.learned, with_held=with_reference, same_mix=settings.same_mix, components=settings.components
            )
        return self._fits[with_reference]

    def scores(self, rows: ScoredRows, settings: Settings) -> Floats:
        """Return the score (n,) of every row."""
        return self.fit(settings, with_reference=True).predict_scored(rows)

    def compared(self, rows: ScoredRows, settings: Settings, *, with_reference: bool) -> Comparison:
        """Return the scores of the known rows held back, those of these rows, and notes."""
        fit = self.fit(settings, with_reference=with_reference)
        assert fit.scores_in is not None
        return Comparison(fit.scores_in, fit.predict_scored(rows), fit.notes())

    def _need_reference(self) -> SplitReference:
        if self.reference is None:
            raise ValueError("a contrast needs known in-distribution rows to learn: call calibrate first")
        return self.reference


State = DirectState | RobustState | ContrastState


def notes_on_rows(state: State, features: Matrix) -> list[str]:
    """Return what a user should know of rows that are decided, beside the known ones."""
    keys = state.keys if isinstance(state, ContrastState) else None
    if isinstance(state.reference, Reference):
        keys = state.reference.keys
    return [] if keys is None else keys.notes(features)


def decided_against(state: State) -> Matrix:
    """Return the features of the known rows that decisions are made against (m, d)."""
    assert state.reference is not None
    if isinstance(state.reference, SplitReference):
        return state.reference.rows_held.features
    return state.reference.features


def new_guards(state: State, settings: Settings) -> Guards:
    """Return the guards that are wanted, at the start of a stream that is decided against a state's known rows."""
    if state.reference is None or not settings.is_guarded:
        return Guards()
    if settings.stream_fdr is not None:
        _check_enough(state.reference, settings.stream_fdr)
    return Guards.of(decided_against(state), stream_fdr=settings.stream_fdr, drift_alarm=settings.drift_alarm)


def _check_enough(reference: Reference | SplitReference, level: float) -> None:
    """Refuse a reference that is too small for a false discovery rate over the stream."""
    fewest = fewest_rows_in(level)
    if isinstance(reference, SplitReference):
        decided, said = len(reference.rows_held), " in the half that a contrast decides against"
    else:
        decided, said = len(reference), ""
    if decided < fewest:
        raise ValueError(
            f"reference must have at least {fewest:,.10g} rows{said}, for a stream_fdr of {level:g}, got {decided:,}"
        )


def _joined(learned: IncrementalMoments | None, reference: Reference | None) -> IncrementalMoments | None:
    if learned is None or reference is None:
        return None
    return IncrementalMoments.of(learned.moments + reference.moments)


def _classes(before: int | None, outputs: Outputs) -> int | None:
    return outputs.logits.shape[1] if before is None and outputs.logits is not None else before


_NOTHING_LEARNED = "nothing learned yet: call learn first"
