"""Scores of the logits alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import Floats, Matrix, as_count, as_matrix_unchecked, as_number, blocks, check_finite
from .._largest import largest_of_rows
from .exponentials import generalised_entropies, scores_with_entropy, softmax_scores

# GEN's exponent, and how many of the largest probabilities it sums, as its authors have them.
_GAMMA = 0.1
_TOP = 100


def msp(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Maximum softmax probability, $\max_j \mathrm{softmax}(f / T)_j$ (Eq. 2).

    >>> msp([[0.0, 0.0], [9.0, 0.0]]).round(3)
    array([0.5, 1. ])
    """
    T = as_temperature(temperature)
    return softmax_scores(["msp"], as_logits_unchecked(logits), T)[:, 0]


def energy(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Negative free energy, $T \log \sum_j e^{f_j / T}$ (Eq. 5).

    >>> energy([[0.0, 0.0]]).round(3)
    array([0.693])
    """
    T = as_temperature(temperature)
    return softmax_scores(["energy"], as_logits_unchecked(logits), T)[:, 0]


def kl_uniform(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Divergence from the uniform distribution, $-\frac1C \sum_j \log \mathrm{softmax}(f / T)_j - \log C$ (Eq. 6).

    The constant is kept: it matters to a fit without an intercept.

    >>> kl_uniform([[0.0, 0.0], [2.0, 0.0]]).round(3)
    array([0.   , 0.434])
    """
    T = as_temperature(temperature)
    return softmax_scores(["kl_uniform"], as_logits_unchecked(logits), T)[:, 0]


def max_logit(logits: ArrayLike) -> Floats:
    """Largest logit of each row.

    >>> max_logit([[1.0, 3.0]])
    array([3.])
    """
    return largest_of_rows(as_logits_unchecked(logits), "logits")[0]


def gen(logits: ArrayLike, temperature: float = 1.0, *, gamma: float = _GAMMA, top: int = _TOP) -> Floats:
    r"""Generalised entropy, negated: $-\sum_j p_j^\gamma (1 - p_j)^\gamma$ with $p = \mathrm{softmax}(f / T)$.

    The sum is over the largest $p_j$. GEN (Liu, Lochman & Zach, CVPR 2023), with its authors' gamma and top.

    Parameters
    ----------
    logits
        What the last layer gives (n, c).
    temperature
        The softmax's T.
    gamma
        The exponent; the smaller it is, the more small probabilities count.
    top
        How many of the largest probabilities are summed; all where there are fewer.

    >>> gen([[0.0, 0.0], [9.0, 0.0]], gamma=0.5).round(3)
    array([-1.   , -0.022])
    """
    T = as_temperature(temperature)
    gamma = as_number(gamma, "gamma", above=0.0)
    top = as_count(top, "top")
    return generalised_entropies(as_logits_unchecked(logits), T, gamma, top)


def gen_energy_msp(logits: ArrayLike, names: Sequence[str]) -> tuple[Floats, NDArray[np.intp]]:
    """Return those of the scores gen, energy and msp that are named (n, s), and the class (n,) of the largest logit.

    They are found at once; gen has the bits that it has by itself, and the others may differ by rounding.
    """
    f = as_logits_unchecked(logits)
    if "gen" in names:
        return scores_with_entropy(names, f, _GAMMA, _TOP)
    return softmax_scores(names, f, 1.0), largest_of_rows(f, "logits")[1]


# Rows of logits that all add up to one are taken for probabilities from so many on.
_ROWS_TO_TELL = 16


def as_logits(values: ArrayLike, name: str = "logits") -> Matrix:
    """Return logits (n, c) as a finite matrix, of two classes at least, refusing what a softmax has made of them."""
    logits = as_logits_unchecked(values, name)
    check_finite(logits, name)
    return logits


def as_logits_unchecked(values: ArrayLike, name: str = "logits") -> Matrix:
    """Return logits as such a matrix, which whoever reads them all checks to be finite."""
    logits = as_matrix_unchecked(values, name)
    if logits.shape[1] < 2:
        raise ValueError(f"{name} must have a column for each of two classes at least, got shape {logits.shape}")
    if (
        len(logits) >= _ROWS_TO_TELL
        and _are_probabilities(logits[:_ROWS_TO_TELL])
        and all(_are_probabilities(block) for _, block in blocks(logits))
    ):
        raise ValueError(
            f"{name} must be what the last layer gives before its softmax, got probabilities: rows of numbers in "
            "[0, 1] that add up to 1 (their logarithms will do)"
        )
    return logits


def as_temperature(temperature: float) -> float:
    """Return the temperature of a softmax."""
    return as_number(temperature, "temperature", at_least=1e-100)


def _are_probabilities(rows: Matrix) -> bool:
    wide = rows.astype(np.float64, copy=False)
    return bool(wide.min() >= 0 and wide.max() <= 1.01 and np.abs(wide.sum(axis=1) - 1).max() <= 1e-2)
