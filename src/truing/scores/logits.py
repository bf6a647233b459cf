"""Scores of the logits alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import Floats, Matrix, as_count, as_matrix_unchecked, as_number, blocks, check_finite
from .._largest import largest_of_rows
from .exponentials import generalised_entropies, softmax_scores

# The exponent of GEN and the number of probabilities to sum, as chosen by the authors of GEN.
_GAMMA = 0.1
_TOP = 100


def msp(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Return the maximum softmax probability of every row, $\max_j \mathrm{softmax}(f / T)_j$ (Eq. 2).

    >>> msp([[0.0, 0.0], [9.0, 0.0]]).round(3)
    array([0.5, 1. ])
    """
    T = as_temperature(temperature)
    return softmax_scores(lambda sums: 1 / (1 + sums.others), as_logits_unchecked(logits), T)


def energy(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Return the negative free energy of every row, $T \log \sum_j e^{f_j / T}$ (Eq. 5).

    >>> energy([[0.0, 0.0]]).round(3)
    array([0.693])
    """
    T = as_temperature(temperature)
    return softmax_scores(lambda sums: sums.largest + T * np.log1p(sums.others), as_logits_unchecked(logits), T)


def kl_uniform(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Return the divergence of the uniform distribution from the softmax of every row (Eq. 6).

    $-\frac1C \sum_j \log \mathrm{softmax}(f / T)_j - \log C$. The constant matters to a fit without an intercept.

    >>> kl_uniform([[0.0, 0.0], [2.0, 0.0]]).round(3)
    array([0.   , 0.434])
    """
    T, f = as_temperature(temperature), as_logits_unchecked(logits)
    log_classes = np.log1p(f.shape[1] - 1)
    return softmax_scores(lambda sums: np.log1p(sums.others) - sums.mean - log_classes, f, T, with_mean=True)


def max_logit(logits: ArrayLike) -> Floats:
    """Return the largest logit of every row.

    >>> max_logit([[1.0, 3.0]])
    array([3.])
    """
    return largest_of_rows(as_logits_unchecked(logits), "logits")[0]


def gen(logits: ArrayLike, temperature: float = 1.0, *, gamma: float = _GAMMA, top: int = _TOP) -> Floats:
    r"""Return the negated generalised entropy of every row, $-\sum_j p_j^\gamma (1 - p_j)^\gamma$.

    The sum is over the largest probabilities of $p = \mathrm{softmax}(f / T)$. GEN (Liu, Lochman & Zach, CVPR 2023).
    The default gamma and top are the authors' choice.

    Parameters
    ----------
    logits
        Outputs of the last layer (n, c).
    temperature
        The temperature T of the softmax.
    gamma
        The exponent. A smaller exponent gives small probabilities more weight.
    top
        The number of probabilities to sum, largest first. If there are fewer classes, all are summed.

    >>> gen([[0.0, 0.0], [9.0, 0.0]], gamma=0.5).round(3)
    array([-1.   , -0.022])
    """
    T = as_temperature(temperature)
    gamma = as_number(gamma, "gamma", above=0.0)
    top = as_count(top, "top")
    return generalised_entropies(as_logits_unchecked(logits), T, gamma, top)


def gen_energy_msp(logits: ArrayLike, names: Sequence[str]) -> tuple[Floats, NDArray[np.intp]]:
    """Return the named scores among gen, energy and msp (n, s), and the class (n,) of the largest logit."""
    f = as_logits_unchecked(logits)
    scores = {"gen": gen, "energy": energy, "msp": msp}
    return np.column_stack([scores[name](f) for name in names]), largest_of_rows(f, "logits")[1]


# In a batch of at least `_LARGE_BATCH` rows, sums of probabilities may differ from 1 by `_NEARLY_ONE`, which covers
# rounding to float16. In a smaller batch, sums of logits may be that close to 1 by chance, so the tolerance is
# `_EXACTLY_ONE`, which covers rounding to float32. Batches of fewer than `_FEWEST_NUMBERS` numbers are never rejected,
# because a few logits with two decimals sum to 1 about once in a thousand batches.
_LARGE_BATCH = 16
_FEWEST_NUMBERS = 5
_NEARLY_ONE, _EXACTLY_ONE = 1e-2, 1e-5


def as_logits(values: ArrayLike, name: str = "logits") -> Matrix:
    """Return logits (n, c) as a finite matrix with at least two classes. Probabilities are rejected."""
    logits = as_logits_unchecked(values, name)
    check_finite(logits, name)
    return logits


def as_logits_unchecked(values: ArrayLike, name: str = "logits") -> Matrix:
    """Return logits as `as_logits` does, without the check for finite numbers."""
    logits = as_matrix_unchecked(values, name)
    if logits.shape[1] < 2:
        raise ValueError(f"{name} must have at least two columns, one for each class, got shape {logits.shape}")
    if _are_probabilities(logits):
        raise ValueError(
            f"{name} must be outputs of the last layer before its softmax, got probabilities: rows of numbers in "
            "[0, 1] that sum to 1 (pass the logits; for msp and gen, logarithms of the probabilities serve as well)"
        )
    return logits


def as_temperature(temperature: float) -> float:
    """Return the temperature of a softmax."""
    return as_number(temperature, "temperature", at_least=1e-100)


def _are_probabilities(logits: Matrix) -> bool:
    """Return whether all rows look like probabilities. In a small batch, whole numbers and very few numbers do not."""
    if len(logits) >= _LARGE_BATCH:
        first = logits[:_LARGE_BATCH]
        return _sum_to_one(first, _NEARLY_ONE) and all(_sum_to_one(block, _NEARLY_ONE) for _, block in blocks(logits))
    return logits.size >= _FEWEST_NUMBERS and _sum_to_one(logits, _EXACTLY_ONE) and bool((logits % 1 != 0).any())


def _sum_to_one(rows: Matrix, tolerance: float) -> bool:
    """Return whether no number is negative and every row sums to 1."""
    wide = rows.astype(np.float64, copy=False)
    return bool(wide.min(initial=0.0) >= 0 and np.abs(wide.sum(axis=1) - 1).max(initial=0.0) <= tolerance)
