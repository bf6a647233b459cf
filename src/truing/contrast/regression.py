r"""Bayesian regression of membership on columns, from sums alone.

Known rows have y = 1, the others y = 0. The model is

$$ y = a_0 + a\,u(x) + x^\top w + g_{k(x)} + \varepsilon, \qquad \varepsilon \sim N(0, \sigma^2), $$

with a flat prior on $a_0$ and on the weight $a$ of the prior score $u$, class effects
$g_k \sim N(0, \rho\,\sigma^2)$ and $w \sim N(0, \gamma\,\sigma^2 (R / \bar\lambda)^\alpha)$, where R is the columns'
product once all of the above but w has been taken out, and $\bar\lambda$ its mean eigenvalue. In steps:

1. Class effects are integrated out. Their columns are orthogonal, so that this is a sum over classes, not algebra in as
   many dimensions.
2. ρ maximises the marginal likelihood of the model without w.
3. R = U diag(λ) Uᵀ, once. In these directions everything else is a sum over d numbers.
4. The marginal likelihood is computed on a grid of (γ, α). α = 0 trusts all directions alike, α > 0 those along which
   rows vary more. Its mean over the grid, over the likelihood of the prior score alone, is the Bayes factor for a
   departure from the prior score.
5. The mean of w at the best point of the grid follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from .._blas import one_thread
from .._check import Floats

# Powers of the directions' variance that the prior variance of a weight may follow.
_POWERS = np.array([0.0, 0.5, 1.0, 1.5, 2.0])

# Variances of the departure that are tried: it may explain from one row's worth to as much as the noise does. Here as
# logarithms of the share of the noise that it explains, over that of the degrees of freedom: from 1 / degrees to 1.
_SPREADS = np.linspace(-1.0, 0.0, 20)

# Ratios of class effects that are tried, as logarithms: none and a wide grid, then a fine one about its best point.
_COARSE = np.append(-np.inf, np.linspace(-24.0, 6.0, 31))
_FINE = np.linspace(-1.0, 1.0, 17)

# A residual below this share of what there was is rounding.
_SMALLEST = 1e-14


@dataclass(frozen=True, eq=False)
class Problem:
    """Products of [1, columns, y] over all rows (p + 2, p + 2), their sums by class (c, p + 2), and rows by class (c,).

    Columns are in units of their standard deviation over all rows; a constant one is zero.
    """

    products: Floats
    class_sums: Floats
    counts: Floats

    @property
    def rows(self) -> float:
        """The weight of all rows."""
        return float(self.products[0, 0])

    def without_classes(self, ratio: float) -> Floats:
        """Return the products once class effects of variance ratio ρ are taken out (step 1)."""
        taken = ratio / (1 + ratio * self.counts)
        products: Floats = self.products - (self.class_sums.T * taken) @ self.class_sums
        return products


@dataclass(frozen=True, eq=False)
class Posterior:
    """What the regression found: the weights (p,) of the columns, and `prior_weight` a with its `standard_error`.

    `log_evidence` is the log Bayes factor for a departure against the prior score alone, `directions` the number of
    directions that the rows decided on rather than the prior, and `power` α.
    """

    weights: Floats
    prior_weight: float
    standard_error: float
    log_evidence: float
    directions: float
    power: float


def class_ratio(problem: Problem, prior: Floats) -> float:
    """Return the ratio ρ of class effects that maximises the marginal likelihood of the prior score alone (step 2)."""
    onto = _with_prior(prior)
    products, sums = onto.T @ problem.products @ onto, problem.class_sums @ onto
    return float(np.exp(_maximum(partial(_class_likelihoods, products, sums, problem.counts))))


def posterior(problem: Problem, prior: Floats, ratio: float, within: Floats | None = None) -> Posterior:
    """Return the posterior of the weights, given the prior score's own weights (p,) and the class effects' ratio.

    `within` is a basis (p, k) that the weights are confined to, if any.
    """
    left = _Departure.of(problem, prior, ratio, within)
    spread, power, log_evidence = left.most_likely_spread()
    shrunk = spread / (1 + spread * left.variances)
    weights = left.basis @ (shrunk * left.along)
    noise = max(left.total - float((shrunk * left.along**2).sum()), _SMALLEST * left.total) / left.degrees
    own_variance = left.prior_variance + float((shrunk * (left.basis.T @ left.slopes[:-1]) ** 2).sum())
    return Posterior(
        weights if within is None else within @ weights,
        prior_weight=float(left.slopes[-1] - left.slopes[:-1] @ weights),
        standard_error=float(np.sqrt(noise * own_variance)),
        log_evidence=log_evidence,
        directions=float((shrunk * left.variances).sum()),
        power=power,
    )


@dataclass(frozen=True, eq=False)
class _Departure:
    """What is left to explain beside the prior score, in the directions of R (step 3).

    `variances` (k,) and `basis` (p, k) are R's eigenvalues and eigenvectors, `along` (k,) the columns' product with y
    in these directions, `total` what is left of y's square, `degrees` its degrees of freedom. `slopes` (p + 1,) are
    those of the columns and of y on the prior score, and `prior_variance` is that of the prior score's weight, over σ².
    """

    variances: Floats
    basis: Floats
    along: Floats
    total: float
    degrees: float
    slopes: Floats
    prior_variance: float

    @classmethod
    def of(cls, problem: Problem, prior: Floats, ratio: float, within: Floats | None) -> _Departure:
        """Take out class effects, the constant and the prior score, and rotate what is left."""
        products = problem.without_classes(ratio)
        fixed = _with_prior(prior)[:, :2]
        constant_and_prior = fixed.T @ products @ fixed
        across = (fixed.T @ products)[:, 1:]  # With the columns, then y.
        left = products[1:, 1:]
        if within is not None:
            free = np.pad(within, (0, 1))
            free[-1, -1] = 1.0
            across, left = across @ free, free.T @ left @ free
        slopes = np.linalg.solve(constant_and_prior, across)
        left = left - across.T @ slopes
        with one_thread():
            variances, basis = np.linalg.eigh(left[:-1, :-1])
        return cls(
            np.where(variances > _SMALLEST * problem.rows, variances, 0.0),
            basis,
            along=basis.T @ left[:-1, -1],
            total=max(float(left[-1, -1]), _SMALLEST * problem.rows),
            degrees=problem.rows - 2,
            slopes=slopes[1],
            prior_variance=float(np.linalg.inv(constant_and_prior)[1, 1]),
        )

    def most_likely_spread(self) -> tuple[Floats, float, float]:
        """Return the prior variance (k,) of the weights in each direction, over σ², its power α, and the log evidence.

        Powers are as likely as each other beforehand, and so are the logarithms of what the departure explains, as a
        share of the noise. The log evidence is the log Bayes factor over all of them against no departure (step 4).
        """
        powers = (self.variances / max(float(self.variances.mean()), _SMALLEST)) ** _POWERS[:, None]
        total = powers @ self.variances
        explains_all = np.where(total > 0, self.degrees / np.where(total > 0, total, 1.0), 0.0)
        shares = np.exp(np.log(max(self.degrees, 1.0)) * _SPREADS)
        factors = shares * explains_all[:, None]
        gains = self._gains(powers, factors)
        power, share = divmod(int(gains.argmax()), len(_SPREADS))
        most = gains[power, share]
        log_evidence = most + np.log(np.exp(gains - most).mean())
        return factors[power, share] * powers[power], float(_POWERS[power]), float(log_evidence)

    def _gains(self, powers: Floats, factors: Floats) -> Floats:
        """Return the log Bayes factor of each prior variance: of a row of powers (n, k), times each factor (n, m)."""
        squares = self.along**2
        spreads = factors[..., None] * powers[:, None, :]
        grown = 1 + spreads * self.variances
        residual = np.maximum(1 - (spreads / grown) @ squares / self.total, _SMALLEST)
        gains: Floats = -0.5 * (self.degrees * np.log(residual) + np.log(grown).sum(axis=-1))
        return gains


def _class_likelihoods(products: Floats, sums: Floats, counts: Floats, logarithms: Floats) -> Floats:
    """Return the log likelihood of the prior score alone at each ratio of class effects, given as logarithms (m,).

    `products` (3, 3) are those of [1, prior score, y], `sums` (c, 3) theirs by class, and `counts` (c,) rows by class.
    """
    rows = float(products[0, 0])
    ratio, degrees = np.exp(logarithms)[:, None], rows - 2
    taken = ratio / (1 + ratio * counts)
    left = products - np.einsum("mc,ci,cj->mij", taken, sums, sums)
    most = left[:, 0, 0] * left[:, 1, 1]
    determinant = np.maximum(most - left[:, 0, 1] ** 2, _SMALLEST * most)
    explained = (
        left[:, 1, 1] * left[:, 0, 2] ** 2
        - 2 * left[:, 0, 1] * left[:, 0, 2] * left[:, 1, 2]
        + left[:, 0, 0] * left[:, 1, 2] ** 2
    ) / determinant
    residual = np.maximum(left[:, 2, 2] - explained, _SMALLEST * rows)
    volume = np.log1p(ratio * counts).sum(axis=1) + np.log(determinant)
    likelihoods: Floats = -0.5 * (degrees * np.log(residual / degrees) + volume)
    return likelihoods


def _with_prior(prior: Floats) -> Floats:
    """Return the map (p + 2, 3) from [1, columns, y] to [1, the prior score, y]."""
    onto = np.zeros((len(prior) + 2, 3))
    onto[0, 0] = 1.0
    onto[1:-1, 1] = prior
    onto[-1, 2] = 1.0
    return onto


def _maximum(function: Callable[[Floats], Floats]) -> float:
    """Return the log ratio, to an eighth, where a function of it is largest; -inf where no ratio but 0 is as good."""
    coarse = function(_COARSE)
    near = _COARSE[1 + coarse[1:].argmax()] + _FINE
    values = function(near)
    place = values.argmax()
    return float(near[place]) if values[place] > coarse[0] else -np.inf
