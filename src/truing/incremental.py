"""Moments that grow by batches, with what is known of their correlation matrix kept beside them.

As long as there are fewer rows than columns the shortest coefficients that fit every row are kept (`interpolation.py`).
Then a batch of b rows changes a co-moment by rank b + 1. Two things follow at less than the cost d³ of a factorisation:

- its inverse, at the cost b·d² (Woodbury 1950). It is only a means: every solution is refined against the co-moment
  itself, and where that does not settle, or the inverse has drifted, the moments are solved anew.
- a bound below its eigenvalues, at no cost: rows that are added make none smaller (Weyl 1912). Where d is small a
  factorisation costs less than the inverse, and the bound says that it may be trusted.

Both are of the columns scaled to unit variance, as they were when the inverse or the bound was found.
For a fit within principal components these are followed instead (`subspace.py`).
"""

from dataclasses import dataclass, replace
from math import sqrt
from typing import NamedTuple

import numpy as np

from . import _kernels, _linalg
from ._blas import one_thread
from ._check import BLOCK_NUMBERS, LARGEST, Bools, Floats, Matrix
from ._double import two_sum
from .interpolation import Interpolation
from .least_squares import (
    CHOLESKY_EIGENVALUE,
    CHOLESKY_ROUNDING,
    CONSTANT_TOLERANCE,
    UNDERFLOWING_SQUARE,
    LinearFit,
    Solution,
    cholesky_factor,
    live_block,
    smallest_eigenvalue,
    varying,
)
from .moments import UNTOLD, Moments, compensated, square_in_range
from .subspace import LeadingSubspace, is_worth_following

# A solution is taken when its last correction is below this share of it.
_REFINEMENT_TOLERANCE = 1e-9
_MAX_REFINEMENTS = 4
# An inverse has drifted when it takes its matrix times a vector this far from the vector.
_MAX_DRIFT = 1e-3
# An inverse is updated where there are more columns than so many, and so many for each row of a batch (measured).
_MIN_COLUMNS, _MIN_COLUMNS_PER_ROW = 128, 8
# A batch of more numbers is summed in blocks and merged: that takes less memory, and no more time (measured).
_LARGE_BATCH = 4 * BLOCK_NUMBERS
# Of products.h: the columns of a tile, of which the last may have fewer, and numbers between panels, for each column.
_TILE_COLUMNS, _APART = 12, 2
# A bound is of use while it is this many times what a Cholesky factor needs: it is an estimate.
_SAFETY_FACTOR = 10


@dataclass(frozen=True, eq=False)
class EigenvalueBound:
    """A bound below the eigenvalues of the co-moment of the live columns, each divided by its `norm` (k,)."""

    norm: Floats
    eigenvalue_bound: float

    @classmethod
    def of(cls, gram: Floats) -> "EigenvalueBound | None":
        """Return the bound for a co-moment (k, k), if a Cholesky factor of it may be trusted."""
        with one_thread():
            norm, factor = _standardised_factor(gram)
            if factor is None:
                return None
            bound = cls(norm, smallest_eigenvalue(factor))
        return bound if bound.suffices(1.0, 1.0) else None

    def suffices(self, growth: float, decay: float) -> bool:
        """Return whether it says, after decay, that columns whose squares have grown so many times may be factored."""
        return decay * self.eigenvalue_bound > _SAFETY_FACTOR * CHOLESKY_EIGENVALUE * growth

    def solve(self, moments: Moments, live: Bools) -> LinearFit | None:
        """Return the least-squares fit, or None if there is no factor after all.

        The co-moment (d + 1, d + 1) is that of features and score: C and c. With C = L Lᵀ the last row of its Cholesky
        factor is L⁻¹c, and the coefficients are L⁻ᵀ of that.
        """
        kernels = _kernels.kernels
        if kernels is None:
            with one_thread():
                coef = self._coef(moments.comoment, live)
            return None if coef is None else _fit_of_full_rank(moments, coef, len(self.norm))
        k, d = len(self.norm), moments.dimensions
        coef, found = np.empty(d), np.empty(3)
        kernels(
            "solve_by_factor",
            _kernels.doubles(moments.comoment),
            _kernels.doubles(moments.mean),
            live,
            np.empty((d + _TILE_COLUMNS) * (d + 6 + _APART) + 4),
            coef,
            found,
        )
        has_factor, *errors = found.tolist()
        return _fit_with_errors(moments, coef, k, *errors) if has_factor else None

    def _coef(self, comoment: Floats, live: Bools) -> Floats | None:
        whole = comoment.copy() if live.all() else live_block(comoment, np.append(live, True))
        whole[-1, -1] = 1.0 + 2.0 * whole[-1, -1]  # So that there is a factor where the scores are fitted exactly, too.
        factor = cholesky_factor(whole)
        if factor is None:
            return None
        last = factor[-1].copy()
        last[-1] = 0.0
        return _scattered(_linalg.blas.dtrsv(factor, last, lower=True, trans=True, overwrite_x=True)[:-1], live)

    def decayed(self, decay: float) -> "EigenvalueBound":
        """Return the bound after all weights were multiplied by `decay`."""
        return self if decay == 1.0 else EigenvalueBound(self.norm, decay * self.eigenvalue_bound)


