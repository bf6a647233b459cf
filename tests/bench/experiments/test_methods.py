from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.decomposition import PCA
from sklearn.linear_model import ElasticNet
from sklearn.preprocessing import StandardScaler

import truing
from truing.bench.experiments.cases import CASES, CONVENTIONS, KEEP, PENALTY
from truing.bench.experiments.methods import (
    compare,
    kept_rows,
    methods_of,
    principal_coordinates,
    robust_as_authors,
    trusted_by_authors,
)
from truing.bench.experiments.mixes import Mix
from truing.bench.experiments.settings import SETTINGS
from truing.regression.fits import SharedFeatures

SETTING = SETTINGS["cifar10-resnet56"]


def mix_with_ties(draw):
    """A mix of small whole numbers, with repeated rows, equal residuals and dependent columns."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows_in, rows_out, width = draw(st.integers(12, 40)), draw(st.integers(4, 8)), draw(st.integers(1, 3))
    features = rng.integers(-1, 2, size=(rows_in + rows_out, width)).astype(float)
    scores = rng.integers(0, 3, size=len(features)).astype(float)
    return Mix(features, {"msp": scores}, rows_in), rng


def unit_rows(features):
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(norm > 0, norm, 1)


def has_one_solution(mix, reordered, name, conventions):
    """Whether the robust regression on unit rows converges to the same plane in both orders.

    With groups of identical rows it may have many solutions.
    """
    penalty = PENALTY if conventions == "truing" else PENALTY * len(mix.features) ** 0.5
    intercept = "no intercept" not in name and conventions == "truing"
    values = []
    for part in (mix, reordered):
        try:
            fit = truing.huber(unit_rows(part.features), part.scores["msp"], penalty, intercept=intercept)
        except ArithmeticError:
            return False
        values.append(unit_rows(mix.features) @ fit.coef + fit.intercept)
    return np.abs(values[0] - values[1]).max() < 1e-8


@given(data=st.data(), conventions=st.sampled_from(CONVENTIONS))
@settings(max_examples=40)
def test_row_order_does_not_change_a_method_with_a_unique_solution(data, conventions):
    mix, rng = mix_with_ties(data.draw)
    reordered = mix.take(rng.permutation(mix.rows_in), rng.permutation(mix.rows_out))
    for case in (CASES["table"], CASES["intercept"]):
        for name, method in methods_of(case, SETTING, conventions).items():
            if "RLR" in name and not has_one_solution(mix, reordered, name, conventions):
                continue
            try:
                trued = [
                    method(SharedFeatures(part.features), part.scores["msp"])(mix.features) for part in (mix, reordered)
                ]
            except ArithmeticError:  # The robust regression found no solution with a duality gap of 1e-9.
                assert "RLR" in name
                continue
            np.testing.assert_allclose(*trued, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("components", [None, 5, 20])
@pytest.mark.parametrize("base", ["msp", "energy"])
def test_the_methods_of_the_table_are_the_fits_of_the_library(mix, base, components):
    methods = methods_of(CASES["table"], replace(SETTING, components=components), "truing")
    for name, fit in (("DLR", truing.fit_direct), ("RLR", truing.fit_robust)):
        expected = fit(mix.features, mix.scores[base], components=components).predict(mix.features)
        actual = methods[name](SharedFeatures(mix.features, components), mix.scores[base])(mix.features)
        np.testing.assert_allclose(actual, expected, atol=1e-9)


def test_coordinates_of_unseen_rows_agree_with_scikit_learn(mix, rng):
    seen, unseen = mix.halves(rng)
    expected = PCA(5).fit(seen.features.astype(np.float64)).transform(unseen.features.astype(np.float64))
    actual = principal_coordinates(seen.features, 5)(unseen.features)
    np.testing.assert_allclose(np.abs(actual[:, ::-1]), np.abs(expected), atol=1e-6)  # Ours rise in variance.


def test_unseen_rows_are_scored_by_a_fit_to_the_other_half(mix):
    """A method that recognises the rows of its fit separates unseen rows no better than chance."""

    def recognise(features, scores):
        fitted = {row.tobytes() for row in features.matrix}
        return lambda features: np.array([float(row.tobytes() in fitted) for row in features])

    results = dict(compare(mix, {"recognise": recognise}, None, np.random.default_rng(0)))
    assert results["msp", "recognise", "unseen"]["auroc"] == pytest.approx(0.5, abs=0.02)  # Some rows are equal.
    assert results["msp", "recognise", "unseen"]["rows_in"] == mix.rows_in - mix.rows_in // 2


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # The authors stop before convergence.
@pytest.mark.parametrize("components", [None, 16])
def test_the_authors_conventions_keep_nearly_the_rows_of_their_lasso(mix, components):
    """The lasso is written from its description: unit rows, PCA, StandardScaler, ElasticNet."""
    mix = mix.take(np.arange(300), np.arange(60))
    scores, rows = mix.scores["msp"], mix.features.astype(np.float64)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    unit = unit if components is None else PCA(components).fit_transform(unit)
    projector = np.eye(len(unit)) - unit @ np.linalg.pinv(unit)
    lasso = ElasticNet(alpha=PENALTY, l1_ratio=1)
    lasso.fit(StandardScaler().fit_transform(projector), projector @ scores)
    features, count = SharedFeatures(mix.features, components), kept_rows(KEEP, len(scores))
    theirs = np.argsort(np.abs(lasso.coef_), kind="stable")[:count]
    kept = trusted_by_authors(features, scores)[:count]
    assert len(np.intersect1d(theirs, kept)) / count > 0.97
    refit = truing.fit_direct(mix.features[kept], scores[kept]).predict(mix.features)  # On the raw features.
    np.testing.assert_array_equal(robust_as_authors(features, scores)(mix.features), refit)
