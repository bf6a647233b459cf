"""Rows as the robust regression has them, and their residuals: what every pass of it makes of a block."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .._check import Floats, Matrix
from .._threads import add_blocks, map_blocks
from ..io.npz import Arrays
from ..moments import Moments, PrincipalComponents
from ..rows import Rows
from .passes import ScoredBlock
from .summaries import arrays_of, moments_of


@dataclass(frozen=True, eq=False)
class UnitRows:
    """Rows scaled to unit norm, and columns of tiny numbers by powers of two; or the coordinates of unit rows."""

    principal: PrincipalComponents | None = None
    exponents: NDArray[np.intc] | None = None

    def of(self, features: Matrix) -> Rows:
        """Return the rows of these features."""
        unit = replace(Rows.unit(features), exponents=self.exponents)
        if self.principal is None:
            return unit
        return unit.about(self.principal.origin).onto(self.principal.basis)


@dataclass(frozen=True, eq=False)
class Residuals:
    """The residuals of a fit of scaled scores: (score − centre) · 2^−score_exponent − (row − mean)ᵀ coef − shift."""

    rows: UnitRows
    mean: Floats
    centre: float
    score_exponent: int
    coef: Floats
    shift: float

    def centred(self, block: ScoredBlock) -> tuple[Rows, Floats]:
        """Return the rows about their mean, and the scaled scores."""
        return self.rows.of(block.features).about(self.mean), self.scaled(block.scores)

    def scaled(self, scores: Floats) -> Floats:
        """Return scores about the centre, scaled."""
        target: Floats = np.ldexp(scores - self.centre, -self.score_exponent)
        return target

    def of_rows(self, rows: Floats, target: Floats) -> Floats:
        """Return the residuals of some rows about their mean, whose scaled scores these are."""
        residual: Floats = target - self.shift - rows @ self.coef
        return residual

    def of(self, block: ScoredBlock) -> Floats:
        """Return the residuals of a block (b,)."""
        rows, target = self.centred(block)
        residual = np.empty_like(target)

        def fill(where: slice) -> None:
            residual[where] = self.of_rows(rows.block(where), target[where])

        map_blocks(fill, rows.slices())
        return residual


@dataclass(frozen=True, eq=False)
class MomentsOfRows:
    """The moments of the rows and the scores."""

    rows: UnitRows

    def of(self, first: int, block: ScoredBlock) -> Arrays:
        """Return those of a block."""
        return arrays_of(Moments._of_rows(self.rows.of(block.features), block.scores))

    def combined(self, one: Arrays, other: Arrays) -> Arrays:
        """Return their sum."""
        return arrays_of(moments_of(one) + moments_of(other))


@dataclass(frozen=True, eq=False)
class LargestEntries:
    """The largest size of a number in each column of the rows."""

    rows: UnitRows

    def of(self, first: int, block: ScoredBlock) -> Arrays:
        """Return those of a block."""
        rows = self.rows.of(block.features)
        return {
            "largest": np.max(map_blocks(lambda where: np.abs(rows.block(where)).max(axis=0), rows.slices()), axis=0)
        }

    def combined(self, one: Arrays, other: Arrays) -> Arrays:
        """Return the larger ones."""
        return {"largest": np.maximum(one["largest"], other["largest"])}


@dataclass(frozen=True, eq=False)
class GramOfRows:
    """The Gram matrix of the columns [row − mean, 1] @ whitening."""

    rows: UnitRows
    mean: Floats
    whitening: Floats

    def of(self, first: int, block: ScoredBlock) -> Arrays:
        """Return that of a block."""
        rows = self.rows.of(block.features).about(self.mean)
        gram = np.zeros((self.whitening.shape[1], self.whitening.shape[1]))

        def products(where: slice) -> Floats:
            white = rows.block(where) @ self.whitening[:-1] + self.whitening[-1]
            return np.asarray(white.T @ white)

        add_blocks(products, rows.slices(), lambda part: np.add(gram, part, out=gram))
        return {"gram": gram}

    def combined(self, one: Arrays, other: Arrays) -> Arrays:
        """Return their sum."""
        return {"gram": one["gram"] + other["gram"]}
