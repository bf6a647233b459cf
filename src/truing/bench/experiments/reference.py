"""Methods that are given known in-distribution rows: their scores of the rows at hand, and which rows they refuse.

Known rows and in-distribution rows at hand are exchangeable, so p-values against the known rows are valid: known rows
join the fits of DLR and RLR, as in `truing.detect`, and contrast counts the known rows that it decides against as rows
at hand.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..._check import Floats
from ...contrast import fit_contrast
from ...decisions.thresholds import p_values
from ...regression.fits import SharedFeatures
from .cases import CONTRAST, FALSE_ALARM, Case
from .methods import Fit, Measurement, methods_of, metrics
from .mixes import Mix
from .settings import Setting

BASE = "gen"  # The default base score of contrast.

Scores = tuple[Floats, Floats]
"""Of known rows to decide against, and of the rows at hand."""


@dataclass(frozen=True, eq=False)
class Reference:
    """Known rows to learn from, and as many `held` back."""

    known: Mix
    held: Mix


def compare_with_reference(
    mix: Mix, reference: Reference, case: Case, setting: Setting, conventions: str
) -> Iterator[Measurement]:
    """Yield the metrics of each method of a case. Contrast has one base score."""
    parts = (mix, reference.known, reference.held)
    features = SharedFeatures(np.concatenate([part.features for part in parts]), setting.components)
    methods = methods_of(case, setting, conventions)
    for base in mix.scores:
        scores = np.concatenate([part.scores[base] for part in parts])
        yield (base, "none", "fitted"), decided(mix, *_apart(scores, mix))
        for name, fit in methods.items():
            yield (base, name, "fitted"), decided(mix, *trued(features, scores, fit, mix))
    if BASE in mix.scores and CONTRAST in (case.methods or ()):
        yield (BASE, CONTRAST, "fitted"), decided(mix, *contrasted(mix, reference))


def trued(features: SharedFeatures, scores: Floats, fit: Fit, mix: Mix) -> Scores:
    """Return trued scores of all rows, fitted together, those of the mix first."""
    return _apart(fit(features, scores)(features.matrix), mix)


def contrasted(mix: Mix, reference: Reference) -> Scores:
    """Return the scores of the contrast of known rows with the rows at hand."""
    outputs, held = mix.outputs(), reference.held.outputs()
    fit = fit_contrast(outputs, reference.known.outputs(), base=BASE, calibration=held)
    return fit.predict(held), fit.predict(outputs)


def decided(mix: Mix, scores_in: Floats, scores: Floats) -> dict[str, float]:
    """Return the metrics of the rows at hand, and the shares of both sets that are refused."""
    is_out = p_values(scores_in, scores) <= FALSE_ALARM
    refused = {"detected": float(is_out[mix.rows_in :].mean()), "false_alarms": float(is_out[: mix.rows_in].mean())}
    return metrics(*mix.split(scores)) | refused


def _apart(scores: Floats, mix: Mix) -> Scores:
    rows = len(mix.features)
    return scores[rows:], scores[:rows]
