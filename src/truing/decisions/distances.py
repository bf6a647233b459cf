"""Distances of rows from typical rows, and a guard against rows that must not be learned.

Sums of squares are not robust: a single row with values of 1e10 outweighs all other rows. Garbage rows, which are far
beyond any real row, are therefore scored and decided, but not learned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._check import LARGEST, Bools, Floats, Matrix, by_rows, sum_of_blocks
from ..regression.least_squares import EPS
from ..regression.moments import Moments

# Rows beyond this distance are garbage. Typical rows are at distance 1. With the in-distribution test set as the
# reference, the most distant real rows are textures of a DenseNet at 10.1; the rows of five other networks (ResNet-56,
# WRN-40-2, a CIFAR-100 ResNet, EfficientNet-Lite0, MiniLM on CLINC150) and all their out-of-distribution sets stay
# below 2.7. With only 100 reference rows the DenseNet's textures are at 22.8, with 20 rows ImageNet's own rows at 9.8.
GARBAGE_DISTANCE = 100.0

# Fewer rows than this do not define a scale.
FEWEST_TO_SCALE = 20

# Medians are computed over about this many rows.
_ROWS_OF_MEDIANS = 1000


@dataclass(frozen=True, eq=False)
class RowScale:
    """The mean (d,) of typical rows, and the unit of distance (d,): standard deviations, or one size for all columns.

    A column that is constant among typical rows gets the root mean square deviation of the other columns, or 1 if all
    columns are constant. A neuron that fires for the first time is then not infinitely far away.

    >>> scale = RowScale.of(np.array([[0.0, 5.0], [2.0, 5.0]]))
    >>> scale.distances(np.array([[1.0, 5.0], [4.0, 8.0]])).tolist()
    [0.0, 3.0]
    """

    mean: Floats
    deviation: Floats

    @classmethod
    def of(cls, features: Matrix) -> RowScale:
        """Return the scale of reference rows (m, d)."""
        mean = sum_of_blocks(lambda block: block.sum(axis=0), features) / len(features)
        squares = sum_of_blocks(lambda block: np.square(block - mean).sum(axis=0), features)
        deviation = np.sqrt(squares / len(features))
        rounding = len(features) * EPS * np.abs(mean)  # The mean of a constant column may be off by this much.
        varying = deviation > rounding
        unit = np.sqrt(np.mean(np.square(deviation[varying]))) if varying.any() else 1.0
        return cls(mean, np.where(varying, deviation, unit))

    @classmethod
    def of_size(cls, mean: Floats, mean_square: float) -> RowScale:
        """Return the scale with the size of typical rows as the unit of all columns. With size 0, no row is far."""
        return cls(mean, np.full(len(mean), np.sqrt(mean_square) if mean_square > 0 else np.inf))

    def distances(self, features: Matrix) -> Floats:
        """Return the root mean square over columns of (x - mean) / deviation, for every row (n,).

        Distances are at most 1e100, so that they are finite for all finite rows.
        """

        def of_block(block: Floats) -> Floats:
            with np.errstate(over="ignore"):
                quotients = block - self.mean
                quotients /= self.deviation
                squares = np.einsum("ij,ij->i", quotients, quotients)
            distances: Floats = np.minimum(np.sqrt(squares / len(self.mean)), LARGEST)
            return distances

        return by_rows(of_block, features)


@dataclass(frozen=True, eq=False)
class RowGuard:
    """A test for garbage rows, which must not be learned, by their features and by their base score.

    With a reference, feature distances are measured in standard deviations of the reference. Without one, the rows seen
    so far may be nearly identical, for example while a lens is covered, and ordinary rows would be 10,000 deviations
    away. Distances are then measured in the size of the rows seen so far, the root mean square of all their numbers.
    On the six networks, if the rows seen so far are any one data set of a network, the rows of its other data sets are
    at most 4.6 sizes away.

    Base scores are measured in sizes, because the deviation of the MSP is tiny if the network is sure of all rows.
    `scores` is None if base scores are not checked.
    """

    features: RowScale
    scores: RowScale | None

    @classmethod
    def of_reference(cls, features: Matrix, scores: Floats) -> RowGuard | None:
        """Return the guard for reference features (m, d) and base scores (m,), or None if there are too few rows."""
        if len(scores) < FEWEST_TO_SCALE:
            return None
        return cls(
            RowScale.of(features), RowScale.of_size(scores.mean(keepdims=True), float(np.mean(np.square(scores))))
        )

    @classmethod
    def of_learned(cls, moments: Moments) -> RowGuard | None:
        """Return the guard for the learned rows, or None if there are too few."""
        if moments.rows < FEWEST_TO_SCALE:
            return None
        squares = np.square(moments.mean) + np.maximum(moments.squares, 0.0) / moments.rows
        features = RowScale.of_size(moments.mean[:-1], float(np.mean(squares[:-1])))
        return cls(features, RowScale.of_size(moments.mean[-1:], squares[-1]))

    @classmethod
    def of_medians(cls, features: Matrix, scores: Floats) -> RowGuard | None:
        """Return the guard for rows that may include garbage, from medians, or None if there are too few rows.

        If there are many rows, the medians are computed on a sample.
        """
        if len(scores) < FEWEST_TO_SCALE:
            return None
        sample = slice(None, None, -(-len(scores) // _ROWS_OF_MEDIANS))
        return cls(_scale_of_medians(features[sample]), _scale_of_medians(scores[sample, None]))


def is_garbage(features: Matrix, scores: Floats, guard: RowGuard | None) -> Bools:
    """Return whether each row (n,) is farther than `GARBAGE_DISTANCE` from typical rows; all False without a guard."""
    if guard is None:
        return np.zeros(len(scores), dtype=np.bool_)
    is_far: Bools = guard.features.distances(features) > GARBAGE_DISTANCE
    if guard.scores is not None:
        is_far |= guard.scores.distances(scores[:, None]) > GARBAGE_DISTANCE
    return is_far


def _scale_of_medians(rows: Matrix) -> RowScale:
    wide = np.asarray(rows, dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # Another thread may have changed the rows.
        return RowScale.of_size(np.median(wide, axis=0), float(np.median(np.mean(np.square(wide), axis=1))))
