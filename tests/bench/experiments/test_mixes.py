from functools import partial

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.linear_model import ElasticNet
from sklearn.preprocessing import StandardScaler

import truing
from truing.bench.experiments.cases import KEEP, PENALTY
from truing.bench.experiments.mixes import (
    Frame,
    Mix,
    compare,
    direct,
    kept_rows,
    metrics,
    robust,
    robust_as_authors,
    trusted_by_authors,
)


@pytest.mark.parametrize("components", [None, 5, 20])
@pytest.mark.parametrize("base", ["msp", "energy"])
def test_fits_in_a_frame_are_those_of_the_library(mix, base, components):
    frame, scores = Frame(mix.features, components), mix.scores[base]
    ours = truing.fit_direct(mix.features, scores, components=components).predict(mix.features)
    np.testing.assert_allclose(direct(frame, scores)(mix.features), ours, atol=1e-8)
    ours = truing.fit_robust(mix.features, scores, components=components).predict(mix.features)
    np.testing.assert_allclose(robust(frame, scores)(mix.features), ours, atol=1e-8)


def test_fits_without_an_intercept_are_those_of_the_library(mix):
    frame, scores = Frame(mix.features), mix.scores["msp"]
    for ours, method in ((truing.fit_direct, direct), (truing.fit_robust, robust)):
        known = ours(mix.features, scores, intercept=False).predict(mix.features)
        np.testing.assert_allclose(method(frame, scores, intercept=False)(mix.features), known, atol=1e-8)


@pytest.mark.parametrize("components", [None, 8])
def test_a_frame_scores_unseen_rows_as_the_librarys_fit_does(mix, components, rng):
    seen, unseen = mix.halves(rng)
    known = truing.fit_direct(seen.features, seen.scores["energy"], components=components).predict(unseen.features)
    score = direct(Frame(seen.features, components), seen.scores["energy"])
    np.testing.assert_allclose(score(unseen.features), known, atol=1e-8)


def test_halves_share_no_row_and_leave_none_out(rng):
    rows = np.arange(31.0)
    mix = Mix(rows[:, None], {"own": rows}, 20)
    one, other = mix.halves(rng)
    for part in (one, other):
        assert (part.scores["own"][: part.rows_in] < 20).all()
        assert (part.scores["own"][part.rows_in :] >= 20).all()
    assert sorted([*one.scores["own"], *other.scores["own"]]) == list(rows)


def test_a_draw_keeps_the_two_sets_apart(rng):
    rows = np.arange(30.0)
    drawn = Mix(rows[:, None], {"own": rows}, 20).drawn(rng, 7, 4)
    assert (drawn.rows_in, drawn.rows_out) == (7, 4)
    assert len(set(drawn.scores["own"])) == 11
    assert (drawn.features[:, 0] == drawn.scores["own"]).all()
    assert (drawn.scores["own"][:7] < 20).all()
    assert (drawn.scores["own"][7:] >= 20).all()


def test_unseen_rows_are_scored_by_a_fit_of_the_others(mix):
    """A score that tells every row by heart is perfect on the rows of the fit, and no better than chance on others."""

    def by_heart(frame, scores):
        known = {row.tobytes(): number for number, row in enumerate(frame.features)}
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
    """Their n×n lasso, written from its description: unit rows, PCA, StandardScaler, ElasticNet."""
    mix = mix.take(np.arange(300), np.arange(60))
    scores, rows = mix.scores["msp"], mix.features.astype(np.float64)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    unit = unit if components is None else PCA(components).fit_transform(unit)
    projector = np.eye(len(unit)) - unit @ np.linalg.pinv(unit)
    lasso = ElasticNet(alpha=PENALTY, l1_ratio=1)
    lasso.fit(StandardScaler().fit_transform(projector), projector @ scores)
    count = kept_rows(KEEP, len(scores))
    theirs = np.argsort(np.abs(lasso.coef_), kind="stable")[:count]
    frame = Frame(mix.features, components)
    assert len(np.intersect1d(theirs, trusted_by_authors(frame, scores)[:count])) / count > 0.97
    kept = trusted_by_authors(frame, scores)[:count]
    refit = truing.fit_direct(mix.features[kept], scores[kept]).predict(mix.features)  # On the raw features.
    np.testing.assert_array_equal(robust_as_authors(frame, scores)(mix.features), refit)


def test_a_kept_share_of_one_is_the_direct_fit(mix):
    frame, scores = Frame(mix.features), mix.scores["energy"]
    whole = partial(robust, keep=1.0)(frame, scores)(mix.features)
    np.testing.assert_allclose(whole, direct(frame, scores)(mix.features), atol=1e-10)
