"""Save and load any of ours: `Moments`, `LinearFit`, `Detector`. The format is in archive.py."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ._check import as_choice, as_matrix, as_number, as_vector
from .archive import AnyPath, Arrays, read_archive, write_archive
from .detector import Detector, Reference
from .growing import Growing
from .moments import LinearFit, Moments

Saveable = Moments | LinearFit | Detector
Header = dict[str, Any]


def save(thing: Saveable, path: AnyPath) -> None:
    """Write `thing` to one file, whole or not at all."""
    kind = next((kind for kind, (cls, _, _) in _KINDS.items() if type(thing) is cls), None)
    if kind is None:
        raise TypeError(f"thing must be Moments, LinearFit or Detector, got {type(thing).__name__}")
    header, arrays = _KINDS[kind][1](thing)
    write_archive(path, kind, header, arrays)


def load(path: AnyPath) -> Any:
    """Read what `save` wrote; it then behaves as the one that was saved."""
    kind, header, arrays = read_archive(path)
    _, _, restore = as_choice(kind, f"the kind of {path}", _KINDS)
    try:
        return restore(header, arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} does not hold a whole {kind}: {error}") from None


def _store_value(value: Moments | LinearFit) -> tuple[Header, Arrays]:
    arrays = {name: field for name, field in vars(value).items() if isinstance(field, np.ndarray)}
    return {name: field for name, field in vars(value).items() if name not in arrays}, arrays


def _restore_moments(header: Header, arrays: Arrays) -> Moments:
    mean, comoment = as_vector(arrays["mean"], "mean"), as_matrix(arrays["comoment"], "comoment")
    if len(mean) < 2 or comoment.shape != (len(mean), len(mean)):
        raise ValueError(f"comoment must be square like mean {mean.shape}, got shape {comoment.shape}")
    return Moments(as_number(header["rows"], "rows", above=0.0), mean, comoment.astype(np.float64, copy=False))


def _restore_fit(header: Header, arrays: Arrays) -> LinearFit:
    numbers = {name: as_number(header[name], name) for name in ("intercept", "rows", "explained")}
    return LinearFit(as_vector(arrays["coef"], "coef"), rank=operator.index(header["rank"]), **numbers)


def _store_detector(detector: Detector) -> tuple[Header, Arrays]:
    settings = ("temperature", "intercept", "components", "decay")
    header: Header = {"score": detector.base, **{name: getattr(detector, name) for name in settings}}
    arrays: Arrays = {}
    if detector.reference is not None:
        arrays = {"features": detector.reference.features, "scores": detector.reference.scores}
    # With what follows the sums kept to the bit, a restored detector goes on as this one does.
    for name in ("learned", "joined"):
        growing: Growing | None = getattr(detector, name)
        if growing is not None:
            numbers, own = _store_value(growing.moments)
            header[name] = numbers["rows"]
            own |= {} if growing.inverse is None else {"inverse": growing.inverse}
            arrays |= {f"{name}_{part}": array for part, array in own.items()}
    return header, arrays


def _restore_detector(header: Header, arrays: Arrays) -> Detector:
    rows = {name: header.pop(name) for name in ("learned", "joined") if name in header}
    detector = Detector(**header)
    if "features" in arrays:
        detector.reference = Reference.of(arrays["features"], arrays["scores"])
    for name, weight in rows.items():
        own = {part: arrays[f"{name}_{part}"] for part in ("mean", "comoment")}
        inverse = arrays.get(f"{name}_inverse")
        setattr(detector, name, Growing(_restore_moments({"rows": weight}, own), detector.intercept, inverse))
    return detector


_KINDS: dict[str, tuple[type, Callable[..., tuple[Header, Arrays]], Callable[[Header, Arrays], Saveable]]] = {
    "moments": (Moments, _store_value, _restore_moments),
    "fit": (LinearFit, _store_value, _restore_fit),
    "detector": (Detector, _store_detector, _restore_detector),
}
