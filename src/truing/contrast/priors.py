"""The prior score of a contrast: the base score, unless another tells known rows from the others clearly better."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .._check import Floats
from .regression import Problem, class_ratio

# A difference of two correlations is clear from so many standard errors on.
_CLEAR = 3.0


@dataclass(frozen=True, eq=False)
class Prior:
    """A prior score: its name, its weights (p,) on the columns, and the ratio ρ of class effects beside it."""

    name: str
    weights: Floats
    class_ratio: float


def choose_prior(problem: Problem, names: tuple[str, ...], *, by_class: bool) -> Prior:
    """Return one of the scores called `names`, which are the last columns: the first, unless another is clearly better.

    Better is what correlates more with membership, class effects taken out, and clear is a difference of three standard
    errors by Williams' test (1959) for two correlations with one and the same variable.
    """
    p = len(problem.products) - 2
    weights = {name: np.eye(1, p, p - len(names) + place)[0] for place, name in enumerate(names)}
    if not problem.products[-1 - len(names), -1 - len(names)] > 0:
        raise ValueError(f"the base score {names[0]} must vary, got the same for every row")
    ratio = class_ratio(problem, weights[names[0]]) if by_class else 0.0
    products = _of_scores(problem, len(names)).without_classes(ratio)
    products = products[1:, 1:] - np.outer(products[0, 1:], products[0, 1:]) / products[0, 0]
    chosen = 0
    for place in range(1, len(names)):
        if _williams(products, chosen, place, problem.rows) > _CLEAR:
            chosen = place
    name = names[chosen]
    if chosen and by_class:
        ratio = class_ratio(problem, weights[name])
    return Prior(name, weights[name], ratio)


def _of_scores(problem: Problem, number: int) -> Problem:
    """Return the problem of the last columns alone, which are scores."""
    some = [0, *range(-1 - number, 0)]
    return Problem(problem.products[some][:, some], problem.class_sums[:, some], problem.counts)


def _williams(products: Floats, one: int, other: int, rows: float) -> float:
    """Return Williams' t for the correlation of y, the last column, with the other over that with the one."""
    some = (one, other, -1)
    squares = [float(products[place, place]) for place in some]
    if not min(squares) > 0 or rows <= 3:
        return 0.0
    pairs = ((0, 1), (0, 2), (1, 2))
    between, first, second = (float(products[some[i], some[j]]) / math.sqrt(squares[i] * squares[j]) for i, j in pairs)
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    middle = (first + second) / 2
    scale = 2 * (rows - 1) / (rows - 3) * max(determinant, 0.0) + middle**2 * (1 - between) ** 3
    return (second - first) * math.sqrt((rows - 1) * (1 + between) / scale) if scale > 1e-12 else 0.0
