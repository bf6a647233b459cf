"""A linear fit: what every regression here comes to, and all that is needed to score rows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ._check import Floats, as_matrix_of_any, blocks, check_finite


@dataclass(frozen=True, eq=False)
class LinearFit:
    r"""A linear map from features to a trued score, $z^\top$ `coef` + `intercept` (Eq. 12).

    `rows` is the weight of the rows behind it, `rank` the number of directions it uses, and `explained` the
    share of those rows' score variance that it accounts for.
    """

    coef: Floats
    intercept: float
    rows: float
    rank: int
    explained: float

    def predict(self, features: ArrayLike) -> Floats:
        """Return the trued score of every row (n,)."""
        matrix = as_matrix_of_any(features, "features")
        if matrix.shape[1] != len(self.coef):
            raise ValueError(f"features must have {len(self.coef)} columns, as the fit has, got {matrix.shape[1]}")
        scores = np.empty(len(matrix))
        for rows, block in blocks(matrix):
            # Not BLAS, whose last bit depends on a row's neighbours: equal rows must tie.
            np.einsum("ij,j->i", np.ascontiguousarray(block), self.coef, out=scores[rows])
        if not np.isfinite(scores).all():
            check_finite(matrix, "features")
        scores += self.intercept
        return scores
