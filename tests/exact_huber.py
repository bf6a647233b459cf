"""The Huber objective and lower bounds on it in rational arithmetic: nothing here is rounded, and nothing is truing's.

For |u| ≤ 1 with Zᵀu = 0, no coefficients have Σ h(rᵢ)/λ below Σ sᵢuᵢ − λuᵢ²/2. The u tried are the clipped residuals,
and those of them that bounded least squares (SciPy's) brings nearer to Zᵀu = 0; each is projected onto it exactly.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

Vector = list[Fraction]
ROUNDING = Fraction(1, 2**44)  # Of its terms, within which a residual may be that of an inlier.
CHEAP = Fraction(1, 10**10)  # Of the objective per row, within which a row's dual is tried as free.


def exact(values: NDArray[np.floating]) -> Vector:
    return [Fraction(float(value)) for value in values]


class Problem:
    """A Huber regression in fractions, and its residuals at given coefficients."""

    def __init__(self, features, scores, penalty: float, intercept: bool, coef, constant: float):
        self.rows = [exact(row) + [Fraction(1)] * intercept for row in features]
        self.scores = exact(scores)
        self.penalty = Fraction(penalty)
        self.coef = exact(coef) + [Fraction(constant)] * intercept
        self.residual = [s - dot(row, self.coef) for s, row in zip(self.scores, self.rows, strict=True)]
        # Each score, and every coefficient with the largest entry of its column: solving rounds by about 1e-16 of it.
        largest = [max(abs(row[j]) for row in self.rows) for j in range(len(self.coef))]
        self.terms = [abs(s) + sum(abs(a * b) for a, b in zip(largest, self.coef, strict=True)) for s in self.scores]

    def objective(self) -> Fraction:
        """Return Σ h(rᵢ)/λ."""
        size = [abs(r) for r in self.residual]
        return sum((r - self.penalty / 2 if r > self.penalty else r * r / (2 * self.penalty)) for r in size)

    def rounding(self) -> Fraction:
        """Return what an error of its terms' size in each residual would add to the objective."""
        return sum(min(abs(r) / self.penalty, 1) * terms for r, terms in zip(self.residual, self.terms, strict=True))

    def lower_bound(self, enough: Fraction) -> Fraction:
        """Return the best of the dual objectives tried, or the first that is `enough`."""
        best = Fraction(0)
        for dual in self._dual_points():
            best = max(best, self._dual_objective(shrunk(dual)))
            if best >= enough:
                break
        return best

    def _dual_objective(self, dual: Vector) -> Fraction:
        return dot(self.scores, dual) - self.penalty * dot(dual, dual) / 2

    def _dual_points(self) -> Iterator[Vector]:
        clipped = [max(Fraction(-1), min(Fraction(1), r / self.penalty)) for r in self.residual]
        everywhere = range(len(clipped))
        cheap = CHEAP * self.objective() / len(clipped)
        for factor in (1, 100):
            slack = [factor * max(ROUNDING * terms, cheap) for terms in self.terms]
            near = [i for i in everywhere if abs(self.residual[i]) <= self.penalty + slack[i]]
            for better in (False, True):
                dual = self._by_bounded_least_squares(clipped, near) if better else clipped
                inside = [i for i in near if abs(dual[i]) < 1]
                for free in (inside, near, everywhere):
                    projected = self._projected(dual, free)
                    if projected is not None:
                        yield projected

    def _by_bounded_least_squares(self, dual: Vector, near: Sequence[int]) -> Vector:
        size = [max(abs(row[j]) for row in self.rows) or Fraction(1) for j in range(len(self.coef))]
        columns = np.array([[float(a / b) for a, b in zip(row, size, strict=True)] for row in self.rows])
        start = np.array([float(u) for u in dual])
        if not near:
            return dual
        far = np.setdiff1d(np.arange(len(dual)), near)
        system = np.vstack([columns[near].T, 1e-9 * np.eye(len(near))])
        wanted = np.append(-columns[far].T @ start[far], 1e-9 * start[near])
        found = lsq_linear(system, wanted, bounds=(-1, 1), method="bvls", tol=1e-15).x
        better = list(dual)
        for i, value in zip(near, found, strict=True):
            better[i] = Fraction(float(value))
        return better

    def _projected(self, dual: Vector, free: Sequence[int]) -> Vector | None:
        """Return the dual moved in the free rows alone, by the least, to where Zᵀu = 0; None if it cannot be."""
        unknowns = range(len(self.coef))
        left = [sum(row[j] * u for row, u in zip(self.rows, dual, strict=True)) for j in unknowns]
        gram = [[sum(self.rows[i][a] * self.rows[i][b] for i in free) for b in unknowns] for a in unknowns]
        weights = solved(gram, left)
        if weights is None:
            return None
        moved = list(dual)
        for i in free:
            moved[i] -= dot(self.rows[i], weights)
        return moved


def dot(one: Vector, other: Vector) -> Fraction:
    return sum((a * b for a, b in zip(one, other, strict=True)), Fraction(0))


def shrunk(dual: Vector) -> Vector:
    largest = max(max(abs(u) for u in dual), Fraction(1))
    return [u / largest for u in dual]


def solved(matrix: list[Vector], right: Vector) -> Vector | None:
    """Return a solution by Gauss-Jordan elimination, None where there is none."""
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    pivots: list[int] = []
    for column in range(len(right)):
        top = len(pivots)
        found = next((i for i in range(top, len(rows)) if rows[i][column]), None)
        if found is None:
            continue
        rows[top], rows[found] = rows[found], rows[top]
        rows[top] = [value / rows[top][column] for value in rows[top]]
        for i in range(len(rows)):
            if i != top and rows[i][column]:
                factor = rows[i][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[top], strict=True)]
        pivots.append(column)
    if any(row[-1] for row in rows[len(pivots) :]):
        return None
    solution = [Fraction(0)] * len(right)
    for i, column in enumerate(pivots):
        solution[column] = rows[i][-1]
    return solution
