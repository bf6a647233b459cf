"""Noise images. Every row has its own generator, so rows can be made in any order."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..networks.preprocessing import Picture
from .images import Images

# The paper gives no standard deviation for its Gaussian noise.
MEAN, SIGMA = 0.5, 1.0

SEEDS = 2**31

Noise = Callable[[int, int, np.random.Generator], Images]


def as_seed(value: int, name: str) -> int:
    """Return `value` as an integer that every generator accepts as a seed.

    >>> as_seed(7, "seed")
    7
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {type(value).__name__}")
    if not 0 <= value < SEEDS:
        raise ValueError(f"{name} must be at least 0 and below {SEEDS}, got {value}")
    return value


def uniform(rows: int, size: int, rng: np.random.Generator) -> Images:
    """Return square images with pixels uniform in [0, 1]."""
    return Images(_Noise(rows, size, _seed(rng), lambda generator, shape: generator.random(shape)))


def gaussian(rows: int, size: int, rng: np.random.Generator) -> Images:
    """Return square images with normal pixels of mean 0.5 and standard deviation 1, clipped to [0, 1]."""
    return Images(_Noise(rows, size, _seed(rng), lambda generator, shape: generator.normal(MEAN, SIGMA, shape)))


NOISES: dict[str, Noise] = {"uniform-noise": uniform, "gaussian-noise": gaussian}


@dataclass(frozen=True)
class _Noise:
    rows: int
    size: int
    seed: int
    draw: Callable[[np.random.Generator, tuple[int, int, int]], NDArray[np.float64]]

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Picture:
        values = self.draw(np.random.default_rng([self.seed, row]), (self.size, self.size, 3))
        picture: Picture = np.rint(255 * values.clip(0, 1)).astype(np.uint8)
        return picture


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**63))
