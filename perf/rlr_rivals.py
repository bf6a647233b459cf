"""The robust regression against the solvers a user would pick instead, each on a problem that both solve.

Everyone's answer is judged by one function: Σ huber_λ(s − Zβ − a). Rivals run at their defaults, and "run on" where
those leave a loss that is visibly larger.

- HuberRegressor estimates its scale σ along with the fit. Its fit minimises our loss at λ = ε·σ, so it goes first.
- RLM with `update_scale=False` holds the scale of its first residuals, so t = λ / scale makes its loss ours.
- QuantileRegressor and QuantReg minimise Σ|r|, the limit λ → 0: ours runs at λ = 1e-7.
- celer's Lasso solves for γ, on the projector of [Z, 1] (n × n): β follows from regressing s − γ.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import statsmodels.api as sm
from celer import Lasso
from sklearn.linear_model import HuberRegressor, QuantileRegressor
from statsmodels.robust.scale import mad

import truing
from _features import Pair, cifar_and_svhn
from _rows import Row, faster, report
from _timing import Measure, race
from rlr import thinned
from rlr_passes import unit

Fit = tuple[np.ndarray, float]  # coef, intercept
SLACK = 1e-9  # A loss no more than this share above theirs is as good.


def loss(fit: Fit, pair: Pair, penalty: float) -> float:
    """Return Σ huber_λ of the residuals."""
    size = np.abs(pair[1] - pair[0] @ fit[0] - fit[1])
    held = np.minimum(size, penalty)
    return float((held * (size - held / 2)).sum())


def ours(pair: Pair, penalty: float) -> Fit:
    fit = truing.huber(*pair, penalty)
    return fit.coef, fit.intercept


def sklearn_huber(pair: Pair, **settings: float) -> HuberRegressor:
    return HuberRegressor(epsilon=1.35, alpha=0.0, **settings).fit(*pair)


def huber_fit(pair: Pair, **settings: float) -> Fit:
    model = sklearn_huber(pair, **settings)
    return model.coef_, float(model.intercept_)


def sklearn_quantile(pair: Pair) -> Fit:
    model = QuantileRegressor(quantile=0.5, alpha=0.0, solver="highs").fit(*pair)
    return model.coef_, float(model.intercept_)


def statsmodels_huber(pair: Pair, penalty: float, **settings: float) -> Fit:
    features, scores = sm.add_constant(pair[0]), pair[1]
    first = sm.WLS(scores, features).fit().resid
    norm = sm.robust.norms.HuberT(t=penalty / mad(first, center=0))
    params = sm.RLM(scores, features, M=norm).fit(update_scale=False, **settings).params
    return params[1:], float(params[0])


def statsmodels_quantile(pair: Pair) -> Fit:
    params = sm.QuantReg(pair[1], sm.add_constant(pair[0])).fit(q=0.5, max_iter=1000).params
    return params[1:], float(params[0])


def celer_lasso(pair: Pair, penalty: float, **settings: float) -> Fit:
    design, scores = sm.add_constant(pair[0]), pair[1]
    basis = np.linalg.qr(design)[0]
    projector = np.eye(len(scores)) - basis @ basis.T
    lasso = Lasso(alpha=penalty / len(scores), fit_intercept=False, **settings)
    gamma = lasso.fit(np.asfortranarray(projector), projector @ scores).coef_
    params = np.linalg.lstsq(design, scores - gamma, rcond=None)[0]
    return params[1:], float(params[0])


# What brings each close to the least loss, where its defaults do not.
FURTHER = {
    huber_fit: {"max_iter": 10_000, "tol": 1e-6},
    statsmodels_huber: {"maxiter": 500, "tol": 1e-10},
    celer_lasso: {"max_iter": 200, "tol": 1e-8},
}


def measure() -> Iterator[Row]:
    warnings.simplefilter("ignore")  # Of solvers that say they stopped early: the loss tells.
    features, scores = cifar_and_svhn()
    pair = unit(features).astype(np.float64), scores
    for settings in ({}, FURTHER[huber_fit]):
        model = sklearn_huber(pair, **settings)
        name = "scikit-learn HuberRegressor" + (", run on" if settings else "")
        yield against(pair, float(model.epsilon * model.scale_), name, partial(huber_fit, **settings))
    # Fewer rows where the rival would take minutes.
    for rival, name, penalty, n, settings in (
        (statsmodels_huber, "statsmodels RLM", 1e-2, 12_000, {}),
        (statsmodels_huber, "statsmodels RLM", 1e-5, 12_000, {}),
        (statsmodels_huber, "statsmodels RLM, run on", 1e-5, 1500, FURTHER[statsmodels_huber]),
        (celer_lasso, "celer Lasso", 1e-2, 3000, {}),
        (celer_lasso, "celer Lasso", 1e-5, 800, {}),
        (celer_lasso, "celer Lasso, run on", 1e-5, 800, FURTHER[celer_lasso]),
    ):
        yield against(thinned(pair, n), penalty, name, partial(rival, penalty=penalty, **settings))
    yield against(pair, 1e-7, "statsmodels QuantReg", statsmodels_quantile)
    yield against(thinned(pair, 3000), 1e-7, "scikit-learn QuantileRegressor", sklearn_quantile)


def against(pair: Pair, penalty: float, name: str, rival: Callable[[Pair], Fit]) -> Row:
    """Return the row of one rival; ours must be faster, and its loss no larger."""
    fits: dict[str, Fit] = {}
    times: list[Measure] = race(
        lambda: fits.update(ours=ours(pair, penalty)),
        lambda: fits.update(theirs=rival(pair)),
    )
    mine, theirs = (loss(fits[side], pair, penalty) for side in ("ours", "theirs"))
    note = f"loss {mine:.6g} ours, {theirs:.6g} theirs: {(theirs - mine) / mine:+.1e}"
    work = f"Huber regression, {len(pair[0]):,} × {pair[0].shape[1]}, λ = {penalty:.2g}"
    as_good = mine <= (1 + SLACK) * theirs
    return faster(work, times[0], name, times[1], 1, also="loss no larger", ok=as_good, note=note)


if __name__ == "__main__":
    report(measure, "scikit-learn", "statsmodels", "celer")
