"""Fits of rows in memory: DLR (`fit_direct`), and the steps of RLR. `fit_robust` is in robust.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import Bools, Floats, Matrix, as_count, as_matrix, as_share, as_vector, check_same_rows, slices
from .._threads import add_blocks, map_blocks
from .huber import HuberFit, Rows, huber_rows
from .least_squares import LinearFit
from .moments import Moments, PrincipalComponents

# The default share of rows that RLR trusts, as in the paper.
KEEP = 0.8

# Residuals are tied if they round to the same multiple of a unit. The unit is the larger of _TIE_SHARE_OF_SPREAD times
# the spread of the scores and _TIE_SHARE_OF_SCORES times their size, which is about the rounding error of a residual.
_TIE_SHARE_OF_SPREAD = 1e-9
_TIE_SHARE_OF_SCORES = 2.0**-46


def fit_direct(
    features: ArrayLike, scores: ArrayLike, *, intercept: bool = True, components: int | None = None
) -> LinearFit:
    """Return the minimum-norm least-squares fit of the scores on the features: DLR (Eq. 10).

    >>> fit_direct([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).coef.round(6)
    array([2.])
    """
    matrix, vector = as_pair(features, scores, components)
    return Moments.of(matrix, vector).solve(intercept, components)


@dataclass(frozen=True, eq=False)
class SharedFeatures:
    """Checked features (n, d) whose principal components are computed once for fits of several scores (n,)."""

    matrix: Matrix
    components: int | None = None

    def fit_direct(self, scores: Floats, *, intercept: bool = True) -> LinearFit:
        """Return the result of `fit_direct` for these features."""
        return self._of_features(Moments.of(self._regressors, scores).solve(intercept))

    def fit_robust_sweep(
        self, scores: Floats, keeps: Sequence[float], *, penalty: float = 1e-5, intercept: bool = True
    ) -> list[LinearFit]:
        """Return the result of `fit_robust` for these features and every share of rows to keep.

        Larger sets of kept rows contain the smaller ones, so only the moments of the additional rows are computed.
        """
        counts = [kept_rows(keep, len(self.matrix)) for keep in keeps]
        order = np.arange(len(self.matrix))
        if min(counts, default=len(order)) < len(order):
            order = self.trust_order(scores, penalty=penalty, intercept=intercept)
        fits: dict[int, LinearFit] = {}
        moments, done = None, 0
        for count in sorted(set(counts)):
            part = np.sort(order[done:count])
            more = Moments.of(self._regressors[part], scores[part])
            moments, done = more if moments is None else moments + more, count
            fits[count] = self._of_features(moments.solve(intercept))
        return [fits[count] for count in counts]

    def trust_order(self, scores: Floats, *, penalty: float = 1e-5, intercept: bool = True) -> NDArray[np.intp]:
        """Return the result of `trust_order` for these features."""
        residual = self._robust_fit(scores, penalty, intercept).residual
        return order_by_size(self.matrix, scores, in_tie_units(np.abs(residual), *tie_units(scores)))

    def robust_coefficients(self, scores: Floats, *, penalty: float, intercept: bool) -> tuple[Floats, float]:
        """Return the coefficients (d,) and the intercept of the robust regression, for rows of unit norm."""
        fit = self._robust_fit(scores, penalty, intercept)
        if self._unit_components is None:
            return fit.coef, fit.intercept
        coef = self._unit_components.basis @ fit.coef
        return coef, fit.intercept - float(self._unit_components.origin @ coef)

    def _robust_fit(self, scores: Floats, penalty: float, intercept: bool) -> HuberFit:
        try:
            return huber_rows(self._unit_rows, scores, penalty, intercept=intercept)
        except ArithmeticError as error:
            raise ArithmeticError(
                f"the robust regression did not converge; use a larger penalty, or fit_direct: {error}"
            ) from None

    @cached_property
    def _principal_components(self) -> PrincipalComponents | None:
        if self.components is None:
            return None
        return principal_components(self.matrix, self.components)

    @cached_property
    def _regressors(self) -> Matrix:
        """The features or, with components, their principal coordinates (n, k)."""
        if self._principal_components is None:
            return self.matrix
        return coordinates(Rows(self.matrix), self._principal_components)

    @cached_property
    def _unit_components(self) -> PrincipalComponents | None:
        """The principal components of the rows scaled to unit norm."""
        if self.components is None:
            return None
        return moments_of_rows(Rows.unit(self.matrix)).principal_components(self.components)

    @cached_property
    def _unit_rows(self) -> Rows:
        """The rows scaled to unit norm and, with components, reduced to their principal coordinates."""
        unit, principal = Rows.unit(self.matrix), self._unit_components
        return unit if principal is None else Rows(coordinates(unit, principal))

    def _of_features(self, fit: LinearFit) -> LinearFit:
        """Return a fit of the regressors as a fit of the features."""
        return fit if self._principal_components is None else of_features(fit, self._principal_components)


def principal_components(features: Matrix, components: int) -> PrincipalComponents:
    """Return the leading principal components of the features."""
    return Moments.of(features, np.zeros(len(features))).principal_components(components)


def moments_of_rows(rows: Rows) -> Moments:
    """Return the moments of rows with scores of zero, read in blocks that are added in order."""
    n, d = rows.features.shape
    total: Moments | None = None

    def moments_of_block(where: slice) -> Moments:
        return Moments.of(rows.read(where), np.zeros(where.stop - where.start))

    def add(more: Moments) -> None:
        nonlocal total
        total = more if total is None else total + more

    # Blocks of at least d + 2 rows compute co-moments on all threads, and the calling thread only adds them.
    add_blocks(moments_of_block, slices(n, max(rows.block_size, d + 2)), add)
    assert total is not None
    return total


def coordinates(rows: Rows, principal: PrincipalComponents) -> Floats:
    """Return the coordinates (n, k) of the rows in principal components."""
    blocks = map_blocks(lambda where: (rows.read(where) - principal.origin) @ principal.basis, rows.blocks())
    return np.concatenate(blocks)


def of_features(fit: LinearFit, principal: PrincipalComponents) -> LinearFit:
    """Return a fit of coordinates in principal components as a fit of the features."""
    coef = principal.basis @ fit.coef
    return replace(fit, coef=coef, intercept=fit.intercept - float(principal.origin @ coef))


def order_by_size(matrix: Matrix, scores: Floats, size: Floats) -> NDArray[np.intp]:
    """Return the rows (n,) by ascending size of their residuals, in tie units.

    Rows of the same size are ordered by descending score, and rows that also have the same score by their features.
    """
    order = np.argsort(size)
    ties = np.diff(size[order]) == 0
    if ties.any():
        order = _sorted_within(ties, order, -scores[:, None])
        ties &= np.diff(scores[order]) == 0
    if ties.any():
        order = _sorted_within(ties, order, matrix)
    return order


def _sorted_within(ties: Bools, order: NDArray[np.intp], keys: Matrix) -> NDArray[np.intp]:
    """Return the order with tied rows sorted by keys (n, k); `ties` (n - 1,) says which rows tie with the next."""
    group = np.concatenate(([0], np.cumsum(~ties)))
    tied = np.flatnonzero(np.concatenate((ties, [False])) | np.concatenate(([False], ties)))
    by_keys = np.lexsort((*keys[order[tied]].T[::-1], group[tied]))
    sorted_order = order.copy()
    sorted_order[tied] = order[tied][by_keys]
    return sorted_order


def tie_units(scores: Floats) -> tuple[int, float]:
    """Return the exponent e of the power of two that scales the scores, and the unit of ties in scaled scores.

    Residuals are tied if they are equal when rounded to this unit. The unit is computed from medians, so
    outliers hardly change it: the median nonzero deviation from the median score, and the median size of the scores.
    """
    exponent = -int(np.frexp(np.abs(scores).max())[1])
    scaled = np.ldexp(scores, exponent)
    deviation = np.abs(scaled - np.median(scaled))
    varied = deviation[deviation > 0]
    spread = float(np.median(varied)) if len(varied) else 0.0
    size = float(np.median(np.abs(scaled)))
    return exponent, max(_TIE_SHARE_OF_SPREAD * spread, _TIE_SHARE_OF_SCORES * size) or 1.0


def in_tie_units(size: Floats, exponent: int, width: float) -> Floats:
    """Return the sizes as whole numbers of tie units."""
    whole: Floats = np.round(np.ldexp(size, exponent) / width)
    return whole


def kept_rows(keep: float, rows: int) -> int:
    """Return the number of rows to keep, floor(keep · rows); raise a ValueError if it is 0."""
    count = int(as_share(keep, "keep") * rows + 1e-9)
    if count < 1:
        raise ValueError(f"keep must keep at least one of {rows} rows, got {keep}")
    return count


def as_pair(features: ArrayLike, scores: ArrayLike, components: int | None) -> tuple[Matrix, Floats]:
    """Return checked features (n, d) and scores (n,)."""
    matrix, vector = as_matrix(features, "features"), as_vector(scores, "scores")
    check_same_rows(features=matrix, scores=vector)
    if components is not None and as_count(components, "components") > min(matrix.shape):
        raise ValueError(
            f"components must be at most {min(matrix.shape)} for features of shape {matrix.shape}, got {components}"
        )
    return matrix, vector
