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


def ran(name, mix, **changes):
    case = replace(CASES[name], **changes)
    rows = aggregate(PROTOCOLS[CASES[name].protocol](Job(SETTING, case, mix)))
    return {(row["base"], row["method"], row["scored"], row.get("value")): row for row in rows}


def test_the_table_holds_what_the_library_gives(mix):
    rows = ran("table", mix)
    for method, fit in (("DLR", truing.fit_direct), ("RLR", truing.fit_robust)):
        scores = fit(mix.features, mix.scores["msp"]).predict(mix.features)
        known = metrics(*mix.split(scores))
        row = rows["msp", method, "fitted", None]
        assert row["auroc"] == pytest.approx(known["auroc"], abs=1e-6)
        assert row["fpr95"] == pytest.approx(known["fpr95"], abs=0.0051)  # One row of the other set.
        assert row["repeats"] == 1
        assert rows["msp", method, "unseen", None]["repeats"] == REPEATS


def test_repeats_draw_where_there_is_more_than_is_used(mix):
    """200 rows of the other set for 500 in-distribution ones: 100 are drawn, ten times."""
    few = mix.take(np.arange(500), np.arange(200))
    row = ran("table", few)["msp", "none", "fitted", None]
    assert (row["repeats"], row["rows_in"], row["rows_out"]) == (REPEATS, 500, 100)
    assert row["auroc_sd"] > 0


def test_gradnorm_is_measured_as_it_is(mix):
    rows = ran("table", replace(mix, scores={**mix.scores, "gradnorm": mix.scores["msp"]}))
    assert {method for base, method, *_ in rows if base == "gradnorm"} == {"none"}


def test_a_batch_of_everything_is_the_direct_fit(mix):
    rows = ran("batch-size", mix, values=(32, len(mix.features)))
    whole, full = rows["msp", "DLR", "fitted", None], rows["msp", "Online DLR", "fitted", len(mix.features)]
    assert full["auroc"] == pytest.approx(whole["auroc"], abs=1e-9)


def test_a_stream_scores_a_batch_after_it_is_learnt_and_before(mix):
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
    rows = ran("kept-share", mix, values=(0.8, 1.0))
    for keep, fit in ((0.8, truing.fit_robust), (1.0, truing.fit_direct)):
        known = metrics(*mix.split(fit(mix.features, mix.scores["msp"]).predict(mix.features)))
        assert rows["msp", "RLR", "fitted", keep]["auroc"] == pytest.approx(known["auroc"], abs=1e-6)


def test_by_the_authors_conventions_the_curve_of_kept_shares_goes_through_the_table(mix):
    few = mix.take(np.arange(400), np.arange(80))
    rows = {
        name: aggregate(
            PROTOCOLS[CASES[name].protocol](Job(SETTING, replace(CASES[name], values=(0.8,)), few, "authors"))
        )
        for name in ("table", "kept-share")
    }
    known, found = (
        {(row["base"], row["scored"]): row["auroc"] for row in part if row["method"] == "RLR"} for part in rows.values()
    )
    assert known == found


def test_every_rate_has_as_many_rows_in_all(mix):
    rows = ran("rate", mix)
    totals = {row["rows_in"] + row["rows_out"] for (*_, scored, _), row in rows.items() if scored == "fitted"}
    assert totals == {210}  # The 200 rows at hand are 95 % of them.
    assert rows["msp", "DLR", "fitted", 0.5]["rows_in"] == 105
    assert len({value for *_, value in rows}) == 19


def test_few_rows_get_no_revision_and_many_do(mix):
    rows = ran("samples", replace(mix, scores={"msp": mix.scores["msp"]}), values=(20, 1000))
    few, base = rows["msp", "DLR", "fitted", 20.0], rows["msp", "none", "fitted", 20.0]
    assert few["auroc"] == pytest.approx(base["auroc"], abs=1e-3)  # 24 rows in 64 dimensions are fitted exactly.
    assert few["repeats"] == 1000
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


def test_what_react_clips_at_comes_from_the_fitted_rows_alone(mix):
    """Unseen rows as large as one likes leave the clip, and so the fit, as it was."""
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


def test_components_for_unseen_rows_come_from_the_others(mix, monkeypatch):
    """A classical detector sees the unseen half in coordinates of the half that it was fitted on."""
    few, given = mix.take(np.arange(200), np.arange(40)), []

    def keep(features, rng, *, unseen=None):
        given.append((features, unseen))
        return np.arange(float(len(features if unseen is None else unseen)))

    monkeypatch.setattr(protocols, "CLASSICAL", dict.fromkeys(protocols.CLASSICAL, keep))
    list(protocols.detect_outliers(Job(replace(SETTING, components=4), CASES["classical"], few)))
    fitted, unseen = given[1]
    assert abs(fitted.mean(axis=0)).max() < 1e-6  # The fitted half has mean zero,
    assert abs(unseen.mean(axis=0)).max() > 1e-3  # but the unseen half does not.


def test_the_printed_equations_without_an_intercept_do_not_give_the_printed_numbers(mix):
    """MSP on CIFAR-10: with an intercept FPR95 falls by more than half, without one AUROC falls below MSP's own."""
    without = ran("intercept", mix)["msp", "DLR, no intercept", "fitted", None]
    rows = ran("table", mix)
    base, trued = rows["msp", "none", "fitted", None], rows["msp", "DLR", "fitted", None]
    assert without["auroc"] < base["auroc"] < trued["auroc"]
    assert trued["fpr95"] < base["fpr95"] / 2


def test_a_classical_detector_is_fitted_on_the_mix_or_on_half_of_it(mix):
    small = mix.take(np.arange(150), np.arange(30))
    rows = ran("classical", small)
    assert {(base, scored) for base, _, scored, _ in rows} == {
        (base, scored) for base in ("isolation-forest", "lof", "gmm-10") for scored in ("fitted", "unseen")
    }
    assert rows["lof", "none", "unseen", None]["rows_in"] == 75


def test_samples_of_one_shuffle_share_no_row_and_all_are_as_many_as_asked(rng):
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
