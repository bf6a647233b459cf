"""Robust regression (RLR) of any number of rows: Algorithm 2.

Up to `SAMPLED_ROWS` rows, all of them enter the Huber regression (`SharedFeatures`). With more rows, in memory or in
parts, three steps read them block by block:

1. fit the Huber regression to a fixed sample of `SAMPLED_ROWS` rows;
2. compute the size of every row's residual, and find the size up to which rows are kept;
3. fit the kept rows by least squares. If several rows have exactly the last size that is kept, they share the places
   that are left: each counts for the same fraction of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._check import Floats, Matrix, slices
from .._threads import map_blocks
from ..data.npz import Arrays
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
from .huber import Rows, sampled_numbers
from .least_squares import LinearFit
from .moments import Moments, PrincipalComponents

# The Huber regression is fitted to at most this many rows.
SAMPLED_ROWS = 200_000

# Rows in memory are read this many at a time.
_ROWS_AT_ONCE = 2**16


class ScoredBlock(NamedTuple):
    """Features (b, d) and base scores (b,) of a block of rows."""

    features: Matrix
    scores: Floats


Work = Callable[[int, Iterable[ScoredBlock]], Arrays]
"""Work on one part, given its number and its rows: a frozen value that other processes can receive."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Rows in parts: the number of `rows` of each part, and `read`, which does some work on every part.

    `read` takes a name for the pass and the work, and yields the result of each part in the order of the parts.
    """

    rows: tuple[int, ...]
    read: Callable[[str, Work], Iterable[Arrays]]

    @classmethod
    def of_one(cls, features: Matrix, scores: Floats) -> Parts:
        """Return rows in memory as one part."""

        def read(_: str, work: Work) -> Iterable[Arrays]:
            yield work(0, (ScoredBlock(features[rows], scores[rows]) for rows in slices(len(scores), _ROWS_AT_ONCE)))

        return cls((len(scores),), read)


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

    `keep` = 1 is `fit_direct`. With more than 200,000 rows, the robust regression is fitted to a sample of that many,
    and all rows are then ranked by their residuals.

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
    """Return `fit_robust` for each kept share; the robust regression is done once."""
    matrix, vector = as_pair(features, scores, components)
    if len(vector) <= SAMPLED_ROWS:
        shared = SharedFeatures(matrix, components)
        return shared.fit_robust_sweep(vector, keeps, penalty=penalty, intercept=intercept)
    counts = [kept_rows(keep, len(vector)) for keep in keeps]
    parts = Parts.of_one(matrix, vector)
    trust = Trust.of(sample_of(parts), penalty=penalty, intercept=intercept, components=components)
    sizes = sizes_of(parts, trust)
    basis = None if components is None else principal_components(matrix, components)
    return [
        fit_of_kept(parts, trust, sizes, count, basis, intercept=intercept)
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
    parts = Parts.of_one(matrix, vector)
    trust = Trust.of(sample_of(parts), penalty=penalty, intercept=intercept, components=components)
    return order_by_size(matrix, vector, sizes_of(parts, trust))


def fit_robust_parts(
    parts: Parts,
    basis: PrincipalComponents | None = None,
    *,
    keep: float = KEEP,
    penalty: float = 1e-5,
    intercept: bool = True,
    components: int | None = None,
    sampled: int = SAMPLED_ROWS,
) -> LinearFit:
    """Return `fit_robust` of the rows of all parts.

    With `components`, `basis` holds the principal components of all rows. Passes: one if at most `sampled` rows exist,
    else three. The sample and one number for each row are held in memory.
    """
    rows = sum(parts.rows)
    if rows == 0:
        raise ValueError("the parts must have at least one row, got none")
    count = kept_rows(keep, rows)
    sample = sample_of(parts, sampled)
    if rows <= sampled:
        return fit_robust(*sample, keep=keep, penalty=penalty, intercept=intercept, components=components)
    trust = Trust.of(sample, penalty=penalty, intercept=intercept, components=components)
    del sample
    return fit_of_kept(parts, trust, sizes_of(parts, trust), count, basis, intercept=intercept)


def sample_of(parts: Parts, at_most: int = SAMPLED_ROWS) -> ScoredBlock:
    """Return the rows of the sample, in order: one pass."""
    samples = [sample for sample in parts.read("sample", SampleOfPart(parts.rows, at_most)) if sample]
    _check_arrived(sum(len(sample["scores"]) for sample in samples), min(sum(parts.rows), at_most))
    return ScoredBlock(*(np.concatenate([sample[name] for sample in samples]) for name in ScoredBlock._fields))


@dataclass(frozen=True, eq=False)
class SampleOfPart:
    """Work on a part: take its rows that are in the sample."""

    part_rows: tuple[int, ...]
    at_most: int

    def __call__(self, number: int, blocks: Iterable[ScoredBlock]) -> Arrays:
        """Return the features and scores of the sampled rows; an empty dict for a part without rows."""
        starts = list(accumulate(self.part_rows, initial=0))
        numbers = sampled_numbers(starts[-1], self.at_most) - starts[number]
        samples, first = [], 0
        for block in blocks:
            in_block = numbers[slice(*np.searchsorted(numbers, (first, first + len(block.scores))))] - first
            samples.append(ScoredBlock(block.features[in_block], block.scores[in_block]))
            first += len(block.scores)
        names = ScoredBlock._fields if samples else ()
        return {name: np.concatenate([getattr(sample, name) for sample in samples]) for name in names}


@dataclass(frozen=True, eq=False)
class Trust:
    """A Huber regression of rows of unit norm, and the unit in which the sizes of residuals are compared."""

    coef: Floats
    intercept: float
    exponent: int
    width: float

    @classmethod
    def of(cls, sample: ScoredBlock, *, penalty: float, intercept: bool, components: int | None) -> Trust:
        """Return the regression of a sample."""
        shared = SharedFeatures(sample.features, components)
        coef, constant = shared.robust_coefficients(sample.scores, penalty=penalty, intercept=intercept)
        return cls(coef, constant, *tie_units(sample.scores))

    def sizes(self, block: ScoredBlock) -> Floats:
        """Return the size of each row's residual (b,), a whole number of units."""
        rows = Rows.unit(block.features)
        residual = np.empty(len(block.scores))

        def fill(where: slice) -> None:
            residual[where] = block.scores[where] - self.intercept - rows.read(where) @ self.coef

        map_blocks(fill, rows.blocks())
        return in_tie_units(np.abs(residual), self.exponent, self.width)


