"""Robust regression (RLR) of any number of rows: Algorithm 2.

With at most `SAMPLED_ROWS` rows, all rows enter the Huber regression (`SharedFeatures`). With more rows, in memory or
in parts, three steps read them block by block:

1. fit the Huber regression to a fixed sample of at most `SAMPLED_ROWS` rows;
2. compute the size of every row's residual, and find the size up to which rows are kept;
3. fit the kept rows by least squares. If several rows are tied at the last size that is kept, these rows share the
   remaining places: each row counts for the same fraction of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import Floats, Matrix, slices
from .._threads import map_blocks
from ..scores.rows import ScoredRows, sampled
from .fits import (
    KEEP,
    SharedFeatures,
    as_pair,
    coordinates,
    fit_direct,
    in_tie_units,
    kept_rows,
    of_features,
    order_by_size,
    principal_components,
    tie_units,
)
from .huber import Rows
from .least_squares import LinearFit
from .moments import Moments, PrincipalComponents

# The Huber regression is fitted to at most this many rows.
SAMPLED_ROWS = 200_000

# Number of rows in memory that are read at a time.
_ROWS_AT_ONCE = 2**16

Work = Callable[[Iterable[ScoredRows]], Any]
"""Work on one part: a function of the blocks of rows of the part. It can be sent to other processes."""

Read = Callable[[str, Work], Iterable[Any]]
"""One pass over all parts: a function of the name of the pass and the work. It yields each part's result, in order."""


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

    With `keep` = 1, the result equals `fit_direct`. With more than 200,000 rows, the robust regression is fitted to a
    sample of at most 200,000 rows, and all rows are then ranked by their residuals.

    Parameters
    ----------
    features, scores
        The rows: features (n, d) and base scores (n,).
    keep
        The share of rows to trust.
    penalty
        The penalty λ of the robust regression.
    intercept
        Whether the fit has an intercept.
    components
        Confine the fit to this number of leading principal components of all rows.

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
    """Return the result of `fit_robust` for each share of rows to keep, from a single robust regression."""
    matrix, vector = as_pair(features, scores, components)
    if len(vector) <= SAMPLED_ROWS:
        shared = SharedFeatures(matrix, components)
        return shared.fit_robust_sweep(vector, keeps, penalty=penalty, intercept=intercept)
    counts = [kept_rows(keep, len(vector)) for keep in keeps]
    trust, read = _trust_of(matrix, vector, penalty=penalty, intercept=intercept, components=components)
    sizes = sizes_of(read, trust, len(vector))
    basis = None if components is None else principal_components(matrix, components)
    return [
        fit_of_kept(read, trust, sizes, count, basis, intercept=intercept)
        if count < len(vector)
        else fit_direct(matrix, vector, intercept=intercept, components=components)
        for count in counts
    ]


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
    $|\gamma|$ grows with |residual|, so rows are sorted by |residual|. Ties are broken by the higher score, then by the
    smaller features, and never by row order. Residuals that are equal up to rounding count as equal.
    """
    matrix, vector = as_pair(features, scores, components)
    if len(vector) <= SAMPLED_ROWS:
        return SharedFeatures(matrix, components).trust_order(vector, penalty=penalty, intercept=intercept)
    trust, read = _trust_of(matrix, vector, penalty=penalty, intercept=intercept, components=components)
    return order_by_size(matrix, vector, sizes_of(read, trust, len(vector)))


def share_of_sample(rows: int, at_most: int = SAMPLED_ROWS) -> float:
    """Return the share of `rows` rows that the Huber regression uses.

    The standard deviation of the size of a sample is about its square root. The expected size is therefore four
    standard deviations below `at_most`.
    """
    return 1.0 if rows <= at_most else (at_most - 4 * sqrt(at_most)) / rows


def in_memory(features: Matrix, scores: Floats) -> Read:
    """Return a function that makes passes over rows in memory, as one part."""

    def read(_: str, work: Work) -> Iterable[Any]:
        yield work(ScoredRows(features[rows], scores[rows]) for rows in slices(len(scores), _ROWS_AT_ONCE))

    return read


def _trust_of(features: Matrix, scores: Floats, **options: Any) -> tuple[Trust, Read]:
    """Return the Huber regression of a sample of rows in memory, and a function that makes passes over all rows."""
    rows = ScoredRows(features, scores)
    sample = sampled(rows, share_of_sample(len(rows)), np.arange(len(rows)))
    return Trust.of(sample, **options), in_memory(features, scores)


def fit_robust_parts(
    read: Read,
    sample: ScoredRows,
    rows: int,
    basis: PrincipalComponents | None = None,
    *,
    keep: float = KEEP,
    penalty: float = 1e-5,
    intercept: bool = True,
    components: int | None = None,
) -> LinearFit:
    """Return the result of `fit_robust` for many rows in parts, from two passes and one number per row in memory.

    Parameters
    ----------
    read
        A function that makes a pass over all rows.
    sample
        Rows for the Huber regression.
    rows
        The number of all rows.
    basis
        With `components`, the principal components of all rows.
    keep, penalty, intercept, components
        As in `fit_robust`.
    """
    trust = Trust.of(sample, penalty=penalty, intercept=intercept, components=components)
    return fit_of_kept(read, trust, sizes_of(read, trust, rows), kept_rows(keep, rows), basis, intercept=intercept)


@dataclass(frozen=True, eq=False)
class Trust:
    """A Huber regression of rows of unit norm. `exponent` and `width` (see `tie_units`) define the unit of ties."""

    coef: Floats
    intercept: float
    exponent: int
    width: float

    @classmethod
    def of(cls, sample: ScoredRows, *, penalty: float, intercept: bool, components: int | None) -> Trust:
        """Return the regression of a sample."""
        shared = SharedFeatures(sample.features, components)
        coef, constant = shared.robust_coefficients(sample.scores, penalty=penalty, intercept=intercept)
        return cls(coef, constant, *tie_units(sample.scores))

    def sizes(self, block: ScoredRows) -> Floats:
        """Return the size of each row's residual (b,), as a whole number of tie units."""
        rows = Rows.unit(block.features)
        residual = np.empty(len(block.scores))

        def fill(where: slice) -> None:
            residual[where] = block.scores[where] - self.intercept - rows.read(where) @ self.coef

        map_blocks(fill, rows.blocks())
        return in_tie_units(np.abs(residual), self.exponent, self.width)


