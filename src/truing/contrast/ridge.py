"""`FoldedCovariance`: regularised covariances of reference rows, of all rows and of all but one fold, factored once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .. import _linalg
from .._blas import one_thread
from .._check import Floats
from .._threads import map_blocks
from ..regression.least_squares import row_products

FOLDS = 5

# The ridge in units of the sampling error of a covariance.
_RIDGE = 1.5


def folds_of(features: Floats, scores: Floats) -> NDArray[np.intp]:
    """Return the fold (n,) of each row. Every fifth row by base score is in the same fold, in any order of the rows.

    Rows with equal scores are ordered by a product of their features.
    """
    tie_breaks = row_products(features, np.cos(np.arange(1, features.shape[1] + 1)))
    folds = np.empty(len(scores), dtype=np.intp)
    folds[np.lexsort((tie_breaks, scores))] = np.arange(len(scores)) % FOLDS
    return folds


@dataclass(frozen=True, eq=False)
class FoldedCovariance:
    r"""Solves $(S + 1.5 \sqrt{d / m}\,I)\,w = v$ for S over all folds but one, and over all rows.

    With fewer rows than columns the systems are solved through the m × m products of rows.
    """

    folds: NDArray[np.intp]
    solvers: tuple[Callable[[Floats], Floats], ...]

    @classmethod
    def of(cls, features: Floats, scores: Floats) -> FoldedCovariance:
        """Return the factored covariances of reference rows, from standardised features (m, d) and scores (m,)."""
        folds = folds_of(features, scores)
        varying = int(np.count_nonzero(features.any(axis=0)))  # Constant columns do not add to the ridge.
        used = [folds != fold for fold in range(FOLDS)] + [np.ones(len(features), dtype=np.bool_)]
        if len(features) < features.shape[1]:
            with one_thread():
                gram = features @ features.T
            solvers = map_blocks(lambda some: _through_rows(features[some], gram[np.ix_(some, some)], varying), used)
        else:
            parts = map_blocks(lambda fold: features[folds == fold].T @ features[folds == fold], range(FOLDS))
            whole = sum(parts)
            left = [*(whole - part for part in parts), whole]
            solvers = map_blocks(lambda k: _through_columns(left[k], int(used[k].sum()), varying), range(FOLDS + 1))
        return cls(folds, tuple(solvers))

    def solve(self, vectors: Floats) -> Floats:
        """Return the solution (d, k) for each column; column k belongs to the fit without fold k."""
        with one_thread():
            return np.column_stack([solver(vectors[:, k]) for k, solver in enumerate(self.solvers)])


def _through_columns(products: Floats, rows: int, varying: int) -> Callable[[Floats], Floats]:
    covariance = products / rows
    covariance[np.diag_indices(len(covariance))] += _ridge(rows, varying)
    factor = _linalg.cho_factor(covariance, lower=True)
    return lambda vector: np.asarray(_linalg.cho_solve(factor, vector))


def _through_rows(features: Floats, gram: Floats, varying: int) -> Callable[[Floats], Floats]:
    ridge = _ridge(len(features), varying)
    regularised = gram + len(features) * ridge * np.eye(len(features))
    factor = _linalg.cho_factor(regularised, lower=True)
    return lambda vector: (vector - features.T @ _linalg.cho_solve(factor, features @ vector)) / ridge


def _ridge(rows: int, columns: int) -> float:
    return _RIDGE * float(np.sqrt(max(columns, 1) / rows))
