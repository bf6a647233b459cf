"""The two fits of the paper: direct (DLR) and robust (RLR). Both return a `LinearFit` to score rows with."""

from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import ArrayLike

from ._check import (
    Bools,
    Floats,
    Matrix,
    as_count,
    as_matrix,
    as_number,
    as_share,
    as_vector,
    check_same_rows,
)
from .moments import LinearFit, Moments
from .robust import Rows, huber_rows

# Unit rows are made this many at a time for their moments.
_ROWS_AT_ONCE = 4096


def fit_direct(
    features: ArrayLike, scores: ArrayLike, *, intercept: bool = True, components: int | None = None
) -> LinearFit:
    """Return the least-squares fit of the scores on the features: DLR (Eq. 10), the pseudo-inverse exactly.

    >>> fit_direct([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).coef.round(6)
    array([2.])
    """
    matrix, vector = _as_pair(features, scores, components)
    return Moments.of(matrix, vector).solve(intercept, components)


def fit_robust(
    features: ArrayLike,
    scores: ArrayLike,
    *,
    keep: float = 0.8,
    penalty: float = 1e-5,
    intercept: bool = True,
    components: int | None = None,
) -> LinearFit:
    """Return the least-squares fit of the rows that a robust regression trusts most: RLR (Algorithm 2).

    `keep` = 1 is `fit_direct`. With `components` the basis comes from all rows, the regression from the
    trusted ones.

    >>> fit_robust([[0.0], [1.0], [2.0], [3.0], [4.0]], [1.0, 3.0, 5.0, 7.0, -9.0]).coef.round(6)
    array([2.])
    """
    matrix, vector = _as_pair(features, scores, components)
    trusted = trusted_rows(matrix, vector, keep=keep, penalty=penalty, intercept=intercept, components=components)
    principal = None if components is None else Moments.of(matrix, vector).principal(components)
    return Moments.of(matrix[trusted], vector[trusted]).solve_within(principal, intercept=intercept)


def trusted_rows(
    features: ArrayLike,
    scores: ArrayLike,
    *,
    keep: float = 0.8,
    penalty: float = 1e-5,
    intercept: bool = True,
    components: int | None = None,
) -> Bools:
    r"""Return which rows RLR keeps (n,): the share with the smallest $|\gamma_i|$ (Eq. 15, Algorithm 2).

    Features are scaled to unit norm (rows of zeros stay zero) and, with `components`, reduced by a centred
    PCA. Ties in $|\gamma|$ go to the smaller |residual|, and then to the smaller score: never to row order.
    """
    matrix, vector = _as_pair(features, scores, components)
    penalty = as_number(penalty, "penalty", above=0.0)
    count = int(as_share(keep, "keep") * len(matrix) + 1e-9)
    if count < 1:
        raise ValueError(f"keep must leave at least one of {len(matrix)} rows, got {keep}")
    trusted = np.ones(len(matrix), dtype=np.bool_)
    if count < len(matrix):
        rows = Rows.unit(matrix) if components is None else _reduced(Rows.unit(matrix), vector, components)
        robust = huber_rows(rows, vector, penalty, intercept=intercept)
        order = np.lexsort((vector, np.abs(robust.residual), np.abs(robust.gamma)))
        trusted[order[count:]] = False
    return trusted


def _reduced(rows: Rows, scores: Floats, components: int) -> Rows:
    """Return the rows' coordinates in their own leading principal components, about their mean."""
    parts = np.array_split(np.arange(len(scores)), -(-len(scores) // _ROWS_AT_ONCE))
    principal = reduce(add, (Moments.of(rows.take(part), scores[part]) for part in parts)).principal(components)
    return replace(rows, origin=principal.origin).onto(principal.basis)


def _as_pair(features: ArrayLike, scores: ArrayLike, components: int | None) -> tuple[Matrix, Floats]:
    matrix, vector = as_matrix(features, "features"), as_vector(scores, "scores")
    check_same_rows(features=matrix, scores=vector)
    if components is not None:
        as_count(components, "components", at_most=min(matrix.shape))
    return matrix, vector
