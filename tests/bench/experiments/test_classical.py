import numpy as np
import pytest
from scipy.stats import multivariate_normal

from truing.bench.experiments.classical import CLASSICAL, local_outlier, mixture
from truing.metrics import auroc

pytest.importorskip("sklearn")


def test_the_local_outlier_factor_agrees_with_its_definition(rng):
    rows = rng.normal(size=(40, 3))
    k = 5
    distances = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.fill_diagonal(distances, np.inf)
    near = np.argsort(distances, axis=1)[:, :k]
    reach = np.take_along_axis(distances, near, axis=1)
    density = 1 / np.maximum(reach, reach[near, -1]).mean(axis=1)
    np.testing.assert_allclose(local_outlier(rows, rng, neighbours=k), -density[near].mean(axis=1) / density, rtol=1e-8)


def test_a_mixture_of_one_component_is_the_normal_density(rng):
    rows = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 3))
    expected = multivariate_normal(rows.mean(axis=0), np.cov(rows.T, bias=True)).logpdf(rows)
    np.testing.assert_allclose(mixture(rows, rng, components=1), expected, atol=1e-3)


def test_more_components_or_neighbours_than_rows_are_rejected(rng):
    with pytest.raises(ValueError, match="components must be at least 1 and at most 5, got 10"):
        mixture(np.zeros((5, 2)), rng, components=10)
    with pytest.raises(ValueError, match="neighbours must be at least 1 and at most 4, got 20"):
        local_outlier(np.zeros((5, 2)), rng)


# AUROC of CIFAR-10 test against SVHN on the embedded features, measured with scikit-learn 1.9. The features of SVHN lie
# in dense regions, so only LOF is better than chance, as in the paper (23.6 for its mixture, 57.4 for LOF).
MEASURED = {"isolation-forest": 0.054, "lof": 0.582, "gmm-10": 0.155}


@pytest.mark.parametrize("name", MEASURED)
def test_a_detector_has_the_measured_auroc_on_svhn(name, embedded):
    features = np.concatenate([embedded.inside.features, embedded.outside["svhn"].features])
    scores = CLASSICAL[name](features, np.random.default_rng(0))
    assert auroc(scores[:10_000], scores[10_000:]) == pytest.approx(MEASURED[name], abs=0.04)
