"""Reference rows and moments as bodies: `.npz` files in memory, as truing writes them, or NumPy. Never a pickle."""

from __future__ import annotations

from typing import Any

from ..contrast import RowSample
from ..data.columns import NAMES
from ..data.jobs.merging import Origin, file_of, read_moments, read_sample
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


def read_uploaded_moments(body: bytes, detector: Detector) -> Moments | RowSample:
    """Return the learned rows of another state: moments, or for contrast a sample. The base score must be the same."""
    _check_method(detector)
    source = InMemory("the body", body)
    moments: Moments | RowSample
    moments, origin = (read_sample if detector.settings.method == "contrast" else read_moments)(source)
    origin_of(detector).joined(origin, source)
    return moments


def written_moments(detector: Detector) -> bytes:
    """Return the moments of the learned rows, or for contrast a sample of them, as an `.npz` for `truing.load`."""
    _check_method(detector)
    if detector.moments is None:
        raise ValueError("nothing learned yet: there are no moments")
    return file_of(detector.moments, origin_of(detector))


def _check_method(detector: Detector) -> None:
    if detector.settings.method == "rlr":
        raise ValueError("moments are for the methods dlr and contrast, got a state of the method rlr")


def origin_of(detector: Detector) -> Origin:
    """Return the origin of the scores behind a detector's moments."""
    settings = detector.settings
    return Origin(base_name(detector.base), settings.temperature, settings.model)
