"""From the sums of known rows and of others to a fit."""

from __future__ import annotations

import numpy as np

from .. import _linalg
from .._blas import one_thread
from .._check import Floats, as_count
from .classes import class_shares
from .columns import Columns
from .fit import ContrastFit
from .priors import choose_prior
from .regression import Problem, posterior
from .sums import PlainSums

# A class mean is shrunk towards the mean of all as if so many more rows of the latter had been seen.
_ROWS_OF_ALL = 50.0

# Odds against a departure from the prior score, before the evidence is seen.
_ODDS_AGAINST = 2.0

# The prior score's weight is kept at so many standard errors at least: without evidence it alone ranks the rows.
_MIN_PRIOR_WEIGHT = 2.0


def contrast(
    columns: Columns,
    known: PlainSums,
    others: PlainSums,
    *,
    held_rows: float = 0.0,
    same_mix: bool = False,
    components: int | None = None,
) -> ContrastFit:
    """Return the contrast of known rows with others, `held_rows` of which are known too, from their sums.

    1. Unless the mix is the same, a row's direction is taken about the mean direction of its class in the known rows.
    2. Columns are brought to unit variance over all rows.
    3. A prior score is chosen, and membership is regressed on it and on the columns, class effects beside them unless
       the mix is the same; these are no part of the score.
    4. The departure from the prior score is weighed by its posterior probability.
    5. What each class's own rows say of its share of out rows is added.
    """
    guarded = not same_mix and columns.classes > 1
    shift = _class_shift(columns, known) if guarded else np.zeros((columns.classes, len(columns)))
    problem, scale = _problem(known, others, shift, columns.rounding)
    within = None if components is None else _within(problem, columns, components)
    prior = choose_prior(problem, columns.names, by_class=guarded)
    found = posterior(problem, prior.weights, prior.class_ratio, within)
    trust = float(1 / (1 + _ODDS_AGAINST * np.exp(-found.log_evidence)))
    prior_weight = max(found.prior_weight, _MIN_PRIOR_WEIGHT * found.standard_error)
    prior_coef = scale * prior_weight * prior.weights
    coef = prior_coef + scale * trust * found.weights
    offsets = shift @ coef
    shares = class_shares(known, others, coef, offsets)
    at_hand = max(others.rows - held_rows, 1.0)
    return ContrastFit(
        columns,
        coef,
        class_offsets=(trust * shares.added if guarded else 0.0) - offsets,
        centre=known.mean,
        prior=prior.name,
        prior_coef=prior_coef,
        log_evidence=found.log_evidence,
        trust=trust,
        evidence_share=_share(problem, trust * found.weights, prior_weight * prior.weights),
        directions=trust * found.directions,
        out_share=min(1.0, shares.out_share * others.rows / at_hand),
        rows=others.rows - held_rows,
        known_rows=known.rows,
    )


def base_alone(columns: Columns, known: PlainSums) -> ContrastFit:
    """Return the base score as a fit, where there are no others to learn from."""
    coef = np.zeros(len(columns))
    coef[columns.dimensions + 1] = 1.0
    return ContrastFit(
        columns,
        coef,
        class_offsets=np.zeros(columns.classes),
        centre=known.mean,
        prior=columns.names[0],
        prior_coef=coef,
        log_evidence=0.0,
        trust=0.0,
        evidence_share=0.0,
        directions=0.0,
        out_share=0.0,
        rows=0.0,
        known_rows=known.rows,
    )


def _class_shift(columns: Columns, known: PlainSums) -> Floats:
    """Return how far the mean direction of each class lies from that of all (c, p), in the known rows."""
    shift = known.about(known.mean) / (known.counts + _ROWS_OF_ALL)[:, None]
    shift[:, columns.dimensions :] = 0.0
    return shift


def _problem(known: PlainSums, others: PlainSums, shift: Floats, rounding: Floats) -> tuple[Problem, Floats]:
    """Return the products of [1, columns, y] over all rows, and what the columns are multiplied by (p,).

    A column that varies no more than `rounding` (p,) may leave is constant, and multiplied by 0.
    """
    both = known + others
    n, mean = both.rows, both.mean
    sums = both.about(mean)
    with one_thread():
        across = sums.T @ shift
        squares = both.comoment - across - across.T + (shift.T * both.counts) @ shift
    sums = sums - both.counts[:, None] * shift
    total = -both.counts @ shift
    ours = known.rows * (known.mean - mean) - known.counts @ shift
    variance = np.diagonal(squares) / n - (total / n) ** 2
    varies = variance > rounding**2
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
    p = len(mean)
    products = np.empty((p + 2, p + 2))
    products[0, 0], products[0, -1], products[-1, -1] = n, known.rows, known.rows
    products[0, 1:-1] = scale * total
    products[1:-1, -1] = scale * ours
    products[1:-1, 1:-1] = (squares + squares.T) * (np.outer(scale, scale) / 2)
    products[1:, 0], products[-1, 1:-1] = products[0, 1:], products[1:-1, -1]
    class_sums = np.column_stack((both.counts, sums * scale, known.counts))
    return Problem(products, class_sums, both.counts), scale


def _within(problem: Problem, columns: Columns, components: int) -> Floats:
    """Return a basis (p, k + 1 + s): the leading principal components of the directions, and the other columns."""
    d = columns.dimensions
    k = as_count(components, "components", at_most=d)
    mean = problem.products[0, 1 : 1 + d]
    centred = problem.products[1 : 1 + d, 1 : 1 + d] - np.outer(mean, mean) / problem.rows
    with one_thread():
        _, basis = _linalg.eigh(centred, subset_by_index=(d - k, d - 1))
    within = np.zeros((len(columns), k + len(columns) - d))
    within[:d, :k] = basis
    within[d:, k:] = np.eye(len(columns) - d)
    return within


def _share(problem: Problem, departure: Floats, prior: Floats) -> float:
    """Return the departure's share of the variance of both."""
    ours, theirs = _variance(problem, departure), _variance(problem, prior)
    return ours / (ours + theirs) if ours + theirs > 0 else 0.0


def _variance(problem: Problem, weights: Floats) -> float:
    """Return the sum of squares of a score of these weights (p,) about its mean."""
    total = float(problem.products[0, 1:-1] @ weights)
    about_zero = float(weights @ problem.products[1:-1, 1:-1] @ weights)
    return about_zero - total * total / problem.rows
