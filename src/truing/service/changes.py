"""Changes to the state of a model, as pure functions. The engine applies a change, and recovery applies it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..contrast import RowSample, SplitReference, group_numbers
from ..decisions.thresholds import Rate
from ..detector import Detector
from ..outputs import Outputs
from ..regression.moments import Moments
from ..stream import Answer, SolvedState, calibrated, learn_batches, merged

DEFAULT_RATE = Rate("false_alarm", 0.05)


@dataclass(frozen=True, eq=False)
class Contents:
    """The state of a model after the change with number `sequence`, and its fits.

    `rows_learned` counts the rows learned since the last reset, without garbage rows. `batches` counts the batches.
    """

    solved: SolvedState
    rate: Rate = DEFAULT_RATE
    sequence: int = 0
    rows_learned: int = 0
    batches: int = 0

    @property
    def detector(self) -> Detector:
        """A detector with this state. Changing it does not change the contents."""
        return Detector.of_state(self.solved)

    @property
    def rows(self) -> float:
        """Weight of the learned rows."""
        return self.solved.state.rows

    @property
    def reference_rows(self) -> int:
        """Number of reference rows."""
        reference = self.solved.state.reference
        return 0 if reference is None else len(reference)

    @property
    def rows_to_decide(self) -> int:
        """Number of reference rows that p-values are computed from."""
        reference = self.solved.state.reference
        return len(reference.to_decide) if isinstance(reference, SplitReference) else self.reference_rows

    @property
    def reference_notes(self) -> tuple[str, ...]:
        """Notes on the reference: too few rows for the rate or for contrast, or groups that were not used."""
        state = self.solved.state
        return () if state.reference is None else (*self.rate.notes(self.rows_to_decide), *state.reference_notes)


@dataclass(frozen=True, eq=False)
class Change:
    """One change of a state.

    The type of `value` depends on `kind`:

    - learn: `Outputs`
    - calibrate: a dict with the reference and its groups
    - rate: the name and the value of the rate
    - merge: `Moments` or a `RowSample`
    - reset: None
    - restore: the sequence number to go back to

    A change with a `request_id` is applied once, however often it is requested.
    """

    kind: str
    value: Any = None
    request_id: str | None = None


def learning(outputs: Outputs, request_id: str | None = None) -> Change:
    """Return the change that learns rows."""
    return Change("learn", _as_stored(outputs), request_id)


def calibration(reference: Outputs, groups: ArrayLike | None = None) -> Change:
    """Return the change that replaces the reference. `groups` holds one label per row."""
    numbers = None if groups is None else group_numbers(groups, len(reference))
    return Change("calibrate", {"reference": _as_stored(reference), "groups": numbers})


def merging(moments: Moments | RowSample, request_id: str | None = None) -> Change:
    """Return the change that adds the learned rows of another state."""
    return Change("merge", moments, request_id)


def learn(contents: Contents, batches: Sequence[Outputs], *, with_answers: bool) -> tuple[Contents, list[Answer]]:
    """Learn batches together. Return the new contents, and the answer to each batch."""
    solved, answers = learn_batches(contents.solved, batches, contents.rate, with_answers=with_answers)
    skipped_rows = solved.state.skipped_rows - contents.solved.state.skipped_rows
    after = replace(
        contents,
        solved=solved,
        sequence=contents.sequence + len(batches),
        rows_learned=contents.rows_learned + sum(map(len, batches)) - skipped_rows,
        batches=contents.batches + len(batches),
    )
    return after, answers


def applied(contents: Contents, changes: Sequence[Change], at: Callable[[int], Contents]) -> Contents:
    """Return the contents after several `learn` changes that were applied together, or after one other change.

    `at` returns the contents at an earlier sequence number, for `restore`.
    """
    if changes[0].kind == "learn":
        batches = [change.value for change in changes]
        # A drift alarm depends on the decisions, so the batches must be decided again.
        return learn(contents, batches, with_answers=contents.solved.state.drift is not None)[0]
    (change,) = changes
    if change.kind == "restore":
        return replace(at(change.value), sequence=contents.sequence + 1)
    return replace(_CHANGES[change.kind](contents, change.value), sequence=contents.sequence + 1)


def _calibrate(contents: Contents, value: dict[str, Any]) -> Contents:
    state = calibrated(contents.solved.state, value["reference"], value["groups"])
    return replace(contents, solved=SolvedState(state))


def _merge(contents: Contents, moments: Moments | RowSample) -> Contents:
    state = merged(contents.solved.state, moments)
    return replace(contents, solved=SolvedState(state), rows_learned=contents.rows_learned + round(moments.rows))


def _set_rate(contents: Contents, value: tuple[str, float]) -> Contents:
    return replace(contents, rate=Rate(*value))


def _reset(contents: Contents, value: None) -> Contents:
    state = contents.solved.state.without_rows()
    return replace(contents, solved=SolvedState(state), rows_learned=0, batches=0)


_CHANGES: dict[str, Callable[[Contents, Any], Contents]] = {
    "calibrate": _calibrate,
    "rate": _set_rate,
    "merge": _merge,
    "reset": _reset,
}


def _as_stored(outputs: Outputs) -> Outputs:
    """Return rows in the memory layout that the database returns: in C order, without labels.

    Sums over other layouts may differ in their last bits.
    """
    columns: dict[str, Any] = {
        name: np.require(column, requirements=["C", "A"])
        for name in ("features", "logits", "scores")
        if (column := getattr(outputs, name)) is not None
    }
    if outputs.labels is None and all(columns[name] is getattr(outputs, name) for name in columns):
        return outputs
    return Outputs(**columns, model=outputs.model)
