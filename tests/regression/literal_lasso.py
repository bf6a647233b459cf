"""The paper's robust step as it is written, with its n×n projector: what the Huber regression is compared with."""

import numpy as np
from sklearn.linear_model import lars_path


def literal_lasso(design, scores, penalty):
    """γ of the paper's Eq. 15 with its n×n projector, by scikit-learn's homotopy, checked by the lasso's conditions."""
    n = len(scores)
    projector = np.eye(n) - design @ np.linalg.pinv(design)
    target = projector @ scores
    gamma = lars_path(projector, target, method="lasso", alpha_min=penalty / n)[2][:, -1]
    pull = projector @ (target - projector @ gamma)
    np.testing.assert_allclose(pull[gamma != 0], penalty * np.sign(gamma[gamma != 0]), atol=1e-10)
    assert np.abs(pull).max() <= penalty + 1e-10
    return gamma
