"""The prior score of a contrast: the base score, unless another tells known rows from the others clearly better."""

from __future__ import annotations

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
    base = weights[names[0]]
    if not base @ problem.products[1:-1, 1:-1] @ base > 0:
        raise ValueError(f"the base score {names[0]} must vary, got the same for every row")
    ratio = class_ratio(problem, base) if by_class else 0.0
    left = problem.without_classes(ratio)
    products = left[1:, 1:] - np.outer(left[0, 1:], left[0, 1:]) / left[0, 0]
    chosen = names[0]
    for name in names[1:]:
        if _williams(products, weights[chosen], weights[name], problem.rows) > _CLEAR:
            chosen = name
    if chosen != names[0] and by_class:
        ratio = class_ratio(problem, weights[chosen])
    return Prior(chosen, weights[chosen], ratio)


def _williams(products: Floats, one: Floats, other: Floats, rows: float) -> float:
    """Return Williams' t for the correlation of y, the last column, with the other over that with the one."""
    onto = np.zeros((3, len(products)))
    onto[0, :-1], onto[1, :-1], onto[2, -1] = one, other, 1.0
    covariance = onto @ products @ onto.T
    norms = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    if not norms.all() or rows <= 3:
        return 0.0
    (_, between, first), (_, _, second), _ = covariance / np.outer(norms, norms)
    determinant = 1 - first**2 - second**2 - between**2 + 2 * first * second * between
    middle = (first + second) / 2
    scale = 2 * (rows - 1) / (rows - 3) * max(determinant, 0.0) + middle**2 * (1 - between) ** 3
    return float((second - first) * np.sqrt((rows - 1) * (1 + between) / scale)) if scale > 1e-12 else 0.0
