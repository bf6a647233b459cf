"""The two fits of the paper: direct (DLR) and robust (RLR). Both return a `LinearFit` to score rows with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import Floats, Matrix, as_count, as_matrix, as_share, as_vector, check_same_rows
from .huber_regression import huber_rows
from .least_squares import LinearFit
from .moments import Moments, PrincipalComponents
from .rows import Rows

# The share of rows that RLR trusts where none is given, as in the paper.
KEEP = 0.8

# Residuals that differ by less than this share of the scores' usual spread are equal,
_TIE_SHARE_OF_SPREAD = 1e-9
# and so are those that differ by less than this share of the scores themselves: rounding adds as much.
_TIE_SHARE_OF_SCORES = 2.0**-46


def fit_direct(
    features: ArrayLike, scores: ArrayLike, *, intercept: bool = True, components: int | None = None
) -> LinearFit:
    """Return the least-squares fit of the scores on the features: DLR (Eq. 10), of minimum norm.

    >>> fit_direct([[0.0], [1.0], [2.0]], [1.0, 3.0, 5.0]).coef.round(6)
    array([2.])
    """
    matrix, vector = _as_pair(features, scores, components)
    return Moments.of(matrix, vector).solve(intercept, components)


def fit_robust(
    features: ArrayLike,
    scores: ArrayLike,
    *,
    keep: float = KEEP,
    penalty: float = 1e-5,
    intercept: bool = True,
    components: int | None = None,
) -> LinearFit:
    """Return the least-squares fit of the rows that a robust regression trusts most: RLR (Eq. 16, Algorithm 2).

    `keep` = 1 is `fit_direct`. With `components` the basis comes from all rows, the regression from the
    trusted ones.

    >>> fit_robust([[0.0], [1.0], [2.0], [3.0], [4.0]], [1.0, 3.0, 5.0, 7.0, -9.0]).coef.round(6)
    array([2.])
    """
    sweep = fit_robust_sweep(features, scores, [keep], penalty=penalty, intercept=intercept, components=components)
    return sweep[0]


def fit_robust_sweep(
    features: ArrayLike,
    scores: ArrayLike,
    keeps: Sequence[float],
    *,
    penalty: float = 1e-5,
    intercept: bool = True,
    components: int | None = None,
) -> list[LinearFit]:
    """Return `fit_robust` for each kept share, at the cost of about one."""
    matrix, vector = _as_pair(features, scores, components)
    return SharedFeatures(matrix, components).fit_robust_sweep(vector, keeps, penalty=penalty, intercept=intercept)


def trust_order(
    features: ArrayLike,
    scores: ArrayLike,
    *,
    penalty: float = 1e-5,
    intercept: bool = True,
    components: int | None = None,
) -> NDArray[np.intp]:
    r"""Return the rows (n,) from the most to the least trusted: by $|\gamma_i|$ (Eq. 15, Algorithm 2).

    Features are scaled to unit norm (rows of zeros stay zero) and, with `components`, reduced by a centred PCA.
    Ties in $|\gamma|$ go to the smaller |residual|, which $|\gamma|$ never falls with; equal residuals, up to
    rounding, to the higher score, and then to the smaller features: never to row order.
    """
    matrix, vector = _as_pair(features, scores, components)
    return SharedFeatures(matrix, components).trust_order(vector, penalty=penalty, intercept=intercept)


@dataclass(frozen=True, eq=False)
class SharedFeatures:
    """Features (n, d), checked, whose principal components are found once for the fits of several scores (n,)."""

    matrix: Matrix
    components: int | None = None

    def fit_direct(self, scores: Floats, *, intercept: bool = True) -> LinearFit:
        """Return `fit_direct` of these features."""
        return self._of_features(Moments._of_rows(Rows(self._regressors), scores).solve(intercept))

    def fit_robust_sweep(
        self, scores: Floats, keeps: Sequence[float], *, penalty: float = 1e-5, intercept: bool = True
    ) -> list[LinearFit]:
        """Return `fit_robust` of these features for each kept share: kept sets are nested, so moments add up."""
        counts = [kept_rows(keep, len(self.matrix)) for keep in keeps]
        order = np.arange(len(self.matrix))
        if min(counts, default=len(order)) < len(order):
            order = self.trust_order(scores, penalty=penalty, intercept=intercept)
        fits: dict[int, LinearFit] = {}
        moments, done = None, 0
        for count in sorted(set(counts)):
            part = np.sort(order[done:count])
            more = Moments._of_rows(Rows(self._regressors[part]), scores[part])
            moments, done = more if moments is None else moments + more, count
            fits[count] = self._of_features(moments.solve(intercept))
        return [fits[count] for count in counts]

    def trust_order(self, scores: Floats, *, penalty: float = 1e-5, intercept: bool = True) -> NDArray[np.intp]:
        """Return `trust_order` of these features."""
        try:
            robust = huber_rows(self._unit_rows, scores, penalty, intercept=intercept)
        except ArithmeticError as error:
            raise ArithmeticError(
                f"RLR cannot tell which rows to trust, try a larger penalty or fit_direct: {error}"
            ) from None
        return _order(self.matrix, scores, np.abs(robust.residual))

    @cached_property
    def _principal_components(self) -> PrincipalComponents | None:
        return None if self.components is None else _principal_components(Rows(self.matrix), self.components)

    @cached_property
    def _regressors(self) -> Matrix:
        """What scores are regressed on: the features, or with components the coordinates (n, k) about their mean."""
        if self._principal_components is None:
            return self.matrix
        return (
            Rows(self.matrix).about(self._principal_components.origin).onto(self._principal_components.basis).features
        )

    @cached_property
    def _unit_rows(self) -> Rows:
        """The rows scaled to unit norm and, with components, reduced to their own principal coordinates."""
        unit = Rows.unit(self.matrix)
        if self.components is None:
            return unit
        principal = _principal_components(unit, self.components)
        # Where all rows are one, nothing tells them apart but their scores.
        basis = principal.basis if principal.basis.size else np.zeros((len(principal.origin), 1))
        return unit.about(principal.origin).onto(basis)

    def _of_features(self, fit: LinearFit) -> LinearFit:
        """Return a fit of the regressors as one of the features."""
        return fit if self._principal_components is None else of_features(fit, self._principal_components)


def of_features(fit: LinearFit, principal: PrincipalComponents) -> LinearFit:
    """Return a fit of coordinates in principal components as one of the features."""
    coef = principal.basis @ fit.coef
    return replace(fit, coef=coef, intercept=fit.intercept - float(principal.origin @ coef))


def _principal_components(rows: Rows, components: int) -> PrincipalComponents:
    return Moments._of_rows(rows, np.zeros(len(rows.features)))._principal_components(components)


def _order(matrix: Matrix, scores: Floats, sizes: Floats) -> NDArray[np.intp]:
    """Return the rows from the smallest residual to the largest; ties as `trust_order` says."""
    size = in_tie_units(sizes, *_tie_units(scores))
    order = np.argsort(size)
    tied = np.diff(size[order]) == 0
    for keys in (-scores[:, None], matrix):
        if tied.any():
            group = np.concatenate(([0], np.cumsum(~tied)))
            some = np.flatnonzero(np.concatenate((tied, [False])) | np.concatenate(([False], tied)))
            by_keys = np.lexsort((*keys[order[some]].T[::-1], group[some]))
            order[some] = order[some][by_keys]
        tied &= np.diff(scores[order]) == 0
    return order


def _tie_units(scores: Floats) -> tuple[int, float]:
    """Return by what power of two the scores are scaled, and what counts as equal then: `tie_width`."""
    exponent = -int(np.frexp(np.abs(scores).max())[1])
    scaled = np.ldexp(scores, exponent)
    deviation = np.abs(scaled - np.median(scaled))
    varied = deviation[deviation > 0]
    spread = float(np.median(varied)) if len(varied) else 0.0
    return exponent, tie_width(spread, float(np.median(np.abs(scaled))))


def tie_width(spread: float, size: float) -> float:
    """Return what counts as equal at the scale of most scores and not of outliers.

    `spread` is the median of the deviations from the median score that are not zero, `size` that of the scores' sizes.
    """
    return max(_TIE_SHARE_OF_SPREAD * spread, _TIE_SHARE_OF_SCORES * size) or 1.0


def in_tie_units(size: Floats, exponent: int, width: float) -> Floats:
    """Return the sizes in whole numbers of what counts as equal."""
    whole: Floats = np.round(np.ldexp(size, exponent) / width)
    return whole


def kept_rows(keep: float, rows: int) -> int:
    """Return how many rows are kept of all, at least one."""
    count = int(as_share(keep, "keep") * rows + 1e-9)
    if count < 1:
        raise ValueError(f"keep must leave at least one of {rows} rows, got {keep}")
    return count


def _as_pair(features: ArrayLike, scores: ArrayLike, components: int | None) -> tuple[Matrix, Floats]:
    matrix, vector = as_matrix(features, "features"), as_vector(scores, "scores")
    check_same_rows(features=matrix, scores=vector)
    if components is not None:
        as_count(components, "components", at_most=min(matrix.shape))
    return matrix, vector
