from dataclasses import replace

import numpy as np
import pytest

import truing
from truing.bench.experiments import protocols
from truing.bench.experiments.cases import CASES, REPEATS
from truing.bench.experiments.methods import metrics
from truing.bench.experiments.mixes import Mix
from truing.bench.experiments.protocols import PROTOCOLS, Job
from truing.bench.experiments.run import aggregate
from truing.bench.experiments.settings import SETTINGS

SETTING = SETTINGS["cifar10-resnet56"]


def rows_of(name, mix, **changes):
    case = replace(CASES[name], **changes)
    rows = aggregate(PROTOCOLS[CASES[name].protocol](Job(SETTING, case, mix)))
    return {(row["base"], row["method"], row["scored"], row.get("value")): row for row in rows}


def test_the_table_has_the_values_of_the_library(mix):
    rows = rows_of("table", mix)
    for method, fit in (("DLR", truing.fit_direct), ("RLR", truing.fit_robust)):
        scores = fit(mix.features, mix.scores["msp"]).predict(mix.features)
        expected = metrics(*mix.split(scores))
        row = rows["msp", method, "fitted", None]
        assert row["auroc"] == pytest.approx(expected["auroc"], abs=1e-6)
        assert row["fpr95"] == pytest.approx(expected["fpr95"], abs=0.0051)  # One out row.
        assert row["repeats"] == 1
        assert rows["msp", method, "unseen", None]["repeats"] == REPEATS


def test_runs_that_draw_rows_are_repeated(mix):
    """Of 200 out rows for 500 in-distribution rows, 100 are drawn ten times."""
    few = mix.take(np.arange(500), np.arange(200))
    row = rows_of("table", few)["msp", "none", "fitted", None]
    assert (row["repeats"], row["rows_in"], row["rows_out"]) == (REPEATS, 500, 100)
    assert row["auroc_sd"] > 0


def test_gradnorm_is_not_trued(mix):
    rows = rows_of("table", replace(mix, scores={**mix.scores, "gradnorm": mix.scores["msp"]}))
    assert {method for base, method, *_ in rows if base == "gradnorm"} == {"none"}


def test_one_batch_of_all_rows_is_the_direct_fit(mix):
    rows = rows_of("batch-size", mix, values=(32, len(mix.features)))
    whole, full = rows["msp", "DLR", "fitted", None], rows["msp", "Online DLR", "fitted", len(mix.features)]
    assert full["auroc"] == pytest.approx(whole["auroc"], abs=1e-9)


def test_a_stream_scores_each_batch_before_and_after_learning_it(mix):
    order = np.random.default_rng(0).permutation(len(mix.features))
    after, before = protocols._streamed(mix.features, mix.scores["msp"], order, 300)
    first, second = order[:300], order[300:600]
    earlier = truing.fit_direct(mix.features[first], mix.scores["msp"][first])
    both = np.concatenate([first, second])
    later = truing.fit_direct(mix.features[both], mix.scores["msp"][both])
    np.testing.assert_allclose(before[second], earlier.predict(mix.features[second]), atol=1e-8)
    np.testing.assert_allclose(after[second], later.predict(mix.features[second]), atol=1e-8)
    assert np.isnan(before[first]).all()


def test_keeping_all_rows_is_dlr_and_keeping_four_fifths_is_rlr(mix):
    rows = rows_of("kept-share", mix, values=(0.8, 1.0))
    for keep, fit in ((0.8, truing.fit_robust), (1.0, truing.fit_direct)):
        expected = metrics(*mix.split(fit(mix.features, mix.scores["msp"]).predict(mix.features)))
        assert rows["msp", "RLR", "fitted", keep]["auroc"] == pytest.approx(expected["auroc"], abs=1e-6)


def test_with_the_authors_conventions_a_kept_share_of_four_fifths_is_the_table(mix):
    few = mix.take(np.arange(400), np.arange(80))
    rows = {
        name: aggregate(
            PROTOCOLS[CASES[name].protocol](Job(SETTING, replace(CASES[name], values=(0.8,)), few, "authors"))
        )
        for name in ("table", "kept-share")
    }
    expected, actual = (
        {(row["base"], row["scored"]): row["auroc"] for row in part if row["method"] == "RLR"} for part in rows.values()
    )
    assert expected == actual


