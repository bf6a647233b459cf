"""SciPy's linear algebra, imported on first use because the import takes longer than the rest of truing."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def __getattr__(name: str) -> Any:
    import scipy.linalg

    globals()[name] = value = getattr(scipy.linalg, name)
    return value


def leading_eigenvectors(square: Floats, k: int) -> tuple[Floats, Floats]:
    """Return the k largest eigenvalues of a symmetric matrix (d, d), ascending, and their vectors (d, k)."""
    from scipy.linalg import eigh

    d = len(square)
    values, vectors = eigh(square, subset_by_index=(d - k, d - 1))
    if len(values) < k:  # LAPACK's routine for a subset can drop copies of a repeated eigenvalue.
        values, vectors = eigh(square, driver="evd")
        values, vectors = values[-k:], vectors[:, -k:]
    return values, vectors
