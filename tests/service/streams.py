"""Batches by name, engines on small directories, and what it is for two detectors to be the same to the bit."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import truing
from truing.saved.detectors import store_detector
from truing.service.engine import Engine, Request, Store
from truing.service.log import LogEnd, read_log

FEATURES, CLASSES = 5, 3


def batch(name: object, rows: int = 6, *, features: int = FEATURES, classes: int = CLASSES) -> truing.Outputs:
    """Return the rows of a batch of this name, always the same."""
    rng = np.random.default_rng([ord(letter) for letter in str(name)])
    return truing.Outputs(
        rng.normal(size=(rows, features)).astype(np.float32), rng.normal(size=(rows, classes)).astype(np.float32)
    )


def opened(folder: Path, detector: truing.Detector | None = None, **how) -> Engine:
    """Return an engine on a directory, of a plain detector unless told otherwise."""
    detector = truing.Detector() if detector is None else detector
    return Engine(Store(folder, detector, features=FEATURES, classes=CLASSES, **how))


def learn(engine: Engine, name: object, **how) -> object:
    return engine.submit(Request(batch(name, **how), learn=True, request_id=str(name))).result(60)


def bits(detector: truing.Detector) -> tuple[object, dict[str, tuple[str, tuple[int, ...], bytes]]]:
    """Return all that a detector holds, to be compared to the bit."""
    header, arrays = store_detector(detector)
    return header, {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


def replayed(names: list[str], detector: truing.Detector | None = None) -> truing.Detector:
    """Return a plain detector that has learned batches of these names in order."""
    detector = truing.Detector() if detector is None else detector
    for name in names:
        detector.learn(batch(name))
    return detector


def ids(folder: Path) -> list[str]:
    """Return the request ids in a log that starts with its first record, in order."""
    return [found.record.about["id"] for found in records(folder)]


def records(folder: Path) -> Iterator[object]:
    return (found for found in read_log(folder, LogEnd(), 0, bytes(8)) if found.record.kind == "learn")