def test_every_rate_has_the_same_total_number_of_rows(mix):
    rows = rows_of("rate", mix)
    totals = {row["rows_in"] + row["rows_out"] for (*_, scored, _), row in rows.items() if scored == "fitted"}
    assert totals == {210}  # The 200 out rows are 95 % of them.
    assert rows["msp", "DLR", "fitted", 0.5]["rows_in"] == 105
    assert {value for *_, value in rows} == set(CASES["rate"].values)


def test_a_fit_changes_few_rows_little_and_improves_many_rows(mix):
    rows = rows_of("samples", replace(mix, scores={"msp": mix.scores["msp"]}), values=(20, 1000))
    few, base = rows["msp", "DLR", "fitted", 20.0], rows["msp", "none", "fitted", 20.0]
    assert few["auroc"] == pytest.approx(base["auroc"], abs=1e-3)  # 24 rows in 64 dimensions are fitted exactly.
    assert few["repeats"] == 500
    many, base = rows["msp", "DLR", "fitted", 1000.0], rows["msp", "none", "fitted", 1000.0]
    assert many["auroc"] > base["auroc"] + 0.03


def test_react_that_clips_nothing_changes_nothing(mix):
    def score(features, clip=np.inf):
        return {"msp": np.sin(features.astype(np.float64).sum(axis=1))}

    mix = Mix(mix.features, score(mix.features), mix.rows_in)
    job = Job(SETTING, replace(CASES["react"], values=(1.0,)), mix, reacted=score)
    rows = {
        (row["base"], row["method"], row["scored"], row.get("value")): row
        for row in aggregate(protocols.vary_react_share(job))
    }
    for method in ("ReAct + DLR, raw", "ReAct + DLR, clipped"):
        assert rows["msp", method, "fitted", 1.0]["auroc"] == rows["msp", "DLR", "fitted", None]["auroc"]
    assert rows["msp", "ReAct", "fitted", 1.0]["auroc"] == rows["msp", "none", "fitted", None]["auroc"]


def test_react_clips_at_a_quantile_of_the_fitted_rows(mix):
    """Unseen rows do not change the clip."""
    few = mix.take(np.arange(400), np.arange(80))
    clips = []

    def reacted(features, clip):
        clips.append(clip)
        return {"msp": features[:, 0].astype(np.float64)}

    list(protocols.vary_react_share(Job(SETTING, replace(CASES["react"], values=(0.9,)), few, reacted=reacted)))
    seen, _ = few.halves(np.random.default_rng([0, 0]))
    parts = (few, seen)
    assert clips == pytest.approx(
        [truing.react_clip(part.features[: part.rows_in], share=0.9) for part in parts], abs=1e-12
    )


def test_components_of_unseen_rows_come_from_the_fitted_half(mix, monkeypatch):
    few, given = mix.take(np.arange(200), np.arange(40)), []

    def keep(features, rng, *, unseen=None):
        given.append((features, unseen))
        return np.arange(float(len(features if unseen is None else unseen)))

    monkeypatch.setattr(protocols, "CLASSICAL", dict.fromkeys(protocols.CLASSICAL, keep))
    list(protocols.detect_outliers(Job(replace(SETTING, components=4), CASES["classical"], few)))
    fitted, unseen = given[1]
    assert abs(fitted.mean(axis=0)).max() < 1e-6  # The fitted half is the centre.
    assert abs(unseen.mean(axis=0)).max() > 1e-3


def test_without_an_intercept_dlr_is_worse_than_msp(mix):
    without = rows_of("intercept", mix)["msp", "DLR, no intercept", "fitted", None]
    rows = rows_of("table", mix)
    base, trued = rows["msp", "none", "fitted", None], rows["msp", "DLR", "fitted", None]
    assert without["auroc"] < base["auroc"] < trued["auroc"]
    assert trued["fpr95"] < base["fpr95"] / 2


def test_samples_of_one_shuffle_share_no_rows(rng):
    rows = np.arange(113.0)
    mix = Mix(rows[:, None], {"own": rows}, 100)
    shuffles = list(protocols.samples(mix, (10, 2), 25, rng))
    assert sum(map(len, shuffles)) == 25
    for shuffle in shuffles:
        own = np.concatenate([sample.scores["own"] for sample in shuffle])
        assert len(set(own)) == len(own)
        assert all((sample.rows_in, sample.rows_out) == (10, 2) for sample in shuffle)
        assert all(
            (sample.scores["own"][:10] < 100).all() and (sample.scores["own"][10:] >= 100).all() for sample in shuffle
        )
