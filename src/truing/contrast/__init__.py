"""Contrast: reference rows as evidence of which rows at hand are out-of-distribution.

A contrast starts from a base score and learns what sets the rows that look out apart from the reference. In the order
of a fit:

    standard.py    base scores and features in units of the reference
    reference.py   the reference in two halves: to learn from, and to decide against
    choice.py      the choice between two base scores
    sample.py      a bounded uniform sample of the rows at hand
    ridge.py       covariances of the reference, factored once
    tail.py        the method
    fit.py         the result
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..outputs import Outputs, as_outputs
from ..scores import Base, Head, check_base
from .choice import Candidate, TailCounts, choose_base, has_choice
from .fit import ContrastFit, Explanation
from .reference import FEWEST_TO_SPLIT, SplitReference, check_apart, group_numbers, split
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
    "check_apart",
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
    held: Outputs | None = None,
    groups: ArrayLike | None = None,
    rng: np.random.Generator | None = None,
) -> ContrastFit:
    """Return the contrast of in-distribution reference rows with the rows at hand.

    One half of the reference is learned from. The other half counts as rows at hand, so that p-values of the rows
    against its scores, `scores_in`, are valid.

    Parameters
    ----------
    outputs
        The rows at hand.
    reference
        In-distribution rows that the network was not trained on.
    base, temperature, head
        The base score, the temperature of its softmax, and the network's last layer if the score needs it. The default
        base score is gen. If there is a head, it is fdbd where fdbd puts clearly more rows into the tail.
    components
        Number of leading principal components of the features to learn in. The default uses all features.
    held
        Reference rows to decide against. All rows of `reference` are then learned from.
    groups
        One label per reference row. Rows of a group (frames of a film, tiles of an image) stay in one half.
    rng
        Splits the reference without `held`. By default the split is always the same.
    """
    if base is not None:
        check_base(base)
    outputs, reference = as_outputs(outputs, "outputs"), as_outputs(reference, "reference")
    check_apart(outputs, reference)
    if held is None:
        to_learn, to_decide = split(reference, rng, groups)
    else:
        if groups is not None:
            raise ValueError("groups and held cannot be combined, got both")
        to_learn, to_decide = reference, as_outputs(held, "held")
        check_apart(outputs, to_decide, "held")
    if head is not None and has_choice(base, temperature, head):
        base = choose_base(to_learn, to_decide, head, lambda candidates: TailCounts.of(outputs, candidates))
    halves = SplitReference.of(to_learn, to_decide, base or "gen", temperature, head, components)
    return halves.fit(halves.standard.scored(outputs))
