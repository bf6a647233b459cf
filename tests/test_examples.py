"""The examples run, and say what an independent computation says."""

import json
import re
import runpy
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor

import truing
from truing.bench.bank import bank

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def digits():
    return runpy.run_path(str(EXAMPLES / "sklearn_digits.py"))


@pytest.fixture(scope="module")
def table(digits):
    return digits["table"]()


def test_the_digits_example_prints_a_line_for_every_classifier_and_set(digits, table, capsys):
    digits["main"]()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 * 2
    for line, (name, other, reports) in zip(lines[1:], table, strict=True):
        assert line.startswith(f"{name}, {other}")
        hurt = any(r.auroc < reports["base"].auroc or r.fpr95 > reports["base"].fpr95 for r in reports.values())
        assert ("hurt" in line or "wrong way round" in line) == hurt


def test_the_page_shows_what_the_digits_example_prints(table):
    page = (EXAMPLES.parent / "docs" / "networks.md").read_text()
    for name, other, reports in table:
        shown = re.search(rf"^{name}, {other} +([\d. /]+)", page, re.MULTILINE).group(1)
        numbers = [100 * number for report in reports.values() for number in (report.fpr95, report.auroc)]
        # Another version of scikit-learn may draw another forest or split.
        np.testing.assert_allclose(np.array(shown.replace("/", " ").split(), float), numbers, atol=3)


def test_the_digits_example_agrees_with_scikit_learn(digits, table):
    learn, labels, test, others = digits["digits"]()
    for name, pipeline in digits["CLASSIFIERS"].items():
        pipeline.fit(learn, labels)
        reports = {other: reports for row, other, reports in table if row == name}
        for other, pixels in others.items():
            features = pipeline[:-1].transform(np.concatenate((test, pixels)))
            is_in = np.arange(len(features)) < len(test)
            base = truing.msp(digits["LOGITS"][name](pipeline[-1], features))
            trued = LinearRegression().fit(features, base).predict(features)
            assert reports[other]["base"].auroc == pytest.approx(roc_auc_score(is_in, base), abs=1e-9)
            assert reports[other]["DLR"].auroc == pytest.approx(roc_auc_score(is_in, trued), abs=1e-4)


def test_log_probabilities_are_logits_whose_msp_is_the_largest_probability(digits):
    learn, labels, test, _ = digits["digits"]()
    forest = digits["CLASSIFIERS"]["random forest"].fit(learn, labels)
    msp = truing.msp(digits["outputs"]("random forest", forest, test).logits)
    np.testing.assert_allclose(msp, forest.predict_proba(test).max(axis=1), atol=8 * digits["LEAST_PROBABILITY"])


def test_in_and_out_share_no_class_and_no_image(digits):
    learn, labels, test, others = digits["digits"]()
    assert set(labels) == set(range(8))
    sets = [{row.tobytes() for row in rows} for rows in (learn, test, *others.values())]
    assert sum(map(len, sets)) == len(set().union(*sets))


