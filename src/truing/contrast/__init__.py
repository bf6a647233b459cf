"""Contrast: known in-distribution rows as evidence, the base score as the prior.

Membership (known rows against the rows at hand) is regressed on directions, distance and base scores. The rows at hand
are in-distribution rows and others, so that what tells them from known rows tells in from out. All that is needed are
sums over rows: they merge, subtract and decay.
"""

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import eigh

from .._blas import one_thread
from .._check import Floats, as_count, as_truth, counted
from ..least_squares import LinearFit
from ..outputs import Outputs, as_outputs
from ..scores import Base, Head, check_base
from .classes import class_shares
from .columns import Columns
from .priors import choose_prior
from .regression import Problem, posterior
from .sums import ClassMoments

__all__ = ["ClassMoments", "Columns", "ContrastFit", "Explanation", "contrast", "fit_contrast", "split"]

# A class mean is shrunk towards the mean of all as if so many more rows of the latter had been seen.
_ROWS_OF_ALL = 50.0

# Log odds against a departure from the prior score, before the evidence is seen.
_AGAINST = 2.0

# The prior score's weight is kept at so many standard errors at least: without evidence it alone ranks the rows.
_LEAST_PRIOR = 2.0

# The seed of the split where no generator is given: the same input gives the same answer.
_SEED = 20230

# Rows of a reference that can be split.
_FEWEST = 4

# A column whose variance is below this share of its squared mean is constant but for rounding.
_CONSTANT = 1e-24


@dataclass(frozen=True, eq=False)
class Explanation:
    """What made rows look in or out: terms of each row's score, which is their sum.

    `features` (n, d) is the part of the direction in which the row lies, feature by feature, `distance` (n,) that of
    how far out it lies, `scores` that of each base score by name (n,), and `predicted_class` (n,) that of its class.
    Negative terms speak for out.
    """

    features: Floats
    distance: Floats
    scores: dict[str, Floats]
    predicted_class: Floats


@dataclass(frozen=True, eq=False)
class ContrastFit:
    r"""A linear map from the columns of `columns` to a score, about a `centre`, and an offset for each class.

    The score is $(x - \mathrm{centre})^\top$ `coef` (p,) + `class_offsets` (c,); the centre is the known rows' mean.
    `prior` names the prior score. `log_evidence` is the log marginal likelihood over that of the prior score alone,
    `trust` the posterior probability that there is something to learn, by which the departure from the prior score is
    weighed, `evidence_share` the departure's share of the score's variance, `directions` the effective number of
    directions that it uses, and `out_share` the estimated share of out rows among the `rows` at hand. `known_rows` were
    learned from. `scores_in` (m,) are the scores of the known rows that were held back to decide against.
    """

    columns: Columns
    coef: Floats
    class_offsets: Floats
    centre: Floats
    prior: str
    prior_coef: Floats
    log_evidence: float
    trust: float
    evidence_share: float
    directions: float
    out_share: float
    rows: float
    known_rows: float
    scores_in: Floats | None = None

    def predict(self, outputs: Outputs) -> Floats:
        """Return the score (n,) of every row; higher is more in-distribution."""
        scores = np.empty(len(as_outputs(outputs, "outputs")))
        linear = LinearFit(self.coef, -float(self.centre @ self.coef), self.rows, 0, 0.0)
        for rows, block, classes in self.columns.blocks(outputs):
            scores[rows] = linear.predict(block) + self.class_offsets[classes]
        return scores

    def explain(self, outputs: Outputs) -> Explanation:
        """Return what each part of a row adds to its score, compared with the mean known row."""
        n, d = len(as_outputs(outputs, "outputs")), self.columns.dimensions
        parts, offsets = np.empty((n, len(self.coef))), np.empty(n)
        for rows, block, classes in self.columns.blocks(outputs):
            parts[rows] = (block - self.centre) * self.coef
            offsets[rows] = self.class_offsets[classes]
        scores = {name: parts[:, d + 1 + place] for place, name in enumerate(self.columns.names)}
        return Explanation(parts[:, :d], parts[:, d], scores, offsets)

    def __repr__(self) -> str:
        return (
            f"ContrastFit({counted(self.rows)} against {counted(self.known_rows)} known, prior {self.prior}, "
            f"{self.evidence_share:.0%} evidence, about {self.out_share:.0%} out)"
        )


