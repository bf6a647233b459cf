"""A detector as arrays: its settings, its reference, and what it learned."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._check import Matrix, as_count, as_matrix, as_vector, check_same_rows
from ..contrast import Columns, ScoredRows
from ..detector import Detector
from ..incremental import IncrementalMoments
from ..io.npz import Arrays
from ..moments import Moments
from ..robust_sums import Batch, RobustSums
from ..states import ContrastState, DirectState, Reference, RobustState, Settings, State, decided_against
from ..window import Window
from .fits import check_named, restore_head, restore_rows, store_head, store_rows
from .guards import restore_guards, store_guards
from .sums import (
    Header,
    check_numbers,
    named,
    restore_class_moments,
    restore_incremental,
    restore_moments,
    store_class_moments,
    store_incremental,
    store_moments,
)

_SETTINGS = (
    "base",
    "method",
    "temperature",
    "intercept",
    "components",
    "tolerance",
    "decay",
    "window",
    "keep",
    "same_mix",
    "model",
    "stream_fdr",
    "drift_alarm",
)
_ADDED_LATER = (
    "tolerance",
    "window",
    "keep",
    "stream_fdr",
    "drift_alarm",
)  # Files without them are of detectors that had their default.


_MOST_BATCHES = 2**63


def store_detector(detector: Detector) -> tuple[Header, Arrays]:
    """Return a detector as a header and arrays; its base score must have a name."""
    settings, state = detector.settings, detector.state
    check_named(settings.base, "Detector")
    header: Header = {name: getattr(settings, name) for name in _SETTINGS}
    own_header, arrays = _store_state(state)
    arrays["merged"] = np.array(state.merged, dtype=np.uint64)
    guards_header, guards_arrays = store_guards(state.guards)
    arrays |= guards_arrays | store_head(settings.head)
    return header | own_header | guards_header | {"arrays": sorted(arrays)}, arrays


def restore_detector(header: Header, arrays: Arrays) -> Detector:
    """Return the detector of a header and arrays."""
    _check_whole(header, arrays)
    settings = {name: header[name] for name in _SETTINGS if name not in _ADDED_LATER or name in header}
    detector = Detector(**settings, head=restore_head(arrays))
    if isinstance(detector.state, DirectState):
        state: State = _restore_direct(header, arrays, detector.settings)
    elif isinstance(detector.state, RobustState):
        state = _restore_robust(header, arrays)
    else:
        state = _restore_contrast(header, arrays, detector.settings)
    guards = state.guards
    if detector.settings.is_guarded and state.reference is not None:
        guards = restore_guards(header, arrays, detector.settings, decided_against(state))
    detector.state = replace(state, merged=_restore_merged(arrays), guards=guards)
    return detector


def _check_whole(header: Header, arrays: Arrays) -> None:
    """Refuse a file in which arrays are missing, or those of a part of which the header says nothing are there."""
    missing = set(header.get("arrays", ())) - set(arrays)  # Earlier files do not name theirs.
    if missing:
        raise ValueError(f"its arrays must all be there, and these are missing: {', '.join(sorted(missing))}")
    for part in ("learned", "joined", "left", "trusted"):
        if named(part, arrays) and part not in header:
            raise ValueError(f"its header must say what there is of {part}, as its arrays do")
    for part in ("stream_fdr_state", "drift_state"):
        if part in header and "features" not in arrays and "held_features" not in arrays:
            raise ValueError(f"its reference must be there with its {part}")


def _store_state(state: State) -> tuple[Header, Arrays]:
    if isinstance(state, DirectState):
        return _store_direct(state)
    return _store_robust(state) if isinstance(state, RobustState) else _store_contrast(state)


def _restore_merged(arrays: Arrays) -> tuple[int, ...]:
    merged = arrays.get("merged", np.empty(0, dtype=np.uint64))
    if merged.dtype != np.uint64 or merged.ndim != 1:
        raise ValueError(f"merged must be digests (k,), got {merged.dtype} {merged.shape}")
    return tuple(int(digest) for digest in merged)


def _store_direct(state: DirectState) -> tuple[Header, Arrays]:
    header: Header = {"classes": state.classes}
    arrays = _store_reference(state.reference)
    for name in ("learned", "joined"):
        sums: IncrementalMoments | None = getattr(state, name)
        if sums is not None:
            header[name], own = store_incremental(sums)
            arrays |= {f"{name}_{part}": array for part, array in own.items()}
    if state.window is None:
        return header, arrays
    return header | {"batches_learned": state.window.learned}, arrays | _store_batches(state.window.batches)


def _restore_direct(header: Header, arrays: Arrays, settings: Settings) -> DirectState:
    """Return the state; the sums within a window are found anew, by the same arithmetic."""
    reference = _restore_reference(arrays)
    sums = {
        name: restore_incremental(header[name], named(name, arrays)) for name in ("learned", "joined") if name in header
    }
    state = DirectState(reference, sums.get("learned"), sums.get("joined"), _restore_classes(header))
    widths = {part.moments.dimensions for part in (state.reference, state.learned, state.joined) if part}
    if len(widths) > 1 or (state.joined is None) != (None in (state.learned, state.reference)):
        raise ValueError("its parts must be of one width, and the joined sums there with both of the others")
    if settings.window is None or state.learned is None:
        return state
    batches = _restore_batches(arrays, state.learned.moments.dimensions)
    learned = _batches_learned(header, settings.window, batches)
    return replace(state, window=Window.of(settings.window, Batch.moments, learned, batches))


def _store_robust(state: RobustState) -> tuple[Header, Arrays]:
    header: Header = {"classes": state.classes}
    arrays = _store_reference(state.reference)
    if state.learned is None:
        return header, arrays
    arrays |= _store_batches(state.learned.held)
    for name in ("left", "trusted"):
        moments: Moments | None = getattr(state.learned, name)
        if moments is not None:
            header[name], own = store_moments(moments)
            arrays |= {f"{name}_{part}": array for part, array in own.items()}
    return header, arrays


def _restore_robust(header: Header, arrays: Arrays) -> RobustState:
    reference = _restore_reference(arrays)
    state = RobustState(reference, None, _restore_classes(header))
    if "batches_rows" not in arrays:
        return state
    sums = {name: restore_moments(header[name], named(name, arrays)) for name in ("left", "trusted") if name in header}
    batches = _restore_batches(arrays, None if reference is None else reference.moments.dimensions)
    learned = RobustSums(batches, sums.get("left"), sums.get("trusted"))
    if any(moments.dimensions != learned.dimensions for moments in sums.values()):
        raise ValueError("its parts must be of one width")
    if "trusted" in sums and ("left" not in sums or sums["trusted"].rows > sums["left"].rows):
        raise ValueError("its trusted rows must be among those that left")
    return replace(state, learned=learned)


def _store_reference(reference: Reference | None) -> Arrays:
    return {} if reference is None else {"features": reference.features, "scores": reference.scores}


def _restore_reference(arrays: Arrays) -> Reference | None:
    if "features" not in arrays:
        return None
    features, scores = as_matrix(arrays["features"], "features"), as_vector(arrays["scores"], "scores")
    check_same_rows(features=features, scores=scores)
    return Reference.of(features, scores)


def _restore_classes(header: Header) -> int | None:
    return None if header["classes"] is None else as_count(header["classes"], "classes")


def _store_batches(batches: tuple[Batch, ...]) -> Arrays:
    return {**_store_features(batches), "batches_scores": Batch.joined(*batches).scores}


def _store_features(batches: tuple[Batch, ...] | tuple[ScoredRows, ...]) -> Arrays:
    """Return the features of batches as one array, how many rows each has, and how many bytes a number of it."""
    return {
        "batches_features": np.concatenate([batch.features for batch in batches]),
        "batches_rows": np.array([len(batch.features) for batch in batches], dtype=np.int64),
        "batches_bytes": np.array([batch.features.dtype.itemsize for batch in batches], dtype=np.int64),
    }


def _restore_batches(arrays: Arrays, dimensions: int | None) -> tuple[Batch, ...]:
    features = as_matrix(arrays["batches_features"], "batches_features")
    scores = as_vector(arrays["batches_scores"], "batches_scores")
    check_same_rows(batches_features=features, batches_scores=scores)
    if dimensions is not None and features.shape[1] != dimensions:
        raise ValueError(f"batches_features must have {dimensions} columns, got {features.shape[1]}")
    return tuple(Batch(own, scores[part]) for part, own in _restore_features(arrays, features))


def _restore_features(arrays: Arrays, features: Matrix) -> list[tuple[slice, Matrix]]:
    """Return which rows each batch has, and its features in the type they came in."""
    parts, sizes = _batch_slices(arrays["batches_rows"], len(features)), arrays["batches_bytes"]
    if sizes.dtype != np.int64 or sizes.shape != (len(parts),) or not np.isin(sizes, (2, 4, 8)).all():
        raise ValueError(f"batches_bytes must be 2, 4 or 8 for each batch, got {sizes.dtype} {sizes.shape}")
    return [(part, features[part].astype(f"f{size}", copy=False)) for part, size in zip(parts, sizes, strict=True)]


def _batch_slices(lengths: NDArray[Any], rows: int) -> list[slice]:
    """Return which rows each batch has."""
    if lengths.dtype != np.int64 or lengths.ndim != 1 or (lengths < 1).any() or lengths.sum() != rows:
        raise ValueError(f"batches_rows must be the rows of each batch and add up to {rows}")
    ends = np.cumsum(lengths)
    return [slice(int(end - length), int(end)) for length, end in zip(lengths, ends, strict=True)]


def _batches_learned(header: Header, window: int, batches: tuple[Any, ...]) -> int:
    """Return how many batches were learned, of which these are the last."""
    learned = as_count(header["batches_learned"], "batches_learned", at_most=_MOST_BATCHES)
    if len(batches) != min(learned, window):
        raise ValueError(f"of {learned} batches the last {min(learned, window)} must be there, got {len(batches)}")
    return learned


def _store_contrast(state: ContrastState) -> tuple[Header, Arrays]:
    if state.reference is None:
        return {}, {}
    arrays = store_rows("known", state.reference.rows_known) | store_rows("held", state.reference.rows_held)
    if state.learned is None:
        return {}, arrays
    header, own = store_class_moments(state.learned)
    arrays |= {f"learned_{part}": array for part, array in own.items()}
    if state.window is None:
        return {"learned": header}, arrays
    batches = state.window.batches
    arrays |= _store_features(batches)
    arrays |= {
        "batches_scores": np.concatenate([batch.scores for batch in batches]),
        "batches_classes": np.concatenate([batch.classes for batch in batches]).astype(np.int64),
    }
    return {"learned": header, "batches_learned": state.window.learned}, arrays


def _restore_contrast(header: Header, arrays: Arrays, settings: Settings) -> ContrastState:
    """Return the state; what its known rows say is found anew, by the same arithmetic, and sums within a window."""
    known, held = restore_rows("known", arrays), restore_rows("held", arrays)
    if known is None or held is None:
        if "learned" in header:
            raise ValueError("its known rows must be there with its sums")
        return ContrastState()
    state = ContrastState().with_parts(known, held, settings)
    if "learned" not in header or state.reference is None:
        return state
    columns = state.reference.columns
    learned = restore_class_moments(header["learned"], named("learned", arrays), columns.classes)
    if len(learned.moments.mean) != len(columns):
        raise ValueError(f"learned must be sums of {len(columns)} columns, got {len(learned.moments.mean)}")
    state = replace(state, learned=learned)
    if settings.window is None:
        return state
    batches = _restore_scored(arrays, columns)
    empty = state.empty_window(settings.window)
    count = _batches_learned(header, settings.window, batches)
    return replace(state, window=Window.of(settings.window, empty.summed, count, batches))


def _restore_scored(arrays: Arrays, columns: Columns) -> tuple[ScoredRows, ...]:
    """Return the batches of a contrast's window."""
    features, classes = as_matrix(arrays["batches_features"], "batches_features"), arrays["batches_classes"]
    if features.shape[1] != columns.dimensions:
        raise ValueError(f"batches_features must have {columns.dimensions} columns, got {features.shape[1]}")
    check_numbers(arrays["batches_scores"], "batches_scores", (len(features), len(columns.names)))
    if classes.dtype != np.int64 or classes.shape != (len(features),):
        raise ValueError(f"batches_classes must be a class for each row, got {classes.dtype} {classes.shape}")
    if classes.min() < 0 or classes.max() >= columns.classes:
        raise ValueError(f"batches_classes must be below {columns.classes}, got {classes.min()} to {classes.max()}")
    classes, scores = classes.astype(np.intp), arrays["batches_scores"]
    return tuple(ScoredRows(own, scores[part], classes[part]) for part, own in _restore_features(arrays, features))
