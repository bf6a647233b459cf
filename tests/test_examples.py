"""The examples run and agree with independent computations."""

import importlib
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
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

import truing
from truing.bench.bank import bank

EXAMPLES = Path(__file__).parent.parent / "examples"
SPLITS = 2
SLOW_RIVALS = ("LogisticRegressionCV", "HistGradientBoosting", "RandomForest")


def run_example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


# sklearn_digits.py


@pytest.fixture(scope="module")
def digits():
    return run_example("sklearn_digits")


@pytest.fixture(scope="module")
def table(digits):
    return digits["table"]()


def test_the_digits_example_remarks_where_truing_hurts(digits, table, capsys):
    digits["main"]()
    for line, (name, other, reports) in zip(capsys.readouterr().out.splitlines()[1:], table, strict=True):
        assert line.startswith(f"{name}, {other}")
        hurts = any(r.auroc < reports["base"].auroc or r.fpr95 > reports["base"].fpr95 for r in reports.values())
        assert ("hurt" in line or "worse than chance" in line) == hurts


def test_the_digits_example_agrees_with_scikit_learn(digits, table):
    train, labels, test, others = digits["digits"]()
    for name, pipeline in digits["CLASSIFIERS"].items():
        pipeline.fit(train, labels)
        reports = {other: reports for row, other, reports in table if row == name}
        for other, pixels in others.items():
            features = pipeline[:-1].transform(np.concatenate((test, pixels)))
            is_in = np.arange(len(features)) < len(test)
            base = truing.msp(digits["LOGITS"][name](pipeline[-1], features))
            trued = LinearRegression().fit(features, base).predict(features)
            assert reports[other]["base"].auroc == pytest.approx(roc_auc_score(is_in, base), abs=1e-9)
            assert reports[other]["DLR"].auroc == pytest.approx(roc_auc_score(is_in, trued), abs=1e-4)


# evidence/field.py


