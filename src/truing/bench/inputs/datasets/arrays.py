"""Images in an `.npz` file: `images`, uint8 (n, h, w, 3), and optional `labels` (n,)."""

from pathlib import Path

import numpy as np

from ....data.npz import read_npz
from .images import Images


def npz(path: Path) -> Images:
    """Return the images in an `.npz` file."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    arrays = read_npz(path)
    if "images" not in arrays:
        raise ValueError(f"{path} must contain images, got {', '.join(arrays) or 'nothing'}")
    pictures, labels = arrays["images"], arrays.get("labels")
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[3] != 3:
        raise ValueError(f"{path} must contain images of uint8 (n, h, w, 3), got {pictures.dtype} {pictures.shape}")
    if labels is not None and labels.dtype.kind not in "iu":
        raise ValueError(f"{path} must contain integers as labels, got {labels.dtype}")
    return Images(pictures, labels)
