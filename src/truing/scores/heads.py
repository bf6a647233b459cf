"""Scores of features and the linear head that computes logits from them, $f = W z + b$."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._blas import one_thread
from .._check import (
    Floats,
    Matrix,
    as_block,
    as_matrix,
    as_matrix_unchecked,
    as_number,
    as_vector,
    check_same_rows,
)
from .._largest import largest_of_rows
from .exponentials import log_sum_exp, softmax_scores
from .logits import as_logits_unchecked, as_temperature
from .tiles import ROWS_AT_ONCE, by_blocks, by_tiles, check_defined


def gradnorm(features: ArrayLike, logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Return the L1 norm of the gradient of the KL to uniform with respect to the weights of a linear head.

    The gradient is the outer product of $(\mathrm{softmax}(f / T) - 1/C) / T$ and the features $z$, so its
    norm is $\|z\|_1 \, \|\mathrm{softmax}(f / T) - 1/C\|_1 / T$ and needs no backward pass.

    >>> gradnorm([[1.0, -2.0]], [[0.0, 0.0]])
    array([0.])
    """
    T = as_temperature(temperature)
    z, f = as_matrix_unchecked(features, "features"), as_logits_unchecked(logits)
    check_same_rows(features=z, logits=f)
    return _absolute_sums(z) * softmax_scores(lambda sums: sums.distance, f, T, with_distance=True) / T


def scale(
    features: ArrayLike, weight: ArrayLike, bias: ArrayLike, *, percentile: float = 0.65, temperature: float = 1.0
) -> Floats:
    r"""Return the energy of the logits of scaled features, $T \log \sum_j e^{f_j / T}$ with $f = W (r z) + b$.

    The scale is $r = \exp(\sum_i z_i / \sum_{i \in \mathrm{top}} z_i)$, where the second sum is over the largest
    activations of the row. SCALE (Xu, Chen, Franchi & Yao, ICLR 2024), on pooled features.

    Parameters
    ----------
    features
        Activations (n, d) of a ReLU, or their means over a map. The sum of the kept activations must be positive.
    weight, bias
        The head (c, d) and (c,).
    percentile
        The share of activations that do not count as largest, 0 to 0.99. At least one activation counts.
    temperature
        The temperature T of the energy.

    >>> scale([[0.0, 2.0]], weight=[[1.0, 1.0], [0.0, 0.0]], bias=[0.0, 0.0], percentile=0.5).round(3)
    array([5.441])
    """
    T = as_temperature(temperature)
    z, W, b = as_head(features, weight, bias)
    kept = _kept(z.shape[1], percentile)
    return check_defined(_shaped_energies(z, W, b, kept, T, is_pruned=False), _ACTIVATIONS)


def ash(
    features: ArrayLike, weight: ArrayLike, bias: ArrayLike, *, percentile: float = 0.65, temperature: float = 1.0
) -> Floats:
    r"""Return the energy of the logits of pruned and scaled features, $T \log \sum_j e^{f_j / T}$.

    The logits are $f = W (r z') + b$. In $z'$ all but the largest activations of a row are 0, and the scale is
    $r = \exp(\sum_i z_i / \sum_i z'_i)$. Ties with the smallest activation that is kept are kept as well. ASH-S
    (Djurisic, Bozanic, Ashok & Liu, ICLR 2023), on pooled features.

    Parameters
    ----------
    features
        Activations (n, d) of a ReLU, or their means over a map. The sum of the kept activations must be positive.
    weight, bias
        The head (c, d) and (c,).
    percentile
        The share of activations that are pruned, 0 to 0.99. At least one activation is kept.
    temperature
        The temperature T of the energy.

    >>> ash([[1.0, 2.0]], weight=[[1.0, 1.0], [0.0, 0.0]], bias=[0.0, 0.0], percentile=0.5).round(3)
    array([8.964])
    """
    T = as_temperature(temperature)
    z, W, b = as_head(features, weight, bias)
    kept = _kept(z.shape[1], percentile)
    return check_defined(_shaped_energies(z, W, b, kept, T, is_pruned=True), _ACTIVATIONS)


