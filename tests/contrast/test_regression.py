"""The regression of membership against dense n × n algebra, and against rows in another order."""

import numpy as np
import pytest
from scipy.linalg import block_diag

from truing.contrast import regression
from truing.contrast.regression import Problem, class_ratio, posterior


def make(rng, rows=60, columns=5, classes=4):
    """Return columns (n, p), membership (n,), predicted classes (n,) and the problem made of them."""
    X = rng.normal(size=(rows, columns)) * [1.0, 0.2, 3.0, 1.0, 0.5][:columns]
    k = rng.integers(classes, size=rows)
    y = (X[:, 0] + 0.5 * X[:, 1] + 0.3 * (k == 1) + rng.normal(size=rows) > 0).astype(float)
    everything = np.column_stack((np.ones(rows), X, y))
    members = np.eye(classes)[k]
    return X, y, members, Problem(everything.T @ everything, members.T @ everything, members.sum(axis=0))


def dense(X, y, members, prior, ratio, spread):
    """Return REML's log likelihood, the weights of X, and the prior score's weight with its standard error."""
    n = len(y)
    F = np.column_stack((np.ones(n), X @ prior))
    V = np.eye(n) + ratio * members @ members.T + X @ spread @ X.T
    Vi = np.linalg.inv(V)
    inner = np.linalg.inv(F.T @ Vi @ F)
    fixed = inner @ F.T @ Vi @ y
    left = Vi @ (y - F @ fixed)
    noise = float(y @ left) / (n - 2)
    value = -0.5 * ((n - 2) * np.log(noise) + np.linalg.slogdet(V)[1] - np.linalg.slogdet(inner)[1])
    return value, spread @ X.T @ left, fixed[1], np.sqrt(noise * inner[1, 1])


def products_left(X, members, prior, ratio):
    """Return the columns' product once the constant, the prior score and class effects are taken out."""
    n = len(X)
    F = np.column_stack((np.ones(n), X @ prior))
    Vi = np.linalg.inv(np.eye(n) + ratio * members @ members.T)
    return X.T @ (Vi - Vi @ F @ np.linalg.inv(F.T @ Vi @ F) @ F.T @ Vi) @ X


@pytest.mark.parametrize("ratio", [0.0, 0.03, 2.0])
def test_the_posterior_is_that_of_the_dense_model_averaged_over_its_variances(rng, ratio):
    departures = 0
    prior = np.eye(5)[4]
    for _ in range(5):
        X, y, members, problem = make(rng)
        found = posterior(problem, prior, ratio)
        values, basis = np.linalg.eigh(products_left(X, members, prior, ratio))
        values = np.maximum(values, 0.0)
        alone = dense(X, y, members, prior, ratio, np.zeros((5, 5)))[0]
        degrees = len(y) - 2

        def at(share, power, values=values, basis=basis, X=X, y=y, members=members, degrees=degrees):
            """The departure's expected sum of squares is a share of that of noise with as many degrees of freedom."""
            spread = values**power
            spread = share * degrees * spread / (spread @ values)
            return dense(X, y, members, prior, ratio, (basis * spread) @ basis.T)

        points = [(1 / degrees ** (k / 19), power) for k in range(20) for power in (0.0, 0.5, 1.0, 1.5, 2.0)]
        gains = np.array([at(*point)[0] - alone for point in points])
        assert found.log_evidence == pytest.approx(np.log(np.mean(np.exp(gains))), abs=1e-6)
        best = points[int(np.argmax(gains))]
        departures += gains.max() > 1
        _, weights, a, error = at(*best)
        assert found.power == best[1]
        np.testing.assert_allclose(found.weights, weights, atol=1e-6 * np.abs(weights).max())
        assert found.prior_weight == pytest.approx(a, abs=1e-6 * error)
        assert found.standard_error == pytest.approx(error, rel=1e-6)
    assert departures >= 3


def test_class_effects_are_as_large_as_the_dense_likelihood_says(rng):
    for strength in (0.0, 0.5, 3.0):
        X, _, members, _ = make(rng, rows=200)
        effects = strength * rng.normal(size=4)
        y = (members @ effects + rng.normal(size=200) > 0).astype(float)
        everything = np.column_stack((np.ones(200), X, y))
        problem = Problem(everything.T @ everything, members.T @ everything, members.sum(axis=0))
        prior = np.eye(5)[4]
        ratio = class_ratio(problem, prior)
        nothing = np.zeros((5, 5))
        ours = dense(X, y, members, prior, ratio, nothing)[0]
        best = max(dense(X, y, members, prior, r, nothing)[0] for r in (0.0, *np.exp(np.linspace(-12, 4, 65))))
        assert ours == pytest.approx(best, abs=0.02)


