"""The methods: each is fitted to features and base scores, and returns a function that scores any rows.

All methods are the library's own fits, so users of truing get the same numbers.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..._check import Floats, Matrix
from ...metrics import evaluate, fpr_at_tpr
from ...regression.fits import SharedFeatures, fit_direct
from ...regression.moments import Moments
from .cases import CONTRAST, CONVENTIONS, KEEP, PENALTY, Case
from .mixes import Index, Mix
from .settings import Setting

Scorer = Callable[[Matrix], Floats]
Fit = Callable[[SharedFeatures, Floats], Scorer]
"""Fits base scores on features (or their principal components) and returns a function that scores features."""

Measurement = tuple[tuple[str, str, str], dict[str, float]]
"""(base score, method, "fitted" or "unseen" rows), and the metrics of one run."""


def direct(features: SharedFeatures, scores: Floats, *, intercept: bool = True) -> Scorer:
    """Fit DLR (Eq. 10) to base scores (n,) and return a function from features (m, d) to trued scores (m,)."""
    return features.fit_direct(scores, intercept=intercept).predict


def robust(features: SharedFeatures, scores: Floats, *, intercept: bool = True) -> Scorer:
    """Fit RLR (Algorithm 2) to base scores (n,) and return a function from features (m, d) to trued scores (m,)."""
    (fit,) = features.fit_robust_sweep(scores, [KEEP], penalty=PENALTY, intercept=intercept)
    return fit.predict


def robust_as_authors(features: SharedFeatures, scores: Floats, *, keep: float = KEEP) -> Scorer:
    """Fit RLR as in the authors' code: keep the rows that the authors' lasso trusts most, and refit on raw features."""
    kept = trusted_by_authors(features, scores)[: kept_rows(keep, len(scores))]
    return fit_direct(features.matrix[kept], scores[kept]).predict


def trusted_by_authors(features: SharedFeatures, scores: Floats) -> Index:
    """Return the rows, most trusted first, as ordered by the authors' lasso, which is solved as a Huber regression.

    The authors scale columns to unit variance and scikit-learn's lasso divides by n, so their λ corresponds to √n λ
    here. The authors' projection has no constant column, but the lasso centres its columns. On principal components,
    which have zero mean, the centring equals an intercept; on raw features the centring has almost no effect.
    """
    penalty = PENALTY * len(scores) ** 0.5
    return features.trust_order(scores, penalty=penalty, intercept=features.components is not None)


def kept_rows(keep: float, rows: int) -> int:
    """Return how many of `rows` rows are kept at a share.

    >>> kept_rows(0.7, 10)
    7
    """
    return int(keep * rows + 1e-9)


@dataclass(frozen=True)
class Method:
    """A method that trues a base score, and the conditions under which it is run."""

    fit: Fit
    is_compared: bool = False  # Whether cases without a list of methods run this method.
    by_authors: Fit | None = None  # The method by the authors' conventions, if it differs.
    with_components: bool = True  # Whether the fit has a unique solution on centred components.


METHODS = {
    "DLR": Method(direct, is_compared=True),
    "RLR": Method(robust, is_compared=True, by_authors=robust_as_authors),
    "DLR, no intercept": Method(partial(direct, intercept=False)),
    # Without an intercept, RLR has no unique solution on centred components.
    "RLR, no intercept": Method(partial(robust, intercept=False), with_components=False),
}


def methods_of(case: Case, setting: Setting, conventions: str, own: Mapping[str, Fit] | None = None) -> dict[str, Fit]:
    """Return the methods of a case by name, under the given conventions. `own` holds the user's methods."""
    methods = METHODS | {name: Method(fit) for name, fit in (own or {}).items()}
    names = case.methods or [name for name, method in METHODS.items() if method.is_compared]
    chosen = {name: methods[name] for name in names if name != CONTRAST}  # Contrast is not a `Fit` of a base score.
    if setting.components is not None:
        chosen = {name: method for name, method in chosen.items() if method.with_components}
    if conventions == CONVENTIONS[0]:
        return {name: method.fit for name, method in chosen.items()}
    return {name: method.by_authors or method.fit for name, method in chosen.items()}


def compare(
    mix: Mix, methods: dict[str, Fit], components: int | None, rng: np.random.Generator, *, fitted: bool = True
) -> Iterator[Measurement]:
    """Yield the metrics of each method on the fitted rows, and on one half of the rows after a fit to the other half.

    `fitted=False` skips the metrics on the fitted rows.
    """
    seen, unseen = mix.halves(rng)
    all_features, seen_features = SharedFeatures(mix.features, components), SharedFeatures(seen.features, components)
    for base, scores in mix.scores.items():
        if fitted:
            yield (base, "none", "fitted"), metrics(*mix.split(scores))
        for name, method in methods.items():
            if fitted:
                trued = method(all_features, scores)(mix.features)
                yield (base, name, "fitted"), metrics(*mix.split(trued))
            trued = method(seen_features, seen.scores[base])(unseen.features)
            yield (base, name, "unseen"), metrics(*unseen.split(trued))


def metrics(scores_in: Floats, scores_out: Floats) -> dict[str, float]:
    """Return the metrics that rows store, with FPR95 by both conventions."""
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


def principal_coordinates(features: Matrix, components: int | None) -> Callable[[Matrix], Matrix]:
    """Return the projection to the leading principal components, or the identity if `components` is None."""
    if components is None:
        return lambda rows: rows
    principal = Moments.of(features, np.zeros(len(features))).principal_components(components)
    return lambda rows: (rows - principal.origin) @ principal.basis