def fdbd(features: ArrayLike, logits: ArrayLike, weight: ArrayLike, mean: ArrayLike) -> Floats:
    r"""Return the mean distance to the decision boundaries of the predicted class, over the distance to a mean feature.

    $\frac{1}{C - 1} \sum_{c \ne \hat y} \frac{f_{\hat y} - f_c}{\|w_{\hat y} - w_c\|} \big/ \|z - \mu\|$, where
    $\hat y$ is the class of the largest logit. fDBD (Liu & Qin, ICML 2024).

    Parameters
    ----------
    features, logits
        Inputs (n, d) and outputs (n, c) of the head.
    weight
        The weights (c, d) of the head. No two rows may be equal.
    mean
        The mean (d,) of in-distribution features. No row of features may be equal to it.

    >>> fdbd([[3.0, 0.0]], [[3.0, 0.0]], weight=[[1.0, 0.0], [0.0, 0.0]], mean=[0.0, 0.0])
    array([1.])
    """
    z, f, W, mu = _as_centred(features, logits, weight, mean)
    _check_distinct_rows(W)
    W = W - W.mean(axis=0)  # Differences of classes stay the same and lose fewer digits.
    squares = np.einsum("ij,ij->i", W, W)
    shared = _between_classes(W, squares, _predicted_or_all_classes(f)) if len(W) <= _MANY_CLASSES else None

    def fill(rows: slice, scores: Floats) -> None:
        between = shared or _between_classes(W, squares, _predicted_classes(f[rows]))
        _write_boundary_distances(as_block(z[rows]), as_block(f[rows]), mu, between, scores)

    return check_defined(
        by_blocks(fill, len(z), z.shape[1] + f.shape[1], features=z, logits=f),
        f"features must be {_APART} for the score fdbd",
    )


def nci(features: ArrayLike, logits: ArrayLike, weight: ArrayLike, mean: ArrayLike, *, alpha: float = 1e-4) -> Floats:
    r"""Return the projection of the weights of the predicted class on the direction of the centred feature.

    $w_{\hat y}^\top \frac{z - \mu}{\|z - \mu\|} + \alpha \|z\|_1$, where $\hat y$ is the class of the largest logit.
    NCI (Liu & Qin, CVPR 2025), with the authors' initial alpha as the default.

    Parameters
    ----------
    features, logits
        Inputs (n, d) and outputs (n, c) of the head.
    weight
        The weights (c, d) of the head.
    mean
        The mean (d,) of in-distribution features. No row of features may be equal to it.
    alpha
        The weight of the L1 norm of the features.

    >>> nci([[3.0, 4.0]], [[3.0, 4.0]], weight=[[1.0, 0.0], [0.0, 1.0]], mean=[0.0, 0.0], alpha=0.0)
    array([0.8])
    """
    z, f, W, mu = _as_centred(features, logits, weight, mean)
    alpha = as_number(alpha, "alpha", at_least=0.0)
    return check_defined(_collapse_scores(z, f, W, mu, alpha), f"features must be {_APART} for the score nci")


def as_head(features: ArrayLike, weight: ArrayLike, bias: ArrayLike) -> tuple[Matrix, Floats, Floats]:
    """Return validated features (n, d), and the weight (c, d) and bias (c,) of their linear head in float64."""
    z, W = as_matrix(features, "features"), as_matrix(weight, "weight")
    b = np.array(as_vector(bias, "bias"))
    if W.shape != (len(b), z.shape[1]):
        wanted = f"(c, d) = ({len(b)}, {z.shape[1]}) to match the bias and the features"
        raise ValueError(f"weight must have shape {wanted}, got {W.shape}")
    return z, np.array(W, dtype=np.float64, order="C"), b


_ACTIVATIONS = "features must be activations of a ReLU, with a positive sum of the largest"
_APART = "different from their mean"

# Up to this many classes, the distances between all classes are computed once (32 MB). With more classes, only the
# distances from the predicted classes are computed, for each block of rows.
_MANY_CLASSES = 2048

# Squared distances below this share of the squared norms are computed from differences, because products would lose
# most digits.
_CLOSE = 1e-6


def _kept(d: int, percentile: float) -> int:
    """Return how many of d activations count as largest: at least about 1 %, which keeps the scale finite."""
    share = as_number(percentile, "percentile", at_least=0.0, at_most=0.99)
    return max(1, d - round(d * share))


def _shaped_energies(z: Matrix, W: Floats, b: Floats, kept: int, T: float, *, is_pruned: bool) -> Floats:
    """Return the energy of the logits of scaled rows (n,). With `is_pruned`, all but the largest activations are 0."""
    return by_tiles(lambda z: T * log_sum_exp((_shaped(z, kept, is_pruned) @ W.T + b) / T), z)


def _shaped(z: Floats, kept: int, is_pruned: bool) -> Floats:
    """Return the rows times exp(sum / sum of the largest), or NaN if the sum of the largest is not positive."""
    largest = np.partition(z, -kept, axis=1)[:, -kept:]
    shaped = np.where(z >= largest[:, :1], z, 0.0) if is_pruned else z
    sum_of_largest = (shaped if is_pruned else largest).sum(axis=1)
    ratio = np.where(sum_of_largest > 0, z.sum(axis=1) / sum_of_largest, np.nan)
    ratio[~z.any(axis=1)] = 1.0  # A row of zeros stays zero.
    return shaped * np.exp(ratio)[:, None]


