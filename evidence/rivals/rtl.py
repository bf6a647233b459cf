"""RTL and RTL++: Fan et al., Test-Time Linear Out-of-Distribution Detection, CVPR 2024, with the authors' conventions.

RTL is the least-squares prediction of the base scores of all rows from their features. RTL++ first estimates by a
lasso how far every base score is from the linear relation, on features of unit length and on standardised columns of
the residual maker I - H. Then it fits the rows with the smallest deviations only. The penalty of 1e-5 (1e-7 on 32
principal components for ImageNet) and the share of 0.6 are the authors' defaults.
"""

from typing import Any

import numpy as np

from .oodd import unit

PENALTY, PENALTY_OF_COMPONENTS, COMPONENTS, SHARE = 1e-5, 1e-7, 32, 0.6
TOLERANCE, LIMIT = 1e-4, 10_000  # The tolerance of scikit-learn, whose lasso the authors use.


def rtl(features: Any, scores: Any) -> Any:
    """Return the predictions (n,) of the least-squares fit with intercept to all rows."""
    return predicted(features, scores, np.arange(len(scores)))


def rtl_plus(features: Any, scores: Any, *, penalty: float = PENALTY, components: int | None = None) -> Any:
    """Return the predictions (n,) of the least-squares fit to the share of rows with the smallest deviations."""
    deviations = np.abs(lasso_deviations(features, scores, penalty=penalty, components=components))
    kept = np.argsort(deviations, kind="stable")[: int(SHARE * len(scores))]
    return predicted(features, scores, kept)


def predicted(features: Any, scores: Any, kept: Any) -> Any:
    """Return predictions (n,) for all rows of the least-squares fit to the kept rows."""
    features = np.asarray(features, dtype=np.float64)
    mean, level = features[kept].mean(axis=0), scores[kept].mean()
    slope = np.linalg.lstsq(features[kept] - mean, scores[kept] - level, rcond=None)[0]
    return level + (features - mean) @ slope


def lasso_deviations(features: Any, scores: Any, *, penalty: float, components: int | None = None) -> Any:
    """Return the coefficients (n,) of the lasso of the residuals on the standardised columns of I - H.

    The lasso minimises |r - Z b|^2 / (2 n) + penalty |b|_1 by accelerated proximal gradients. The n x n matrix Z is
    never built, because I - H has the factors of H.
    """
    rows = unit(features)
    if components is not None:
        rows = rows - rows.mean(axis=0)
        left, sizes, _ = np.linalg.svd(rows, full_matrices=False)
        rows = left[:, :components] * sizes[:components]
    left, sizes, _ = np.linalg.svd(rows, full_matrices=False)
    q, n = left[:, sizes > sizes[0] * 1e-12], len(rows)

    def residual(vector: Any) -> Any:
        return vector - q @ (q.T @ vector)

    means = residual(np.ones(n)) / n
    deviation = np.sqrt(np.maximum(1 - np.einsum("ij,ij->i", q, q) - n * means**2, 0) / n)
    scale = np.where(deviation > 1e-12, deviation, 1)
    target = residual(np.asarray(scores, dtype=np.float64))
    target -= target.mean()

    def forward(b: Any) -> Any:
        inner = b / scale
        return residual(inner) - means @ inner

    def backward(u: Any) -> Any:
        return (residual(u) - means * u.sum()) / scale / n

    return lasso(forward, backward, target, penalty)


def lasso(forward: Any, backward: Any, target: Any, penalty: float) -> Any:
    """Return the minimiser (n,) of |r - Z b|^2 / (2 n) + penalty |b|_1, by accelerated proximal gradients (FISTA).

    `forward` multiplies by Z and `backward` by its transpose divided by n. As in scikit-learn, the duality gap is at
    most `TOLERANCE` times |r|^2.
    """
    n = len(target)
    step = 1 / largest_eigenvalue(lambda b: backward(forward(b)), n)
    b = ahead = np.zeros(n)
    momentum = 1.0
    for iteration in range(LIMIT):
        moved = ahead - step * backward(forward(ahead) - target)
        new = np.sign(moved) * np.maximum(np.abs(moved) - step * penalty, 0)
        if (ahead - new) @ (new - b) > 0:  # Restart the momentum when it points uphill.
            momentum = 1.0
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / following * (new - b)
        b, momentum = new, following
        if (
            iteration % 10 == 0
            and gap(target - forward(b), b, backward, target, penalty) <= TOLERANCE * target @ target
        ):
            return b
    raise RuntimeError(f"the lasso did not reach a tolerance of {TOLERANCE} in {LIMIT:,} steps")


def gap(residual: Any, b: Any, backward: Any, target: Any, penalty: float) -> float:
    """Return the duality gap of the lasso, times n."""
    n = len(target)
    dual = residual * min(1, penalty / max(float(np.abs(backward(residual)).max()), 1e-300))
    primal = residual @ residual / 2 + n * penalty * np.abs(b).sum()
    return float(primal - (target @ target - (dual - target) @ (dual - target)) / 2)


def largest_eigenvalue(product: Any, n: int) -> float:
    """Return an upper estimate of the largest eigenvalue of a positive semidefinite operator, by power iteration."""
    vector, value = np.random.default_rng(0).normal(size=n), 0.0
    for _ in range(50):
        vector = product(vector / np.linalg.norm(vector))
        value = float(np.linalg.norm(vector))
    return 1.05 * value
