r"""Sums of exponentials of logits, $\sum_j e^{f_j / T}$, of which softmax and free energy are made, in float64.

A row's largest logit is subtracted first. Its own exponential is then 1, and what is summed are the others', so that
nothing is lost where it is nearly all: $\log \sum_j e^{f_j / T} = \max_j f_j / T + \log(1 + \mathrm{others})$.
Logits come unchecked, since what reads them can tell: such as are not finite are refused here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import ceil, cos, fsum, log2, pi
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import _kernels
from .._check import KERNEL_NUMBERS, Floats, Matrix, as_block, check_finite, refuse, row_blocks, rows_of_block, slices
from .._threads import map_blocks

# In the order of logits.c.
_NAMES = ("msp", "energy", "kl_uniform", "from_uniform", "gen")

# Of the polynomial that logits.c has for (1 - p)^gamma.
_DEGREE = 18


def softmax_scores(names: Sequence[str], logits: Matrix, temperature: float) -> Floats:
    """Return msp, energy, kl_uniform or the distance of softmax(f / T) from uniform of every row, as named (n, s)."""
    scores = np.empty((len(logits), len(names)))
    numbers = _numbers_of(*names)

    def by_kernel(kernels: _kernels.Kernels, block: Matrix, rows: slice, refused: NDArray[np.int64]) -> None:
        lanes = _kernels.room_for_lanes(block.shape[1])
        kernels("softmax_scores", block, temperature, numbers, scores[rows], lanes, refused)

    def plainly(block: Floats, rows: slice) -> None:
        for column, name in enumerate(names):
            scores[rows, column] = _plain_score(name, block, temperature)

    _by_blocks(by_kernel, plainly, logits)
    return scores


@cache
def _numbers_of(*names: str) -> NDArray[np.int64]:
    """Return what logits.c calls the scores."""
    numbers = np.array([_NAMES.index(name) for name in names], dtype=np.int64)
    numbers.flags.writeable = False  # All who ask for the same names have it.
    return numbers


def generalised_entropies(logits: Matrix, temperature: float, gamma: float, top: int) -> Floats:
    r"""Return $\sum_j p_j^\gamma (1 - p_j)^\gamma$ over the largest probabilities of every row, negated (n,)."""
    scores = np.empty(len(logits))
    power = _power_of_rest(gamma)
    few = min(top, logits.shape[1])

    def by_kernel(kernels: _kernels.Kernels, block: Matrix, rows: slice, refused: NDArray[np.int64]) -> None:
        scratch = _room_for_entropies(block.shape[1], few)
        kernels("generalised_entropies", block, temperature, gamma, few, *power, scores[rows], scratch, refused)

    def plainly(block: Floats, rows: slice) -> None:
        scores[rows] = -_plain_entropy(block, temperature, gamma, top)

    _by_blocks(by_kernel, plainly, logits)
    return scores


def scores_with_entropy(
    names: Sequence[str], logits: Matrix, gamma: float, top: int
) -> tuple[Floats, NDArray[np.intp]]:
    """Return gen, energy and msp of every row, as named (n, s), and its largest logit's class (n,), at T = 1."""
    scores, predicted = np.empty((len(logits), len(names))), np.empty(len(logits), dtype=np.intp)
    numbers = _numbers_of(*names)
    power = _power_of_rest(gamma)
    few = min(top, logits.shape[1])

    def by_kernel(kernels: _kernels.Kernels, block: Matrix, rows: slice, refused: NDArray[np.int64]) -> None:
        scratch = _room_for_entropies(block.shape[1], few)
        kernels("gen_energy_msp", block, gamma, few, *power, numbers, scores[rows], predicted[rows], scratch, refused)

    def plainly(block: Floats, rows: slice) -> None:
        predicted[rows] = block.argmax(axis=1)
        for column, name in enumerate(names):
            of_rows = -_plain_entropy(block, 1.0, gamma, top) if name == "gen" else _plain_score(name, block, 1.0)
            scores[rows, column] = of_rows

    _by_blocks(by_kernel, plainly, logits)
    return scores, predicted


