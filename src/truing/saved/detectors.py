"""A detector as arrays: its settings, its reference, and what it learned."""

from dataclasses import replace

from .._check import as_count, as_matrix, as_vector, check_same_rows
from ..detector import Detector
from ..incremental import IncrementalMoments
from ..io.npz import Arrays
from ..states import ContrastState, DirectState, Reference, State, decided_against
from .fits import check_named, restore_head, restore_rows, store_head, store_rows
from .guards import restore_guards, store_guards
from .sums import (
    Header,
    named,
    restore_class_moments,
    restore_incremental,
    store_class_moments,
    store_incremental,
)

_SETTINGS = ("base", "method", "temperature", "intercept", "components", "tolerance", "decay", "same_mix", "model")
_GUARDS = ("stream_fdr", "drift_alarm")  # Files without them are of detectors that had none.


def store_detector(detector: Detector) -> tuple[Header, Arrays]:
    """Return a detector as a header and arrays; its base score must have a name."""
    settings, state = detector.settings, detector.state
    check_named(settings.base, "Detector")
    header: Header = {name: getattr(settings, name) for name in _SETTINGS}
    own_header, arrays = _store_direct(state) if isinstance(state, DirectState) else _store_contrast(state)
    header |= {name: getattr(settings, name) for name in _GUARDS}
    guards_header, guards_arrays = store_guards(state.guards)
    return header | own_header | guards_header, arrays | guards_arrays | store_head(settings.head)


def restore_detector(header: Header, arrays: Arrays) -> Detector:
    """Return the detector of a header and arrays."""
    settings = {name: header[name] for name in _SETTINGS if name != "tolerance" or name in header}  # Added in 0.2.
    settings |= {name: header[name] for name in _GUARDS if name in header}
    detector = Detector(**settings, head=restore_head(arrays))
    if isinstance(detector.state, DirectState):
        state: State = _restore_direct(header, arrays)
    else:
        state = _restore_contrast(detector, header, arrays)
    if detector.settings.is_guarded and state.reference is not None:
        features = decided_against(state)
        state = replace(state, guards=restore_guards(header, arrays, detector.settings, features))
    detector.state = state
    return detector


def _store_direct(state: DirectState) -> tuple[Header, Arrays]:
    header: Header = {"classes": state.classes}
    arrays: Arrays = {}
    if state.reference is not None:
        arrays |= {"features": state.reference.features, "scores": state.reference.scores}
    for name in ("learned", "joined"):
        sums: IncrementalMoments | None = getattr(state, name)
        if sums is not None:
            header[name], own = store_incremental(sums)
            arrays |= {f"{name}_{part}": array for part, array in own.items()}
    return header, arrays


def _restore_direct(header: Header, arrays: Arrays) -> DirectState:
    reference = None
    if "features" in arrays:
        features, scores = as_matrix(arrays["features"], "features"), as_vector(arrays["scores"], "scores")
        check_same_rows(features=features, scores=scores)
        reference = Reference.of(features, scores)
    sums = {
        name: restore_incremental(header[name], named(name, arrays)) for name in ("learned", "joined") if name in header
    }
    classes = None if header["classes"] is None else as_count(header["classes"], "classes")
    state = DirectState(reference, sums.get("learned"), sums.get("joined"), classes)
    widths = {part.moments.dimensions for part in (state.reference, state.learned, state.joined) if part}
    if len(widths) > 1 or (state.joined is None) != (None in (state.learned, state.reference)):
        raise ValueError("its parts must be of one width, and the joined sums there with both of the others")
    return state


def _store_contrast(state: ContrastState) -> tuple[Header, Arrays]:
    if state.reference is None:
        return {}, {}
    arrays = store_rows("known", state.reference.rows_known) | store_rows("held", state.reference.rows_held)
    if state.learned is None:
        return {}, arrays
    header, own = store_class_moments(state.learned)
    return {"learned": header}, arrays | {f"learned_{part}": array for part, array in own.items()}


def _restore_contrast(detector: Detector, header: Header, arrays: Arrays) -> ContrastState:
    """Return the state; what its known rows say is found anew, by the same arithmetic."""
    known, held = restore_rows("known", arrays), restore_rows("held", arrays)
    if known is None or held is None:
        if "learned" in header:
            raise ValueError("its known rows must be there with its sums")
        return ContrastState()
    state = ContrastState().with_parts(known, held, detector.settings)
    if "learned" not in header or state.reference is None:
        return state
    columns = state.reference.columns
    learned = restore_class_moments(header["learned"], named("learned", arrays), columns.classes)
    if len(learned.moments.mean) != len(columns):
        raise ValueError(f"learned must be sums of {len(columns)} columns, got {len(learned.moments.mean)}")
    return ContrastState(state.reference, learned, state.keys)