@dataclass(frozen=True, eq=False)
class RunningInverse:
    """The inverse (k, k) of the co-moment of the live columns, each divided by its `norm` (k,).

    It is symmetric, and only its lower triangle is kept up to date.
    """

    norm: Floats
    inverse: Floats

    @classmethod
    def of(cls, gram: Floats) -> "RunningInverse | None":
        """Return the inverse of a co-moment (k, k), unless it is too close to singular."""
        norm, factor = _standardised_factor(gram)
        if factor is None or smallest_eigenvalue(factor) < CHOLESKY_EIGENVALUE:
            return None
        return cls(norm, _linalg.lapack.dpotri(factor, lower=True, overwrite_c=True)[0])

    def updated(self, rows: Floats, decay: float) -> "RunningInverse | None":
        """Return the inverse after decay of the weights and the addition of centred rows (b, k)."""
        rows = rows / self.norm
        ahead = _linalg.blas.dsymm(1 / decay, self.inverse, rows.T, lower=True).T
        factor, failed = _linalg.lapack.dpotrf(np.eye(len(rows)) + ahead @ rows.T, lower=True)
        if failed:
            return None
        change = _linalg.blas.dtrsm(1.0, factor, ahead.T, side=1, lower=True, trans_a=True, overwrite_b=True)
        inverse = _linalg.blas.dsyrk(-1.0, change, beta=1 / decay, c=self.inverse, lower=True)
        return RunningInverse(self.norm, inverse)

    def inverts(self, comoment: Floats, live: Bools) -> bool:
        """Return whether it takes the co-moment (d, d) times a vector to that vector, nearly."""
        vector = np.cos(np.arange(len(self.norm)))  # It leans in every direction alike.
        back = self._back(self._times(comoment, live, vector))
        return bool(np.linalg.norm(back - vector) <= _MAX_DRIFT * np.linalg.norm(vector))  # NaN fails, too.

    def solve(self, moments: Moments, live: Bools) -> LinearFit | None:
        """Return the least-squares fit, or None if corrections do not settle."""
        with one_thread():
            coef = self._coef(moments.comoment, live)
        return None if coef is None else _fit_of_full_rank(moments, coef, len(self.norm))

    def _coef(self, comoment: Floats, live: Bools) -> Floats | None:
        """Return the coefficients (d,), given the co-moment (d + 1, d + 1) of features and score."""
        comoment, cross = comoment[:-1, :-1], comoment[-1, :-1]
        target = cross[live] / self.norm
        scaled = self._back(target)
        for _ in range(_MAX_REFINEMENTS):
            correction = self._back(target - self._times(comoment, live, scaled))
            scaled += correction
            if np.linalg.norm(correction) <= _REFINEMENT_TOLERANCE * np.linalg.norm(scaled):
                return _scattered(scaled / self.norm, live)
        return None

    def _times(self, comoment: Floats, live: Bools, vector: Floats) -> Floats:
        product: Floats = (comoment @ _scattered(vector / self.norm, live))[live] / self.norm
        return product

    def _back(self, vector: Floats) -> Floats:
        product: Floats = _linalg.blas.dsymv(1.0, self.inverse, vector, lower=True)
        return product


# What may be known of moments.
Known = EigenvalueBound | RunningInverse | Interpolation | LeadingSubspace


