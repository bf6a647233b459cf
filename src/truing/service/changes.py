"""What a record does to the contents of a state directory: one function for each kind, live and at recovery alike."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np

from ..detector import Detector
from ..incremental import IncrementalMoments
from ..moments import Moments
from ..outputs import Outputs
from ..saved.sums import restore_moments, store_moments
from ..states import DirectState, State
from ..threshold import Rate
from .records import Arrays, Record
from .snapshots import Contents

# So many digests of merged moments are kept.
MAX_MERGED = 4096

_COLUMNS = ("features", "logits", "scores")


def after(contents: Contents, record: Record) -> Contents:
    """Return the contents after a record of a log, as they were when it was written."""
    return replace(CHANGES[record.kind](contents, record), sequence=record.sequence)


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


def stored_moments(moments: Moments) -> tuple[dict[str, Any], Arrays]:
    """Return moments as the description and arrays of a record."""
    header, arrays = store_moments(moments)
    return {"moments": header}, {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def learned(contents: Contents, outputs: Outputs) -> Contents:
    """Return the contents in which a batch is learned."""
    old = contents.detector
    state = old.state.with_rows(old.state.read(outputs), old.settings)  # type: ignore[arg-type]
    return replace(
        contents,
        detector=with_state(old, state),
        rows_learned=contents.rows_learned + len(outputs),
        batches=contents.batches + 1,
    )


def calibrated(contents: Contents, reference: Outputs) -> Contents:
    """Return the contents with these known in-distribution rows in place of earlier ones."""
    old = contents.detector
    return replace(contents, detector=with_state(old, old.state.with_reference(reference, old.settings)))


def merged(contents: Contents, moments: Moments) -> Contents:
    """Return the contents with the learned rows of another state; moments that were merged before are refused."""
    state = contents.detector.state
    if not isinstance(state, DirectState):
        raise ValueError("moments cannot be merged into a contrast: they are not of its columns")
    if state.dimensions not in (None, moments.dimensions):
        raise ValueError(f"moments must be of {state.dimensions} features, as the state is, got {moments.dimensions}")
    parts = {*moments.parts, _digest(moments)}
    if parts & {*contents.merged}:
        raise ValueError("moments must not have been merged before, got some that were")
    sums = moments if state.learned is None else state.learned.moments + moments
    return replace(
        contents,
        detector=with_state(contents.detector, _with_sums(state, sums)),
        rows_learned=contents.rows_learned + round(moments.rows),
        merged=(*contents.merged, *sorted(parts))[-MAX_MERGED:],
    )


def reset(contents: Contents) -> Contents:
    """Return the contents without any learned rows; the reference and the rate stay."""
    forgotten = contents.detector.state.without_rows()
    return replace(contents, detector=with_state(contents.detector, forgotten), rows_learned=0, batches=0, merged=())


def with_state(detector: Detector, state: State) -> Detector:
    """Return a detector of the same settings that knows something else."""
    changed = copy.copy(detector)
    changed.state = state
    return changed


def _with_sums(state: DirectState, sums: Moments) -> DirectState:
    joined = None if state.reference is None else IncrementalMoments.of(sums + state.reference.moments)
    return DirectState(state.reference, IncrementalMoments.of(sums), joined, state.classes)


def _digest(moments: Moments) -> int:
    told_by = np.concatenate(([moments.rows], moments.mean, moments.mean_low, moments.comoment.ravel()))
    return int.from_bytes(blake2b(told_by.tobytes(), digest_size=8).digest())


def _outputs(record: Record) -> Outputs:
    columns: dict[str, Any] = {name: record.arrays[name] for name in _COLUMNS if name in record.arrays}
    return Outputs(**columns)


CHANGES: dict[str, Callable[[Contents, Record], Contents]] = {
    "learn": lambda contents, record: learned(contents, _outputs(record)),
    "calibrate": lambda contents, record: calibrated(contents, _outputs(record)),
    "rate": lambda contents, record: replace(contents, rate=Rate(*record.about["rate"])),
    "merge": lambda contents, record: merged(contents, restore_moments(record.about["moments"], record.arrays)),
    "reset": lambda contents, record: reset(contents),
}