def sizes_of(read: Read, trust: Trust, rows: int) -> Floats:
    """Return the sizes of the residuals of all rows (n,), from one pass."""
    sizes, end = np.empty(rows), 0
    for arrays in read("residuals", SizesOfPart(trust)):
        start, end = end, end + len(arrays["sizes"])
        if end <= rows:
            sizes[start:end] = arrays["sizes"]
    if end != rows:
        raise ValueError(f"the parts must have as many rows in every pass: expected {rows}, got {end}")
    return sizes


@dataclass(frozen=True, eq=False)
class SizesOfPart:
    """Work on a part: compute the sizes of its residuals."""

    trust: Trust

    def __call__(self, blocks: Iterable[ScoredRows]) -> dict[str, Floats]:
        """Return the size of each row's residual."""
        return {"sizes": np.concatenate([np.empty(0), *(self.trust.sizes(block) for block in blocks)])}


def fit_of_kept(
    read: Read, trust: Trust, sizes: Floats, count: int, basis: PrincipalComponents | None, *, intercept: bool
) -> LinearFit:
    """Return the least-squares fit of the `count` rows with the smallest residuals, from one pass."""
    sizes.partition(count - 1)  # Reorder in place, because the order of the sizes does not matter.
    last = float(sizes[count - 1])
    below = tied = None
    for more_below, more_tied in read("kept", MomentsOfKept(trust, last, basis)):
        below, tied = _added(below, more_below), _added(tied, more_tied)
    remaining = count - (0 if below is None else below.rows)
    if tied is None or not 0 < remaining <= tied.rows:
        raise ArithmeticError("residuals must be equal in every pass: all workers must use the same software versions")
    shared = tied.decayed(remaining / tied.rows)
    kept = shared if below is None else below + shared
    fit = replace(kept, rows=float(count)).solve(intercept)  # `kept.rows` may be off by rounding.
    return fit if basis is None else of_features(fit, basis)


@dataclass(frozen=True, eq=False)
class MomentsOfKept:
    """Work on a part: sum the rows with residuals below the last size that is kept, and the rows tied with it."""

    trust: Trust
    last: float
    basis: PrincipalComponents | None

    def __call__(self, blocks: Iterable[ScoredRows]) -> tuple[Moments | None, Moments | None]:
        """Return the moments of the rows with smaller residuals, and of the tied rows. An empty set gives None.

        With a basis, these are moments of the coordinates in the basis.
        """
        below = tied = None
        for block in blocks:
            sizes = self.trust.sizes(block)
            below = _added(below, self._moments(block, sizes < self.last))
            tied = _added(tied, self._moments(block, sizes == self.last))
        return below, tied

    def _moments(self, block: ScoredRows, chosen: NDArray[np.bool_]) -> Moments | None:
        if not chosen.any():
            return None
        features: Matrix = block.features[chosen]
        if self.basis is not None:
            features = coordinates(Rows(features), self.basis)
        return Moments.of(features, block.scores[chosen])


def _added(one: Moments | None, other: Moments | None) -> Moments | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