@dataclass(frozen=True, eq=False)
class IncrementalMoments:
    """Moments, which of their feature columns (d,) are `live`, and what is known of the co-moment of these."""

    moments: Moments
    live: Bools
    known: Known | None = None

    @classmethod
    def of(cls, moments: Moments, known: Known | None = None) -> "IncrementalMoments":
        """Return moments of which no more is known, or what was stored with them."""
        live = varying(moments.rows, moments.mean, moments.comoment, moments.rounding)
        if isinstance(known, Interpolation):
            growth = growth_of(moments, live, None)
            return cls(moments, live)._with_interpolation(known, growth, int(np.count_nonzero(live)))
        if isinstance(known, EigenvalueBound | RunningInverse) and len(known.norm) != np.count_nonzero(live):
            known = None
        if isinstance(known, RunningInverse):
            with one_thread():
                known = known if known.inverts(moments.comoment[:-1, :-1], live) else None
        return cls(moments, live, known)

    @classmethod
    def of_rows(cls, features: Matrix, scores: Floats, *, follow: bool = True) -> "IncrementalMoments":
        """Return the moments of a first batch, and what is known of them where it is of use, as in `updated`."""
        moments = Moments.of(features, scores)
        if not follow or moments.rows > moments.dimensions:
            return cls.of(moments)
        return cls.of(moments, Interpolation.of(features, scores))

    def updated(self, features: Matrix, scores: Floats, decay: float, *, follow: bool = True) -> "IncrementalMoments":
        """Return these with their weight multiplied by `decay`, and a batch added with weight 1.

        What is known follows where it is of use: to a fit with an intercept, and not within components. A large batch
        is summed a block of rows at a time, on all cores, and a small one in fewer steps.
        """
        if len(features) > features.shape[1] and features.size > _LARGE_BATCH:
            more = replace(Moments.of(features, scores), parts=frozenset([UNTOLD]))
            return self.grown_to(self.moments.decayed(decay) + more, decay, follow=follow)
        bound = self.known if isinstance(self.known, EigenvalueBound) else None
        old = self.moments if decay == 1.0 else self.moments.decayed(decay)
        grown = with_batch(old, features, scores, None if bound is None else bound.norm)
        moments, varies, live = grown.moments, grown.varies, grown.live
        updated = IncrementalMoments(moments, varies)
        if not follow or live == 0:
            return updated
        if isinstance(self.known, Interpolation) and decay == 1.0 and moments.rows <= live + 1:
            return updated._with_interpolation(self.known.with_rows(features, scores), grown.growth, live)
        if moments.rows <= live:
            return updated
        same = varies.tobytes() == self.live.tobytes()
        if moments.dimensions <= _MIN_COLUMNS + _MIN_COLUMNS_PER_ROW * len(grown.centred):
            return updated._with_bound(bound if same else None, grown.growth, decay)
        inverse = self.known if same and isinstance(self.known, RunningInverse) else None
        return updated._with_inverse(inverse, grown.centred, decay)

    def grown_to(self, moments: Moments, decay: float = 1.0, *, follow: bool = True) -> "IncrementalMoments":
        """Return moments that are these, their weight multiplied by `decay`, with rows added.

        It is for sums that are at hand. A bound on their eigenvalues comes with them where it is of use.
        """
        grown = IncrementalMoments.of(moments)
        live = np.count_nonzero(grown.live)
        if not follow or live == 0 or moments.rows <= live:
            return grown
        same = grown.live.tobytes() == self.live.tobytes()
        bound = self.known if same and isinstance(self.known, EigenvalueBound) else None
        growth = growth_of(moments, grown.live, None if bound is None else bound.norm)
        return grown._with_bound(bound, growth, decay)

    def with_components(
        self, before: "IncrementalMoments | None", components: int, tolerance: float
    ) -> "IncrementalMoments":
        """Return these with their principal components, near those of moments before, where that is worth it.

        The scores of their rows then differ from those of an exact fit by no more than the tolerance, in root mean
        square, as a share of the base scores' spread.
        """
        moments = self.moments
        if not is_worth_following(moments.dimensions, components) or moments.rows <= 2 * components:
            return self
        least = _SAFETY_FACTOR * float(moments.rounding[:-1].sum())
        earlier = None if before is None else before.known
        found = None
        with one_thread(), np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            if isinstance(earlier, LeadingSubspace) and earlier.components == components:
                found = earlier.followed(moments.comoment, tolerance, least)
            if found is None:
                found = LeadingSubspace.of(moments.comoment, components, least)
        return replace(self, known=found)

    def solve(self, intercept: bool, components: int | None) -> LinearFit:
        """Return what `moments.solve` would, to within the tolerance where principal components are followed."""
        moments = self.moments
        if isinstance(self.known, LeadingSubspace) and components == self.known.components:
            with one_thread():
                found = Solution(self.known.coef, components, components, CHOLESKY_ROUNDING)
                fit = moments._linear_fit(found, intercept, moments.mean[:-1])
            return replace(fit, approximation=self.known.error)
        if components is not None or not intercept:
            return moments.solve(intercept, components)
        if self.known is None or isinstance(self.known, LeadingSubspace):
            return moments.solve()
        if isinstance(self.known, Interpolation):
            return _fit_of_full_rank(moments, self.known.coef, self.known.rows - 1)
        fit_by_known = self.known.solve(moments, self.live)
        return moments.solve() if fit_by_known is None else fit_by_known

    def _with_interpolation(self, known: Interpolation | None, growth: "Growth", live: int) -> "IncrementalMoments":
        """Return these with an interpolation of their rows, if it is what `moments.solve` would find.

        `growth` is that of so many live columns since no norms were known.
        """
        if known is None or known.rows != self.moments.rows or known.varied.tobytes() != self.live.tobytes():
            return self
        if live and not known.has_full_rank(growth.largest_square, live):
            return self
        return IncrementalMoments(self.moments, self.live, known)

    def _with_bound(self, bound: EigenvalueBound | None, growth: "Growth", decay: float) -> "IncrementalMoments":
        """Return these with an earlier bound, if it still suffices, or a new one, if there is one."""
        if growth.rounding > CHOLESKY_EIGENVALUE:
            return self
        if bound is not None and bound.suffices(growth.times, decay):
            return IncrementalMoments(self.moments, self.live, bound.decayed(decay))
        return IncrementalMoments(self.moments, self.live, EigenvalueBound.of(self._live_comoment()))

    def _with_inverse(self, inverse: RunningInverse | None, centred: Floats, decay: float) -> "IncrementalMoments":
        """Return these with an earlier inverse, updated by the centred rows of a batch (b, d), or a new one."""
        with one_thread(), np.errstate(invalid="ignore", over="ignore"):
            if inverse is not None:
                inverse = inverse.updated(centred if self.live.all() else centred[:, self.live], decay)
            if inverse is None or not inverse.inverts(self.moments.comoment[:-1, :-1], self.live):
                inverse = RunningInverse.of(self._live_comoment())
        return IncrementalMoments(self.moments, self.live, inverse)

    def _live_comoment(self) -> Floats:
        return live_block(self.moments.comoment[:-1, :-1], self.live)


