"""The paper's robust step, implemented literally with its n×n projector, for comparison with the Huber regression."""

import numpy as np
from sklearn.linear_model import lars_path


def literal_lasso(design, scores, penalty):
    """Return γ of Eq. 15, solved by scikit-learn's homotopy and checked by the optimality conditions of the lasso."""
    n = len(scores)
    projector = np.eye(n) - design @ np.linalg.pinv(design)
    target = projector @ scores
    gamma = lars_path(projector, target, method="lasso", alpha_min=penalty / n)[2][:, -1]
    pull = projector @ (target - projector @ gamma)
    np.testing.assert_allclose(pull[gamma != 0], penalty * np.sign(gamma[gamma != 0]), atol=1e-10)
    assert np.abs(pull).max() <= penalty + 1e-10
    return gamma
