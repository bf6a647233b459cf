"""Save and load any of ours: `Moments`, `LinearFit`, `Detector`. The format is in archive.py."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ._check import Floats, as_choice, as_matrix, as_number, as_vector, check_same_rows
from .archive import AnyPath, Arrays, read_archive, write_archive
from .detector import Detector, Reference
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


def _store_moments(moments: Moments) -> tuple[Header, Arrays]:
    return {"rows": moments.rows}, {"mean": moments.mean, "comoment": moments.comoment}


def _restore_moments(header: Header, arrays: Arrays) -> Moments:
    mean, comoment = as_vector(arrays["mean"], "mean"), as_matrix(arrays["comoment"], "comoment")
    if len(mean) < 2 or comoment.shape != (len(mean), len(mean)):
        raise ValueError(f"comoment must be square like mean {mean.shape}, got shape {comoment.shape}")
    rows = as_number(header["rows"], "rows", above=0.0)
    return Moments(rows, mean, comoment.astype(np.float64, copy=False))


def _store_fit(fit: LinearFit) -> tuple[Header, Arrays]:
    header = {name: getattr(fit, name) for name in ("intercept", "rows", "rank", "explained")}
    return header, {"coef": fit.coef}


def _restore_fit(header: Header, arrays: Arrays) -> LinearFit:
    return LinearFit(
        coef=as_vector(arrays["coef"], "coef"),
        intercept=as_number(header["intercept"], "intercept"),
        rows=as_number(header["rows"], "rows", above=0.0),
        rank=int(as_number(header["rank"], "rank", at_least=0)),
        explained=as_number(header["explained"], "explained"),
    )


def _store_detector(detector: Detector) -> tuple[Header, Arrays]:
    settings = ("temperature", "intercept", "components", "decay")
    header: Header = {"score": detector.base, **{name: getattr(detector, name) for name in settings}}
    arrays: Arrays = {}
    if detector.moments is not None:
        header["learned"], found = _store_moments(detector.moments)
        arrays.update({f"learned_{name}": array for name, array in found.items()})
    if detector.reference is not None:
        arrays["reference_features"] = detector.reference.features
        arrays["reference_scores"] = detector.reference.scores
    return header, arrays


def _restore_detector(header: Header, arrays: Arrays) -> Detector:
    learned = header.pop("learned", None)
    detector = Detector(**header)
    if learned is not None:
        prefix = "learned_"
        own = {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}
        detector.moments = _restore_moments(learned, own)
    if "reference_features" in arrays:
        features = as_matrix(arrays["reference_features"], "reference_features")
        scores: Floats = as_vector(arrays["reference_scores"], "reference_scores")
        check_same_rows(reference_features=features, reference_scores=scores)
        detector.reference = Reference(features, scores, Moments.of(features, scores))
    return detector


_KINDS: dict[str, tuple[type, Callable[..., tuple[Header, Arrays]], Callable[[Header, Arrays], Saveable]]] = {
    "moments": (Moments, _store_moments, _restore_moments),
    "fit": (LinearFit, _store_fit, _restore_fit),
    "detector": (Detector, _store_detector, _restore_detector),
}