def _standardised_factor(gram: Floats) -> tuple[Floats, Floats | None]:
    """Return the norms (k,) of the columns with this co-moment, and the Cholesky factor of their correlations."""
    norm = np.sqrt(gram.diagonal())
    return norm, cholesky_factor(gram / norm[:, None] / norm)


def _scattered(values: Floats, live: Bools) -> Floats:
    """Return the values (k,) of the live columns, and zeros for the others (d,); the values themselves if all live."""
    if len(values) == len(live):
        return values
    scattered = np.zeros(len(live))
    scattered[live] = values
    return scattered


def _fit_of_full_rank(moments: Moments, coef: Floats, rank: int) -> LinearFit:
    """Return the fit with these coefficients (d,), which use every direction that there is."""
    kernels = _kernels.kernels
    if kernels is None:
        with one_thread():
            return moments._linear_fit(Solution(coef, rank, rank, CHOLESKY_ROUNDING), True, moments.mean[:-1])
    found = np.empty(2)
    sums = _kernels.doubles(moments.comoment), _kernels.doubles(moments.mean)
    kernels("find_errors", *sums, coef, np.empty(len(coef) + 1), found)
    return _fit_with_errors(moments, coef, rank, *found.tolist())


def _fit_with_errors(moments: Moments, coef: Floats, rank: int, mean_error: float, square: float) -> LinearFit:
    """Return the fit with these coefficients (d,), given its error at the mean and the sum of squares about that."""
    explained = moments._share_without(square_in_range(square))
    return LinearFit(coef, -mean_error, moments.rows, rank, explained, rounding=CHOLESKY_ROUNDING)


class Growth(NamedTuple):
    """The largest sum of squares of a live column, and what rounding may be of these sums, as shares, added up.

    `times` is how many times such a sum is the square of the column's norm before, at most: infinite where there were
    no norms of as many columns.
    """

    largest_square: float
    times: float
    rounding: float


