"""Three traditional detectors. As in the paper, they are fitted on the features of the test mix, without labels.

Each function returns one score per row, higher = more in-distribution. It scores the `unseen` rows if
given, otherwise the fitted rows.
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..._check import Floats, as_count, as_matrix
from ...data.extras import install

TREES = 100
NEIGHBOURS = 20
_PASSES = 1000  # Maximum number of EM iterations. A mixture that needs more raises an error.


def isolation_forest(
    features: ArrayLike, rng: np.random.Generator, *, unseen: ArrayLike | None = None, trees: int = TREES
) -> Floats:
    """Return the isolation forest's anomaly score of every row (n,), negated."""
    forest = _sklearn("ensemble").IsolationForest(n_estimators=as_count(trees, "trees"), random_state=_seed(rng))
    matrix = _rows(features)
    return _scores(forest.fit(matrix).score_samples(matrix if unseen is None else _rows(unseen)))


def local_outlier(
    features: ArrayLike, rng: np.random.Generator, *, unseen: ArrayLike | None = None, neighbours: int = NEIGHBOURS
) -> Floats:
    """Return the local outlier factor of every row (n,), negated. `rng` is not used."""
    matrix = _rows(features)
    count = as_count(neighbours, "neighbours", at_most=len(matrix) - 1)
    factor = _sklearn("neighbors").LocalOutlierFactor(n_neighbors=count, novelty=unseen is not None).fit(matrix)
    return _scores(factor.negative_outlier_factor_ if unseen is None else factor.score_samples(_rows(unseen)))


def mixture(
    features: ArrayLike,
    rng: np.random.Generator,
    *,
    unseen: ArrayLike | None = None,
    components: int,
    covariance: str = "full",
) -> Floats:
    """Return the log-likelihood of every row (n,) under a Gaussian mixture of the fitted rows."""
    matrix = _rows(features)
    count = as_count(components, "components", at_most=len(matrix))
    model = _sklearn("mixture").GaussianMixture(
        count, covariance_type=covariance, max_iter=_PASSES, random_state=_seed(rng)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The check below replaces the warning about convergence.
        model.fit(matrix)
    if not model.converged_:
        raise ArithmeticError(f"a mixture of {count} components did not converge in {_PASSES} passes")
    return _scores(model.score_samples(matrix if unseen is None else _rows(unseen)))


# The paper's mixtures: 10 for CIFAR-10, 100 for CIFAR-100, 1,000 with diagonal covariance for ImageNet.
CLASSICAL: dict[str, Callable[..., Floats]] = {
    "isolation-forest": isolation_forest,
    "lof": local_outlier,
    "gmm-10": partial(mixture, components=10),
    "gmm-100": partial(mixture, components=100),
    "gmm-1000-diagonal": partial(mixture, components=1000, covariance="diag"),
}


def _sklearn(part: str) -> Any:
    try:
        from sklearn import ensemble, mixture, neighbors
    except ImportError:
        raise ImportError(f"the classical detectors need scikit-learn: {install('bench')}") from None
    return {"ensemble": ensemble, "mixture": mixture, "neighbors": neighbors}[part]


def _rows(features: ArrayLike) -> Floats:
    return as_matrix(features, "features").astype(np.float64)


def _scores(values: Any) -> Floats:
    scores: Floats = np.asarray(values, dtype=np.float64)
    return scores


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))
