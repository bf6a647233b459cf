"""Online RLR as the documentation has it, from all rows at hand and by rows that are appended: to compare with."""

import numpy as np

from truing.fits import trust_order


def online_rlr(features, scores, *, keep=0.8, intercept=True, components=None):
    """Return (coef, intercept) of Online RLR while all rows are held."""
    order = trust_order(features, scores, intercept=intercept, components=components)
    trusted = order[: int(keep * len(scores) + 1e-9)]
    basis, origin = np.eye(features.shape[1]), np.zeros(features.shape[1])
    if components is not None:
        origin = features.mean(axis=0)
        basis = np.linalg.svd(features - origin)[2][:components].T
    return ridge_fit(features[trusted], scores[trusted], intercept, basis, origin)


def ridge_fit(features, scores, intercept=True, basis=None, origin=0.0):
    """Return (coef, intercept) of the fit of all these rows, by d more rows, scaled to a spread of 1 and mean 0."""
    d = features.shape[1]
    basis = np.eye(d) if basis is None else basis
    more = np.diag(np.sqrt(d) * features.std(axis=0)) @ basis
    if intercept:
        origin = features.mean(axis=0)
    design = np.vstack([(features - origin) @ basis, more])
    target = np.append(scores - scores.mean() * intercept, np.zeros(d))
    coef = basis @ np.linalg.lstsq(design, target, rcond=None)[0]
    trued = features @ coef
    return coef / trued.std(), -trued.mean() / trued.std()
