"""`FoldedCovariance`: ridge-regularised covariances of reference rows, with and without each fold, factored once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _linalg
from .._blas import one_thread
from .._check import Floats, Matrix
from .._threads import map_blocks
from ..regression.least_squares import row_products

FOLDS = 5

# The lower bound on the standard deviation of a standardised column in four folds. If the deviation is smaller, the
# variance of the column comes from a few rows of the left-out fold.
_LEAST_DEVIATION = 0.5

# The ridge, as a multiple of the sampling error of a covariance.
_RIDGE = 1.5


def folds_of(features: Matrix, scores: Floats) -> NDArray[np.intp]:
    """Return the fold (n,) of each row: rows are sorted by base score and dealt to the folds in turn.

    Rows with equal scores are sorted by a product of their features, so the order of the input does not matter.
    """
    tie_breaks = row_products(features, np.cos(np.arange(1, features.shape[1] + 1)))
    folds = np.empty(len(scores), dtype=np.intp)
    folds[np.lexsort((tie_breaks, scores))] = np.arange(len(scores)) % FOLDS
    return folds


@dataclass(frozen=True, eq=False)
class FoldedCovariance:
    r"""Solves $(S + \rho D)\,w = v$, where S is the covariance of all folds but one, or of all rows.

    D is the diagonal of S, with entries of at least ¼, and $\rho = 1.5 \sqrt{d / m}$, so each solution is a ridge
    regression on columns that are standardised over the rows in use. With fewer rows than columns, the systems are
    solved through the m × m Gram matrix.
    """

    folds: NDArray[np.intp]
    solvers: tuple[_ThroughColumns | _ThroughRows, ...]

    @classmethod
    def of(cls, features: Matrix, scores: Floats) -> FoldedCovariance:
        """Return the factored covariances of reference rows, from standardised features (m, d) and scores (m,)."""
        folds = folds_of(features, scores)
        varying = int(np.count_nonzero(features.any(axis=0)))  # Constant columns do not add to the ridge.
        used = [folds != fold for fold in range(FOLDS + 1)]  # No row is in fold 5, so the last system uses all rows.
        if len(features) < features.shape[1]:
            return cls(folds, tuple(map_blocks(lambda rows: _ThroughRows.of(features[rows], varying), used)))
        fold_products = map_blocks(lambda fold: features[folds == fold].T @ features[folds == fold], range(FOLDS))
        whole = sum(fold_products)

        def solver(k: int) -> _ThroughColumns:
            products = whole - fold_products[k] if k < FOLDS else whole
            return _ThroughColumns.of(products, features[used[k]].mean(axis=0), int(used[k].sum()), varying)

        return cls(folds, tuple(map_blocks(solver, range(FOLDS + 1))))

    def solve(self, vectors: Floats) -> Floats:
        """Return the solution (d, k) for each column of `vectors`.

        Column k is solved without fold k, and the last column with all folds.
        """
        with one_thread():
            return np.column_stack([solver.solve(vectors[:, k]) for k, solver in enumerate(self.solvers)])


@dataclass(frozen=True, eq=False)
class _ThroughColumns:
    """Solves through the Cholesky factor of the d × d covariance of columns divided by `unit` (d,)."""

    factor: Any
    unit: Floats

    @classmethod
    def of(cls, products: Floats, mean: Floats, rows: int, varying: int) -> _ThroughColumns:
        covariance = products / rows - np.outer(mean, mean)
        unit = np.maximum(np.sqrt(np.maximum(np.diagonal(covariance), 0.0)), _LEAST_DEVIATION)
        covariance /= np.outer(unit, unit)
        covariance[np.diag_indices(len(covariance))] += _ridge(rows, varying)
        return cls(_linalg.cho_factor(covariance, lower=True, overwrite_a=True), unit)

    def solve(self, vector: Floats) -> Floats:
        return np.asarray(_linalg.cho_solve(self.factor, vector / self.unit)) / self.unit


@dataclass(frozen=True, eq=False)
class _ThroughRows:
    """Solves through the Cholesky factor of the m × m Gram matrix of centred rows (m, d) divided by `unit` (d,)."""

    factor: Any
    rows: Floats
    unit: Floats
    ridge: float

    @classmethod
    def of(cls, features: Matrix, varying: int) -> _ThroughRows:
        rows = features - features.mean(axis=0)
        unit = np.maximum(np.sqrt(np.einsum("ij,ij->j", rows, rows) / len(rows)), _LEAST_DEVIATION)
        rows /= unit
        ridge = _ridge(len(rows), varying)
        gram = rows @ rows.T
        gram[np.diag_indices(len(gram))] += len(rows) * ridge
        return cls(_linalg.cho_factor(gram, lower=True, overwrite_a=True), rows, unit, ridge)

    def solve(self, vector: Floats) -> Floats:
        scaled = vector / self.unit
        inside = self.rows.T @ _linalg.cho_solve(self.factor, self.rows @ scaled)
        solution: Floats = (scaled - inside) / (self.ridge * self.unit)
        return solution


def _ridge(rows: int, columns: int) -> float:
    return _RIDGE * float(np.sqrt(max(columns, 1) / rows))
