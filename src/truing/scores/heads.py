"""Scores of features and the linear head that makes logits of them, $f = W z + b$."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _kernels
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
from .tiles import ROWS_AT_ONCE, by_blocks, by_tiles, check_defined, empty_tile


def gradnorm(features: ArrayLike, logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""L1 norm of the gradient of the KL to uniform with respect to a linear head's weights.

    That gradient is the outer product of $(\mathrm{softmax}(f / T) - 1/C) / T$ and the features $z$, so its
    norm is $\|z\|_1 \, \|\mathrm{softmax}(f / T) - 1/C\|_1 / T$ and needs no backward pass.

    >>> gradnorm([[1.0, -2.0]], [[0.0, 0.0]])
    array([0.])
    """
    T = as_temperature(temperature)
    z, f = as_matrix_unchecked(features, "features"), as_logits_unchecked(logits)
    check_same_rows(features=z, logits=f)
    return _sums_of_sizes(z) * softmax_scores(["from_uniform"], f, T)[:, 0] / T


def scale(
    features: ArrayLike, weight: ArrayLike, bias: ArrayLike, *, percentile: float = 0.65, temperature: float = 1.0
) -> Floats:
    r"""Energy of the head's logits on scaled features, $T \log \sum_j e^{f_j / T}$ with $f = W (r z) + b$.

    The scale is $r = \exp(\sum_i z_i / \sum_{i \in \mathrm{top}} z_i)$: the sum of a row's activations over the sum
    of its largest. SCALE (Xu, Chen, Franchi & Yao, ICLR 2024), on pooled features.

    Parameters
    ----------
    features
        Activations (n, d), as a ReLU or its mean over a map gives them: the largest must add up to more than 0.
    weight, bias
        The head (c, d) and (c,).
    percentile
        The share of a row's activations that are not among the largest, 0 to 0.99; one always is.
    temperature
        The energy's T.

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
    r"""Energy of the head's logits on pruned and scaled features, $T \log \sum_j e^{f_j / T}$ with $f = W (r z') + b$.

    In $z'$ all but a row's largest activations are 0, and $r = \exp(\sum_i z_i / \sum_i z'_i)$. Activations equal to
    the smallest that is kept are kept as well. ASH-S (Djurisic, Bozanic, Ashok & Liu, ICLR 2023), on pooled features.

    Parameters
    ----------
    features
        Activations (n, d), as a ReLU or its mean over a map gives them: the largest must add up to more than 0.
    weight, bias
        The head (c, d) and (c,).
    percentile
        The share of a row's activations that are pruned, 0 to 0.99; one is always kept.
    temperature
        The energy's T.

    >>> ash([[1.0, 2.0]], weight=[[1.0, 1.0], [0.0, 0.0]], bias=[0.0, 0.0], percentile=0.5).round(3)
    array([8.964])
    """
    T = as_temperature(temperature)
    z, W, b = as_head(features, weight, bias)
    kept = _kept(z.shape[1], percentile)
    return check_defined(_shaped_energies(z, W, b, kept, T, is_pruned=True), _ACTIVATIONS)


def fdbd(features: ArrayLike, logits: ArrayLike, weight: ArrayLike, mean: ArrayLike) -> Floats:
    r"""Mean distance to the decision boundaries of the class predicted, by the distance to the mean of known features.

    $\frac{1}{C - 1} \sum_{c \ne \hat y} \frac{f_{\hat y} - f_c}{\|w_{\hat y} - w_c\|} \big/ \|z - \mu\|$, where
    $\hat y$ is the class of the largest logit. fDBD (Liu & Qin, ICML 2024).

    Parameters
    ----------
    features, logits
        What enters the head (n, d) and what leaves it (n, c).
    weight
        The head's weights (c, d), of which no two rows may be alike.
    mean
        The mean (d,) of known in-distribution features, which no row may be equal to.

    >>> fdbd([[3.0, 0.0]], [[3.0, 0.0]], weight=[[1.0, 0.0], [0.0, 0.0]], mean=[0.0, 0.0])
    array([1.])
    """
    z, f, W, mu = _as_centred(features, logits, weight, mean)
    _check_apart(W)
    W = W - W.mean(axis=0)  # Differences stay, and what all classes share does not drown them.
    squares = np.einsum("ij,ij->i", W, W)
    of_all_rows = _between_classes(W, squares, _classes_to_come(f)) if len(W) <= _MANY_CLASSES else None

    def fill(rows: slice, scores: Floats) -> None:
        between = of_all_rows or _between_classes(W, squares, _predicted_classes(f[rows]))
        _write_boundary_distances(z[rows], f[rows], mu, between, scores)

    return check_defined(
        by_blocks(fill, len(z), z.shape[1] + f.shape[1], tile=1, features=z, logits=f),
        f"features must be {_APART} for the score fdbd",
    )


def nci(features: ArrayLike, logits: ArrayLike, weight: ArrayLike, mean: ArrayLike, *, alpha: float = 1e-4) -> Floats:
    r"""How far the centred feature points along its class's weights, $w_{\hat y}^\top \frac{z - \mu}{\|z - \mu\|}$.

    $\alpha \|z\|_1$ is added; $\hat y$ is the class of the largest logit. NCI (Liu & Qin, CVPR 2025), with the alpha
    its authors start from.

    Parameters
    ----------
    features, logits
        What enters the head (n, d) and what leaves it (n, c).
    weight
        The head's weights (c, d).
    mean
        The mean (d,) of known in-distribution features, which no row may be equal to.
    alpha
        The weight of the feature's L1 norm.

    >>> nci([[3.0, 4.0]], [[3.0, 4.0]], weight=[[1.0, 0.0], [0.0, 1.0]], mean=[0.0, 0.0], alpha=0.0)
    array([0.8])
    """
    z, f, W, mu = _as_centred(features, logits, weight, mean)
    alpha = as_number(alpha, "alpha", at_least=0.0)
    return check_defined(_collapse_scores(z, f, W, mu, alpha), f"features must be {_APART} for the score nci")


def as_head(features: ArrayLike, weight: ArrayLike, bias: ArrayLike) -> tuple[Matrix, Floats, Floats]:
    """Return features (n, d) and the linear head, weight (c, d) and bias (c,) in float64, that takes them."""
    z, W = as_matrix(features, "features"), as_matrix(weight, "weight")
    b = np.array(as_vector(bias, "bias"))
    if W.shape != (len(b), z.shape[1]):
        wanted = f"(c, d) = ({len(b)}, {z.shape[1]}) to go with the bias and the features"
        raise ValueError(f"weight must have shape {wanted}, got {W.shape}")
    return z, np.array(W, dtype=np.float64, order="C"), b


_ACTIVATIONS = "features must be activations whose largest add up to more than 0, as a ReLU gives them"
_APART = "apart from their mean"
# The distances between all of more classes than these, 32 MB, are not kept, but found for each block of rows.
_MANY_CLASSES = 2048

# Squared distances are taken from products where that leaves ten digits of them.
_CLOSE = 1e-6


def _kept(d: int, percentile: float) -> int:
    """Return how many of d activations are a row's largest; with at least one in 150, their scale is finite."""
    share = as_number(percentile, "percentile", at_least=0.0, at_most=0.99)
    return max(1, d - round(d * share))


def _shaped_energies(z: Matrix, W: Floats, b: Floats, kept: int, T: float, *, is_pruned: bool) -> Floats:
    """Return the energy of the logits of every row (n,), scaled by its largest activations, or these alone."""
    kernels = _kernels.kernels
    if kernels is None:
        return by_tiles(lambda z: T * log_sum_exp((_shaped(z, kept, is_pruned) @ W.T + b) / T), z)

    def fill(rows: slice, scores: Floats) -> None:
        room = empty_tile(z.shape[1]), empty_tile(len(W)), np.empty(ROWS_AT_ONCE)
        kernels.with_blas("shaped_energies", _kernels.readable(z[rows]), W, b, T, kept, is_pruned, *room, scores)

    return by_blocks(fill, *z.shape)


def _shaped(z: Floats, kept: int, is_pruned: bool) -> Floats:
    """Return the rows times exp(sum of the activations / sum of the largest), NaN where that has no meaning."""
    largest = np.partition(z, -kept, axis=1)[:, -kept:]
    shaped = np.where(z >= largest[:, :1], z, 0.0) if is_pruned else z
    sum_of_largest = (shaped if is_pruned else largest).sum(axis=1)
    ratio = np.where(sum_of_largest > 0, z.sum(axis=1) / sum_of_largest, np.nan)
    ratio[~z.any(axis=1)] = 1.0  # A row of zeros stays one, whatever it is scaled by.
    return shaped * np.exp(ratio)[:, None]


def _as_centred(
    features: ArrayLike, logits: ArrayLike, weight: ArrayLike, mean: ArrayLike
) -> tuple[Matrix, Matrix, Floats, Floats]:
    """Return what fDBD and NCI take, checked against one another; features and logits are yet to be read."""
    z, f = as_matrix_unchecked(features, "features"), as_logits_unchecked(logits)
    check_same_rows(features=z, logits=f)
    W, mu = np.array(as_matrix(weight, "weight"), dtype=np.float64, order="C"), np.array(as_vector(mean, "mean"))
    if W.shape != (f.shape[1], z.shape[1]):
        wanted = f"(c, d) = ({f.shape[1]}, {z.shape[1]}) to go with the logits and the features"
        raise ValueError(f"weight must have shape {wanted}, got {W.shape}")
    if len(mu) != z.shape[1]:
        raise ValueError(f"mean must have {z.shape[1]} numbers, as the features have, got {len(mu)}")
    return z, f, W, mu


def _check_apart(W: Floats) -> None:
    first: dict[bytes, int] = {}
    for row, weights in enumerate(W + 0.0):  # There is one zero, not two.
        own = first.setdefault(weights.tobytes(), row)
        if row != own:
            raise ValueError(f"weight must differ between classes for the score fdbd, got rows {own} and {row} alike")


def _predicted_classes(f: Matrix) -> NDArray[np.intp]:
    """Return the classes that are the largest logit of any row, in order."""
    return np.flatnonzero(np.bincount(largest_of_rows(f, "logits")[1]))


def _sums_of_sizes(z: Matrix) -> Floats:
    """Return the sum of |z| of each row (n,); z comes unchecked."""
    kernels = _kernels.kernels

    def fill(rows: slice, sums: Floats) -> None:
        if kernels is None:
            np.abs(as_block(z[rows])).sum(axis=1, out=sums)
        else:
            kernels("sums_of_sizes", _kernels.readable(z[rows]), sums, np.empty(z.shape[1]))

    return by_blocks(fill, *z.shape, tile=1, features=z)


def _classes_to_come(f: Matrix) -> NDArray[np.intp]:
    """Return the classes predicted, or all where the rows are more than these."""
    return _predicted_classes(f) if len(f) < f.shape[1] else np.arange(f.shape[1])


@dataclass(frozen=True, eq=False)
class _Between:
    """1 / distances of the weights of some classes to those of all (k, c), 1 for its own; class j is row places[j]."""

    inverses: Floats
    places: NDArray[np.intp]


def _between_classes(W: Floats, squares: Floats, classes: NDArray[np.intp]) -> _Between:
    """Return how far the weights of some classes are from those of all; infinity where their squares vanish."""
    inverses = np.empty((len(classes), len(W)))
    with one_thread(), np.errstate(divide="ignore"):
        for start in range(0, len(classes), ROWS_AT_ONCE):  # Products of one shape, as in `by_tiles`.
            some = classes[start : start + ROWS_AT_ONCE]
            filled_up = np.resize(some, ROWS_AT_ONCE)
            inverses[start : start + len(some)] = 1 / _between_weights(W, squares, filled_up)[: len(some)]
    places = np.zeros(len(W), dtype=np.intp)
    places[classes] = np.arange(len(classes))
    return _Between(inverses, places)


def _between_weights(W: Floats, squares: Floats, classes: NDArray[np.intp]) -> Floats:
    """Return the distance of the weights of some classes to those of all (k, c), with 1 for that to its own."""
    sums = squares[classes][:, None] + squares
    squared = sums - 2 * W[classes] @ W.T
    rows = np.arange(len(classes))
    squared[rows, classes] = np.inf
    for row in np.flatnonzero((squared < _CLOSE * sums).any(axis=1)):
        squared[row] = ((W - W[classes[row]]) ** 2).sum(axis=1)
    squared[rows, classes] = 1.0
    distances: Floats = np.sqrt(squared)
    return distances


def _write_boundary_distances(z: Matrix, f: Matrix, mu: Floats, between: _Between, scores: Floats) -> None:
    """Write the mean distance to the boundaries of the class predicted over that to the mean, of a block of rows."""
    kernels = _kernels.kernels
    if kernels is not None:
        spare = np.empty(z.shape[1] + f.shape[1])
        rows = _kernels.readable(z), _kernels.readable(f)
        kernels("boundary_distances", *rows, mu, between.inverses, between.places, spare, scores)
        return
    z, f = as_block(z), as_block(f)
    inverses = between.inverses[between.places[f.argmax(axis=1)]]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        to_boundaries = ((f.max(axis=1)[:, None] - f) * inverses).sum(axis=1) / (f.shape[1] - 1)
        scores[:] = to_boundaries / np.linalg.norm(z - mu, axis=1)


def _collapse_scores(z: Matrix, f: Matrix, W: Floats, mu: Floats, alpha: float) -> Floats:
    """Return how far every centred row points along the weights of its class, with alpha of its L1 norm (n,)."""
    kernels = _kernels.kernels

    def formula(z: Floats, f: Floats) -> Floats:
        centred = z - mu
        along = (W[f.argmax(axis=1)] * centred).sum(axis=1) / np.linalg.norm(centred, axis=1)
        return np.asarray(along + alpha * np.abs(z).sum(axis=1))

    def fill(rows: slice, scores: Floats) -> None:
        if kernels is None:
            scores[:] = formula(as_block(z[rows]), as_block(f[rows]))
            return
        spare = np.empty(z.shape[1] + f.shape[1])
        given = _kernels.readable(z[rows]), _kernels.readable(f[rows])
        kernels("collapse_scores", *given, W, mu, alpha, spare, scores)

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return by_blocks(fill, len(z), z.shape[1] + f.shape[1], tile=1, features=z, logits=f)