def _as_centred(
    features: ArrayLike, logits: ArrayLike, weight: ArrayLike, mean: ArrayLike
) -> tuple[Matrix, Matrix, Floats, Floats]:
    """Return the arguments of fDBD and NCI with matching shapes. Features and logits may still hold NaN."""
    z, f = as_matrix_unchecked(features, "features"), as_logits_unchecked(logits)
    check_same_rows(features=z, logits=f)
    W, mu = np.array(as_matrix(weight, "weight"), dtype=np.float64, order="C"), np.array(as_vector(mean, "mean"))
    if W.shape != (f.shape[1], z.shape[1]):
        wanted = f"(c, d) = ({f.shape[1]}, {z.shape[1]}) to match the logits and the features"
        raise ValueError(f"weight must have shape {wanted}, got {W.shape}")
    if len(mu) != z.shape[1]:
        raise ValueError(f"mean must have {z.shape[1]} entries, one for each feature, got {len(mu)}")
    return z, f, W, mu


def _check_distinct_rows(W: Floats) -> None:
    first: dict[bytes, int] = {}
    for row, weights in enumerate(W + 0.0):  # Adding 0 turns -0 into 0.
        equal = first.setdefault(weights.tobytes(), row)
        if row != equal:
            raise ValueError(f"weight must differ between classes for the score fdbd, got equal rows {equal} and {row}")


def _predicted_classes(f: Matrix) -> NDArray[np.intp]:
    """Return the predicted classes of all rows, in order."""
    return np.flatnonzero(np.bincount(largest_of_rows(f, "logits")[1]))


def _absolute_sums(z: Matrix) -> Floats:
    """Return the sum of |z| of each row (n,). Reject invalid numbers."""

    def fill(rows: slice, sums: Floats) -> None:
        np.abs(as_block(z[rows])).sum(axis=1, out=sums)

    return by_blocks(fill, *z.shape, features=z)


def _predicted_or_all_classes(f: Matrix) -> NDArray[np.intp]:
    """Return the predicted classes, or all classes if there are fewer classes than rows."""
    return _predicted_classes(f) if len(f) < f.shape[1] else np.arange(f.shape[1])


@dataclass(frozen=True, eq=False)
class _Between:
    """Inverse distances (k, c) from the weights of k classes to the weights of all classes; 1 on the diagonal.

    Row `places[j]` of `inverses` holds the inverse distances of class j.
    """

    inverses: Floats
    places: NDArray[np.intp]


def _between_classes(W: Floats, squares: Floats, classes: NDArray[np.intp]) -> _Between:
    """Return the inverse distances of some classes; infinity where a squared distance underflows."""
    inverses = np.empty((len(classes), len(W)))
    with one_thread(), np.errstate(divide="ignore"):
        for start in range(0, len(classes), ROWS_AT_ONCE):  # All products have the same shape, as in `by_tiles`.
            some = classes[start : start + ROWS_AT_ONCE]
            tile = np.resize(some, ROWS_AT_ONCE)
            inverses[start : start + len(some)] = 1 / _between_weights(W, squares, tile)[: len(some)]
    places = np.zeros(len(W), dtype=np.intp)
    places[classes] = np.arange(len(classes))
    return _Between(inverses, places)


def _between_weights(W: Floats, squares: Floats, classes: NDArray[np.intp]) -> Floats:
    """Return the distances (k, c) from the weights of k classes to the weights of all classes; 1 on the diagonal."""
    sums = squares[classes][:, None] + squares
    squared = sums - 2 * W[classes] @ W.T
    rows = np.arange(len(classes))
    squared[rows, classes] = np.inf
    for row in np.flatnonzero((squared < _CLOSE * sums).any(axis=1)):
        squared[row] = ((W - W[classes[row]]) ** 2).sum(axis=1)
    squared[rows, classes] = 1.0
    distances: Floats = np.sqrt(squared)
    return distances


def _write_boundary_distances(z: Floats, f: Floats, mu: Floats, between: _Between, scores: Floats) -> None:
    """Write the mean distance to the boundaries of the predicted class over the distance to the mean."""
    inverses = between.inverses[between.places[f.argmax(axis=1)]]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        to_boundaries = ((f.max(axis=1)[:, None] - f) * inverses).sum(axis=1) / (f.shape[1] - 1)
        scores[:] = to_boundaries / np.linalg.norm(z - mu, axis=1)


def _collapse_scores(z: Matrix, f: Matrix, W: Floats, mu: Floats, alpha: float) -> Floats:
    """Return the NCI score of every row (n,)."""

    def fill(rows: slice, scores: Floats) -> None:
        features, logits = as_block(z[rows]), as_block(f[rows])
        centred = features - mu
        along = (W[logits.argmax(axis=1)] * centred).sum(axis=1) / np.linalg.norm(centred, axis=1)
        scores[:] = along + alpha * np.abs(features).sum(axis=1)

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return by_blocks(fill, len(z), z.shape[1] + f.shape[1], features=z, logits=f)