def sizes_of(parts: Parts, trust: Trust) -> Floats:
    """Return the sizes of the residuals of all rows (n,): one pass."""
    sizes, end = np.empty(sum(parts.rows)), 0
    for arrays in parts.read("residuals", SizesOfPart(trust)):
        start, end = end, end + len(arrays["sizes"])
        if end <= len(sizes):
            sizes[start:end] = arrays["sizes"]
    _check_arrived(end, len(sizes))
    return sizes


def _check_arrived(rows: int, expected: int) -> None:
    """Raise an error unless a pass over all parts returned the expected number of rows."""
    if rows != expected:
        raise ValueError(f"the parts must have as many rows as they declare: expected {expected}, got {rows}")


@dataclass(frozen=True, eq=False)
class SizesOfPart:
    """Work on a part: compute the sizes of its residuals."""

    trust: Trust

    def __call__(self, number: int, blocks: Iterable[ScoredBlock]) -> Arrays:
        """Return the size of each row's residual."""
        return {"sizes": np.concatenate([np.empty(0), *(self.trust.sizes(block) for block in blocks)])}


def fit_of_kept(
    parts: Parts, trust: Trust, sizes: Floats, count: int, basis: PrincipalComponents | None, *, intercept: bool
) -> LinearFit:
    """Return the least-squares fit of the `count` rows with the smallest residuals: one pass."""
    last = float(np.partition(sizes, count - 1)[count - 1])
    below = tied = None
    for arrays in parts.read("kept", MomentsOfKept(trust, last, basis)):
        below = _added(below, _moments_of(arrays, "below."))
        tied = _added(tied, _moments_of(arrays, "tied."))
    left = count - (0 if below is None else below.rows)
    if tied is None or not 0 < left <= tied.rows:
        raise ArithmeticError("residuals must be the same in every pass: all workers must compute alike")
    shared = tied.decayed(left / tied.rows)
    kept = shared if below is None else below + shared
    fit = replace(kept, rows=float(count)).solve(intercept)  # The count without the rounding of the fraction.
    return fit if basis is None else of_features(fit, basis)


@dataclass(frozen=True, eq=False)
class MomentsOfKept:
    """Work on a part: sum up its rows with residuals `below` the last size that is kept, and those `tied` at it."""

    trust: Trust
    last: float
    basis: PrincipalComponents | None

    def __call__(self, number: int, blocks: Iterable[ScoredBlock]) -> Arrays:
        """Return the moments of both sets of rows that are not empty; with a basis, moments of the coordinates."""
        below = tied = None
        for block in blocks:
            sizes = self.trust.sizes(block)
            below = _added(below, self._moments(block, sizes < self.last))
            tied = _added(tied, self._moments(block, sizes == self.last))
        return _arrays_of(below, "below.") | _arrays_of(tied, "tied.")

    def _moments(self, block: ScoredBlock, chosen: NDArray[np.bool_]) -> Moments | None:
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


def _arrays_of(moments: Moments | None, prefix: str) -> Arrays:
    if moments is None:
        return {}
    return {prefix + one.name: np.asarray(getattr(moments, one.name)) for one in fields(Moments)}


def _moments_of(arrays: Arrays, prefix: str) -> Moments | None:
    if prefix + "rows" not in arrays:
        return None
    members = {one.name: arrays[prefix + one.name] for one in fields(Moments)}
    return Moments(**{**members, "rows": float(members["rows"])})  # type: ignore[arg-type]
