"""SVHN's cropped digits, in the official MATLAB file: `X` is (32, 32, 3, n), and label 10 stands for zero."""

from pathlib import Path

import numpy as np
from scipy.io import loadmat

from .images import Images


def svhn(path: Path) -> Images:
    """Return the digits of a `.mat` file, labelled 0 to 9."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        held = loadmat(path, variable_names=("X", "y"))
        pictures, digits = held["X"], held["y"].ravel()
    except Exception as error:  # A damaged file may raise anything.
        raise ValueError(f"{path} must be SVHN's file of cropped digits, with X and y: {error}") from None
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or pictures.shape[2] != 3:
        raise ValueError(f"{path} must hold X of uint8 (h, w, 3, n), got {pictures.dtype} {pictures.shape}")
    return Images(np.moveaxis(pictures, -1, 0), digits.astype(np.int64) % 10)
