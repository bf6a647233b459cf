from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gaussian_kde
from sklearn.metrics import roc_auc_score

from truing.bench.experiments.figure_rows import roc_points
from truing.bench.report import distributions
from truing.report.shapes import kernel_density

NAMES = {"conventions": "truing", "setting": "cifar10-resnet56", "case": "pictures", "outside": "svhn", "base": "msp"}


def test_the_ticks_of_a_narrow_axis_have_different_labels():
    narrow = {"ends": [0.995, 0.998], "density_in": [0.0, 1.0, 0.0], "density_out": [0.0, 2.0, 0.0]}
    row = {**NAMES, **narrow, "picture": "densities", "method": "none", "threshold": 0.996, "fpr95": 0.1, "auroc": 0.9}
    (panel,) = distributions.densities([row])
    groups = [group for group in ElementTree.fromstring(panel.svg).iter() if "-xtick_" in group.get("id", "")]
    labels = ["".join(group.itertext()).strip() for group in groups]
    assert len(labels) == len(set(labels)) >= 3


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(2, 200), scale=st.floats(1e-3, 1e3))
def test_a_density_agrees_with_the_kernel_estimate_of_scipy(seed, rows, scale):
    scores = np.random.default_rng(seed).normal(size=rows) * scale
    grid = np.linspace(-3 * scale, 3 * scale, 31)
    np.testing.assert_allclose(kernel_density(scores, grid), gaussian_kde(scores)(grid), rtol=1e-9, atol=1e-12 / scale)


def test_equal_scores_have_a_density_of_area_one():
    grid = np.linspace(0, 1, 101)
    for scores in (np.full(50, 0.5), np.array([0.5])):
        assert np.trapezoid(kernel_density(scores, grid), grid) == pytest.approx(1, abs=1e-3)


def test_the_area_under_the_roc_curve_is_the_auroc(rng):
    scores_in, scores_out = rng.normal(1, 1, 900), rng.normal(0, 1, 300)
    accepted_out, accepted_in = roc_points(scores_in, scores_out)
    expected = roc_auc_score(np.r_[np.ones(900), np.zeros(300)], np.r_[scores_in, scores_out])
    assert -np.trapezoid(accepted_in, accepted_out) == pytest.approx(expected, abs=1e-3)
