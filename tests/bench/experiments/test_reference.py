"""With known rows: the numbers are those of the library on the same rows, and the rows at hand are those asked for."""

from dataclasses import replace

import numpy as np
import pytest

import truing
from truing.bench.experiments import protocols, reference
from truing.bench.experiments.cases import CASES, CONTRAST, FALSE_ALARM
from truing.bench.experiments.mixes import Mix
from truing.bench.experiments.protocols import PROTOCOLS, Job
from truing.bench.experiments.run import aggregate
from truing.bench.experiments.settings import SETTINGS

SETTING = SETTINGS["cifar10-resnet56"]
SEED = (0, 0)


@pytest.fixture(scope="module")
def scored(mix):
    """The mix of svhn with the base score of contrast, too."""
    return replace(mix, scores={**mix.scores, "gen": truing.gen(mix.logits)})


@pytest.fixture(scope="module")
def parts(scored):
    """Known rows, those held back, and the rows at hand, of the first repeat."""
    return scored.with_known(np.random.default_rng(SEED), 0.25)


@pytest.fixture(scope="module")
def rows(scored):
    return ran("contrast", scored)


def ran(name, mix, setting=SETTING, **changes):
    case = replace(CASES[name], **changes)
    found = aggregate(PROTOCOLS[case.protocol](Job(setting, case, mix, seeds=(SEED,))))
    return {(row["base"], row["method"], row.get("value")): row for row in found}


def refused(is_out, rest):
    return is_out[rest.rows_in :].mean(), is_out[: rest.rows_in].mean()


@pytest.mark.parametrize("base", ["msp", "energy"])
@pytest.mark.parametrize("method", ["dlr", "rlr"])
def test_a_trued_score_refuses_what_the_whole_job_with_all_known_rows_refuses(rows, parts, base, method):
    known, held, rest = parts
    both = truing.Outputs.concatenate([known.outputs(), held.outputs()])
    found = truing.detect(rest.outputs(), both, method=method, base=base, false_alarm=FALSE_ALARM)
    row = rows[base, method.upper(), None]
    assert (row["detected"], row["false_alarms"]) == pytest.approx(refused(found.is_out, rest), abs=1e-6)
    assert row["auroc"] == pytest.approx(truing.auroc(*rest.split(found.scores)), abs=1e-6)


def test_a_base_score_refuses_what_lies_below_nearly_all_known_rows(rows, parts):
    known, held, rest = parts
    scores_in = np.concatenate([known.scores["energy"], held.scores["energy"]])
    is_out = truing.p_values(scores_in, rest.scores["energy"]) <= 0.05
    row = rows["energy", "none", None]
    assert (row["detected"], row["false_alarms"]) == pytest.approx(refused(is_out, rest), abs=1e-6)


def test_contrast_is_the_library_s_own_on_the_same_rows(rows, parts):
    known, held, rest = (part.outputs() for part in parts)
    fit = truing.fit_contrast(rest, known, calibration=held)
    scores = fit.predict(rest)
    row = rows["gen", CONTRAST, None]
    is_out = truing.p_values(fit.scores_in, scores) <= 0.05
    assert (row["detected"], row["false_alarms"]) == pytest.approx(refused(is_out, parts[2]), abs=1e-6)
    assert row["auroc"] == pytest.approx(truing.auroc(*parts[2].split(scores)), abs=1e-6)


def test_contrast_has_the_default_base_score_alone(rows, parts):
    known, held, rest = (part.outputs() for part in parts)
    assert truing.fit_contrast(rest, known, calibration=held).base == reference.BASE
    assert {base for base, method, _ in rows if method == CONTRAST} == {reference.BASE}


def test_components_are_for_the_trued_scores_alone(rows, scored):
    few = ran("contrast", scored, replace(SETTING, components=4))
    assert few["msp", "DLR", None]["auroc"] != rows["msp", "DLR", None]["auroc"]
    assert few["gen", CONTRAST, None] == rows["gen", CONTRAST, None]


def test_every_share_of_out_rows_has_as_many_rows_as_there_are(scored):
    """500 in-distribution rows and 200 others are left."""
    rows = ran("out-share", scored, values=(0.005, 0.2, 0.8), methods=("DLR", CONTRAST))
    counts = {value: (row["rows_in"], row["rows_out"]) for (_, _, value), row in rows.items()}
    assert counts == {0.005: (500, 3), 0.2: (500, 125), 0.8: (50, 200)}


def test_of_the_rows_at_hand_one_in_five_is_out_and_what_there_are_too_few_for_is_left_out(scored):
    rows = ran("test-rows", scored, methods=("DLR", CONTRAST))
    counts = {value: (row["rows_in"], row["rows_out"]) for (_, _, value), row in rows.items()}
    assert counts == {50: (40, 10), 100: (80, 20), 200: (160, 40), 500: (400, 100)}


@pytest.fixture
def at_hand(scored, monkeypatch):
    """A function that runs a case and returns (known classes, classes at hand, all rows at hand)."""

    def of(name):
        seen = []
        monkeypatch.setattr(protocols, "compare_with_reference", lambda mix, known, *_: seen.append((mix, known)) or ())
        ran(name, scored)
        ((mix, reference),) = seen
        return reference.known.classes(), mix.classes(), mix

    return of


def test_of_ten_classes_three_are_at_hand_and_all_are_known(at_hand, scored):
    known, classes, mix = at_hand("class-subset")
    assert len(set(known)) == 10
    assert len(set(classes)) == 3
    assert mix.rows_out == scored.rows_out
    assert 100 < mix.rows_in < 200


def test_class_shares_at_hand_are_far_from_those_known(at_hand, scored):
    known, classes, mix = at_hand("class-frequencies")
    shares = [np.bincount(part, minlength=10) / len(part) for part in (known, classes)]
    assert np.ptp(shares[0]) < 0.1
    assert np.ptp(shares[1]) > 0.15
    assert (mix.rows_in, mix.rows_out) == (150, scored.rows_out)


def test_false_alarms_are_as_many_as_stated_where_nothing_is_out(rng):
    """Rows of one kind, called in and out at random: both are refused at the stated rate, on average."""
    features = rng.normal(size=(3000, 5))
    logits = features @ rng.normal(size=(5, 4))
    scores = {"gen": truing.gen(logits)}
    mix = Mix(features, scores, 2500, logits)
    case = replace(CASES["contrast"], bases=("gen",))
    for row in aggregate(PROTOCOLS[case.protocol](Job(SETTING, case, mix))):
        assert row["detected"] == pytest.approx(0.05, abs=0.02)
        assert row["false_alarms"] == pytest.approx(0.05, abs=0.015)
