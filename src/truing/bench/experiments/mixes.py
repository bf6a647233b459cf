"""A mix: rows of an in-distribution set and of another, with their base scores; drawn, split, fitted and measured."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..._check import Floats, Matrix
from ...fits import fit_direct
from ...linear import LinearFit
from ...metrics import evaluate, fpr_at_tpr
from ...moments import Moments, Principal
from ...robust import huber
from .cases import KEEP, PENALTY

Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Mix:
    """Rows of two sets, the in-distribution ones first, and each base score of them."""

    features: Matrix
    scores: dict[str, Floats]
    rows_in: int

    @property
    def rows_out(self) -> int:
        """Number of rows of the other set."""
        return len(self.features) - self.rows_in

    def take(self, inside: Index, outside: Index) -> "Mix":
        """Return those rows of each set."""
        rows = np.concatenate([inside, self.rows_in + outside])
        return Mix(self.features[rows], {base: scores[rows] for base, scores in self.scores.items()}, len(inside))

    def drawn(self, rng: np.random.Generator, rows_in: int, rows_out: int) -> "Mix":
        """Return that many rows of each set, at random and without replacement."""
        return self.take(rng.permutation(self.rows_in)[:rows_in], rng.permutation(self.rows_out)[:rows_out])

    def halves(self, rng: np.random.Generator) -> tuple["Mix", "Mix"]:
        """Return both halves of each set, split at random."""
        inside, outside = rng.permutation(self.rows_in), rng.permutation(self.rows_out)
        middles = len(inside) // 2, len(outside) // 2
        return self.take(inside[: middles[0]], outside[: middles[1]]), self.take(
            inside[middles[0] :], outside[middles[1] :]
        )

    def split(self, scores: Floats) -> tuple[Floats, Floats]:
        """Return (scores_in, scores_out)."""
        return scores[: self.rows_in], scores[self.rows_in :]


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates to regress in: the features of a mix, or their own leading principal components.

    One frame serves every base score and every method, so the components are found once.
    """

    features: Matrix
    components: int | None = None

    @cached_property
    def coordinates(self) -> Matrix:
        """What scores are regressed on."""
        return self.place(self.features)

    @cached_property
    def judged(self) -> Matrix:
        """What RLR judges rows by: unit rows, or their leading principal components (Algorithm 2)."""
        rows = self.features.astype(np.float64)
        norm = np.linalg.norm(rows, axis=1, keepdims=True)
        rows /= np.where(norm > 0, norm, 1)
        return rows if self.components is None else _placed(rows, _principal(rows, self.components))

    def place(self, features: Matrix) -> Matrix:
        """Return rows in these coordinates, seen before or not."""
        return features if self._principal is None else _placed(features, self._principal)

    @cached_property
    def _principal(self) -> Principal | None:
        return None if self.components is None else _principal(self.features, self.components)


Measured = tuple[tuple[str, str, str], dict[str, float]]
"""(base score, method, "fitted" or "unseen" rows), and the metrics of one run."""

Method = Callable[[Frame, Floats], Callable[[Matrix], Floats]]
"""From a frame and the scores of its rows to a function that scores features."""


def direct(frame: Frame, scores: Floats, *, intercept: bool = True) -> Callable[[Matrix], Floats]:
    """Return DLR."""
    return _scorer(frame, fit_direct(frame.coordinates, scores, intercept=intercept))


def robust(frame: Frame, scores: Floats, *, keep: float = KEEP, intercept: bool = True) -> Callable[[Matrix], Floats]:
    """Return RLR."""
    kept = trusted(frame, scores, PENALTY, intercept)[: kept_rows(keep, len(scores))]
    return _scorer(frame, fit_direct(frame.coordinates[kept], scores[kept], intercept=intercept))


def robust_as_authors(frame: Frame, scores: Floats, *, keep: float = KEEP) -> Callable[[Matrix], Floats]:
    """Return RLR as the authors' code has it: their order of the rows, and a refit on the raw features."""
    kept = trusted_by_authors(frame, scores)[: kept_rows(keep, len(scores))]
    return fit_direct(frame.features[kept], scores[kept]).predict


def trusted_by_authors(frame: Frame, scores: Floats) -> Index:
    """Return the rows from the most to the least trusted by the authors' lasso, solved as a Huber regression.

    Their columns have unit variance and scikit-learn's lasso divides by n, so their λ weighs like √n λ here. Their
    projector has no constant, and the lasso centres its columns: on principal components, whose mean is
    zero, that is an intercept, and on raw features next to nothing.
    """
    return trusted(frame, scores, PENALTY * len(scores) ** 0.5, frame.components is not None)


def trusted(frame: Frame, scores: Floats, penalty: float, intercept: bool) -> Index:
    """Return the rows from the most to the least trusted by the robust regression, ties to the higher score."""
    residual = huber(frame.judged, scores, penalty, intercept=intercept).residual
    return np.lexsort((-scores, np.abs(residual)))


def kept_rows(keep: float, rows: int) -> int:
    """Return how many rows a kept share is.

    >>> kept_rows(0.7, 10)
    7
    """
    return int(keep * rows + 1e-9)


def compare(
    mix: Mix, methods: dict[str, Method], components: int | None, rng: np.random.Generator, *, fitted: bool = True
) -> Iterator[Measured]:
    """Yield the metrics of the rows that a method is fitted on, and of one half by its fit of the other.

    Without `fitted` the first are left out.
    """
    seen, unseen = mix.halves(rng)
    whole, half = Frame(mix.features, components), Frame(seen.features, components)
    for base, scores in mix.scores.items():
        if fitted:
            yield (base, "none", "fitted"), metrics(*mix.split(scores))
        for name, method in methods.items():
            if fitted:
                yield (base, name, "fitted"), metrics(*mix.split(method(whole, scores)(mix.features)))
            trued = method(half, seen.scores[base])(unseen.features)
            yield (base, name, "unseen"), metrics(*unseen.split(trued))


def metrics(scores_in: Floats, scores_out: Floats) -> dict[str, float]:
    """Return what rows report, FPR95 by both conventions."""
    report = evaluate(scores_in, scores_out)
    nearest = fpr_at_tpr(scores_in, scores_out, convention="paper")
    return {
        "rows_in": report.rows_in,
        "rows_out": report.rows_out,
        "fpr95": report.fpr95,
        "fpr95_paper": nearest,
        "auroc": report.auroc,
        "aupr": report.aupr,
    }


def _scorer(frame: Frame, fit: LinearFit) -> Callable[[Matrix], Floats]:
    return lambda features: fit.predict(frame.place(features))


def _principal(features: Matrix, components: int) -> Principal:
    return Moments.of(features, np.zeros(len(features))).principal(components)


def _placed(features: Matrix, principal: Principal) -> Floats:
    placed: Floats = (features - principal.origin) @ principal.basis
    return placed