def test_taking_out_class_effects_is_a_sum_over_classes(rng):
    X, y, members, problem = make(rng)
    everything = np.column_stack((np.ones(len(X)), X, y))
    for ratio in (0.0, 0.1, 10.0):
        Vi = np.linalg.inv(np.eye(len(X)) + ratio * members @ members.T)
        np.testing.assert_allclose(problem.without_classes(ratio), everything.T @ Vi @ everything, atol=1e-9)


def test_without_signal_the_evidence_is_what_chance_allows(rng):
    """A Bayes factor is 1 on average where there is no departure, so that it exceeds k once in k times at most."""
    factors = []
    for _ in range(400):
        X, _, members, _ = make(rng, rows=200)
        y = rng.permutation(np.arange(200) < 80).astype(float)
        everything = np.column_stack((np.ones(200), X, y))
        problem = Problem(everything.T @ everything, members.T @ everything, members.sum(axis=0))
        factors.append(np.exp(posterior(problem, np.eye(5)[4], 0.0).log_evidence))
    factors = np.array(factors)
    assert factors.mean() < 1 + 3 * factors.std() / 20
    for k in (2, 5, 10, 20):
        assert (factors > k).mean() <= 1 / k + 3 * np.sqrt(1 / k / 400)


def test_weights_confined_to_a_basis_lie_in_it(rng):
    X, y, members, problem = make(rng)
    within = block_diag(np.linalg.qr(rng.normal(size=(4, 2)))[0], 1.0)
    found = posterior(problem, np.eye(5)[4], 0.0, within)
    np.testing.assert_allclose(within @ (within.T @ found.weights), found.weights, atol=1e-12)
    everything = np.column_stack((np.ones(len(X)), X @ within, y))
    inner = posterior(
        Problem(everything.T @ everything, members.T @ everything, members.sum(axis=0)), np.eye(3)[2], 0.0
    )
    np.testing.assert_allclose(within @ inner.weights, found.weights, atol=1e-9)


def test_where_nothing_varies_beside_the_prior_score_its_weight_is_that_of_least_squares(rng):
    """What rounding leaves of the prior score is no direction to depart in."""
    X, y, members, both = make(rng, columns=2)
    X, some = X[:, :1], [0, 1, 3]  # The constant, the prior score and y.
    problem = Problem(both.products[np.ix_(some, some)], both.class_sums[:, some], both.counts)
    found = posterior(problem, np.ones(1), 0.0)
    _, _, weight, error = dense(X, y, members, np.ones(1), 0.0, np.zeros((1, 1)))
    assert found.prior_weight == pytest.approx(weight)
    assert found.standard_error == pytest.approx(error)
    assert found.log_evidence == 0
    assert not found.weights.any()


def test_a_determinant_beyond_all_doubles_has_a_logarithm(rng):
    """The product of all factors is not in range, and is not formed."""
    k = 300
    left = regression._Departure(np.full(k, 1e9), np.eye(k), np.ones(k), 1e12, 1e6, np.zeros(k + 1), 1.0)
    gains = left._gains(np.ones((1, k)), np.ones((1, 1)))
    assert gains[0, 0] == pytest.approx(-0.5 * (k * np.log1p(1e9) + 1e6 * np.log1p(-k / (1 + 1e9) / 1e12)))


def test_nan_is_no_likelihood(rng):
    _, _, _, problem = make(rng)
    onto = regression._with_prior(np.eye(5)[4])
    products = onto.T @ problem.products @ onto
    products[2, 2] = np.nan
    assert np.isnan(
        regression._class_likelihoods(products, problem.class_sums @ onto, problem.counts, np.ones(3))
    ).all()
    k = 3
    left = regression._Departure(np.ones(k), np.eye(k), np.full(k, np.nan), 1.0, 10.0, np.zeros(k + 1), 1.0)
    assert np.isnan(left._gains(np.ones((1, k)), np.ones((1, 1)))).all()
