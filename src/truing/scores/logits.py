"""Scores of the logits alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import Floats, Matrix, as_count, as_matrix, as_number, blocks, row_blocks
from .._threads import map_blocks
from .exponentials import Exponentials, by_exponentials, largest_of_rows, log_sum_exp, several_by_exponentials

# GEN's exponent, and how many of the largest probabilities it sums, as its authors have them.
_GAMMA = 0.1
_TOP = 100


def msp(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Maximum softmax probability, $\max_j \mathrm{softmax}(f / T)_j$ (Eq. 2).

    >>> msp([[0.0, 0.0], [9.0, 0.0]]).round(3)
    array([0.5, 1. ])
    """
    return by_exponentials(_msp, as_logits(logits), as_temperature(temperature))


def energy(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Negative free energy, $T \log \sum_j e^{f_j / T}$ (Eq. 5).

    >>> energy([[0.0, 0.0]]).round(3)
    array([0.693])
    """
    T = as_temperature(temperature)
    return by_exponentials(lambda e: T * e.log_total, as_logits(logits), T)


def kl_uniform(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Divergence from the uniform distribution, $-\frac1C \sum_j \log \mathrm{softmax}(f / T)_j - \log C$ (Eq. 6).

    The constant is kept: it matters to a fit without an intercept.

    >>> kl_uniform([[0.0, 0.0], [2.0, 0.0]]).round(3)
    array([0.   , 0.434])
    """
    T = as_temperature(temperature)
    return by_exponentials(_divergence, as_logits(logits), T)


def max_logit(logits: ArrayLike) -> Floats:
    """Largest logit of each row.

    >>> max_logit([[1.0, 3.0]])
    array([3.])
    """
    f = as_logits(logits)
    scores = np.empty(len(f))

    def fill(rows: slice) -> None:
        scores[rows] = largest_of_rows(f[rows])

    map_blocks(fill, row_blocks(f), uses_blas=False)
    return scores


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
    return by_exponentials(lambda e: _gen(e, gamma, top), as_logits(logits), T)


def gen_energy_msp(logits: ArrayLike, names: Sequence[str]) -> Floats:
    """Return those of the scores gen, energy and msp that are named (n, s), with the bits that each has by itself."""
    formulas = {"gen": lambda e: _gen(e, _GAMMA, _TOP), "energy": lambda e: e.log_total, "msp": _msp}
    return several_by_exponentials([formulas[name] for name in names], as_logits(logits), 1.0)


# A sum of probabilities below this may have lost some of them.
_UNDERFLOWING = 1e-280

# The smallest probability, or exponential, that is taken in float32, where numbers of all digits end at 1.2e-38.
_SMALLEST_SINGLE = 1e-35

# A divergence below this is found in float64: it is what is left of numbers that nearly cancel.
_NEARLY_UNIFORM = 2.0**-6

# Rows of logits that all add up to one are taken for probabilities from so many on.
_ROWS_TO_TELL = 16


def as_logits(values: ArrayLike, name: str = "logits") -> Matrix:
    """Return logits (n, c) as a matrix, of two classes at least, refusing what a softmax has made of them."""
    logits = as_matrix(values, name)
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


def _msp(e: Exponentials) -> Floats:
    """Return the largest probability of each row."""
    return e.largest / e.total


def _divergence(e: Exponentials) -> Floats:
    """Return the divergence from the uniform distribution of each row."""
    divergence: Floats = e.log_total - e.mean_logit - np.log(e.classes)
    if e.is_single and divergence.min() < _NEARLY_UNIFORM:
        near = np.flatnonzero(divergence < _NEARLY_UNIFORM)
        divergence[near] = _divergence(Exponentials(e.rows(e.scaled, near).astype(np.float64), 1.0))
    return divergence


def _gen(e: Exponentials, gamma: float, top: int) -> Floats:
    """Return the entropy, negated, of each row."""
    is_single = e.is_single and _SMALLEST_SINGLE <= gamma <= 1  # Larger powers underflow in float32, and err by more.
    return -(_single_entropy if is_single else _entropy)(e, gamma, top)


def _entropy(e: Exponentials, gamma: float, top: int) -> Floats:
    """Return the entropy of each row from the logarithms of its probabilities, which never underflow."""
    p: Matrix = e.terms / e.beside(e.total)
    log_p: Matrix = e.scaled - e.beside(e.log_total)
    # What the largest leaves to the others is lost in 1 − p when p is nearly 1: the others' own sum is not.
    where = e.where_largest
    log_largest = log_p[where]
    p[where], log_p[where] = 0.0, -np.inf
    log_rest = _log_sum(e, p, log_p)
    entropy: Floats = np.exp(gamma * (log_largest + log_rest))
    if e.classes > top > 1:
        log_p = e.leading(log_p, top - 1)
        p = np.exp(log_p)
    if top > 1:
        entropy += e.sum(np.exp(gamma * (log_p + np.log1p(-p))))
    return entropy


def _single_entropy(e: Exponentials, gamma: float, top: int) -> Floats:
    """Return the entropy of each row from its probabilities in float32, and the largest one's part in float64.

    Rows with a probability too small for that, or with two largest ones, are left to float64.
    """
    terms: NDArray[np.float32] = e.terms.astype(np.float32, copy=False)
    is_largest = terms == e.beside(e.largest.astype(np.float32))
    others = terms * ~is_largest
    entropy: Floats = (e.largest / e.total * (e.sum(others) / e.total)) ** gamma
    factor = (1 / e.total).astype(np.float32)
    if top > 1:
        p = e.leading(others, top - 1) if e.classes > top else others
        p *= e.beside(factor)
        p *= 1 - p
        with np.errstate(divide="ignore"):  # The largest one's place holds 0, and adds 0.
            power = np.log(p, out=p)
        power *= np.float32(gamma)
        entropy += e.sum(np.exp(power, out=power))
    # No row below is left out: to divide by the largest total, in the same precision, rounds to no more.
    has_small = float(e.terms.min()) / max(float(e.total.max()), 1.0) < _SMALLEST_SINGLE
    if has_small or np.count_nonzero(is_largest) > len(entropy):
        is_small = e.smallest / np.maximum(e.total, 1.0) < _SMALLEST_SINGLE
        left = np.flatnonzero(is_small | (e.count(is_largest) > 1))
        if len(left):
            entropy[left] = _entropy(Exponentials(e.rows(e.scaled, left).astype(np.float64), 1.0), gamma, top)
    return entropy


def _log_sum(e: Exponentials, p: Matrix, log_p: Matrix) -> Floats:
    """Return the logarithm of each row's sum of probabilities, from their logarithms where that may underflow."""
    total = e.sum(p)
    tiny = np.flatnonzero(total < _UNDERFLOWING)
    total[tiny] = 1.0
    log_sum = np.log(total)
    if len(tiny):
        log_sum[tiny] = log_sum_exp(e.rows(log_p, tiny))
    return log_sum


def _are_probabilities(rows: Matrix) -> bool:
    wide = rows.astype(np.float64, copy=False)
    return bool(wide.min() >= 0 and np.abs(wide.sum(axis=1) - 1).max() <= 1e-2)
