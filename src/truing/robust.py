"""Robust linear regression: the exact minimiser of the Huber loss, with a certificate.

Minimising the lasso of RLR (Eq. 14) over γ leaves Σᵢ huber_λ(rᵢ), r the residual and γᵢ = soft(rᵢ, λ): d unknowns
in place of n, and no n×n matrix. Rows whose |rᵢ| stays clear of λ enter only through sums, so a sample
of rows is solved first, then the rows near λ, and a pass over all rows confirms that the others stayed.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, solve_triangular

from ._blas import one_thread
from ._check import Bools, Floats, as_matrix, as_number, as_truth, as_vector, check_same_rows
from .narrowing import HELD, loss, narrow
from .rows import Rows, spread

# A fit is returned when its duality gap is at most this share of the objective.
TOLERANCE = 1e-9

_EPS = float(np.finfo(np.float64).eps)
_AT_ONCE = 2048  # So few rows are solved without a sample, and gathered at a time.
_SMALL = 2**21  # So few numbers are whitened once and stored.
_FEW = 20  # Held rows for each unknown up to which a dual point is mended on them alone.
_BAND = 5.0  # Standard errors of the sample's fit within which a row is near.


@dataclass(frozen=True, eq=False)
class HuberFit:
    """A robust fit and its certificate: no fit has an objective lower by more than the share `gap`.

    The share is of the objective, or of what rounding may have added to it where that is more; the fits are those
    without a part in directions that the rows vary in by less than about 1e-7 of their size. `residual` is
    scores − features @ coef − intercept, `gamma` its excess over the penalty, and `passes` counts the times
    that all rows were read.
    """

    coef: Floats
    intercept: float
    gamma: Floats
    residual: Floats
    gap: float
    passes: int


def huber(features: ArrayLike, scores: ArrayLike, penalty: float, *, intercept: bool = True) -> HuberFit:
    r"""Return the minimiser of $\sum_i h_\lambda(s_i - z_i^\top \beta - a)$, λ being the penalty.

    $h_\lambda(r)$ is $r^2/2$ up to λ and $\lambda|r| - \lambda^2/2$ beyond it; λ may be as small as 1e-7 of the
    scores' size. Directions in which the rows vary no more than rounding does get no coefficient. Where more than
    one fit is least, as for centred features without an intercept when all scores have one sign, it is any of
    them. A gap that stays above `TOLERANCE` is an ArithmeticError.

    >>> huber([[0.0], [1.0], [2.0], [3.0], [4.0]], [1.0, 3.0, 5.0, 7.0, -9.0], 1e-3).coef.round(2)
    array([2.])
    """
    matrix, vector = as_matrix(features, "features"), as_vector(scores, "scores")
    check_same_rows(features=matrix, scores=vector)
    return huber_rows(Rows(matrix), vector, penalty, intercept=intercept)


def huber_rows(rows: Rows, scores: Floats, penalty: float, *, intercept: bool = True) -> HuberFit:
    """Return `huber` of rows that are made as they are read."""
    penalty, intercept = as_number(penalty, "penalty", above=0.0), as_truth(intercept, "intercept")
    with one_thread():
        return _solve(rows, scores, penalty, intercept)


def _solve(rows: Rows, scores: Floats, penalty: float, intercept: bool) -> HuberFit:
    n, centre = len(scores), float(np.median(scores)) if intercept else 0.0
    target = scores - centre
    design, theta, mean = _Design.of(rows, target, intercept)
    size = len(theta)
    count, sampled = n, int((n * size) ** (2 / 3) / 2)  # Balances sampled and near rows: Portnoy & Koenker 1997.
    if n > _AT_ONCE and 0 < sampled < n / 2:
        sample = spread(n, sampled)
        part, none = design.take(sample), np.zeros((size, size))
        start = target[sample] - part @ theta
        theta += narrow(part, start, none, none.sum(axis=0), penalty, first=sampled // 2, last=HELD * size)
        count = int(_BAND * n * (size / sampled) ** 0.5)
        del part
    residual, first, passes = target.copy(), count // 4, 2
    pull = design.move(residual, theta, penalty)
    while True:
        count = count if count < n / 2 else n
        near = np.arange(n)
        if count < n:
            near = np.sort(np.argpartition(np.abs(np.abs(residual) - penalty), count - 1)[:count])
        far = np.ones(n, dtype=np.bool_)
        far[near] = False
        side = np.sign(_soft(residual, penalty))
        part = design.take(near)
        linear = pull - np.clip(residual[near], -penalty, penalty) @ part
        change = narrow(part, residual[near], design.gram(far & (side == 0)), linear, penalty, first=first, last=0)
        del part
        moved = residual.copy()
        pull_moved = design.move(moved, change, penalty)
        stayed = np.array_equal(side[far], np.sign(_soft(moved, penalty))[far])
        passes += 2
        if loss(moved, penalty) <= (1 + TOLERANCE) * loss(residual, penalty):
            theta, residual, pull = theta + change, moved, pull_moved
        if stayed:
            if design.stored is not None:  # A certificate is of the rows themselves.
                residual = target.copy()
                pull = design.read(residual, theta, penalty)
            gap = design.gap(residual, target, theta, pull, penalty)
            passes += 1
            if gap <= TOLERANCE:
                break
            if count == n and first >= n:
                reached = f"huber reached a relative duality gap of {gap:.1e}, wanted {TOLERANCE:g}"
                raise ArithmeticError(f"{reached}: the penalty {penalty:g} may be too small for scores of this size")
        # Again with twice the near rows; should all of them fail, once more from the widest loss.
        first, count = n if count == n else HELD * size, 2 * count
    coef, shift = design.coef(theta)
    offset = centre + shift - float(mean @ coef) if intercept else 0.0
    return HuberFit(coef, offset, _soft(residual, penalty), residual, gap, passes)


@dataclass(frozen=True, eq=False)
class _Design:
    """The columns [rows − mean, 1] times `lift` (d + 1, k), whose k columns have the identity as second moment.

    `stored` is the product itself, where it is small; only the certificate reads the rows again.
    """

    rows: Rows
    lift: Floats
    stored: Floats | None = None

    @classmethod
    def of(cls, rows: Rows, target: Floats, intercept: bool) -> tuple["_Design", Floats, Floats]:
        """Return the design, its least-squares fit and the rows' mean, from one pass."""
        n, d = len(target), rows.features.shape[1]
        # About a median nothing is left of a constant column, and little of a large mean.
        middle = np.median(rows.take(spread(n, 65)), axis=0)
        gram, total, cross = np.zeros((d, d)), np.zeros(d), np.zeros(d)
        for where, block in rows.about(middle).blocks():
            gram += block.T @ block
            total += block.sum(axis=0)
            cross += target[where] @ block
        moment = np.zeros((d + 1, d + 1))
        moment[:d, :d] = gram / n - np.outer(total, total) / n**2
        moment[d, d] = 1.0
        mean = middle + total / n
        lift = _whitened(moment, np.eye(d + 1) if intercept else np.vstack([np.eye(d), mean]), n)
        cross = np.append(cross - total * target.mean(), target.sum())
        design = cls(rows.about(mean), lift)
        if n * lift.shape[1] <= _SMALL:
            design = replace(design, stored=design.take(np.arange(n)))
        return design, lift.T @ cross / n, mean

    def coef(self, theta: Floats) -> tuple[Floats, float]:
        full = self.lift @ theta
        return full[:-1], float(full[-1])

    def take(self, index: NDArray[np.intp]) -> Floats:
        if self.stored is not None:
            return self.stored if len(index) == len(self.stored) else self.stored[index]
        part = np.empty((len(index), self.lift.shape[1]))
        for start in range(0, len(index), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            np.matmul(self.rows.take(index[some]), self.lift[:-1], out=part[some])
            part[some] += self.lift[-1]
        return part

    def gram(self, chosen: Bools) -> Floats:
        """Return Σ wᵢ wᵢᵀ over the chosen rows."""
        raw = np.zeros((len(self.lift), len(self.lift)))
        for rows, block in self.rows.blocks() if chosen.any() else ():
            part = block[chosen[rows]]
            raw[:-1, :-1] += part.T @ part
            raw[-1, :-1] += part.sum(axis=0)
        raw[:-1, -1], raw[-1, -1] = raw[-1, :-1], np.count_nonzero(chosen)
        return self.lift.T @ raw @ self.lift

    def move(self, residual: Floats, change: Floats, penalty: float) -> Floats:
        """Take a change of the fit off the residual, in place; return Σ wᵢ clip(rᵢ), the rows' pull on the fit."""
        if self.stored is None:
            return self.read(residual, change, penalty)
        residual -= self.stored @ change
        pull: Floats = np.clip(residual, -penalty, penalty) @ self.stored
        return pull

    def read(self, residual: Floats, change: Floats, penalty: float) -> Floats:
        """Do as `move` does, from the rows themselves."""
        coef, shift = self.coef(change)
        total = np.zeros(len(self.lift))
        for rows, block in self.rows.blocks():
            residual[rows] -= block @ coef + shift
            pull = np.clip(residual[rows], -penalty, penalty)
            total[:-1] += pull @ block
            total[-1] += pull.sum()
        return total @ self.lift

    def gap(self, residual: Floats, target: Floats, theta: Floats, pull: Floats, penalty: float) -> float:
        """Return the duality gap as a share of the objective, or of what rounding leaves of it where that is more."""
        dual, size = self.feasible(residual, pull, penalty) * np.sign(residual), np.abs(residual)
        held = np.minimum(size, penalty)
        # h(r) − r·u + u²/2 row by row: no term is negative, so nothing cancels.
        gap, least = float(((held - dual) ** 2).sum() / 2 + (size - held) @ (penalty - dual)), loss(residual, penalty)
        if gap > TOLERANCE * least:
            fit, rounding = np.abs(self.coef(theta)[0]), np.abs(target) + np.abs(target - residual)
            for rows, block in self.rows.blocks():
                rounding[rows] += np.abs(block) @ fit
            least = max(least, 4 * _EPS / TOLERANCE * float(held @ rounding))
        return gap / least if gap > 0 else 0.0

    def feasible(self, residual: Floats, pull: Floats, penalty: float) -> Floats:
        """Return u near clip(r) with Zᵀu = 0 and |u| ≤ λ: the pull that is left is taken off, then all is shrunk.

        Where few rows are held it is taken off these alone, so that the others stay at λ to the last bit.
        """
        dual = np.clip(residual, -penalty, penalty)
        held = np.flatnonzero(np.abs(residual) < penalty)
        if len(pull) <= len(held) <= _FEW * len(pull):
            part = self.take(held)
            dual[held] -= part @ np.linalg.lstsq(part.T @ part, pull, rcond=None)[0]
        else:
            coef, shift = self.coef(pull / len(residual))
            for rows, block in self.rows.blocks():
                dual[rows] -= block @ coef + shift
        shrunk: Floats = dual * min(1.0, penalty / max(float(np.abs(dual).max()), penalty))
        return shrunk


def _whitened(moment: Floats, lift: Floats, n: int) -> Floats:
    """Return lift @ T with the identity as second moment, T free of directions that no row varies in."""
    gram = lift.T @ moment @ lift
    spread = np.sqrt(np.maximum(np.diag(gram), 0.0))
    spread[spread == 0] = 1.0
    values, vectors = np.linalg.eigh(gram / np.outer(spread, spread))
    kept = values > (len(gram) + n**0.5) * _EPS * max(values[-1], 0.0)
    scaled = vectors / spread[:, None]
    basis, null = scaled[:, kept] / np.sqrt(values[kept]), scaled[:, ~kept]
    if null.size:
        basis -= null @ np.linalg.lstsq(null, basis, rcond=None)[0]
    white = lift @ basis
    # Once more, for what a large condition number cost the first time.
    whiter: Floats = solve_triangular(cholesky(white.T @ moment @ white, lower=True), white.T, lower=True).T
    return whiter


def _soft(residual: Floats, penalty: float) -> Floats:
    return residual - np.clip(residual, -penalty, penalty)
