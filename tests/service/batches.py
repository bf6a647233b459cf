"""Batches by name, kinds of detectors, and detectors compared bit by bit."""

import numpy as np

import truing
from truing.saved import as_arrays
from truing.service.changes import calibration, learning
from truing.service.engine import Answer, Engine

FEATURES, CLASSES = 5, 3

# Detectors of every kind. A window, a decay and a drift alarm are the hardest to recover.
DETECTORS = {
    "auto": {},
    "dlr": {"method": "dlr", "drift_alarm": 0.01},
    "components": {"method": "dlr", "components": 2},
    "window": {"method": "dlr", "window": 20, "drift_alarm": 0.01},
    "decay": {"method": "dlr", "decay": 0.9},
    "rlr": {"method": "rlr", "drift_alarm": 0.01},
    "contrast": {"method": "contrast", "drift_alarm": 0.01},
}
REFERENCE_ROWS = 900
FEW_REFERENCE_ROWS = 230  # A request with these rows is small.


def batch(name: object, rows: int = 6, *, features: int = FEATURES, classes: int = CLASSES) -> truing.Outputs:
    """Return the rows of the batch with this name, which are always the same."""
    rng = np.random.default_rng([ord(letter) for letter in str(name)])
    return truing.Outputs(
        rng.normal(size=(rows, features)).astype(np.float32), rng.normal(size=(rows, classes)).astype(np.float32)
    )


def far(rows: truing.Outputs) -> truing.Outputs:
    """Return out-of-distribution rows, with other features and logits of little confidence."""
    return truing.Outputs(rows.features + np.float32(2), rows.logits * np.float32(0.1))


def calibrate(engine: Engine, rows: int = REFERENCE_ROWS) -> None:
    engine.submit(calibration(batch("reference", rows))).result(60)


def learn(engine: Engine, name: object, **how) -> Answer:
    """Learn the batch with this name, with its name as request id."""
    return engine.submit(learning(batch(name, **how), str(name))).result(60)


def bits(detector: truing.Detector) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return everything that a detector holds, to be compared bit by bit."""
    arrays = as_arrays("detector", detector)
    return {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}
