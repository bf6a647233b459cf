"""Scores from a network's outputs.

A score is one number per row, and higher means more in-distribution,
here and everywhere in truing.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import log_softmax, logsumexp, softmax

from ._check import Floats, Matrix, as_choice, as_matrix, as_number, as_vector, by_rows, check_same_rows
from .outputs import Outputs

# A base score: a name in SCORES, or a function of one's own.
Base = str | Callable[[Outputs], ArrayLike]


def msp(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Maximum softmax probability, $\max_j \mathrm{softmax}(f / T)_j$ (Eq. 2).

    >>> msp([[0.0, 0.0], [9.0, 0.0]]).round(3)
    array([0.5, 1. ])
    """
    T = _as_temperature(temperature)
    return by_rows(lambda f: softmax(f / T, axis=1).max(axis=1), _as_logits(logits))


def energy(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Negative free energy, $T \log \sum_j e^{f_j / T}$ (Eq. 5).

    >>> energy([[0.0, 0.0]]).round(3)
    array([0.693])
    """
    T = _as_temperature(temperature)
    return by_rows(lambda f: T * logsumexp(f / T, axis=1), _as_logits(logits))


def kl_uniform(logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""Divergence from the uniform distribution, $-\frac1C \sum_j \log \mathrm{softmax}(f / T)_j - \log C$ (Eq. 6).

    The constant is kept: it matters to a fit without an intercept.

    >>> kl_uniform([[0.0, 0.0], [2.0, 0.0]]).round(3)
    array([0.   , 0.434])
    """
    T = _as_temperature(temperature)
    return by_rows(lambda f: -log_softmax(f / T, axis=1).mean(axis=1) - np.log(f.shape[1]), _as_logits(logits))


def max_logit(logits: ArrayLike) -> Floats:
    """Largest logit of each row.

    >>> max_logit([[1.0, 3.0]])
    array([3.])
    """
    return by_rows(lambda f: f.max(axis=1), _as_logits(logits))


def gradnorm(features: ArrayLike, logits: ArrayLike, temperature: float = 1.0) -> Floats:
    r"""L1 norm of the gradient of the KL to uniform with respect to a linear head's weights.

    That gradient is the outer product of $(\mathrm{softmax}(f / T) - 1/C) / T$ and the features $z$, so its
    norm is $\|z\|_1 \, \|\mathrm{softmax}(f / T) - 1/C\|_1 / T$ and needs no backward pass.

    >>> gradnorm([[1.0, -2.0]], [[0.0, 0.0]])
    array([0.])
    """
    T = _as_temperature(temperature)
    z, f = as_matrix(features, "features"), _as_logits(logits)
    check_same_rows(features=z, logits=f)
    return by_rows(
        lambda z, f: np.abs(z).sum(axis=1) * np.abs(softmax(f / T, axis=1) - 1 / f.shape[1]).sum(axis=1) / T,
        z,
        f,
    )


def base_scores(outputs: Outputs, base: Base, temperature: float = 1.0) -> Floats:
    """Return the score (n,) that `base` says: a name in `SCORES`, or a function of the outputs."""
    if isinstance(base, str):
        return SCORES[base](outputs, temperature=temperature)
    _refuse_temperature("of your own", temperature)
    scores = as_vector(base(outputs), "what base returns")
    if len(scores) != len(outputs):
        raise ValueError(f"base must return one score per row, {len(outputs)}, got {len(scores)}")
    return scores


def check_base(base: Base) -> None:
    """Refuse what is neither the name of a score nor a function."""
    if not callable(base):
        as_choice(base, "base", SCORES)


def base_name(base: Base) -> str:
    """Return the score's name, for people."""
    return base if isinstance(base, str) else getattr(base, "__name__", type(base).__name__)


def _given(outputs: Outputs, temperature: float = 1.0) -> Floats:
    _refuse_temperature("given", temperature)
    scores: Floats = outputs._need("scores")
    return scores


def _max_logit(outputs: Outputs, temperature: float = 1.0) -> Floats:
    _refuse_temperature("max_logit", temperature)
    return max_logit(outputs._need("logits"))


SCORES: dict[str, Callable[..., Floats]] = {
    "msp": lambda outputs, temperature=1.0: msp(outputs._need("logits"), temperature),
    "energy": lambda outputs, temperature=1.0: energy(outputs._need("logits"), temperature),
    "kl_uniform": lambda outputs, temperature=1.0: kl_uniform(outputs._need("logits"), temperature),
    "max_logit": _max_logit,
    "gradnorm": lambda outputs, temperature=1.0: gradnorm(outputs.features, outputs._need("logits"), temperature),
    "given": _given,
}
"""Every base score by name, each called as `SCORES[name](outputs, temperature=1.0)`."""


# Rows of logits that all add up to one are taken for probabilities from so many on.
_ROWS_TO_TELL = 16


def _as_logits(values: ArrayLike) -> Matrix:
    """Return logits (n, c) as a matrix, of two classes at least, refusing what a softmax has made of them."""
    logits = as_matrix(values, "logits")
    if logits.shape[1] < 2:
        raise ValueError(f"logits must have a column for each of two classes at least, got shape {logits.shape}")
    if len(logits) >= _ROWS_TO_TELL and _are_probabilities(logits[:_ROWS_TO_TELL]) and _are_probabilities(logits):
        raise ValueError(
            "logits must be what the last layer gives before its softmax, got probabilities: rows of numbers in [0, 1] "
            "that add up to 1 (their logarithms will do)"
        )
    return logits


def _are_probabilities(rows: Matrix) -> bool:
    wide = rows.astype(np.float64, copy=False)
    return bool(wide.min() >= 0 and np.abs(wide.sum(axis=1) - 1).max() <= 1e-2)


def _as_temperature(temperature: float) -> float:
    return as_number(temperature, "temperature", at_least=1e-100)


def _refuse_temperature(name: str, temperature: float) -> None:
    if _as_temperature(temperature) != 1.0:
        raise ValueError(f"temperature must be 1 for the score {name}, which has none, got {temperature}")
