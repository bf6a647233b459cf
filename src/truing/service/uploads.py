"""Reference rows and moments as bodies: `.npz` files in memory, as truing writes them, or NumPy. Never a pickle."""

from __future__ import annotations

from typing import Any

from ..data.columns import NAMES
from ..data.jobs.merging import Origin, moments_bytes, read_moments
from ..data.npz import InMemory, read_npz
from ..detector import Detector
from ..outputs import Outputs
from ..regression.moments import Moments
from ..scores import base_name

# A compressed body may unpack to so many times the largest that is taken.
MAX_EXPANSION = 4

# Of the columns that rows may have: labels serve for nothing here.
_WANTED = tuple(name for name in NAMES if name != "labels")


def read_reference(body: bytes, *, body_limit: int) -> Outputs:
    """Return the rows of an `.npz` with features, and logits or scores."""
    source = InMemory("the reference", body)
    columns: dict[str, Any] = read_npz(source, _WANTED, "features", at_most=MAX_EXPANSION * body_limit)
    return Outputs(**columns)


def read_uploaded_moments(body: bytes, detector: Detector) -> Moments:
    """Return the moments in a body, which must be of the detector's base score."""
    _check_method(detector)
    source = InMemory("the body", body)
    moments, origin = read_moments(source)
    origin_of(detector).joined(origin, source)
    return moments


def written_moments(detector: Detector) -> bytes:
    """Return the moments of the learned rows as the bytes of an `.npz` that `truing merge` and `truing.load` read."""
    _check_method(detector)
    moments = detector.moments
    if moments is None:
        raise ValueError("nothing learned yet: there are no moments")
    assert isinstance(moments, Moments)
    return moments_bytes(moments, origin_of(detector))


def _check_method(detector: Detector) -> None:
    if detector.settings.method != "dlr":
        method = detector.settings.method
        raise ValueError(f"moments go to and from states of the method dlr, got one of {method}: its sums have no file")


def origin_of(detector: Detector) -> Origin:
    """Return what the scores behind a detector's moments are."""
    settings = detector.settings
    return Origin(base_name(settings.base), settings.temperature, settings.model)
