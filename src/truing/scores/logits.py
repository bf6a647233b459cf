"""Scores of the logits alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, logsumexp, softmax

from .._check import Floats, Matrix, as_count, as_matrix, as_number, by_rows


def msp(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Maximum softmax probability, $\max_j \mathrm{softmax}(f / T)_j$ (Eq. 2).

    >>> msp([[0.0, 0.0], [9.0, 0.0]]).round(3)
    array([0.5, 1. ])
    """
    T = as_temperature(temperature)
    return by_rows(lambda f: softmax(f / T, axis=1).max(axis=1), as_logits(logits))


def energy(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Negative free energy, $T \log \sum_j e^{f_j / T}$ (Eq. 5).

    >>> energy([[0.0, 0.0]]).round(3)
    array([0.693])
    """
    T = as_temperature(temperature)
    return by_rows(lambda f: T * logsumexp(f / T, axis=1), as_logits(logits))


def kl_uniform(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Divergence from the uniform distribution, $-\frac1C \sum_j \log \mathrm{softmax}(f / T)_j - \log C$ (Eq. 6).

    The constant is kept: it matters to a fit without an intercept.

    >>> kl_uniform([[0.0, 0.0], [2.0, 0.0]]).round(3)
    array([0.   , 0.434])
    """
    T = as_temperature(temperature)
    return by_rows(lambda f: -log_softmax(f / T, axis=1).mean(axis=1) - np.log(f.shape[1]), as_logits(logits))


def max_logit(logits: ArrayLike) -> Floats:
    """Largest logit of each row.

    >>> max_logit([[1.0, 3.0]])
    array([3.])
    """
    return by_rows(lambda f: f.max(axis=1), as_logits(logits))


def gen(logits: ArrayLike, temperature: float = 1.0, *, gamma: float = 0.1, top: int = 100) -> Floats:
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

    def formula(f: Floats) -> Floats:
        log_p = np.sort(log_softmax(f / T, axis=1), axis=1)
        # What the largest leaves to the others is lost in 1 − p when p is nearly 1: the others' own sum is not.
        log_rest = np.empty_like(log_p)
        log_rest[:, :-1] = np.log1p(-np.exp(log_p[:, :-1]))
        log_rest[:, -1] = logsumexp(log_p[:, :-1], axis=1)
        entropy: Floats = np.exp(gamma * (log_p + log_rest)[:, -top:]).sum(axis=1)
        return -entropy

    return by_rows(formula, as_logits(logits))


# Rows of logits that all add up to one are taken for probabilities from so many on.
_ROWS_TO_TELL = 16


def as_logits(values: ArrayLike, name: str = "logits") -> Matrix:
    """Return logits (n, c) as a matrix, of two classes at least, refusing what a softmax has made of them."""
    logits = as_matrix(values, name)
    if logits.shape[1] < 2:
        raise ValueError(f"{name} must have a column for each of two classes at least, got shape {logits.shape}")
    if len(logits) >= _ROWS_TO_TELL and _are_probabilities(logits[:_ROWS_TO_TELL]) and _are_probabilities(logits):
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
    return bool(wide.min() >= 0 and np.abs(wide.sum(axis=1) - 1).max() <= 1e-2)
