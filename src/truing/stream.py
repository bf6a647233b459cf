"""The steps of a stream as pure functions on a frozen state.

A `Detector` and the service call these functions for every batch. No function changes its arguments: learning returns
a new state.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike

from ._blas import one_thread
from ._check import Floats
from .contrast import RowSample, group_numbers
from .contrast_state import ContrastState, State
from .decisions.drift import DriftWatch
from .decisions.notes import on_out_share, on_skipped_rows, on_training_rows
from .decisions.thresholds import Decision, Rate
from .options import FEWEST_FOR_CONTRAST, why_not_contrast
from .outputs import Outputs, as_outputs
from .regression.moments import Moments, check_moments
from .scores import needs_reference
from .scores.rows import ScoredRows
from .states import NOTHING_LEARNED, LinearState, Settings, Solved, classes_after
from .steps import decide_rows, trued_scores


class SolvedState:
    """A state and its two fits, with and without the reference rows. Each fit is solved when it is first used.

    Two threads that solve the same fit at once get the same result.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        self._solved: dict[bool, Solved] = {}
        self._for_repeated_rows: SolvedState | None = None

    def solved(self, *, with_reference: bool) -> Solved:
        """Return the fit and its scores of the reference rows."""
        solved = self._solved.get(with_reference)
        if solved is None:
            solved = self._solved[with_reference] = self.state.solve(with_reference=with_reference)
        return solved

    def for_repeated_rows(self) -> SolvedState:
        """Return the state of a contrast whose fit is valid for rows of any earlier batch, computed once."""
        assert isinstance(self.state, ContrastState)
        if self._for_repeated_rows is None:
            self._for_repeated_rows = SolvedState(self.state.for_repeated_rows())
        return self._for_repeated_rows

    def with_drift(self, drift: DriftWatch) -> SolvedState:
        """Return the state with another drift watch, which does not change the fits."""
        changed = SolvedState(replace(self.state, drift=drift))
        changed._solved = self._solved
        return changed


@dataclass(frozen=True, eq=False)
class Answer:
    """The base scores and trued scores of one batch, both (n,), and the decision if the state has a reference."""

    base_scores: Floats
    scores: Floats
    decision: Decision | None = None
    notes: tuple[str, ...] = ()


def learn_batches(
    solved: SolvedState, batches: Sequence[Outputs], rate: Rate | None, *, with_answers: bool = True
) -> tuple[SolvedState, list[Answer]]:
    """Learn batches that arrived together. Return the new state and one answer per batch (Algorithm 3).

    The batches are learned together, and every batch is decided separately. The drift alarm monitors decided rows. In
    two cases, the batches are learned one after another: with decay or a window, because the last batch and the
    reference rows must have the same weight, and with garbage rows, because the note of each answer counts the garbage
    rows of its batch.

    Parameters
    ----------
    solved
        The state to start from.
    batches
        One or more batches with the same columns.
    rate
        The error rate of the decisions; None for scores without decisions.
    with_answers
        Whether answers are needed. Without answers, no fit is solved and the drift alarm is not updated.
    """
    if len(batches) > 1 and _forgets(solved.state):
        return _learn_one_by_one(solved, batches, rate, with_answers)
    outputs = batches[0] if len(batches) == 1 else Outputs.concatenate(batches)
    with one_thread():  # Pin BLAS once for all steps of a batch.
        before = state_to_learn(solved.state, outputs)
        rows = before.score_rows(outputs)
        after = SolvedState(before.with_rows(rows))
        skipped = after.state.skipped_rows - before.skipped_rows
        if skipped and len(batches) > 1:
            return _learn_one_by_one(solved, batches, rate, with_answers)
        if not with_answers:
            return after, []
        notes = on_skipped_rows(skipped, has_reference=after.state.reference is not None)
        parts = [rows[part] for part in _slices(batches)]
        answers = [answer_rows(after, part, rate, is_learned=True, notes=notes) for part in parts]
        return _watched(after, parts, answers), answers


