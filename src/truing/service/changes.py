"""What changes the contents of a state directory, as it happens and when its records are read again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._blas import one_thread
from ..contrast import RowSample
from ..contrast_state import State
from ..decisions.thresholds import Rate
from ..detector import Detector
from ..outputs import Outputs
from ..regression.moments import Moments
from ..saved import as_arrays, from_arrays
from ..scores.rows import ScoredRows
from .records import Arrays, Record
from .requests import Answer
from .snapshots import Contents

_COLUMNS = ("features", "logits", "scores")


class Together(NamedTuple):
    """Batches that came at the same time, and the rows of all of them with their base scores, computed once."""

    batches: Sequence[Outputs]
    rows: ScoredRows

    @classmethod
    def of(cls, batches: Sequence[Outputs], detector: Detector) -> Together:
        """Return batches of the same columns together, with the base scores of a detector."""
        outputs = batches[0] if len(batches) == 1 else Outputs.concatenate(batches)
        return cls(batches, detector.state_to_learn(outputs).score_rows(outputs))

    def slices(self) -> list[slice]:
        """Return which of all rows each batch has."""
        ends = list(accumulate(map(len, self.batches)))
        return [slice(end - len(batch), end) for batch, end in zip(self.batches, ends, strict=True)]


def after(contents: Contents, records: Sequence[Record]) -> Contents:
    """Return the contents after records of a log that were learned together, or after one of another kind."""
    kind = records[0].kind
    if kind == "learn":
        changed = _learned(contents, records)
    elif kind in CHANGES:
        changed = CHANGES[kind](contents, records[0])
    else:
        raise ValueError(
            f"a record must be learn or one of {', '.join(CHANGES)}, got {kind!r} at {records[0].sequence}"
        )
    return replace(changed, sequence=records[-1].sequence)


def group_of(record: Record) -> int:
    """Return what records have in common that were learned together, and no others: the number of the first."""
    group: int = record.about.get("group", record.sequence)
    return group


def as_stored(outputs: Outputs) -> Outputs:
    """Return rows as they are read back from a record: each column one block of memory, and those alone that are kept.

    Sums in another order of memory may differ in their last bits.
    """
    columns = {name: getattr(outputs, name) for name in _COLUMNS}
    stored: dict[str, Any] = {
        name: np.require(column, requirements=["C", "A"]) for name, column in columns.items() if column is not None
    }
    if outputs.labels is None and all(stored[name] is columns[name] for name in stored):
        return outputs
    return Outputs(**stored, model=outputs.model)


def stored_outputs(outputs: Outputs) -> Arrays:
    """Return rows of `as_stored` as the arrays of a record."""
    return {name: getattr(outputs, name) for name in _COLUMNS if getattr(outputs, name) is not None}


def stored_moments(moments: Moments | RowSample) -> tuple[dict[str, Any], Arrays]:
    """Return moments as the description and arrays of a record."""
    arrays = as_arrays("moments", moments)
    return {}, {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def learned(contents: Contents, together: Together) -> Contents:
    """Return the contents after batches were learned as one; the drift alarm has not seen them yet."""
    with one_thread():
        state = contents.detector.state_to_learn(together.batches[0]).with_rows(together.rows)
    return replace(
        contents,
        detector=with_state(contents.detector, state),
        rows_learned=contents.rows_learned + len(together.rows),
        batches=contents.batches + len(together.batches),
    )


def seen_by_alarm(contents: Contents, found: Answer) -> Arrays:
    """Return what the drift alarm sees of an answer, or nothing without an alarm or a reference.

    It depends on the fit behind the answer, so a record stores it with the rows.
    """
    detector = contents.detector
    if found.p_values is None or detector.settings.drift_alarm is None:
        return {}
    seen = detector.state.watched(found.base_scores, found.scores, found.p_values)
    return {name: array for name, array in seen._asdict().items() if array is not None}


def watched(contents: Contents, outputs: Outputs, seen: Arrays) -> Contents:
    """Return the contents after the drift alarm has seen a learned batch."""
    state = contents.detector.state
    if state.drift is None:
        return contents
    drift = state.drift.updated(seen["p_values"], seen.get("residuals"), outputs.features)
    return replace(contents, detector=with_state(contents.detector, replace(state, drift=drift)))


def calibrated(contents: Contents, reference: Outputs, groups: ArrayLike | None = None) -> Contents:
    """Return the contents with these in-distribution rows in place of earlier ones. `groups` is one label per row."""
    detector = copy.copy(contents.detector)
    detector.calibrate(reference, groups)
    return replace(contents, detector=detector)


def merged(contents: Contents, moments: Moments | RowSample) -> Contents:
    """Return the contents with the learned rows of another state added."""
    detector = copy.copy(contents.detector)
    detector.merge(moments)
    return replace(contents, detector=detector, rows_learned=contents.rows_learned + round(moments.rows))


def with_rate(contents: Contents, rate: Rate) -> Contents:
    """Return the contents with another rate."""
    return replace(contents, rate=rate)


def reset(contents: Contents) -> Contents:
    """Return the contents without learned rows and with a new drift alarm; the reference and the rate stay."""
    detector = contents.detector
    return replace(contents, detector=with_state(detector, detector.state.without_rows()), rows_learned=0, batches=0)


def with_state(detector: Detector, state: State) -> Detector:
    """Return a detector of the same settings that knows something else."""
    changed = copy.copy(detector)
    changed.state = state
    return changed


def rows_of(record: Record) -> Arrays:
    """Return the arrays of a record that are rows, without what the drift alarm saw of them."""
    return {name: record.arrays[name] for name in _COLUMNS if name in record.arrays}


def _outputs(record: Record) -> Outputs:
    columns: dict[str, Any] = rows_of(record)
    return Outputs(**columns)


def _learned(contents: Contents, records: Sequence[Record]) -> Contents:
    """Return the contents after batches; the drift alarm sees what it saw when they were learned."""
    batches = [_outputs(record) for record in records]
    contents = learned(contents, Together.of(batches, contents.detector))
    for record, outputs in zip(records, batches, strict=True):
        if "p_values" in record.arrays:
            contents = watched(contents, outputs, record.arrays)
    return contents


# What a record of each kind does but "learn", of which several may have been written together.
CHANGES: dict[str, Callable[[Contents, Record], Contents]] = {
    "calibrate": lambda contents, record: calibrated(contents, _outputs(record), record.arrays.get("groups")),
    "rate": lambda contents, record: with_rate(contents, Rate(*record.about["rate"])),
    "merge": lambda contents, record: merged(contents, from_arrays(record.arrays, "the record").value),
    "reset": lambda contents, record: reset(contents),
}