def _room_for_entropies(classes: int, top: int) -> Floats:
    """Return the room that `entropy_of` of logits.c says."""
    return np.empty(3 * _kernels.LANES * (classes if top == classes else max(top, -(-classes // _kernels.LANES))))


def log_sum_exp(rows: ArrayLike) -> Floats:
    """Return the logarithm of the sum of the exponentials of each row, with all its digits where that is near 0."""
    f = np.ascontiguousarray(rows, dtype=np.float64)
    where = np.arange(len(f)), f.argmax(axis=1)
    largest = f[where]
    others = np.exp(f - largest[:, None])
    others[where] = 0.0
    return np.asarray(largest + np.log1p(others.sum(axis=1)))


def _by_blocks(by_kernel: Callable[..., None], plainly: Callable[..., None], logits: Matrix) -> None:
    """Have one of the two fill in every block of rows, on all cores, and refuse logits that are not finite."""
    kernels = _kernels.kernels
    if kernels is None:
        check_finite(logits, "logits")

    def fill(rows: slice) -> None:
        if kernels is None:
            plainly(as_block(logits[rows]), rows)
            return
        refused = np.empty(1, dtype=np.int64)
        by_kernel(kernels, _kernels.readable(logits[rows]), rows, refused)
        if refused[0]:
            refuse(logits, "logits")

    map_blocks(fill, row_blocks(logits, copies=4) if kernels is None else _blocks_of_lanes(logits), uses_blas=False)


def _blocks_of_lanes(logits: Matrix) -> list[slice]:
    """Return the rows a block at a time, each as many rows as logits.c reads at once, or a multiple."""
    rows = rows_of_block(len(logits), logits.shape[1], KERNEL_NUMBERS)
    return slices(len(logits), max(rows // _kernels.LANES, 1) * _kernels.LANES)


def _plain_score(name: str, f: Floats, T: float) -> Floats:
    """Return a score of `softmax_scores`, by its formula."""
    classes = f.shape[1]
    where = np.arange(len(f)), f.argmax(axis=1)
    largest = f[where]
    x = (f - largest[:, None]) / T
    exponentials = np.exp(x)
    exponentials[where] = 0.0
    others = exponentials.sum(axis=1)
    score: Floats
    if name == "msp":
        score = 1 / (1 + others)
    elif name == "energy":
        score = largest + T * np.log1p(others)
    elif name == "kl_uniform":
        score = np.log1p(others) - x.mean(axis=1) - np.log1p(classes - 1)
    else:
        exponentials[where] = 1.0
        score = np.abs(exponentials / (1 + others)[:, None] - 1 / classes).sum(axis=1)
    return score


def _plain_entropy(f: Floats, T: float, gamma: float, top: int) -> Floats:
    """Return the entropy of each row from the logarithms of its probabilities, which never underflow."""
    where = np.arange(len(f)), f.argmax(axis=1)
    x = (f - f[where][:, None]) / T
    x[where] = -np.inf
    log_others = log_sum_exp(x)
    log_sum = np.log1p(np.exp(log_others))
    # Of the largest, what it leaves to the others would be lost in 1 − p.
    entropy: Floats = np.exp(gamma * (log_others - 2 * log_sum))
    if top > 1:
        log_p = x - log_sum[:, None]
        if f.shape[1] > top:
            log_p = np.partition(log_p, 1 - top, axis=1)[:, 1 - top :]
        entropy += np.exp(gamma * (log_p + np.log1p(-np.exp(log_p)))).sum(axis=1)
    return entropy


@lru_cache(maxsize=16)
def _power_of_rest(gamma: float) -> tuple[Floats, int]:
    r"""Return a polynomial for $(1 - p)^{\gamma / 2^k}$, and the k >= 0 with which that is a root or the number itself.

    It is in $t = 4 p - 1$, for p from 0 to 1/2, where the probabilities are that are not the largest, interpolated at
    Chebyshev points and right to rounding; the coefficient of its highest power comes first.
    """
    squarings = max(0, ceil(log2(gamma)))
    exponent = gamma / 2.0**squarings
    points = _DEGREE + 1

    def cosine(k: int) -> float:
        return cos(pi * (k % (4 * points)) / (2 * points))

    places = range(1, 2 * points, 2)
    values = [(0.75 - cosine(place) / 4) ** exponent for place in places]
    series = [
        (2 if k else 1) / points * fsum(value * cosine(k * place) for value, place in zip(values, places, strict=True))
        for k in range(points)
    ]
    coefficients: Any = np.zeros(points)
    polynomial = np.polynomial.chebyshev.cheb2poly(series)
    coefficients[points - len(polynomial) :] = polynomial[::-1]
    return coefficients, squarings
