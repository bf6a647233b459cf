"""Principal axes of features and kernel densities of scores, for figures."""

import numpy as np

from .._check import Floats

GRID = 101  # Number of points at which a density is evaluated.


def principal_axes(features: Floats, count: int) -> tuple[Floats, Floats]:
    """Return the leading `count` principal coordinates (n, count) and the share of the variance of each."""
    centred = features - features.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    leading = slice(-1, -1 - count, -1)
    return centred @ vectors[:, leading], values[leading] / values.sum()


def kernel_density(scores: Floats, grid: Floats) -> Floats:
    """Return the Gaussian kernel density estimate at each point of a grid, with the bandwidth of Scott's rule.

    If all scores are equal, the bandwidth is one step of the grid.

    >>> kernel_density(np.array([-1.0, 1.0]), np.array([0.0])).round(3)
    array([0.233])
    """
    spread = float(scores.std(ddof=1)) if len(scores) > 1 else 0.0
    width = len(scores) ** -0.2 * spread or float(np.ptp(grid)) / max(len(grid) - 1, 1) or 1.0
    heights = [np.exp(-0.5 * ((place - scores) / width) ** 2).mean() for place in grid]
    density: Floats = np.array(heights) / (width * np.sqrt(2 * np.pi))
    return density
