"""Warnings about images that look unprepared: raw bytes, pixels up to 255, channels last."""

from collections.abc import Sequence

from ._warnings import warn

_CHANNELS = (1, 3, 4)

# Normalised pixels stay below this value.
_LARGEST_NORMALISED = 10.0


def warn_of_layout(shape: Sequence[int]) -> None:
    """Warn if images for a torch model (n, channels, height, width) look like (n, height, width, channels)."""
    if shape[3] in _CHANNELS and shape[1] not in _CHANNELS and shape[2] not in _CHANNELS:
        warn(
            f"images of shape {tuple(shape)} look like (n, height, width, channels), but torch models expect "
            "(n, channels, height, width): use images.permute(0, 3, 1, 2)"
        )


def warn_of_pixels(largest: float, *, is_uint8: bool) -> None:
    """Warn if pixels look unprepared. `largest` is the smallest, over all images, of the largest pixel of an image."""
    if is_uint8:
        warn("images are uint8: unless the model scales them itself, prepare them as the training images were")
    elif largest > _LARGEST_NORMALISED:
        warn(
            f"every image has a value of {largest:g} or more, so the pixels may not be normalised: unless the model "
            "does that itself, prepare them as the training images were"
        )
