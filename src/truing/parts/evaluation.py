"""The two passes of the robust regression: one that evaluates a fit, and one that proves it optimal."""

from dataclasses import dataclass

import numpy as np

from .._check import Floats
from .._double import EPS
from .._threads import add_blocks
from ..huber_regression.certificate import duality_gap, norm
from ..huber_regression.continuation import huber_loss
from ..io.npz import Arrays
from .passes import ScoredBlock
from .summaries import combined_samples, joined, places_of, split, thinned
from .unit_rows import Residuals


@dataclass(frozen=True, eq=False)
class Band:
    """The rows whose |residual| is within `reach` of the width."""

    residuals: Residuals
    width: float
    reach: float

    def holds(self, residual: Floats) -> np.ndarray:
        """Return which rows are in it."""
        return np.abs(np.abs(residual) - self.width) <= self.reach

    def side(self, residual: Floats) -> Floats:
        """Return 0 for inliers, and the sign of the residual for outliers."""
        side: Floats = np.where(np.abs(residual) <= self.width, 0.0, np.sign(residual))
        return side


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The loss of a fit, its gradient, the Gram matrix of the inliers beyond a band, and the rows in the band.

    Of these a sample is taken up to the place `last`, of no more than `capacity` rows. Rows that were not in the band
    of the fit `before` and are on another side of ±width now are counted.
    """

    band: Band
    last: int
    capacity: int
    before: Band | None

    def of(self, first: int, block: ScoredBlock) -> Arrays:
        """Return that of a block; gradient and Gram matrix are those of the columns [row − mean, 1]."""
        residuals, width = self.band.residuals, self.band.width
        rows, target = residuals.centred(block)
        residual = np.empty_like(target)
        size = len(residuals.mean) + 1
        sums = {"gradient": np.zeros(size), "gram": np.zeros((size, size)), "crossed": np.zeros((), np.int64)}

        def part(where: slice) -> Arrays:
            some = rows.block(where)
            residual[where] = residuals.of_rows(some, target[where])
            return self._sums(some, target[where], residual[where])

        def add(more: Arrays) -> None:
            for name, values in more.items():
                sums[name] = sums[name] + values

        add_blocks(part, rows.slices(), add)
        places = places_of(first, len(residual))
        near = np.flatnonzero(self.band.holds(residual) & (places <= np.uint64(self.last)))
        sample = {"rows": rows.take(near), "target": target[near], "residual": residual[near], "places": places[near]}
        return {
            **sums,
            "loss": np.array(huber_loss(residual, width)),
            "terms": np.array(np.minimum(np.abs(residual), width).sum()),
            "inliers": np.array(np.count_nonzero(np.abs(residual) <= width)),
            "norm": np.array(norm(residual)),
            **joined(thinned(sample, self.last, self.capacity), "near."),
        }

    def combined(self, one: Arrays, other: Arrays) -> Arrays:
        """Return the sums of both, and the rows of both in the band."""
        names = ("gradient", "gram", "crossed", "loss", "terms", "inliers")
        sums = {name: one[name] + other[name] for name in names}
        near = combined_samples(split(one, "near."), split(other, "near."), self.capacity)
        return {**sums, "norm": np.hypot(one["norm"], other["norm"]), **joined(near, "near.")}

    def _sums(self, rows: Floats, target: Floats, residual: Floats) -> Arrays:
        clipped = np.clip(residual, -self.band.width, self.band.width)
        gradient = np.dot(clipped, rows)  # Lets other threads run, as @ would not.
        sums: Arrays = {"gradient": np.append(gradient, clipped.sum())}
        far_inliers = np.abs(residual) < self.band.width - self.band.reach
        if far_inliers.any():
            chosen = np.column_stack((rows[far_inliers], np.ones(np.count_nonzero(far_inliers))))
            sums["gram"] = chosen.T @ chosen
        if self.before is not None:
            earlier = self.before.residuals.of_rows(rows, target)
            moved = self.band.side(residual) != self.before.side(earlier)
            sums["crossed"] = np.asarray(np.count_nonzero(moved & ~self.before.holds(earlier)))
        return sums


@dataclass(frozen=True, eq=False)
class Gap:
    """What the rows that are not in the `solved` band add to the duality gap of a fit.

    Their dual is clip(residual / width, ±1) at the fit solved, less (row − mean)ᵀ spread + spread_level, over shrink;
    `residuals` and `penalty` are those of the fit to be proved optimal. Without `skips_band` no row is left out.
    """

    solved: Band
    residuals: Residuals
    penalty: float
    spread: Floats
    spread_level: float
    shrink: float
    rounding_level: float
    skips_band: bool

    def of(self, first: int, block: ScoredBlock) -> Arrays:
        """Return the `gap`, Wᵀu as `infeasibility`, and of all rows `loss`, `norm` and `rounding`, of a block."""
        rows, target = self.residuals.centred(block)
        parts: list[Arrays] = []
        add_blocks(lambda where: self._sums(rows.block(where), target[where]), rows.slices(), parts.append)
        whole = parts[0]
        for part in parts[1:]:
            whole = self.combined(whole, part)
        return whole

    def combined(self, one: Arrays, other: Arrays) -> Arrays:
        """Return the sums of both."""
        sums = {name: one[name] + other[name] for name in ("gap", "infeasibility", "loss", "rounding")}
        return {**sums, "norm": np.hypot(one["norm"], other["norm"])}

    def _sums(self, rows: Floats, target: Floats) -> Arrays:
        solved = self.solved.residuals.of_rows(rows, target)
        dual = self.spread_dual(rows, np.clip(solved / self.solved.width, -1.0, 1.0))
        residual = self.residuals.of_rows(rows, target)
        slope = np.maximum(np.minimum(np.abs(residual) / self.penalty, 1.0), np.abs(dual))
        others = ~self.solved.holds(solved) if self.skips_band else np.ones(len(target), dtype=np.bool_)
        own = dual[others]
        return {
            "gap": np.array(duality_gap(residual[others], own, self.penalty)),
            "infeasibility": np.append(np.dot(own, rows[others]), own.sum()),
            "loss": np.array(huber_loss(residual, self.penalty)),
            "rounding": np.array(slope @ rounding_of(rows, target, self.residuals.coef, self.rounding_level)),
            "norm": np.array(norm(residual)),
        }

    def spread_dual(self, rows: Floats, dual: Floats) -> Floats:
        """Return the dual of some rows after what it lacks of feasibility is spread over all rows."""
        return (dual - rows @ self.spread - self.spread_level) / self.shrink


def rounding_of(rows: Floats, target: Floats, coef: Floats, level: float) -> Floats:
    """Return what rounding may have added to each residual, to within a small factor."""
    scaled: Floats = EPS * (np.abs(target) + np.abs(rows) @ np.abs(coef) + level)
    return scaled
