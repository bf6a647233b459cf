"""Fits of every kind that a network can take along."""

import truing


def fits_of(outputs: truing.Outputs, reference: truing.Outputs, base: str) -> dict[str, object]:
    """Return fits by name; the contrast is of a base score of one's choice."""
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
