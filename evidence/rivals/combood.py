"""CombOOD: Rajasekaran et al., COMBOOD: A Semiparametric Approach for Detecting OOD Data, SDM 2024, on one layer.

The score adds two log densities: a nonparametric one, from the distance to the 50th neighbour among reference rows, and
a Gaussian one, from the Mahalanobis distance of columns that a power transform makes symmetric. The authors take the
columns of the Gaussian from the extreme activations of all layers. Here they are the penultimate features, a variant in
the authors' code. The number of neighbours and the ridge of 1 are the authors' values.
"""

from typing import Any

import numpy as np
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PowerTransformer, StandardScaler

from .oodd import kth_largest, unit

NEIGHBOURS, RIDGE, ROWS_AT_ONCE = 50, 1.0, 1000


def combood(reference: Any, rows: Any) -> Any:
    """Return scores (n,) of rows (n, d), given reference rows (m, d)."""
    reference, rows = unit(reference), unit(rows)
    width = rows.shape[1]
    blocks = np.split(rows, range(ROWS_AT_ONCE, len(rows), ROWS_AT_ONCE))
    cosine = np.concatenate([kth_largest(block @ reference.T, NEIGHBOURS) for block in blocks])
    squared_distance = np.maximum(2 - 2 * cosine, np.finfo(float).tiny)
    transform = make_pipeline(StandardScaler(), PowerTransformer()).fit(reference)
    covariance = np.cov(transform.transform(reference), rowvar=False) + RIDGE * np.eye(width)
    whitened = np.linalg.solve(np.linalg.cholesky(covariance), transform.transform(rows).T)
    return -width * np.log(squared_distance) - (whitened**2).sum(axis=0)
