"""Save and load any of ours: `Moments`, `LinearFit`, `Detector`. The format is in io/archive.py."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from ._check import Floats, as_choice, as_count, as_matrix, as_number, as_vector, check_same_rows
from .detector import Detector, Reference, State
from .incremental import EigenvalueBound, IncrementalMoments, RunningInverse, spaced_square
from .io.archive import read_archive, write_archive
from .io.drafts import AnyPath
from .io.npz import Arrays
from .least_squares import LinearFit
from .moments import Moments
from .scores import base_name

Saveable = Moments | LinearFit | Detector
Header = dict[str, Any]

_MOMENTS = ("mean", "comoment", "mean_low", "comoment_low", "rounding")
_ROUNDED_SQUARE = 2.0**-40  # Share of the largest sum of squares that is but rounding.
_SETTINGS = ("base", "temperature", "intercept", "components", "decay", "model")


def save(thing: Saveable, path: AnyPath) -> None:
    """Write `thing` to one `.npz` file, whole or not at all."""
    kind = next((kind for kind, (cls, _, _) in _KINDS.items() if type(thing) is cls), None)
    if kind is None:
        hint = ": it has a save of its own" if hasattr(thing, "save") else ""
        raise TypeError(f"thing must be Moments, LinearFit or Detector, got {type(thing).__name__}{hint}")
    if Path(path).suffix.lower() != ".npz":
        raise ValueError(f"path must end in .npz, got {os.fspath(path)}")
    header, arrays = _KINDS[kind][1](thing)
    write_archive(path, kind, header, arrays)


def load(path: AnyPath) -> Saveable:
    """Read what `save` wrote; it then behaves as the one that was saved."""
    kind, header, arrays = read_archive(path)
    _, _, restore = as_choice(kind, f"the kind of {path}", _KINDS)
    try:
        thing: Saveable = restore(header, arrays)
        return thing
    except MemoryError:
        raise
    except Exception as error:  # Whatever else is wrong with it, it is the file.
        raise ValueError(f"{path} does not hold a whole {kind}: {error}") from None


def _store_moments(moments: Moments) -> tuple[Header, Arrays]:
    arrays = {name: value for name, value in vars(moments).items() if name not in ("rows", "parts")}
    return {"rows": moments.rows}, {**arrays, "parts": np.array(sorted(moments.parts), dtype=np.uint64)}


def _restore_moments(header: Header, arrays: Arrays) -> Moments:
    d = len(arrays["mean"])
    for name in _MOMENTS:
        _check_numbers(arrays[name], name, (d, d) if name.startswith("comoment") else (d,))
    if d < 2 or arrays["rounding"].min() < 0:
        raise ValueError("moments must be of a feature at least, and rounding not negative")
    squares = arrays["comoment"].diagonal()
    # Subtraction may leave of a square what rounding did, on either side of zero.
    if (squares < -(arrays["rounding"] + _ROUNDED_SQUARE * np.abs(squares).max())).any():
        raise ValueError(f"comoment must have sums of squares on its diagonal, got {squares.min():g}")
    numbers: dict[str, Any] = {name: arrays[name] for name in _MOMENTS}
    if arrays["parts"].dtype != np.uint64 or arrays["parts"].ndim != 1:
        raise ValueError(f"parts must be digests (k,), got {arrays['parts'].dtype} {arrays['parts'].shape}")
    parts = frozenset(int(part) for part in arrays["parts"])
    return Moments(as_number(header["rows"], "rows", at_least=0.0), **numbers, parts=parts)


def _store_fit(fit: LinearFit) -> tuple[Header, Arrays]:
    header = {name: value for name, value in vars(fit).items() if name != "coef"}
    # JSON has no infinity: an explained share that overflowed is text.
    return {**header, "explained": repr(float(fit.explained))}, {"coef": fit.coef}


def _restore_fit(header: Header, arrays: Arrays) -> LinearFit:
    coef = arrays["coef"]
    intercept = as_number(header["intercept"], "intercept", at_least=-math.inf, at_most=math.inf)
    _check_numbers(np.append(coef, intercept), "coef and intercept", (len(coef) + 1,))
    rank, collinear = (_up_to(len(coef), header[name], name) for name in ("rank", "collinear"))
    if not isinstance(header["explained"], str):
        raise TypeError(f"explained must be a share as text, got {type(header['explained']).__name__}")
    explained = float(header["explained"])
    if math.isnan(explained) or explained == math.inf:
        raise ValueError(f"explained must be a share, got {explained}")
    rows = as_number(header["rows"], "rows", at_least=0.0)
    rounding = as_number(header["rounding"], "rounding", at_least=0.0)
    return LinearFit(coef, intercept, rows, rank, explained, collinear, rounding)


def _up_to(most: int, value: int, name: str) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{name} must be a whole number from 0 to {most}, got {value}")
    return value


def _store_detector(detector: Detector) -> tuple[Header, Arrays]:
    state = detector.state
    if not isinstance(detector.base, str):
        raise TypeError(f"thing must be a Detector of a named base score, got one of {base_name(detector.base)}")
    header: Header = {name: getattr(detector, name) for name in _SETTINGS}
    header["classes"] = state.classes
    arrays: Arrays = {}
    if state.reference is not None:
        arrays |= {"features": state.reference.features, "scores": state.reference.scores}
    for name in ("learned", "joined"):
        sums: IncrementalMoments | None = getattr(state, name)
        if sums is not None:
            header[name], own = _store_incremental(sums)
            arrays |= {f"{name}_{part}": array for part, array in own.items()}
    return header, arrays


def _restore_detector(header: Header, arrays: Arrays) -> Detector:
    detector = Detector(**{name: header[name] for name in _SETTINGS})
    reference = None
    if "features" in arrays:
        features, scores = as_matrix(arrays["features"], "features"), as_vector(arrays["scores"], "scores")
        check_same_rows(features=features, scores=scores)
        reference = Reference.of(features, scores)
    sums: dict[str, IncrementalMoments] = {}
    for name in ("learned", "joined"):
        if name in header:
            own = {part.removeprefix(f"{name}_"): part for part in arrays if part.startswith(f"{name}_")}
            sums[name] = _restore_incremental(header[name], {part: arrays[full] for part, full in own.items()})
    classes = None if header["classes"] is None else as_count(header["classes"], "classes")
    state = State(reference, sums.get("learned"), sums.get("joined"), classes)
    widths = {part.moments.dimensions for part in (state.reference, state.learned, state.joined) if part}
    if len(widths) > 1 or (state.joined is None) != (None in (state.learned, state.reference)):
        raise ValueError("its parts must be of one width, and the joined sums there with both of the others")
    detector.state = state
    return detector


def _store_incremental(sums: IncrementalMoments) -> tuple[Header, Arrays]:
    """Return moments with what is known of them: kept to the bit, so that a restored stream goes on as this one."""
    header, arrays = _store_moments(sums.moments)
    if isinstance(sums.known, EigenvalueBound):
        return {**header, "least": sums.known.eigenvalue_bound}, {**arrays, "norm": sums.known.norm}
    if isinstance(sums.known, RunningInverse):
        return header, {**arrays, "norm": sums.known.norm, "inverse": sums.known.inverse}
    return header, arrays


def _restore_incremental(header: Header, arrays: Arrays) -> IncrementalMoments:
    norm, inverse = arrays.pop("norm", None), arrays.pop("inverse", None)
    moments = _restore_moments(header, arrays)
    if norm is None:
        return IncrementalMoments.of(moments)
    _check_numbers(norm, "norm", (len(norm),))
    if inverse is None:
        return IncrementalMoments.of(moments, EigenvalueBound(norm, as_number(header["least"], "least", at_least=0.0)))
    _check_numbers(inverse, "inverse", (len(norm), len(norm)))
    # Laid out in memory as before, to give the same bits.
    own = spaced_square(len(norm))
    own[:] = inverse
    return IncrementalMoments.of(moments, RunningInverse(norm, own))


def _check_numbers(array: Floats, name: str, shape: tuple[int, ...]) -> None:
    if array.shape != shape or array.dtype != np.float64 or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite float64 numbers of shape {shape}, got {array.dtype} {array.shape}")


_KINDS: dict[str, tuple[type, Any, Any]] = {
    "moments": (Moments, _store_moments, _restore_moments),
    "fit": (LinearFit, _store_fit, _restore_fit),
    "detector": (Detector, _store_detector, _restore_detector),
}