def growth_of(moments: Moments, live: Bools, norm: Floats | None) -> Growth:
    """Return how the columns have grown whose norms (k,) were these, if there are any."""
    squares = moments.comoment.diagonal()[:-1][live]
    with np.errstate(over="ignore"):
        rounding = float((moments.rounding[:-1][live] / squares).sum())
        if norm is not None and len(norm) == len(squares):
            times = squares / norm / norm
        else:
            times = np.full(len(squares), np.inf)
        return Growth(float(squares.max(initial=0.0)), float(times.max(initial=0.0)), rounding)


class Grown(NamedTuple):
    """Moments with a batch, which of their columns (d,) vary, how many do, and how these have grown.

    The squares of `centred` (b + 1, d) are what the co-moment grew by: the b rows about their mean, and the step from
    the mean before to theirs, weighed; without scores. Of one row that is the step alone.
    """

    moments: Moments
    varies: Bools
    live: int
    growth: Growth
    centred: Floats


def with_batch(old: Moments, features: Matrix, scores: Floats, norm: Floats | None = None) -> Grown:
    """Return the moments with a batch of b rows, and how their columns have grown since these were their norms."""
    kernels = _kernels.kernels
    if kernels is None:
        return _grown_plainly(old, features, scores, norm)
    b, d = features.shape
    sums, block = np.empty((2 * (d + 2), d + 1)), np.empty((b + 1, d + 1))
    varies, found = np.empty(d, dtype=bool), np.empty(5)
    kernels(
        "add_batch",
        _kernels.readable(features),
        _kernels.doubles(scores),
        float(old.rows),
        _kernels.doubles(old.mean),
        _kernels.doubles(old.mean_low),
        _kernels.doubles(old.comoment),
        _kernels.doubles(old.comoment_low),
        _kernels.doubles(old.rounding),
        CONSTANT_TOLERANCE,
        UNDERFLOWING_SQUARE,
        found if norm is None else norm,
        -1 if norm is None else len(norm),
        sums,
        block,
        found if b == 1 else np.empty((d + _TILE_COLUMNS) * (b + 1 + _APART) + 4),
        varies,
        found,
    )
    trace, live, *growth = found.tolist()
    parts = sums[0], sums[2 : d + 3], sums[1], sums[d + 3 :]
    centred = block[1:, :d] if b == 1 else block[:, :d]
    return Grown(_checked_sums(old, b, parts, trace), varies, int(live), Growth(*growth), centred)


def _grown_plainly(old: Moments, features: Matrix, scores: Floats, norm: Floats | None) -> Grown:
    """Return the same by NumPy: the batch less the mean, the step to its own mean as one row more, their products."""
    b, d = features.shape
    rows = old.rows + b
    block = np.empty((b + 1, d + 1))
    batch = block[:b]
    with one_thread(), np.errstate(invalid="ignore", over="ignore"):
        batch[:, :d], batch[:, d] = features, scores
        batch -= old.mean
        middle = np.add.reduce(batch)
        middle /= b
        step = middle - old.mean_low
        # The merge of two sets of moments adds the square of the step between their means: one row more.
        block[b] = step * sqrt(old.rows * b / rows)
        if b == 1:
            block = block[1:]  # Less its own mean, one row leaves nothing.
        else:
            batch -= middle
        mean, error = two_sum(old.mean, step * (b / rows))
        comoment, comoment_low = compensated(old.comoment, old.comoment_low, block.T @ block)
    sums = mean, comoment, old.mean_low + error, comoment_low
    moments = _checked_sums(old, b, sums, float(comoment.trace()))
    varies = varying(rows, mean, comoment, old.rounding)
    growth = growth_of(moments, varies, norm)
    return Grown(moments, varies, int(np.count_nonzero(varies)), growth, block[:, :d])


def _checked_sums(old: Moments, b: int, sums: tuple[Floats, Floats, Floats, Floats], trace: float) -> Moments:
    """Return old moments with a batch of b rows, given the new sums and the co-moment's trace, which must be finite."""
    rows = old.rows + b
    if not trace <= len(old.mean) * rows * LARGEST**2:  # NaN fails this comparison too.
        raise ValueError("features must be finite when learned, and scores: they have changed since their check")
    # Digests of all batches would take longer than the batches: those that there are still tell whose sums these are.
    parts = old.parts if UNTOLD in old.parts else old.parts | {UNTOLD}
    return Moments(rows, *sums, old.rounding, parts)