@pytest.fixture(scope="module")
def field():
    return runpy.run_path(str(EXAMPLES / "compare_with_the_field.py"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A bank of 800 real rows, and 200 of each of three sets; its head is the one that its own logits say."""
    folder, whole = tmp_path_factory.mktemp("banks") / "small", bank()
    folder.mkdir()
    whole.inside[:800].save(folder / "cifar10-test.npz")
    for name in ("cifar100", "svhn", "uniform-noise"):
        whole.outside[name][:200].save(folder / f"{name}.npz")
    fit = LinearRegression().fit(np.float64(whole.inside.features), whole.inside.logits)
    np.savez(folder / "head.npz", weight=fit.coef_.astype(np.float32), bias=fit.intercept_.astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def printed(field, small):
    """What the script writes to its file, to stdout and to stderr."""
    path, out, err = small.parent / "rows.jsonl", StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["compare", "--bank", str(small), "--json", str(path)])
        field["main"]()
    return path.read_text(), out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def compared(printed):
    return [json.loads(line) for line in printed[0].splitlines()]


@pytest.fixture(scope="module")
def halves():
    """Every second row of each class, and the other half, told in another way than the script's."""
    inside = bank().inside[:800]
    turn = np.array([np.sum(inside.labels[:row] == label) for row, label in enumerate(inside.labels)])
    before = np.array([np.sum(inside.labels < label) for label in inside.labels])
    known = (turn + before) % 2 == 0
    return inside[known], inside[~known]


def test_every_rival_is_judged_on_the_same_sets_or_says_why_not(compared):
    assert len({(row["detector"], row["library"], row["given"]) for row in compared}) == len(compared) >= 18
    for row in compared:
        assert row.get("note") or list(row["auroc"]) == list(row["fpr95"]) == ["cifar100", "svhn", "uniform-noise"]
        assert row["library"] in row["versions"]


def test_a_library_that_is_not_installed_is_left_out_and_named(compared, printed):
    found = {row["library"] for row in compared}
    named = set(re.findall(r"^(\S+) is left out", printed[2], re.MULTILINE))
    assert found | named == {"truing", "pytorch-ood", "scikit-learn", "pyod"}
    assert not found & named
    assert {"truing", "scikit-learn"} <= found


@pytest.mark.parametrize("name", ["cifar100", "svhn", "uniform-noise"])
def test_the_rivals_agree_with_scikit_learn_on_the_rows_held_out(compared, halves, name):
    (known, held), outside = halves, bank().outside[name][:200]
    rows = {(row["detector"], row["given"]): row["auroc"][name] for row in compared if "auroc" in row}
    features = np.concatenate((held.features, outside.features)).astype(np.float64)
    base = np.concatenate((truing.msp(held.logits), truing.msp(outside.logits)))
    is_in = np.arange(len(features)) < len(held)
    forest = IsolationForest(random_state=0).fit(known.features.astype(np.float64))
    wanted = {
        ("msp", "nothing"): base,
        ("msp + DLR", "mix"): LinearRegression().fit(features, base).predict(features),
        ("IsolationForest", "reference"): forest.score_samples(features),
        ("LocalOutlierFactor", "mix"): LocalOutlierFactor().fit(features).negative_outlier_factor_,
    }
    for rival, scores in wanted.items():
        assert rows[rival] == pytest.approx(roc_auc_score(is_in, scores), abs=1e-4)
    if ("MaxSoftmax", "nothing") in rows:
        assert rows["MaxSoftmax", "nothing"] == pytest.approx(rows["msp", "nothing"], abs=2e-3)
        assert rows["EnergyBased", "nothing"] == pytest.approx(rows["energy", "nothing"], abs=2e-3)


def test_the_table_of_the_field_is_sorted_and_comes_from_its_rows(field, compared, printed):
    assert field["text"](compared) in printed[1]
    means = [np.mean([row["auroc"][name] for name in ("cifar100", "svhn")]) for row in compared if "auroc" in row]
    shown = re.findall(r"(?:nothing|mix|reference|labels) +[\d.]+ +([\d.]+)", printed[1])
    np.testing.assert_allclose(np.array(shown, float), 100 * np.sort(means)[::-1], atol=0.051)


def test_the_page_shows_the_stored_rows_of_the_field(field):
    results = EXAMPLES.parent / "docs" / "results"
    page, rows = (results / "field.md").read_text(), (results / "field.jsonl").read_text().splitlines()
    banks = {}
    for row in map(json.loads, rows):
        banks.setdefault(row["bank"], []).append(row)
    assert len(banks) == 4
    for found in banks.values():
        assert field["text"](found) in page


@pytest.mark.slow
def test_the_page_of_scores_shows_what_its_example_prints():
    example = runpy.run_path(str(EXAMPLES / "score_the_banks.py"))
    page = (EXAMPLES.parent / "docs" / "scores.md").read_text()
    folders = [folder for folder in sorted(example["BANKS"].glob("*/")) if "imagenet" not in folder.name]
    if not folders:
        pytest.skip(f"no feature banks under {example['BANKS']}: set TRUING_DATA")
    for name in example["NAMES"]:
        cells = " | ".join(example["means"](example["measure"](folder, name)) for folder in folders)
        assert re.search(rf"^\| `{name}` \| .*\| {cells} \|", page, re.MULTILINE), (name, cells)


def test_the_page_of_notes_is_that_of_its_rows():
    notes = runpy.run_path(str(EXAMPLES / "measure_notes.py"))
    rows = [json.loads(line) for line in (notes["RESULTS"] / "notes.jsonl").read_text().splitlines()]
    assert {row["bank"] for row in rows} == set(notes["INSIDE"])
    assert (notes["RESULTS"] / "notes.md").read_text() == notes["page"](rows)


def test_the_words_by_which_notes_are_known_are_those_of_the_library():
    notes, said = runpy.run_path(str(EXAMPLES / "measure_notes.py")), set()
    inside, near = bank().inside, bank().outside["cifar100"]
    rows, held = truing.Outputs.concatenate([inside[:1000], near[:1000]]), inside[5000:]
    for found in (
        truing.detect(rows, held[:10], method="dlr", false_alarm=0.05),
        truing.detect(rows[:30], held),
        truing.detect(bank().outside["svhn"], held),
        truing.detect(rows, inside),
        truing.detect(held, rows),
        truing.detect(rows, held, method="dlr", base="energy"),
    ):
        said |= {name for name, words in notes["NOTES"].items() if words in " ".join(found.notes)}
    assert said == set(notes["NOTES"])
