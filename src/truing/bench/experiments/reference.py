"""Methods with a reference: scores of the test rows, and shares of refused test rows.

As in `truing.detect`, reference rows join the fits of DLR and RLR. Reference rows are then exchangeable with
in-distribution test rows, so p-values are valid. Contrast, and base scores that need a reference, learn from the
learning half of the reference and take p-values from the calibration half.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..._check import Floats
from ...contrast import fit_contrast
from ...decisions.thresholds import p_values
from ...regression.fits import SharedFeatures
from ...scores import NEEDS, Head, base_scores, needs_reference
from .cases import CONTRAST, FALSE_ALARM, Case
from .methods import Fit, Measurement, metrics
from .mixes import Mix

BASE = "gen"  # The default base score of contrast.

Scores = tuple[Floats, Floats]
"""Scores of the reference rows that give the p-values, and scores of the test rows."""


@dataclass(frozen=True, eq=False)
class Reference:
    """The learning half and the calibration half of the reference."""

    learning: Mix
    calibration: Mix


def compare_with_reference(
    mix: Mix, reference: Reference, case: Case, methods: dict[str, Fit], components: int | None, head: Head | None
) -> Iterator[Measurement]:
    """Yield the metrics of each base score and method of a case on the test rows. Contrast uses only `BASE`."""
    parts = [mix, reference.learning, reference.calibration]
    shared = SharedFeatures(np.concatenate([part.features for part in parts]), components)
    halves = SharedFeatures(np.concatenate([mix.features, reference.calibration.features]), components)
    for base in case.bases:
        if base not in mix.scores and not (needs_reference(base) and (head or "head" not in NEEDS[base])):
            continue
        if base in mix.scores:
            features, scores = shared, np.concatenate([part.scores[base] for part in parts])
        else:
            features, scores = halves, _scores_by_reference(base, mix, reference, head)
        yield (base, "none", "fitted"), decide(mix, *_apart(scores, mix))
        for name, fit in methods.items():
            yield (base, name, "fitted"), decide(mix, *_apart(fit(features, scores)(features.matrix), mix))
    if BASE in mix.scores and CONTRAST in (case.methods or ()):
        yield (BASE, CONTRAST, "fitted"), decide(mix, *contrast(mix, reference))


def contrast(mix: Mix, reference: Reference) -> Scores:
    """Return contrast's scores of the calibration half and of the test rows."""
    outputs, calibration = mix.outputs(), reference.calibration.outputs()
    fit = fit_contrast(outputs, reference.learning.outputs(), base=BASE, calibration=calibration)
    return fit.predict(calibration), fit.predict(outputs)


def decide(mix: Mix, scores_in: Floats, scores: Floats) -> dict[str, float]:
    """Return the metrics of the test rows, and the shares of out rows and in-distribution rows that are refused."""
    is_out = p_values(scores_in, scores) <= FALSE_ALARM
    refused = {"detected": float(is_out[mix.rows_in :].mean()), "false_alarms": float(is_out[: mix.rows_in].mean())}
    return metrics(*mix.split(scores)) | refused


def _scores_by_reference(base: str, mix: Mix, reference: Reference, head: Head | None) -> Floats:
    """Return base scores, learned from the learning half, of the test rows followed by the calibration half."""
    learning = reference.learning.outputs()
    parts = (mix.outputs(), reference.calibration.outputs())
    return np.concatenate([base_scores(part, base, head=head, reference=learning) for part in parts])


def _apart(scores: Floats, mix: Mix) -> Scores:
    """Return the scores of the reference rows, and the scores of the test rows. `scores` has the test rows first."""
    rows = len(mix.features)
    return scores[rows:], scores[:rows]