def answer_rows(
    solved: SolvedState, rows: ScoredRows, rate: Rate | None, *, is_learned: bool, notes: Sequence[str] = ()
) -> Answer:
    """Return the answer for rows that were learned in the last batch (`is_learned`) or not learned.

    p-values are valid because the fit treats test rows and reference rows symmetrically: the fit contains test rows and
    reference rows if the test rows were learned, and neither otherwise. The fit of a contrast may contain neither in
    either case.
    """
    state = solved.state
    if rate is None or state.reference is None:
        fit = solved.solved(with_reference=state.is_reference_in_fit).fit
        if state.reference is None:
            notes = (*notes, *state.notes(rows.features, fit))
        return Answer(rows.scores, trued_scores(rows, fit), None, tuple(notes))
    fit, scores_in = solved.solved(with_reference=is_learned)
    assert scores_in is not None
    notes = (*notes, *state.notes(rows.features, fit))
    decision, ranks = decide_rows(rows, fit, scores_in, rate, is_ordered=True, notes=notes)
    notes = (*decision.notes, *on_out_share(np.bincount(ranks.up_to, minlength=len(scores_in) + 1)))
    return Answer(rows.scores, decision.scores, replace(decision, notes=notes), notes)


def answer_again(solved: SolvedState, outputs: Outputs, rate: Rate | None) -> Answer:
    """Return the answer for rows that were learned in an earlier batch.

    The state contains these rows, so the fit must include the reference rows, too. If decay or a window may have
    removed the rows, the fit excludes the reference rows.
    """
    state = solved.state
    rows = state_to_learn(state, outputs).score_rows(outputs)
    if isinstance(state, ContrastState):
        return answer_rows(solved.for_repeated_rows(), rows, rate, is_learned=True)
    return answer_rows(solved, rows, rate, is_learned=not _forgets(state))


def calibrated(state: State, reference: Outputs, groups: ArrayLike | None = None) -> State:
    """Return the state with a new reference, which replaces any earlier reference. `groups` is one label per row."""
    as_outputs(reference, "reference")
    if groups is not None:
        group_numbers(groups, len(reference))
    check_outputs(state, reference)
    why = _why_not_contrast(state, reference)
    after = _resolved(state, is_contrast=not why).with_reference(reference, groups)
    return replace(after, reference_notes=(*why, *on_training_rows(reference), *after.reference_notes))


def merged(state: State, moments: Moments | RowSample) -> State:
    """Return the state with the learned rows of another state added, with weight 1."""
    is_contrast = isinstance(state, ContrastState)
    wanted = RowSample if is_contrast else Moments
    base = state.settings.base
    if is_contrast and base is not None and needs_reference(base):
        raise ValueError(f"moments of the base score {base} depend on the reference and cannot be merged")
    if state.settings.window is not None:
        raise ValueError("moments cannot be merged into a window, which forgets rows by age")
    if not isinstance(moments, wanted):
        raise TypeError(f"moments must be {wanted.__name__}, as the detector has, got {type(moments).__name__}")
    moments = deepcopy(moments)  # The caller may change its arrays later.
    if isinstance(moments, Moments):
        check_moments(moments)
    if not moments.rows > 0:
        raise ValueError(f"moments must weigh more than 0 rows, got {moments.rows:g}")
    if isinstance(moments, Moments):
        check_width(state, moments.dimensions, "moments")
    return _resolved(state).with_sums(moments)  # type: ignore[arg-type]


def learned_since(now: State, before: State) -> Moments | RowSample | None:
    """Return the sums of the rows that were learned after an earlier state; None if no rows were learned.

    Adding the difference to `before.sums` gives `now.sums`, up to rounding. With these differences, a state that keeps
    learning can be merged into another state repeatedly.
    """
    settings = now.settings
    if _forgets(now):
        raise ValueError("since needs a model without decay or window, by which learned rows lose weight")
    if settings.method == "rlr":
        raise ValueError("moments need the method dlr or contrast, got rlr")
    if before.sums is None or now.sums is None or now.sums.rows == before.sums.rows:
        return now.sums if before.sums is None else None
    return now.sums - before.sums  # type: ignore[operator]