def fit_contrast(
    outputs: Outputs,
    reference: Outputs,
    *,
    base: Base = "gen",
    temperature: float = 1.0,
    head: Head | None = None,
    same_mix: bool = False,
    components: int | None = None,
    held: Outputs | None = None,
    rng: np.random.Generator | None = None,
) -> ContrastFit:
    """Return the contrast of known in-distribution rows with the rows at hand.

    Half of the reference is learned from, the other half is scored beside the rows at hand, in which it is counted:
    p-values of the rows against `scores_in` are then valid.

    Parameters
    ----------
    outputs
        The rows at hand.
    reference
        Known in-distribution rows, held out from training.
    base, temperature, head
        The base score, the temperature of its softmax, and the network's last layer where the score needs it.
    same_mix
        Whether classes are known to be as frequent among the in-distribution rows at hand as in the reference. If not,
        a difference in their numbers is no evidence.
    components
        Confine the fit to so many leading principal components of the directions.
    held
        Known rows to hold back; all of the reference is then learned from.
    rng
        Splits the reference where `held` is not given; by default always in the same way.
    """
    check_base(base)
    outputs, reference = as_outputs(outputs, "outputs"), as_outputs(reference, "reference")
    same_mix = as_truth(same_mix, "same_mix")
    known, held = split(reference, rng) if held is None else (reference, as_outputs(held, "held"))
    columns = Columns.of(known, base, temperature, head)
    columns.check(outputs)
    ours = ClassMoments.of(columns, known, leave_out=True)
    others = ClassMoments.of(columns, held) + ClassMoments.of(columns, outputs)
    fit = contrast(columns, ours, others, held_rows=len(held), same_mix=same_mix, components=components)
    return replace(fit, scores_in=fit.predict(held))


def split(reference: Outputs, rng: np.random.Generator | None = None) -> tuple[Outputs, Outputs]:
    """Return two halves of the reference, drawn at random: to learn from, and to hold back."""
    if len(reference) < _FEWEST:
        raise ValueError(f"reference must have {_FEWEST} rows at least to be split, got {len(reference)}")
    order = (np.random.default_rng(_SEED) if rng is None else rng).permutation(len(reference))
    half = len(reference) // 2
    return reference[np.sort(order[:half])], reference[np.sort(order[half:])]


def contrast(
    columns: Columns,
    known: ClassMoments,
    others: ClassMoments | None,
    *,
    held_rows: float = 0.0,
    same_mix: bool = False,
    components: int | None = None,
) -> ContrastFit:
    """Return the contrast of known rows with others, `held_rows` of which are known too, from their sums.

    Where there are no others the score is the base score.

    1. Unless the mix is the same, a row's direction is taken about the mean direction of its class in the known rows.
    2. Columns are brought to unit variance over all rows.
    3. A prior score is chosen, and membership is regressed on it and on the columns, class effects beside them unless
       the mix is the same; these are no part of the score.
    4. The departure from the prior score is weighed by its posterior probability.
    5. What each class's own rows say of its share of out rows is added.
    """
    if others is None:
        return _base_alone(columns, known)
    guarded = not same_mix and columns.classes > 1
    shift = _class_shift(columns, known) if guarded else np.zeros((columns.classes, len(columns)))
    problem, scale = _problem(known, others, shift)
    within = None if components is None else _within(problem, columns, components)
    prior = choose_prior(problem, columns.names, by_class=guarded)
    found = posterior(problem, prior.weights, prior.class_ratio, within)
    trust = float(1 / (1 + np.exp(_AGAINST - found.gain)))
    prior_weight = max(found.prior_weight, _LEAST_PRIOR * found.standard_error)
    prior_coef = scale * prior_weight * prior.weights
    coef = prior_coef + scale * trust * found.weights
    offsets = shift @ coef
    shares = class_shares(known, others, coef, offsets)
    at_hand = max(others.rows - held_rows, 1.0)
    return ContrastFit(
        columns,
        coef,
        class_offsets=(trust * shares.added if guarded else 0.0) - offsets,
        centre=known.moments.mean,
        prior=prior.name,
        prior_coef=prior_coef,
        log_evidence=found.gain,
        trust=trust,
        evidence_share=_share(problem, trust * found.weights, prior_weight * prior.weights),
        directions=trust * found.directions,
        out_share=min(1.0, shares.out_share * others.rows / at_hand),
        rows=others.rows - held_rows,
        known_rows=known.rows,
    )


