"""Batches by name, engines on small directories, and what it is for two detectors to be the same to the bit."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

import truing
from truing.decisions.drift import DriftWatch
from truing.saved import as_arrays
from truing.service.engine import Engine, Request, Store
from truing.service.log import LogEnd, read_log
from truing.service.store import read_settings

FEATURES, CLASSES = 5, 3

# Detectors whose streams are watched, and known rows for them.
ALARM = {"drift_alarm": 0.01}
WATCHED = {
    "dlr": lambda: truing.Detector(method="dlr", **ALARM),
    "window": lambda: truing.Detector(method="dlr", window=20, **ALARM),
    "rlr": lambda: truing.Detector(method="rlr", **ALARM),
    "contrast": lambda: truing.Detector(method="contrast", **ALARM),
}
KNOWN_ROWS = 900


def batch(name: object, rows: int = 6, *, features: int = FEATURES, classes: int = CLASSES) -> truing.Outputs:
    """Return the rows of a batch of this name, always the same."""
    rng = np.random.default_rng([ord(letter) for letter in str(name)])
    return truing.Outputs(
        rng.normal(size=(rows, features)).astype(np.float32), rng.normal(size=(rows, classes)).astype(np.float32)
    )


def far(rows: truing.Outputs) -> truing.Outputs:
    """Return rows that are out: features elsewhere, and logits that say little."""
    return truing.Outputs(rows.features + np.float32(2), rows.logits * np.float32(0.1))


def opened(folder: Path, detector: truing.Detector | None = None, **how) -> Engine:
    """Return an engine on a directory, of a plain detector unless told otherwise."""
    detector = truing.Detector() if detector is None else detector
    return Engine(Store(folder, detector, features=FEATURES, classes=CLASSES, **how))


def learn(engine: Engine, name: object, **how) -> object:
    return engine.submit(Request(batch(name, **how), learn=True, request_id=str(name))).result(60)


def bits(detector: truing.Detector) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return all that a detector holds, to be compared to the bit."""
    arrays = as_arrays("detector", detector)
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}


def scores_with_reference(detector: truing.Detector, outputs: truing.Outputs) -> np.ndarray:
    """Return scores by a fit that includes all learned rows, and the reference rows that decisions compare with."""
    if detector.settings.method != "contrast":
        return detector.score(outputs)
    return detector.reference.fit(detector.moments.joined()).predict(outputs)


def watch_of_records(detector: truing.Detector, found: list[object]) -> DriftWatch:
    """Return the drift watch of a detector after it saw what the records of learned batches say it saw."""
    fresh = detector.state.without_rows().drift
    for record in found:
        fresh = fresh.updated(record.arrays["p_values"], record.arrays.get("residuals"), record.arrays["features"])
    return fresh


def replayed(names: list[str | tuple[str, ...]], detector: truing.Detector | None = None) -> truing.Detector:
    """Return a plain detector that has learned batches of these names in order; those in a tuple together."""
    detector = truing.Detector() if detector is None else detector
    for name in names:
        together = [batch(one) for one in (name if isinstance(name, tuple) else (name,))]
        detector.learn(truing.Outputs.concatenate(together))
    return detector


def groups(learned: Iterable[Any]) -> list[tuple[str, ...]]:
    """Return the request ids of records, those together whose batches were learned so."""
    by_group = groupby(learned, lambda record: record.about.get("group", record.sequence))
    return [tuple(record.about["id"] for record in group) for _, group in by_group]


def ids(folder: Path) -> list[str]:
    """Return the request ids in a log that starts with its first record, in order."""
    return [record.about["id"] for record in records(folder)]


def records(folder: Path) -> Iterator[object]:
    """Yield the records of learned batches in a log that starts with its first record."""
    return (record for record in every_record(folder) if record.kind == "learn")


def every_record(folder: Path) -> Iterator[object]:
    """Yield the records of a log that starts with its first one."""
    log = read_log(folder, LogEnd(read_settings(folder).key), 0, bytes(8))
    return (found.record for found in log if found.record is not None)