def state_to_learn(state: State, outputs: Outputs) -> State:
    """Return the state with a definite method instead of auto, ready to learn. Reject rows of another network."""
    check_outputs(state, as_outputs(outputs, "outputs"))
    state = _resolved(state)
    if isinstance(state, LinearState) and state.classes is None and outputs.logits is not None:
        return replace(state, classes=classes_after(None, outputs))
    return state


def check_outputs(state: State, outputs: Outputs) -> None:
    """Reject rows whose network or columns differ from the rows seen so far."""
    model = state.settings.model
    if None not in (model, outputs.model) and model != outputs.model:
        raise ValueError(f"outputs must be of the model {model!r}, as the detector is, got {outputs.model!r}")
    check_width(state, outputs.features.shape[1], "features")
    classes = None if outputs.logits is None else outputs.logits.shape[1]
    if state.classes is not None and classes is not None and state.classes != classes:
        raise ValueError(f"logits must have {state.classes} columns, as before, got {classes}")


def check_width(state: State, width: int, name: str) -> None:
    """Reject features or moments whose width differs from the rows seen so far."""
    components = state.settings.components
    if state.dimensions is not None and state.dimensions != width:
        raise ValueError(f"{name} must have {state.dimensions} columns, as before, got {width}")
    if components is not None and components > width:
        raise ValueError(f"components must be at most the {width} columns of the features, got {components}")


def check_learned(state: State) -> None:
    """Raise an error if the state has seen no rows. After only garbage rows, a fit of the reference is possible."""
    if not state.rows and not state.skipped_rows:
        raise ValueError(NOTHING_LEARNED)


def _learn_one_by_one(
    solved: SolvedState, batches: Sequence[Outputs], rate: Rate | None, with_answers: bool
) -> tuple[SolvedState, list[Answer]]:
    answers: list[Answer] = []
    for batch in batches:
        solved, more = learn_batches(solved, [batch], rate, with_answers=with_answers)
        answers += more
    return solved, answers


def _watched(solved: SolvedState, parts: Sequence[ScoredRows], answers: Sequence[Answer]) -> SolvedState:
    """Return the state after the drift alarm has seen the decided rows."""
    drift = solved.state.drift
    if drift is None:
        return solved
    for rows, answer in zip(parts, answers, strict=True):
        if answer.decision is not None:
            seen = solved.state.watched(rows.scores, answer.scores, answer.decision.p_values)
            drift = drift.updated(*seen, rows.features)
    return solved.with_drift(drift)


def _forgets(state: State) -> bool:
    """Return whether learned rows lose weight, by decay or a window."""
    return state.settings.window is not None or state.settings.decay != 1.0


def _slices(batches: Sequence[Outputs]) -> list[slice]:
    """Return the rows of each batch among the rows of all batches."""
    ends = list(accumulate(map(len, batches)))
    return [slice(end - len(batch), end) for batch, end in zip(batches, ends, strict=True)]


def _resolved(state: State, *, is_contrast: bool = False) -> State:
    """Return the state with a definite method if it is or was auto: contrast if `is_contrast`, otherwise dlr."""
    auto = _auto_settings(state)
    if auto is None:
        return state
    if is_contrast:
        return ContrastState(auto.resolved("contrast"), skipped_rows=state.skipped_rows)
    if auto.base is not None and needs_reference(auto.base):
        raise ValueError(
            f"the base score {auto.base} needs the method contrast: first call calibrate with a reference of at least "
            f"{FEWEST_FOR_CONTRAST:,} rows, or pass method='contrast' for fewer rows"
        )
    return replace(state, settings=auto.resolved("dlr"), auto_settings=auto)  # type: ignore[arg-type]


def _why_not_contrast(state: State, reference: Outputs) -> list[str]:
    """Return a note if the method is or was auto and does not become contrast with this reference."""
    if _auto_settings(state) is None:
        return []
    why = why_not_contrast(len(reference), intercept=state.settings.intercept)
    if not why and state.rows:
        return ["the method is dlr: contrast needs a reference before it learns, but rows were learned already"]
    return why


def _auto_settings(state: State) -> Settings | None:
    """Return the settings with method auto, or None if the method was given or has become contrast."""
    if isinstance(state, ContrastState):
        return None
    return state.settings if state.settings.method == "auto" else state.auto_settings
