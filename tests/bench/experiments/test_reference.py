"""Cases with a reference give the numbers of the library on the same rows, and decide the rows that they promise."""

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
    """The mix of svhn, with contrast's base score added."""
    return replace(mix, scores={**mix.scores, "gen": truing.gen(mix.logits)})


@pytest.fixture(scope="module")
def parts(scored):
    """The learning half, the calibration half and the test rows of the first repeat."""
    return scored.with_reference(np.random.default_rng(SEED), 0.25)


@pytest.fixture(scope="module")
def rows(scored):
    return rows_of("contrast", scored)


def rows_of(name, mix, setting=SETTING, **changes):
    case = replace(CASES[name], **changes)
    rows = aggregate(PROTOCOLS[case.protocol](Job(setting, case, mix, seeds=(SEED,))))
    return {(row["base"], row["method"], row.get("value")): row for row in rows}


def refused(is_out, rest):
    return is_out[rest.rows_in :].mean(), is_out[: rest.rows_in].mean()


@pytest.mark.parametrize("base", ["msp", "energy"])
@pytest.mark.parametrize("method", ["dlr", "rlr"])
def test_a_trued_score_refuses_the_rows_that_detect_refuses(rows, parts, base, method):
    learning, calibration, rest = parts
    both = truing.Outputs.concatenate([learning.outputs(), calibration.outputs()])
    detection = truing.detect(rest.outputs(), both, method=method, base=base, false_alarm=FALSE_ALARM)
    row = rows[base, method.upper(), None]
    assert (row["detected"], row["false_alarms"]) == pytest.approx(refused(detection.is_out, rest), abs=1e-6)
    assert row["auroc"] == pytest.approx(truing.auroc(*rest.split(detection.scores)), abs=1e-6)


def test_a_base_score_refuses_rows_by_p_values_against_the_whole_reference(rows, parts):
    learning, calibration, rest = parts
    scores_in = np.concatenate([learning.scores["energy"], calibration.scores["energy"]])
    is_out = truing.p_values(scores_in, rest.scores["energy"]) <= 0.05
    row = rows["energy", "none", None]
    assert (row["detected"], row["false_alarms"]) == pytest.approx(refused(is_out, rest), abs=1e-6)


def test_contrast_gives_the_numbers_of_fit_contrast(rows, parts):
    learning, calibration, rest = (part.outputs() for part in parts)
    fit = truing.fit_contrast(rest, learning, calibration=calibration)
    scores = fit.predict(rest)
    row = rows["gen", CONTRAST, None]
    is_out = truing.p_values(fit.scores_in, scores) <= 0.05
    assert (row["detected"], row["false_alarms"]) == pytest.approx(refused(is_out, parts[2]), abs=1e-6)
    assert row["auroc"] == pytest.approx(truing.auroc(*parts[2].split(scores)), abs=1e-6)


def test_contrast_runs_with_the_default_base_score_only(rows, parts):
    learning, calibration, rest = (part.outputs() for part in parts)
    assert truing.fit_contrast(rest, learning, calibration=calibration).base == reference.BASE
    assert {base for base, method, _ in rows if method == CONTRAST} == {reference.BASE}


def test_components_apply_to_trued_scores_and_not_to_contrast(rows, scored):
    few = rows_of("contrast", scored, replace(SETTING, components=4))
    assert few["msp", "DLR", None]["auroc"] != rows["msp", "DLR", None]["auroc"]
    assert few["gen", CONTRAST, None] == rows["gen", CONTRAST, None]


def test_every_share_of_out_rows_uses_as_many_rows_as_possible(scored):
    """There are 500 in-distribution test rows and 200 out rows."""
    rows = rows_of("out-share", scored, values=(0.005, 0.2, 0.8), methods=("DLR", CONTRAST))
    counts = {value: (row["rows_in"], row["rows_out"]) for (_, _, value), row in rows.items()}
    assert counts == {0.005: (500, 3), 0.2: (500, 125), 0.8: (50, 200)}


def test_one_in_five_test_rows_is_out_and_sizes_that_need_more_rows_are_skipped(scored):
    rows = rows_of("test-rows", scored, methods=("DLR", CONTRAST))
    counts = {value: (row["rows_in"], row["rows_out"]) for (_, _, value), row in rows.items()}
    assert counts == {50: (40, 10), 100: (80, 20), 200: (160, 40), 500: (400, 100)}


@pytest.fixture
def classes_of(scored, monkeypatch):
    """A function that runs a case and returns (classes of the reference, classes of the test rows, test rows)."""

    def of(name):
        seen = []
        monkeypatch.setattr(protocols, "compare_with_reference", lambda *given: seen.append(given[:2]) or ())
        rows_of(name, scored)
        ((mix, reference),) = seen
        return reference.learning.classes(), mix.classes(), mix

    return of


def test_class_subset_keeps_three_of_ten_classes_in_the_test_rows_and_all_in_the_reference(classes_of, scored):
    reference_classes, classes, mix = classes_of("class-subset")
    assert len(set(reference_classes)) == 10
    assert len(set(classes)) == 3
    assert mix.rows_out == scored.rows_out
    assert 100 < mix.rows_in < 200


def test_class_frequencies_changes_the_class_shares_of_the_test_rows_only(classes_of, scored):
    reference_classes, classes, mix = classes_of("class-frequencies")
    shares = [np.bincount(part, minlength=10) / len(part) for part in (reference_classes, classes)]
    assert np.ptp(shares[0]) < 0.1
    assert np.ptp(shares[1]) > 0.15
    assert (mix.rows_in, mix.rows_out) == (150, scored.rows_out)


def test_the_false_alarm_rate_is_as_stated_without_out_rows(rng):
    """All rows come from one distribution, so both sets are refused at the stated rate on average."""
    features = rng.normal(size=(3000, 5))
    logits = features @ rng.normal(size=(5, 4))
    scores = {"gen": truing.gen(logits)}
    mix = Mix(features, scores, 2500, logits)
    case = replace(CASES["contrast"], bases=("gen",))
    for row in aggregate(PROTOCOLS[case.protocol](Job(SETTING, case, mix))):
        assert row["detected"] == pytest.approx(0.05, abs=0.02)
        assert row["false_alarms"] == pytest.approx(0.05, abs=0.015)


def test_knn_learns_from_the_learning_half_and_decides_against_the_calibration_half(parts, scored):
    learning, calibration, rest = parts
    row = rows_of("contrast", scored, bases=("knn",))["knn", "none", None]
    scores_in, scores = (truing.knn(part.features, learning.features) for part in (calibration, rest))
    assert row["auroc"] == pytest.approx(truing.auroc(*rest.split(scores)), abs=1e-6)
    is_out = truing.p_values(scores_in, scores) <= FALSE_ALARM
    assert (row["detected"], row["false_alarms"]) == pytest.approx(refused(is_out, rest), abs=1e-6)
