"""Random crops and flips of training images."""

import numpy as np
from numpy.typing import NDArray

PADDING = 4


def augmented(pictures: NDArray[np.uint8], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return images (n, h, w, 3), shifted by up to four pixels over black, half of them mirrored."""
    count, height, width, _ = pictures.shape
    around = (PADDING, PADDING)
    padded = np.pad(pictures, ((0, 0), around, around, (0, 0)))
    top, left = rng.integers(2 * PADDING + 1, size=(2, count, 1))
    columns = np.arange(width)
    mirrored = np.where(rng.random((count, 1)) < 0.5, columns[::-1], columns)
    down, across = top + np.arange(height), left + mirrored
    moved: NDArray[np.uint8] = padded[np.arange(count)[:, None, None], down[:, :, None], across[:, None, :]]
    return moved
