"""Contrast: known in-distribution rows as evidence, the base score as the prior.

Membership (known rows against the rows at hand) is regressed on directions, distance and base scores. The rows at hand
are in-distribution rows and others, so that what tells them from known rows tells in from out. All that is needed are
sums over rows: they merge, subtract and decay. In the order in which a fit passes through them:

    columns.py     what a row is to the regression
    sums.py        sums over rows, by predicted class
    reference.py   known rows in two parts: to learn from, and to decide against
    evidence.py    from sums to a fit, step by step
    priors.py      the prior score
    regression.py  the Bayesian regression of membership
    classes.py     which predicted classes hold the out rows
    fit.py         the result
"""

from __future__ import annotations

import numpy as np

from .._check import as_truth
from ..outputs import Outputs, as_outputs
from ..scores import Base, Head, check_base
from .columns import Columns, ScoredRows, scores_beside
from .fit import ContrastFit, Explanation
from .reference import FEWEST_TO_SPLIT, SplitReference, check_apart, split
from .sums import ClassMoments

__all__ = [
    "FEWEST_TO_SPLIT",
    "ClassMoments",
    "Columns",
    "ContrastFit",
    "Explanation",
    "ScoredRows",
    "SplitReference",
    "check_apart",
    "fit_contrast",
    "scores_beside",
    "split",
]


def fit_contrast(
    outputs: Outputs,
    reference: Outputs,
    *,
    base: Base = "gen",
    temperature: float = 1.0,
    head: Head | None = None,
    same_mix: bool = False,
    components: int | None = None,
    held: Outputs | None = None,
    rng: np.random.Generator | None = None,
) -> ContrastFit:
    """Return the contrast of known in-distribution rows with the rows at hand.

    Half of the reference is learned from, the other half is scored beside the rows at hand, in which it is counted:
    p-values of the rows against `scores_in` are then valid.

    Parameters
    ----------
    outputs
        The rows at hand.
    reference
        Known in-distribution rows, held out from training.
    base, temperature, head
        The base score, the temperature of its softmax, and the network's last layer where the score needs it.
    same_mix
        Whether classes are known to be as frequent among the in-distribution rows at hand as in the reference. If not,
        a difference in their numbers is no evidence.
    components
        Confine the fit to so many leading principal components of the directions.
    held
        Known rows to hold back; all of the reference is then learned from.
    rng
        Splits the reference where `held` is not given; by default always in the same way.
    """
    check_base(base)
    outputs, reference = as_outputs(outputs, "outputs"), as_outputs(reference, "reference")
    same_mix = as_truth(same_mix, "same_mix")
    check_apart(outputs, reference)
    if held is None:
        known, held = split(reference, rng)
    else:
        known = reference
        check_apart(outputs, as_outputs(held, "held"), "held")
    parts = SplitReference.of(known, held, base, temperature, head)
    rows = parts.columns.scored(outputs)
    others = ClassMoments.of(parts.columns, rows)
    return parts.contrast(others, with_held=True, same_mix=same_mix, components=components)
