"""Cases with a reference have the numbers of the library on the same rows."""

from dataclasses import replace

import numpy as np
import pytest

import truing
from truing.bench.experiments import protocols
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
    return rows_of("contrast", scored, methods=("DLR", "RLR", CONTRAST))


def rows_of(name, mix, setting=SETTING, **changes):
    case = replace(CASES[name], **changes)
    rows = aggregate(PROTOCOLS[case.protocol](Job(setting, case, mix, seeds=(SEED,))))
    return {(row["base"], row["method"], row.get("value")): row for row in rows}


def refused(is_out, rest):
    return is_out[rest.rows_in :].mean(), is_out[: rest.rows_in].mean()


@pytest.mark.parametrize("base", ["msp", "energy"])
@pytest.mark.parametrize("method", ["dlr", "rlr"])
def test_trued_scores_give_the_decisions_of_detect(rows, parts, base, method):
    learning, calibration, rest = parts
    both = truing.Outputs.concatenate([learning.outputs(), calibration.outputs()])
    detection = truing.detect(rest.outputs(), both, method=method, base=base, false_alarm=FALSE_ALARM)
    row = rows[base, method.upper(), None]
    assert (row["detected"], row["false_alarms"]) == pytest.approx(refused(detection.is_out, rest), abs=1e-6)
    assert row["auroc"] == pytest.approx(truing.auroc(*rest.split(detection.scores)), abs=1e-6)


def test_base_scores_are_decided_by_p_values_against_the_whole_reference(rows, parts):
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


def test_components_apply_to_trued_scores_and_not_to_contrast(rows, scored):
    few = rows_of("contrast", scored, replace(SETTING, components=4))
    assert few["msp", "DLR", None]["auroc"] != rows["msp", "DLR", None]["auroc"]
    assert few["gen", CONTRAST, None] == rows["gen", CONTRAST, None]


@pytest.mark.parametrize(
    ("name", "classes", "rows_in"),
    [("class-subset", 3, range(100, 200)), ("class-frequencies", None, [150])],
)
def test_the_classes_of_the_test_rows_differ_from_the_reference(scored, monkeypatch, name, classes, rows_in):
    calls = []
    monkeypatch.setattr(protocols, "compare_with_reference", lambda *args: calls.append(args[:2]) or ())
    rows_of(name, scored)
    tested, reference = calls[0]
    shares = [np.bincount(part.classes(), minlength=10) / part.rows_in for part in (reference.learning, tested)]
    assert np.ptp(shares[0]) < 0.1
    assert np.ptp(shares[1]) > 0.15
    assert len(set(reference.learning.classes())) == 10
    assert classes in (None, len(set(tested.classes())))
    assert tested.rows_in in rows_in
    assert tested.rows_out == scored.rows_out


def test_the_false_alarm_rate_is_as_stated(rng):
    """Without a difference between the sets, both are refused at the stated rate."""
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