def _base_alone(columns: Columns, known: ClassMoments) -> ContrastFit:
    place = columns.dimensions + 1
    coef = np.zeros(len(columns))
    variance = float(known.moments.comoment[place, place]) / known.rows
    coef[place] = 1 / np.sqrt(variance) if variance > 0 else 1.0
    return ContrastFit(
        columns,
        coef,
        class_offsets=np.zeros(columns.classes),
        centre=known.moments.mean,
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


def _class_shift(columns: Columns, known: ClassMoments) -> Floats:
    """Return how far the mean direction of each class lies from that of all (c, p), in the known rows."""
    shift = known.about(known.moments.mean) / (known.counts + _ROWS_OF_ALL)[:, None]
    shift[:, columns.dimensions :] = 0.0
    return shift


def _problem(known: ClassMoments, others: ClassMoments, shift: Floats) -> tuple[Problem, Floats]:
    """Return the products of [1, columns, y] over all rows, and what the columns are multiplied by (p,)."""
    both = known + others
    n, mean = both.rows, both.moments.mean
    sums = both.about(mean)
    with one_thread():
        squares = both.moments.comoment - sums.T @ shift - shift.T @ sums + (shift.T * both.counts) @ shift
    sums = sums - both.counts[:, None] * shift
    total = -both.counts @ shift
    ours = known.rows * (known.moments.mean - mean) - known.counts @ shift
    variance = np.diagonal(squares) / n - (total / n) ** 2
    varies = variance > _CONSTANT * np.maximum(mean**2, variance.max(initial=0.0) * _CONSTANT)
    scale = np.where(varies, 1 / np.sqrt(np.where(varies, variance, 1.0)), 0.0)
    p = len(mean)
    products = np.zeros((p + 2, p + 2))
    products[0, 0], products[0, -1], products[-1, -1] = n, known.rows, known.rows
    products[0, 1:-1] = scale * total
    products[1:-1, -1] = scale * ours
    products[1:-1, 1:-1] = squares * np.outer(scale, scale)
    products = np.triu(products) + np.triu(products, 1).T
    class_sums = np.column_stack((both.counts, sums * scale, known.counts))
    return Problem(products, class_sums, both.counts), scale


def _within(problem: Problem, columns: Columns, components: int) -> Floats:
    """Return a basis (p, k + 1 + s): the leading principal components of the directions, and the other columns."""
    d = columns.dimensions
    k = as_count(components, "components", at_most=d)
    mean = problem.products[0, 1 : 1 + d]
    with one_thread():
        _, basis = eigh(
            problem.products[1 : 1 + d, 1 : 1 + d] - np.outer(mean, mean) / problem.rows, subset_by_index=(d - k, d - 1)
        )
    within = np.zeros((len(columns), k + len(columns) - d))
    within[:d, :k] = basis
    within[d:, k:] = np.eye(len(columns) - d)
    return within


def _share(problem: Problem, departure: Floats, prior: Floats) -> float:
    """Return the departure's share of the variance of both."""
    mean = problem.products[0, 1:-1]
    covariance = problem.products[1:-1, 1:-1] - np.outer(mean, mean) / problem.rows
    ours, theirs = float(departure @ covariance @ departure), float(prior @ covariance @ prior)
    return ours / (ours + theirs) if ours + theirs > 0 else 0.0
