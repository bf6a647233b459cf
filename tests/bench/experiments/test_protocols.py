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


def rows_of(name, mix, conventions="truing", **changes):
    case = replace(CASES[name], **changes)
    rows = aggregate(PROTOCOLS[CASES[name].protocol](Job(SETTING, case, mix, conventions)))
    return {(row["base"], row["method"], row["scored"], row.get("value")): row for row in rows}


def test_the_table_has_the_values_of_the_library(mix):
    rows = rows_of("table", replace(mix, scores={**mix.scores, "gradnorm": mix.scores["msp"]}))
    for method, fit in (("DLR", truing.fit_direct), ("RLR", truing.fit_robust)):
        scores = fit(mix.features, mix.scores["msp"]).predict(mix.features)
        expected = metrics(*mix.split(scores))
        row = rows["msp", method, "fitted", None]
        assert row["auroc"] == pytest.approx(expected["auroc"], abs=1e-6)
        assert row["fpr95"] == pytest.approx(expected["fpr95"], abs=0.0051)  # One out row.
        assert row["repeats"] == 1
        assert rows["msp", method, "unseen", None]["repeats"] == REPEATS
    assert {method for base, method, *_ in rows if base == "gradnorm"} == {"none"}  # GradNorm is not trued.


def test_runs_that_draw_rows_are_repeated(mix):
    """Of 200 out rows for 500 in-distribution rows, 100 are drawn ten times."""
    few = mix.take(np.arange(500), np.arange(200))
    row = rows_of("table", few)["msp", "none", "fitted", None]
    assert (row["repeats"], row["rows_in"], row["rows_out"]) == (REPEATS, 500, 100)
    assert row["auroc_sd"] > 0


def test_a_stream_scores_each_batch_before_and_after_learning_it(mix):
    few = mix.take(np.arange(400), np.arange(40))
    case = replace(CASES["batch-size"], values=(220, 440))
    measured = {(key, batch): row for batch, (key, row) in protocols.stream(Job(SETTING, case, few, seeds=((0, 0),)))}
    first, second = np.split(np.random.default_rng((0, 0)).permutation(440), 2)
    early = truing.fit_direct(few.features[first], few.scores["msp"][first]).predict(few.features)
    late = truing.fit_direct(few.features, few.scores["msp"]).predict(few.features)
    after = np.where(np.isin(np.arange(440), first), early, late)
    unseen = [early[second[second < 400]], early[second[second >= 400]]]
    for method, scored, batch, expected in (
        ("DLR", "fitted", None, few.split(late)),
        ("Online DLR", "fitted", 440, few.split(late)),
        ("Online DLR", "fitted", 220, few.split(after)),
        ("Online DLR", "unseen", 220, unseen),
    ):
        row = measured[("msp", method, scored), batch]
        assert row["auroc"] == pytest.approx(truing.auroc(*expected), abs=1e-6)


def test_keeping_all_rows_is_dlr_and_keeping_four_fifths_is_rlr(mix):
    rows = rows_of("kept-share", mix, values=(0.8, 1.0))
    for keep, fit in ((0.8, truing.fit_robust), (1.0, truing.fit_direct)):
        expected = metrics(*mix.split(fit(mix.features, mix.scores["msp"]).predict(mix.features)))
        assert rows["msp", "RLR", "fitted", keep]["auroc"] == pytest.approx(expected["auroc"], abs=1e-6)


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


def test_react_clips_at_a_quantile_of_the_fitted_rows(mix):
    """Unseen rows do not change the clip. A clip above all activations changes nothing."""
    few = mix.take(np.arange(400), np.arange(80))
    clips = []

    def reacted(features, clip):
        clips.append(clip)
        return {"msp": np.sin(np.minimum(features, clip).astype(np.float64).sum(axis=1))}

    few = replace(few, scores=reacted(few.features, np.inf))
    job = Job(SETTING, replace(CASES["react"], values=(0.9, 1.0)), few, reacted=reacted)
    rows = {(row["method"], row["scored"], row.get("value")): row for row in aggregate(protocols.vary_react_share(job))}
    parts = (few, few.halves(np.random.default_rng([0, 0]))[0])
    expected = [truing.react_clip(part.features[: part.rows_in], share=share) for part in parts for share in (0.9, 1.0)]
    assert clips[1:] == pytest.approx(expected, abs=1e-12)
    for clipped, plain in (("ReAct + DLR, raw", "DLR"), ("ReAct + DLR, clipped", "DLR"), ("ReAct", "none")):
        assert rows[clipped, "fitted", 1.0]["auroc"] == rows[plain, "fitted", None]["auroc"]
    scores, clipped = reacted(few.features, expected[0])["msp"], np.minimum(few.features, expected[0])
    for name, features in (("raw", few.features), ("clipped", clipped)):
        trued = truing.fit_direct(features, scores).predict(features)
        auroc = truing.auroc(*few.split(trued))
        assert rows[f"ReAct + DLR, {name}", "fitted", 0.9]["auroc"] == pytest.approx(auroc, abs=1e-6)


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


def test_with_the_authors_conventions_a_kept_share_of_four_fifths_is_the_table(mix):
    few = mix.take(np.arange(400), np.arange(80))
    table, shares = rows_of("table", few, "authors"), rows_of("kept-share", few, "authors", values=(0.8,))
    for base in few.scores:
        for scored in ("fitted", "unseen"):
            assert table[base, "RLR", scored, None]["auroc"] == shares[base, "RLR", scored, 0.8]["auroc"]
