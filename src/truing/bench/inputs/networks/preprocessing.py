"""Preprocessing of images: resize to the network's size, then normalise.

Images are uint8 (h, w, 3). Means and standard deviations are for pixels in [0, 1].
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
Fit = Callable[[Picture, int], Picture]
Colour = tuple[float, float, float]

# The share of the shorter side that EfficientNet's ImageNet evaluation keeps.
_CENTRE = 0.875


@dataclass(frozen=True)
class Preprocessing:
    """The side length of a network's images, how to fit other images (a name in `FITS`), and the normalisation."""

    size: int
    fit: str
    mean: Colour
    std: Colour

    def normalised(self, pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return normalised images (n, 3, h, w) from uint8 images (n, h, w, 3).

        >>> half = Preprocessing(1, "as-is", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        >>> half.normalised(np.full((1, 1, 1, 3), 255, np.uint8)).ravel()
        array([1., 1., 1.], dtype=float32)
        """
        mean, std = (np.asarray(colour, np.float32) for colour in (self.mean, self.std))
        scaled = (pictures.astype(np.float32) / np.float32(255) - mean) / std
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def as_is(picture: Picture, size: int) -> Picture:
    """Return the image unchanged."""
    return picture


def shorter(picture: Picture, size: int) -> Picture:
    """Resize the shorter side to `size` (bilinear), then crop the centre, as for Textures and Places at 32 pixels."""
    height, width = picture.shape[:2]
    if (height, width) == (size, size):
        return picture
    short = min(height, width)
    height, width = size * height // short, size * width // short
    return _centre(_resized(picture, height, width, "BILINEAR"), size)


def stretch(picture: Picture, size: int) -> Picture:
    """Resize both sides to `size` (bilinear) without a crop, as for BiT at 480 pixels."""
    return picture if picture.shape[:2] == (size, size) else _resized(picture, size, size, "BILINEAR")


def crop(picture: Picture, size: int) -> Picture:
    """Crop the centre 0.875 of the shorter side, then resize to `size` (bicubic), as for EfficientNet at 224 pixels."""
    return _resized(_centre(picture, max(1, int(_CENTRE * min(picture.shape[:2])))), size, size, "BICUBIC")


FITS: dict[str, Fit] = {"as-is": as_is, "shorter": shorter, "stretch": stretch, "crop": crop}


def _centre(picture: Picture, size: int) -> Picture:
    # Round half to even, as the centre crop of the paper's experiments does.
    top, left = (round((side - size) / 2) for side in picture.shape[:2])
    return picture[top : top + size, left : left + size]


def _resized(picture: Picture, height: int, width: int, filter_name: str) -> Picture:
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(picture))
    return np.asarray(image.resize((width, height), Image.Resampling[filter_name]))
