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
    metrics,
    principal_coordinates,
    robust_as_authors,
    trusted_by_authors,
)
from truing.bench.experiments.mixes import Mix
from truing.bench.experiments.protocols import PROTOCOLS, Job
from truing.bench.experiments.run import aggregate
from truing.bench.experiments.settings import SETTINGS
from truing.regression.fits import SharedFeatures

SETTING = SETTINGS["cifar10-resnet56"]


def tied(draw):
    """A mix of small whole numbers: repeated rows, equal residuals and columns that depend on one another."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows_in, rows_out, width = draw(st.integers(12, 40)), draw(st.integers(4, 8)), draw(st.integers(1, 3))
    features = rng.integers(-1, 2, size=(rows_in + rows_out, width)).astype(float)
    scores = rng.integers(0, 3, size=len(features)).astype(float)
    return Mix(features, {"msp": scores}, rows_in), rng


def check_that_row_order_changes_nothing(mix, rng, conventions):
    """Where the robust regression has one answer: with groups of identical rows it may have many, see concepts.md."""
    turned = mix.take(rng.permutation(mix.rows_in), rng.permutation(mix.rows_out))
    norm = np.linalg.norm(mix.features, axis=1, keepdims=True)
    unit = mix.features / np.where(norm > 0, norm, 1)
    for case in (CASES["table"], CASES["intercept"]):
        for name, method in methods_of(case, SETTING, conventions).items():
            if "RLR" in name and not one_answer(mix, turned, unit, name, conventions):
                continue
            try:
                found = [
                    method(SharedFeatures(part.features), part.scores["msp"])(mix.features) for part in (mix, turned)
                ]
            except ArithmeticError:  # The robust regression says where it has no answer to a duality gap of 1e-9.
                assert "RLR" in name
                continue
            np.testing.assert_allclose(*found, atol=1e-6, err_msg=name)


def one_answer(mix, turned, unit, name, conventions):
    """Whether the robust regression on unit rows comes to the same plane in both orders; not where it finds none."""
    penalty = PENALTY if conventions == "truing" else PENALTY * len(unit) ** 0.5
    intercept = "no intercept" not in name and conventions == "truing"
    answers = []
    for part in (mix, turned):
        norm = np.linalg.norm(part.features, axis=1, keepdims=True)
        rows = part.features / np.where(norm > 0, norm, 1)
        try:
            fit = truing.huber(rows, part.scores["msp"], penalty, intercept=intercept)
        except ArithmeticError:
            return False
        answers.append(unit @ fit.coef + fit.intercept)
    return np.abs(answers[0] - answers[1]).max() < 1e-8


@given(data=st.data(), conventions=st.sampled_from(CONVENTIONS))
@settings(max_examples=40)
def test_the_order_of_the_rows_changes_no_method_where_it_changes_no_regression(data, conventions):
    check_that_row_order_changes_nothing(*tied(data.draw), conventions)


@pytest.mark.slow
@given(data=st.data(), conventions=st.sampled_from(CONVENTIONS))
@settings(max_examples=3000)
def test_over_thousands_of_mixes_the_order_of_the_rows_changes_no_method_where_it_changes_no_regression(
    data, conventions
):
    check_that_row_order_changes_nothing(*tied(data.draw), conventions)


@pytest.mark.parametrize("components", [None, 5, 20])
@pytest.mark.parametrize("base", ["msp", "energy"])
def test_the_methods_of_the_table_are_the_librarys_fits(mix, base, components):
    methods = methods_of(CASES["table"], replace(SETTING, components=components), "truing")
    for name, fit in (("DLR", truing.fit_direct), ("RLR", truing.fit_robust)):
        known = fit(mix.features, mix.scores[base], components=components).predict(mix.features)
        found = methods[name](SharedFeatures(mix.features, components), mix.scores[base])(mix.features)
        np.testing.assert_allclose(found, known, atol=1e-9)


def test_a_kept_share_of_one_and_the_usual_one_lie_on_the_curve_of_kept_shares(mix):
    few = mix.take(np.arange(400), np.arange(80))
    case = replace(CASES["kept-share"], values=(KEEP, 1.0))
    rows = aggregate(PROTOCOLS[case.protocol](Job(SETTING, case, few)))
    for keep, fit in ((KEEP, truing.fit_robust), (1.0, truing.fit_direct)):
        known = metrics(*few.split(fit(few.features, few.scores["energy"]).predict(few.features)))
        wanted = {"base": "energy", "method": "RLR", "scored": "fitted", "value": keep}
        (row,) = [row for row in rows if wanted.items() <= row.items()]
        assert row["auroc"] == pytest.approx(known["auroc"], abs=1e-6)


def test_rlr_on_centred_components_needs_an_intercept():
    wide = replace(SETTING, components=4)
    assert list(methods_of(CASES["intercept"], wide, "truing")) == ["DLR, no intercept"]


def test_coordinates_of_unseen_rows_are_those_of_scikit_learns_pca(mix, rng):
    seen, unseen = mix.halves(rng)
    known = PCA(5).fit(seen.features.astype(np.float64)).transform(unseen.features.astype(np.float64))
    found = principal_coordinates(seen.features, 5)(unseen.features)
    np.testing.assert_allclose(np.abs(found[:, ::-1]), np.abs(known), atol=1e-6)  # Ours rise with the variance.


def test_unseen_rows_are_scored_by_a_fit_of_the_others(mix):
    """A score that tells every row by heart is perfect on the rows of the fit, and no better than chance on others."""

    def by_heart(features, scores):
        known = {row.tobytes(): number for number, row in enumerate(features.matrix)}
        return lambda features: np.array([1.0 if row.tobytes() in known else 0.0 for row in features])

    found = dict(compare(mix, {"by heart": by_heart}, None, np.random.default_rng(0)))
    assert found["msp", "by heart", "unseen"]["auroc"] == pytest.approx(0.5, abs=0.02)  # Some rows are twins.
    assert found["msp", "by heart", "unseen"]["rows_in"] == mix.rows_in - mix.rows_in // 2


def test_metrics_hold_both_conventions_of_fpr95():
    scores_in, scores_out = np.arange(10.0, 40.0), np.arange(0.0, 30.0)
    found = metrics(scores_in, scores_out)
    for name, convention in (("fpr95", "at-least"), ("fpr95_paper", "paper")):
        assert found[name] == truing.fpr_at_tpr(scores_in, scores_out, convention=convention)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")  # Their settings stop before that.
@pytest.mark.parametrize("components", [None, 16])
def test_the_authors_way_keeps_nearly_the_rows_of_their_lasso(mix, components):
    """The authors' n×n lasso, as the paper describes it: unit rows, PCA, StandardScaler, ElasticNet."""
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