@pytest.fixture(scope="module")
def field():
    return vars(importlib.import_module("evidence.field"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a folder with 400 real rows, 100 rows of each of three sets, and the head that computed their logits."""
    folder, whole = tmp_path_factory.mktemp("banks") / "small", bank()
    folder.mkdir()
    whole.inside[:400].save(folder / "cifar10-test.npz")
    for name in ("cifar100", "svhn", "uniform-noise"):
        whole.outside[name][:100].save(folder / f"{name}.npz")
    fit = LinearRegression().fit(np.float64(whole.inside.features), whole.inside.logits)
    np.savez(folder / "head.npz", weight=fit.coef_.astype(np.float32), bias=fit.intercept_.astype(np.float32))
    return folder


@pytest.fixture(scope="module", params=["quick rivals", pytest.param("all rivals", marks=pytest.mark.slow)])
def rivals(request, field):
    """Leave out the slow rivals, except in the slow test."""
    make = field["MAKERS"]["scikit-learn"]

    def make_quick(**head):
        return (rival for rival in make(**head) if not rival.name.startswith(SLOW_RIVALS))

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "quick rivals":
            patch.setitem(field["MAKERS"], "scikit-learn", make_quick)
        yield request.param


def run_field(field, *arguments):
    """Run the script on one thread and return its output and its error output."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), threadpool_limits(1):
        patch.setattr(sys, "argv", ["compare", *map(str, arguments)])
        field["main"]()
    return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def printed(field, rivals, small, tmp_path_factory):
    """Return the stored rows, the output and the error output of the script."""
    path = tmp_path_factory.mktemp("field") / "rows.jsonl"
    out, err = run_field(field, "--bank", small, "--json", path, "--splits", SPLITS)
    return path.read_text(), out, err


@pytest.fixture(scope="module")
def compared(printed):
    return [json.loads(line) for line in printed[0].splitlines()]


def splits_of(rows):
    """Yield the two halves of the reference and the other rows."""
    for seed in range(SPLITS):
        inside = rows[np.random.default_rng(seed).permutation(400)]
        yield inside[:100], inside[100:200], inside[200:]


def test_every_installed_rival_is_compared_and_every_other_library_is_named(field, compared, rivals, printed):
    fewest = 28 if rivals == "all rivals" else 23
    assert len({(row["detector"], row["library"], row["given"]) for row in compared}) == len(compared) >= fewest
    for row in compared:
        assert row["library"] in row["versions"]
        if "note" not in row:
            assert list(row["auroc"]) == list(row["fpr95"]) == ["cifar100", "svhn", "uniform-noise"]
            # A share of detected rows needs reference rows that the detector did not learn from.
            assert ("found" in row) == (row["given"] in ("nothing", "A", "A, labels", "A, B, mix"))
    libraries = {row["library"] for row in compared}
    left_out = set(re.findall(r"^(\S+) is left out", printed[2], re.MULTILINE))
    assert libraries | left_out == set(field["MAKERS"])
    assert not libraries & left_out
    assert {"truing", "scikit-learn"} <= libraries


def test_the_rivals_agree_with_scikit_learn(compared):
    outside = bank().outside["svhn"][:100]
    rows = {(row["detector"], row["given"]): row["auroc"]["svhn"][0] for row in compared if "auroc" in row}
    aurocs = {}
    for learning, calibration, rest in splits_of(bank().inside[:400]):
        features = np.concatenate((rest.features, outside.features)).astype(np.float64)
        base = np.concatenate((truing.msp(rest.logits), truing.msp(outside.logits)))
        is_in = np.arange(len(features)) < len(rest)
        forest = IsolationForest(random_state=0).fit(learning.features.astype(np.float64))
        everything = np.concatenate((learning.features, calibration.features, features))
        is_learning = np.arange(len(everything)) < len(learning)
        member = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(everything, is_learning)
        expected = {
            ("msp", "nothing"): base,
            ("msp + DLR", "mix"): LinearRegression().fit(features, base).predict(features),
            ("IsolationForest", "A"): forest.score_samples(features),
            ("LocalOutlierFactor", "mix"): LocalOutlierFactor().fit(features).negative_outlier_factor_,
            ("LogisticRegression, features", "A, B, mix"): member.decision_function(features),
        }
        for rival, scores in expected.items():
            aurocs.setdefault(rival, []).append(roc_auc_score(is_in, scores))
    for rival, values in aurocs.items():
        assert rows[rival] == pytest.approx(np.mean(values), abs=1e-4), rival
    if ("MaxSoftmax", "nothing") in rows:
        assert rows["MaxSoftmax", "nothing"] == pytest.approx(rows["msp", "nothing"], abs=2e-3)
        assert rows["EnergyBased", "nothing"] == pytest.approx(rows["energy", "nothing"], abs=2e-3)


def test_the_detected_share_of_contrast_comes_from_p_values(compared):
    (row,) = [row for row in compared if row["detector"] == "contrast"]
    outside = bank().outside["svhn"][:100]
    shares = []
    for learning, calibration, rest in splits_of(bank().inside[:400]):
        mix = truing.Outputs.concatenate([truing.Outputs(part.features, part.logits) for part in (rest, outside)])
        fit = truing.fit_contrast(mix, learning, calibration=calibration)
        below = (fit.predict(calibration)[None, :] <= fit.predict(outside)[:, None]).sum(axis=1)
        shares.append(np.mean((1 + below) / (1 + len(calibration)) <= 0.05))
    assert row["found"]["svhn"] == pytest.approx([np.mean(shares), abs(shares[0] - shares[1]) / 2], abs=1e-4)


def test_the_printed_table_is_sorted_and_comes_from_the_rows(field, compared, printed):
    assert field["text"](compared) in printed[1]
    means = [np.mean([row["auroc"][name][0] for name in ("cifar100", "svhn")]) for row in compared if "auroc" in row]
    shown = re.findall(r"(?:nothing|mix|A|B|labels) +[\d.]+ ± *[\d.?]+ +([\d.]+)", printed[1])
    np.testing.assert_allclose(np.array(shown, float), 100 * np.sort(means)[::-1], atol=0.051)


def test_an_interrupted_comparison_resumes_and_one_library_can_be_measured_again(field, small, compared, tmp_path):
    path = tmp_path / "rows.jsonl"
    marked = [row | {"seconds": -1.0} for row in compared]
    path.write_text("".join(json.dumps(row) + "\n" for row in marked[1:]))
    run_field(field, "--bank", small, "--json", path, "--splits", SPLITS)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows[:-1] == marked[1:]
    assert rows[-1] | {"seconds": 0} == compared[0] | {"seconds": 0}
    run_field(field, "--bank", small, "--json", path, "--splits", 1, "--only", "truing")
    again = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(again) == len(rows)
    assert all((row["seconds"] != -1.0) == (row["library"] == "truing") for row in again if "note" not in row)


# Pages that show stored rows


def test_the_pages_of_the_field_show_its_stored_rows(field):
    results = EXAMPLES.parent / "docs" / "results"
    pages = [(results / f"{name}.md").read_text() for name in ("field", "field-tables")]
    rows = field["read"](results / "field.jsonl")
    assert {row["bank"] for row in rows} == set(field["TITLES"])
    tables = set(re.findall(r"^<!-- (\S+) -->$", "\n".join(pages), re.MULTILINE))
    assert set(field["TITLES"]) | {"best", "ahead", "sets"} <= tables
    assert [field["fill"](page, rows) for page in pages] == pages


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_every_pattern_of_measure_notes_matches_a_note_of_detect():
    patterns, matched = vars(importlib.import_module("evidence.notes"))["NOTES"], set()
    inside, near = bank().inside, bank().outside["cifar100"]
    rows, reference = truing.Outputs.concatenate([inside[:1000], near[:1000]]), inside[5000:]
    for result in (
        truing.detect(rows, reference[:10], method="dlr", false_alarm=0.05),
        truing.detect(rows[:30], reference),
        truing.detect(bank().outside["svhn"], reference),
        truing.detect(rows, inside),
        truing.detect(reference, rows),
        truing.detect(rows, reference, method="dlr", base="energy"),
    ):
        matched |= {name for name, words in patterns.items() if re.search(words, " ".join(result.notes))}
    assert matched == set(patterns)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")  # On text, DLR hurts.
def test_the_page_on_text_shows_what_the_example_prints(capsys):
    example = run_example("text_sentences")
    if not (example["DATA"] / "text/clinc150.json").exists():
        pytest.skip("needs text/clinc150.json in TRUING_DATA")
    example["main"]()
    printed = capsys.readouterr().out.splitlines()
    page = (EXAMPLES.parent / "docs" / "text.md").read_text()
    start = page.index(printed[0][:8], page.index("text_sentences.py"))
    shown = page[start:].splitlines()[: len(printed)]
    for ours, theirs in zip(printed, shown, strict=True):
        assert ours[:15] == theirs[:15]
        numbers = [[float(number) for number in re.findall(r"([\d.]+)%", line)] for line in (ours, theirs)]
        np.testing.assert_allclose(*numbers, atol=1.5)  # Versions of scikit-learn differ a little.
