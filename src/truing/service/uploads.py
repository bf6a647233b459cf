"""Reference rows and moments as request and response bodies: `.npz` files in memory, without pickles."""

from __future__ import annotations

from io import BytesIO
from typing import Any, NamedTuple
from zipfile import ZipFile

from numpy.typing import NDArray

from ..contrast import RowSample
from ..data.jobs.merging import Origin, file_of, read_moments, read_sample
from ..data.npz import InMemory, read_npz
from ..detector import Detector
from ..outputs import Outputs
from ..regression.moments import Moments
from ..scores import base_name

# A compressed body may unpack to this many times the body limit.
MAX_EXPANSION = 4

_COLUMNS = ("features", "logits", "scores")


class Reference(NamedTuple):
    """Reference rows, their groups (None without groups), and the names of the arrays that are not used."""

    rows: Outputs
    groups: NDArray[Any] | None
    unused: list[str]


def decode_reference(body: bytes, *, body_limit: int) -> Reference:
    """Decode an `.npz` with `features`, and `logits` or `scores`, and optionally `groups`."""
    source = InMemory("the reference", body)
    columns: dict[str, Any] = read_npz(source, (*_COLUMNS, "groups"), "features", at_most=MAX_EXPANSION * body_limit)
    groups = columns.pop("groups", None)
    with ZipFile(BytesIO(body)) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
    return Reference(Outputs(**columns), groups, sorted({*names} - {*_COLUMNS, "groups", "labels"}))


def decode_moments(body: bytes, detector: Detector) -> Moments | RowSample:
    """Decode the learned rows of another model with the same base score: moments, or a sample for contrast."""
    check_has_moments(detector)
    source = InMemory("the body", body)
    moments: Moments | RowSample
    moments, origin = (read_sample if detector.settings.method == "contrast" else read_moments)(source)
    _origin_of(detector).joined(origin, source)
    return moments


def encode_moments(moments: Moments | RowSample, detector: Detector) -> bytes:
    """Return the moments of a detector as an `.npz` file that `truing.load` reads."""
    return file_of(moments, _origin_of(detector))


def check_has_moments(detector: Detector) -> None:
    """Raise an error if the method of the detector has no moments."""
    if detector.settings.method == "rlr":
        raise ValueError("moments need method dlr or contrast, got a model with method rlr")


def _origin_of(detector: Detector) -> Origin:
    settings = detector.settings
    return Origin(base_name(detector.base), settings.temperature, settings.model)
