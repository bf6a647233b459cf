"""Recognise rows that a classifier was trained on, without labels.

A flexible classifier, such as a tree ensemble, is more certain of its training rows than of the points between them. Of
other rows, the classifier is as certain as of the points between them. The test therefore compares the rows with the
midpoints between each row and its nearest neighbour of the same predicted class. For rows outside the training set,
about 1 % of the midpoints are less certain than the least certain 1 % of the rows. For training rows, the share is
several times larger.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .._check import Floats, Matrix
from ..scores.logits import msp

# The smallest number of midpoints for a decision, and the largest number of rows that are used.
_FEWEST, _MOST = 100, 2000

# Midpoints are compared with the k least certain rows, a share `_LOWEST` of all rows. The rows count as memorised if
# more than `_TIMES` k + `_TOLERATED` midpoints are less certain. `_TOLERATED` allows for the variation of small counts.
_LOWEST = 0.01
_TIMES, _TOLERATED = 2, 3


def is_memorised(features: Matrix, logits: Matrix, logits_of: Callable[[Matrix], Matrix]) -> bool:
    """Return whether the classifier seems to have been trained on the rows (m, d).

    `logits_of` returns the logits (n, c) of features (n, d).
    """
    step = -(-len(features) // _MOST)
    logits = logits[::step]
    has_neighbour, between = _midpoints(features[::step].astype(np.float64), logits.argmax(axis=1))
    if len(between) < _FEWEST:
        return False
    certainty = np.sort(msp(logits[has_neighbour]))
    lowest = int(_LOWEST * len(certainty))
    less_certain = np.count_nonzero(msp(logits_of(between)) < certainty[lowest - 1])
    return bool(less_certain > _TIMES * lowest + _TOLERATED)


def _midpoints(features: Floats, classes: NDArray[np.intp]) -> tuple[NDArray[np.intp], Floats]:
    """Return the rows that share their class with another row, and one midpoint for each of these rows.

    The midpoint lies between the row and its nearest neighbour of the same class.
    """
    spread = features.std(axis=0)
    scaled = features / np.where(spread > 0, spread, 1.0)
    rows, nearest = [], []
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        if len(members) > 1:
            rows.append(members)
            nearest.append(members[_nearest(scaled[members])])
    if not rows:
        return np.zeros(0, np.intp), features[:0]
    chosen = np.concatenate(rows)
    return chosen, (features[chosen] + features[np.concatenate(nearest)]) / 2


def _nearest(rows: Floats) -> NDArray[np.intp]:
    """Return the index of the nearest other row of each row (n,)."""
    centred = rows - rows.mean(axis=0)
    half_norms = np.einsum("ij,ij->i", centred, centred) / 2
    closeness = centred @ centred.T - half_norms
    np.fill_diagonal(closeness, -np.inf)
    nearest: NDArray[np.intp] = closeness.argmax(axis=1)
    return nearest
