"""RLR of a stream: the last rows are held, and of those before them the sums of the ones that were trusted.

A row's trust depends on the fit of all rows, so RLR takes a second pass. A stream has none. In steps:

1. The rows of the last batches are held. Among these RLR is what it is for a batch: a Huber regression of them all, and
   the share `keep` with the smallest residuals is trusted (Algorithm 2).
2. Before a batch is added to more than `MOST_HELD` rows, the oldest leave until `FEWEST_HELD` are left. Those of them
   that are trusted then are added to the sums of trusted rows, and stay there.
3. The fit is that of these sums and of the held rows that are trusted now, by ridge regression: as if there were d
   more rows, whose features vary as among the trusted ones, but independently of one another and of the score. Few rows
   are fitted with less noise, and of many the ridge is a share d / n.
4. Shift and scale of the trued scores are those by which the trusted rows have mean 0 and spread 1. A batch is scored
   by the fit of its time, and of a score that crowds below 1, as MSP does, RLR's coefficients become smaller by orders
   of magnitude as rows come in: scores of different batches would not be on one scale.

Up to `MOST_HELD` rows and one batch, the trusted rows are those of RLR of all rows. Rows leave by what was known before
the batch at hand, so that its rows and those of a reference stand in the fit alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ._blas import one_thread
from ._check import Floats, Matrix, check_finite
from .fits import SharedFeatures, kept_rows
from .least_squares import LinearFit
from .moments import Moments, PrincipalComponents

# Rows that are held at least once so many were learned, and those above which some leave: among fewer, trust is chance
# (chosen on CIFAR-10 with ResNet-56, see docs/streams.md), and a regression of more takes longer.
FEWEST_HELD, MOST_HELD = 1000, 2000

# Trued scores that differ by less than this share of what they are sums of differ by rounding.
_ROUNDED_SHARE = 2.0**-46


@dataclass(frozen=True, eq=False)
class Batch:
    """Features (b, d) and base scores (b,) of some rows, which nobody else can change."""

    features: Matrix
    scores: Floats

    @classmethod
    def of(cls, features: Matrix, scores: Floats) -> Batch:
        """Return a copy of these rows."""
        batch = cls(np.array(features, order="C"), np.array(scores))
        check_finite(batch.features, "features")  # They may have changed since their check.
        return batch

    @classmethod
    def joined(cls, *batches: Batch) -> Batch:
        """Return all rows of these batches."""
        features = np.concatenate([batch.features for batch in batches])
        return cls(features, np.concatenate([batch.scores for batch in batches]))

    def __len__(self) -> int:
        return len(self.scores)

    def __getitem__(self, rows: slice | NDArray[np.intp]) -> Batch:
        return Batch(self.features[rows], self.scores[rows])

    def moments(self) -> Moments:
        """Return the moments of these rows."""
        return Moments.of(self.features, self.scores)


@dataclass(frozen=True)
class Trust:
    """How rows are told that are to be trusted: their share, and the shape of the regression."""

    keep: float
    intercept: bool
    components: int | None

    def trusted(self, rows: Batch) -> NDArray[np.intp]:
        """Return which of these rows are trusted, in their order."""
        count = kept_rows(max(self.keep, 1 / len(rows)), len(rows))
        if count == len(rows):
            return np.arange(count)
        features = SharedFeatures(rows.features, self.components)
        return np.sort(features.trust_order(rows.scores, intercept=self.intercept)[:count])


@dataclass(frozen=True, eq=False)
class RobustSums:
    """The batches that are `held`, the oldest first, and the moments of rows that have left.

    `left` are those of all rows that left, `trusted` of the trusted ones among them; None as long as there are none.
    They add up as moments do, and held rows stay held until more are learned.
    """

    held: tuple[Batch, ...]
    left: Moments | None = None
    trusted: Moments | None = None

    @property
    def rows(self) -> float:
        """The number of rows learned, trusted or not."""
        held = sum(map(len, self.held))
        return held if self.left is None else held + self.left.rows

    @property
    def dimensions(self) -> int:
        """Number of feature columns."""
        return int(self.held[0].features.shape[1])

    @property
    def mean(self) -> Floats:
        """Means (d + 1,) of the columns [features, score] of all rows learned."""
        return _added(self.left, Batch.joined(*self.held).moments()).mean

    def __add__(self, more: RobustSums) -> RobustSums:
        """Return the sums of both sets of rows; the held ones of the latter count as the newer."""
        if not isinstance(more, RobustSums):
            raise TypeError(f"robust sums add to robust sums, got {type(more).__name__}")
        if self.dimensions != more.dimensions:
            raise ValueError(f"robust sums must be of {self.dimensions} features to add, got {more.dimensions}")
        left, trusted = (
            mine if others is None else _added(mine, others)
            for mine, others in ((self.left, more.left), (self.trusted, more.trusted))
        )
        return RobustSums(self.held + more.held, left, trusted)

    def with_batch(self, batch: Batch, trust: Trust, window: int | None) -> RobustSums:
        """Return the sums with one more batch: of the last `window` batches alone, if there is one."""
        if window is not None:
            return RobustSums((*self.held, batch)[-window:])
        settled = self._settled(trust)
        return replace(settled, held=(*settled.held, batch))

    def fit(self, trust: Trust, known: Batch | None) -> LinearFit:
        """Return the fit of the trusted rows, and of known ones that are trusted as the held ones are.

        With components the basis comes from all rows, as in `fit_robust`.
        """
        rows = Batch.joined(*self.held, *([] if known is None else [known]))
        trusted = _added(self.trusted, rows[trust.trusted(rows)].moments())
        principal = None
        if trust.components is not None:
            principal = _added(self.left, rows.moments())._principal_components(trust.components)
        with one_thread():
            return _standardised(_ridge_fit(trusted, principal, intercept=trust.intercept), trusted)

    def _settled(self, trust: Trust) -> RobustSums:
        """Return the sums after the oldest rows have left, if too many are held."""
        if sum(map(len, self.held)) <= MOST_HELD:
            return self
        rows = Batch.joined(*self.held)
        count = len(rows) - FEWEST_HELD
        trusted = trust.trusted(rows)
        leaving = trusted[trusted < count]
        of_trusted = _added(self.trusted, rows[leaving].moments()) if len(leaving) else self.trusted
        held = Batch.joined(rows[count:])  # A copy: a part of an array keeps all of it.
        return RobustSums((held,), _added(self.left, rows[:count].moments()), of_trusted)


def _added(some: Moments | None, more: Moments) -> Moments:
    """Return the sum of moments that may not be there and of others that are."""
    return more if some is None else some + more


def _ridge_fit(rows: Moments, principal: PrincipalComponents | None, *, intercept: bool) -> LinearFit:
    """Return the fit of these rows and of d more, whose features vary alike, independently of each other and the score.

    It does not depend on the features' units. `explained` is of the rows themselves.
    """
    squares = np.diagonal(rows.comoment)[:-1]
    ridge = np.append(rows.dimensions / rows.rows * squares, 0.0)
    ridged = replace(rows, comoment=rows.comoment + np.diag(ridge))
    fit = ridged.solve(intercept) if principal is None else ridged._solve_within(principal, intercept=intercept)
    error_weights = np.append(fit.coef, -1.0)
    explained = rows._explained(error_weights, float(rows.mean @ error_weights) + fit.intercept)
    return replace(fit, explained=explained)


def _standardised(fit: LinearFit, rows: Moments) -> LinearFit:
    """Return the fit with the trued scores of these rows shifted to mean 0 and scaled to spread 1.

    Where they differ by rounding alone they are not scaled.
    """
    features = rows.mean[:-1]
    with np.errstate(over="ignore", invalid="ignore"):
        square = float(fit.coef @ (rows.comoment[:-1, :-1] @ fit.coef)) / rows.rows
    spread = np.sqrt(max(square, 0.0))
    size = np.abs(features) @ np.abs(fit.coef) + abs(rows.mean[-1])
    if not _ROUNDED_SHARE * size < spread < np.inf:  # NaN fails this comparison too.
        spread = 1.0
    coef = fit.coef / spread
    return replace(fit, coef=coef, intercept=-float(features @ coef))
