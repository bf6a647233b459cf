"""Contrast: learn from reference rows how out-of-distribution rows differ from them.

A contrast starts from a base score, finds the test rows that look out by this score, and learns how the features of
these rows differ from the reference. The modules, in the order in which a fit uses them:

    standard.py    base scores and features, standardised by the reference
    reference.py   the reference in two halves: one to learn from, one to rank scores against
    choice.py      the choice between two base scores
    sample.py      a bounded uniform sample of the test rows
    ridge.py       covariances of the reference, factored once
    tail.py        the learning algorithm
    fit.py         the fitted score
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..outputs import Outputs, as_outputs
from ..scores import Base, Head, check_base
from .choice import Candidate, TailCounts, choose_base, has_choice
from .fit import ContrastFit, Explanation
from .reference import FEWEST_TO_SPLIT, SplitReference, check_distinct, group_numbers, split
from .sample import RowSample
from .standard import HIGHEST_SCORE, Standard
from .tail import Learned

__all__ = [
    "FEWEST_TO_SPLIT",
    "HIGHEST_SCORE",
    "Candidate",
    "ContrastFit",
    "Explanation",
    "Learned",
    "RowSample",
    "SplitReference",
    "Standard",
    "TailCounts",
    "check_distinct",
    "choose_base",
    "fit_contrast",
    "group_numbers",
    "has_choice",
    "split",
]


def fit_contrast(
    outputs: Outputs,
    reference: Outputs,
    *,
    base: Base | None = None,
    temperature: float = 1.0,
    head: Head | None = None,
    components: int | None = None,
    calibration: Outputs | None = None,
    groups: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
) -> ContrastFit:
    """Return a score that is learned by comparing test rows with in-distribution reference rows.

    The fit learns from one half of the reference. The other half, the calibration half, is treated like the test rows,
    so p-values of the test rows against `scores_in`, the scores of the calibration half, are valid.

    Parameters
    ----------
    outputs
        The test rows.
    reference
        In-distribution rows that the network was not trained on.
    base, temperature, head
        The base score, the temperature of its softmax, and the network's last layer if the score needs it. The default
        base score is gen, or with a head fdbd if fdbd puts clearly more test rows into the tail of the reference.
    components
        Learn in this number of leading principal components of the features. The default uses all features.
    calibration
        Reference rows to rank scores against. If they are given, the fit learns from all rows of `reference`.
    groups
        One label per reference row. All rows of a group (frames of a video, tiles of an image) go into the same half.
    rng
        The generator that splits the reference. The default split is always the same.
    """
    if base is not None:
        check_base(base)
    outputs, reference = as_outputs(outputs, "outputs"), as_outputs(reference, "reference")
    check_distinct(outputs, reference)
    if calibration is None:
        to_learn, to_decide = split(reference, rng, groups)
    else:
        if groups is not None:
            raise ValueError("groups cannot be combined with calibration, got both")
        to_learn, to_decide = reference, as_outputs(calibration, "calibration")
        check_distinct(outputs, to_decide, "calibration")
    if head is not None and has_choice(base, temperature, head):
        base = choose_base(to_learn, to_decide, head, lambda candidates: TailCounts.of(outputs, candidates))
    halves = SplitReference.of(to_learn, to_decide, base or "gen", temperature, head, components)
    return halves.fit(halves.standard.scored(outputs))
