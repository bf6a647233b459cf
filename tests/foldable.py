"""Fits that can be exported, rows with ties, and a check of exported decisions."""

import numpy as np
from numpy.typing import NDArray

import truing

Float32s = NDArray[np.float32]

# The methods of `detect` whose decisions are checked on rows with ties.
METHODS_OF_TIES = ("dlr", "contrast")

# A bound on the float32 error of an exported score, as a share of the largest score.
FLOAT32_ERROR = 8 * float(np.finfo(np.float32).eps)


def fits_of(outputs: truing.Outputs, reference: truing.Outputs, base: str) -> dict[str, object]:
    """Return fits by name; `base` is the base score of the contrast."""
    detector = truing.Detector("energy")
    detector.calibrate(reference)
    detector.learn(outputs)
    return {
        "dlr": truing.fit_direct(outputs.features, truing.msp(outputs.logits)),
        "rlr": truing.fit_robust(outputs.features, truing.energy(outputs.logits)),
        "contrast": truing.fit_contrast(outputs, reference, base=base),
        "gradnorm": truing.fit_contrast(outputs, reference, base="gradnorm"),
        "detector": detector,
    }


def features_with_ties(seed: int, width: int, ties: int) -> tuple[Float32s, Float32s]:
    """Return features of rows and of reference rows. Each have a block of blank rows and a block of one reference row.

    All features are outputs of a ReLU, and float32 numbers. Each block has `ties` rows, in random places.
    """
    rng = np.random.default_rng(seed)
    plain = np.maximum(rng.normal(size=(150, width)), 0).astype(np.float32)
    blocks = np.concatenate((np.zeros((ties, width)), np.tile(plain[0], (ties, 1)))).astype(np.float32)
    rows, reference = np.concatenate((plain[70:], blocks)), np.concatenate((plain[:70], blocks))
    return rng.permutation(rows), rng.permutation(reference)


def check_decisions(detection: truing.Detection, features: Float32s, is_out: NDArray[np.bool_]) -> None:
    """Check exported decisions: on all ties, and on all rows whose margin exceeds float32 error."""
    assert detection.threshold is not None
    assert detection.is_out is not None
    margins = np.abs(detection.scores - detection.threshold)
    _, groups, counts = np.unique(features, axis=0, return_inverse=True, return_counts=True)
    # The logits of equal rows may differ by rounding, and then their scores are not tied.
    spread = [np.ptp(detection.scores[groups == group]) for group in range(len(counts))]
    is_tied = (counts > 1) & (np.array(spread) == 0)
    size = max(float(np.abs(detection.scores).max()), getattr(detection.fit, "size", 0.0))
    checked = is_tied[groups] | (margins > FLOAT32_ERROR * size)
    np.testing.assert_array_equal(np.asarray(is_out)[checked], detection.is_out[checked])
