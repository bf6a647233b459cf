"""NAC-UE: Liu et al., Neuron Activation Coverage: Rethinking Out-of-distribution Detection, ICLR 2024, on one layer.

The state of a neuron is the sigmoid of its activation times the gradient of the divergence between the uniform and the
predicted probabilities. A row scores high if its neurons are in states that reference rows often have. The authors
average up to four layers; here only the penultimate layer is at hand. `DEFAULTS` are the authors' values for it.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit, softmax


class Settings(NamedTuple):
    """The steepness of the sigmoid, the rows that cover a bin fully, and the number of edges of the bins."""

    steepness: float
    rows_to_cover: int = 50
    edges: int = 50


DEFAULTS = {"cifar10": Settings(100), "cifar100": Settings(50), "imagenet": Settings(3000, rows_to_cover=10)}


def nac(weight: Any, bias: Any, reference: Any, rows: Any, settings: Settings) -> Any:
    """Return scores (n,) of rows (n, d), given the head (c, d), (c,) and reference rows (m, d)."""
    edges = bin_edges(settings.edges)

    def bins(features: Any) -> Any:
        return np.searchsorted(edges, states(weight, bias, features, settings.steepness), side="right") - 1

    counts = np.stack([np.bincount(column, minlength=len(edges)) for column in bins(reference).T], axis=1)
    coverage = np.minimum(counts / settings.rows_to_cover, 1)
    return np.take_along_axis(coverage, bins(rows), axis=0).mean(axis=1)


def states(weight: Any, bias: Any, features: Any, steepness: float) -> Any:
    """Return the states (n, d) of the neurons, in [0, 1]."""
    features = np.asarray(features, dtype=np.float64)
    slope = (softmax(features @ weight.T + bias, axis=1) - 1 / len(weight)) @ weight
    return expit(steepness * features * slope)


def bin_edges(number: int, base: float = 1000.0) -> Any:
    """Return the lower edges of the bins in [0, 1], denser towards the middle, as in the authors' implementation.

    The last bin of the authors begins at 1.01, so that a state of exactly 1 shares a bin with the states just below 1.
    No state falls into their last bin, which is left out here.
    """
    lower = np.log(np.linspace(1, np.sqrt(base), number // 2)) / np.log(base)
    return np.concatenate((lower[:-1], (1 - lower)[:0:-1]))
