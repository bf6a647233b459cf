"""SVHN's cropped digits, in the official MATLAB file: `X` is (32, 32, 3, n), and label 10 means zero."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import loadmat

from .images import Images, Labels


def svhn(path: Path) -> Images:
    """Return the images of a `.mat` file with labels 0 to 9."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        arrays = loadmat(path, variable_names=("X", "y"))
        pictures, digits = arrays["X"], _digits(arrays["y"].ravel())
    except Exception as error:  # A damaged file may raise any exception.
        raise ValueError(f"{path} must be SVHN's file of cropped digits, with X and y: {error}") from None
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[2] != 3:
        raise ValueError(f"{path} must contain X of uint8 (h, w, 3, n), got {pictures.dtype} {pictures.shape}")
    return Images(np.moveaxis(pictures, -1, 0), digits)


def _digits(labels: NDArray[Any]) -> Labels:
    if labels.dtype.kind not in "iuf" or not np.isin(labels, np.arange(11)).all() or {0, 10} <= set(labels.tolist()):
        raise ValueError("y must be whole numbers from 1 to 10, or from 0 to 9")
    digits: Labels = labels.astype(np.int64) % 10
    return digits
