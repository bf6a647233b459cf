r"""Bayesian regression of membership on columns, from sums alone.

Known rows have y = 1, the others y = 0. The model is

$$ y = a_0 + a\,u(x) + x^\top w + g_{k(x)} + \varepsilon, \qquad \varepsilon \sim N(0, \sigma^2), $$

with a flat prior on $a_0$ and on the weight $a$ of the prior score $u$, class effects
$g_k \sim N(0, \rho\,\sigma^2)$ and $w \sim N(0, \gamma\,\sigma^2 R^\alpha)$, where R is the columns' product once
all of the above but w has been taken out. In steps:

1. Class effects are integrated out. Their columns are orthogonal, so that this is a sum over classes, not algebra in as
   many dimensions.
2. ρ maximises the marginal likelihood of the model without w.
3. R = U diag(λ) Uᵀ, once. In these directions everything else is a sum over d numbers.
4. (γ, α) maximise the marginal likelihood. α = 0 trusts all directions alike, α > 0 those along which rows vary more.
5. The mean of w follows, and by how much the log marginal likelihood exceeds that of the prior score alone.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from .._blas import one_thread
from .._check import Floats

# Powers of the directions' variance that the prior variance of a weight may follow.
_POWERS = np.array([0.0, 0.5, 1.0, 1.5, 2.0])

# Ratios of variances that are tried, as logarithms: a wide grid, then a fine one about its best point.
_COARSE = np.linspace(-24.0, 6.0, 31)
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

    `gain` is the log marginal likelihood over that of the prior score alone, `directions` the number of directions that
    the rows decided on rather than the prior, `power` α, and `class_ratio` ρ.
    """

    weights: Floats
    prior_weight: float
    standard_error: float
    gain: float
    directions: float
    power: float
    class_ratio: float


def class_ratio(problem: Problem, prior: Floats) -> float:
    """Return the ratio ρ of class effects that maximises the marginal likelihood of the prior score alone (step 2)."""
    onto = _with_prior(prior)
    products, sums = onto.T @ problem.products @ onto, problem.class_sums @ onto
    degrees = problem.rows - 2

    def log_likelihood(logarithms: Floats) -> Floats:
        ratio = np.exp(logarithms)[:, None]
        taken = ratio / (1 + ratio * problem.counts)
        left = products - np.einsum("rk,ki,kj->rij", taken, sums, sums)
        determinant = left[:, 0, 0] * left[:, 1, 1] - left[:, 0, 1] ** 2
        explained = (
            left[:, 1, 1] * left[:, 0, 2] ** 2
            - 2 * left[:, 0, 1] * left[:, 0, 2] * left[:, 1, 2]
            + left[:, 0, 0] * left[:, 1, 2] ** 2
        ) / determinant
        residual = np.maximum(left[:, 2, 2] - explained, _SMALLEST * left[:, 2, 2])
        volume = np.log1p(ratio * problem.counts).sum(axis=1) + np.log(determinant)
        value: Floats = -0.5 * (degrees * np.log(residual / degrees) + volume)
        return value

    best, value = _maximum(log_likelihood)
    none = float(log_likelihood(np.array([-np.inf]))[0])
    return float(np.exp(best)) if value > none else 0.0


def posterior(problem: Problem, prior: Floats, ratio: float, within: Floats | None = None) -> Posterior:
    """Return the posterior of the weights, given the prior score's own weights (p,) and the class effects' ratio.

    `within` is a basis (p, k) that the weights are confined to, if any.
    """
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
        variances, basis = eigh(left[:-1, :-1])
    variances = np.maximum(variances, 0.0)
    along = basis.T @ left[:-1, -1]
    total, degrees = float(left[-1, -1]), problem.rows - 2

    powers = (variances / max(float(variances.mean()), _SMALLEST)) ** _POWERS[:, None]
    likelihoods = [_log_likelihood(variances, along, total, degrees, power) for power in powers]
    best = [_maximum(likelihood) for likelihood in likelihoods]
    chosen = int(np.argmax([value for _, value in best]))
    alone = -0.5 * degrees * np.log(total / degrees)
    gain = max(0.0, best[chosen][1] - alone)
    spread = powers[chosen] * np.exp(best[chosen][0]) if gain > 0 else np.zeros_like(variances)
    shrunk = spread / (1 + spread * variances)

    weights = basis @ (shrunk * along)
    noise = max(total - float((shrunk * along**2).sum()), _SMALLEST * total) / degrees
    prior_weight = float(slopes[1, -1] - slopes[1, :-1] @ weights)
    own = float(np.linalg.inv(constant_and_prior)[1, 1] + (shrunk * (basis.T @ slopes[1, :-1]) ** 2).sum())
    return Posterior(
        weights if within is None else within @ weights,
        prior_weight,
        standard_error=float(np.sqrt(noise * own)),
        gain=float(gain),
        directions=float((shrunk * variances).sum()),
        power=float(_POWERS[chosen]),
        class_ratio=ratio,
    )


def _with_prior(prior: Floats) -> Floats:
    """Return the map (p + 2, 3) from [1, columns, y] to [1, the prior score, y]."""
    onto = np.zeros((len(prior) + 2, 3))
    onto[0, 0] = 1.0
    onto[1:-1, 1] = prior
    onto[-1, 2] = 1.0
    return onto


def _log_likelihood(
    variances: Floats, along: Floats, total: float, degrees: float, power: Floats
) -> Callable[[Floats], Floats]:
    """Return the log marginal likelihood as a function of log γ (step 4)."""

    def log_likelihood(logarithms: Floats) -> Floats:
        spread = np.exp(logarithms)[:, None] * power
        explained = (spread * along**2 / (1 + spread * variances)).sum(axis=1)
        residual = np.maximum(total - explained, _SMALLEST * total)
        volume = np.log1p(spread * variances).sum(axis=1)
        value: Floats = -0.5 * (degrees * np.log(residual / degrees) + volume)
        return value

    return log_likelihood


def _maximum(function: Callable[[Floats], Floats]) -> tuple[float, float]:
    """Return where a function of log ratios is largest, to a sixteenth, and its value there."""
    middle = _COARSE[int(np.argmax(function(_COARSE)))]
    near = middle + _FINE
    values = function(near)
    place = int(np.argmax(values))
    return float(near[place]), float(values[place])
