"""Save and load any of ours: `Moments`, `LinearFit`, `Detector`. The format is in io/archive.py."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._check import as_choice, as_count, as_number, as_vector
from .detector import Detector, Reference
from .growing import Growing
from .io.archive import read_archive, write_archive
from .io.drafts import AnyPath
from .io.npz import Arrays
from .linear import LinearFit
from .moments import Moments

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
    except Exception as error:  # Whatever is wrong with it, it is the file.
        raise ValueError(f"{path} does not hold a whole {kind}: {error}") from None


def _store_value(value: Moments | LinearFit) -> tuple[Header, Arrays]:
    arrays = {name: field for name, field in vars(value).items() if isinstance(field, np.ndarray)}
    return {name: field for name, field in vars(value).items() if name not in arrays}, arrays


def _restore_moments(header: Header, arrays: Arrays) -> Moments:
    mean, comoment = arrays["mean"], arrays["comoment"]
    if mean.ndim != 1 or len(mean) < 2 or comoment.shape != (len(mean), len(mean)):
        raise ValueError(f"comoment must be square like mean {mean.shape}, got shape {comoment.shape}")
    if not (_is_sound(mean) and _is_sound(comoment) and np.diagonal(comoment).min() >= -abs(header["floor"])):
        raise ValueError("mean and comoment must be finite, and no variance negative")
    rows, floor = as_number(header["rows"], "rows", above=0.0), as_number(header["floor"], "floor", at_least=0.0)
    return Moments(rows, mean, comoment, floor)


def _restore_fit(header: Header, arrays: Arrays) -> LinearFit:
    rank = as_count(header["rank"] + 1, "rank + 1") - 1
    rows = as_number(header["rows"], "rows", above=0.0)
    numbers = {name: as_number(header[name], name) for name in ("intercept", "explained")}
    return LinearFit(as_vector(arrays["coef"], "coef"), rows=rows, rank=rank, **numbers)


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
            header[name], own = _store_value(growing.moments)
            own |= {} if growing.inverse is None else {"inverse": growing.inverse}
            arrays |= {f"{name}_{part}": array for part, array in own.items()}
    return header, arrays


def _restore_detector(header: Header, arrays: Arrays) -> Detector:
    sums = {name: header.pop(name) for name in ("learned", "joined") if name in header}
    detector = Detector(**header)
    if "features" in arrays:
        detector.reference = Reference.of(arrays["features"], arrays["scores"])
    for name, numbers in sums.items():
        own = {part: arrays[f"{name}_{part}"] for part in ("mean", "comoment")}
        setattr(detector, name, Growing.restored(_restore_moments(numbers, own), arrays.get(f"{name}_inverse")))
    widths = {part.moments.dimensions for part in (detector.learned, detector.joined, detector.reference) if part}
    if len(widths) > 1 or (detector.joined is not None and None in (detector.learned, detector.reference)):
        raise ValueError(f"its parts must be of one width and belong together, got widths {sorted(widths)}")
    return detector


def _is_sound(array: NDArray[Any]) -> bool:
    return array.dtype == np.float64 and bool(np.isfinite(array).all())


_KINDS: dict[str, tuple[type, Callable[..., tuple[Header, Arrays]], Callable[[Header, Arrays], Saveable]]] = {
    "moments": (Moments, _store_value, _restore_moments),
    "fit": (LinearFit, _store_value, _restore_fit),
    "detector": (Detector, _store_detector, _restore_detector),
}
