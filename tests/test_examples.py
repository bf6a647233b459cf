"""The examples run and agree with independent computations."""

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
LONG = ("LogisticRegressionCV", "HistGradientBoosting", "RandomForest")  # What takes nearly all of the time.


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
    """A bank of 400 real rows, and 100 of each of three sets; its head is the one that its own logits say."""
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
    """Leave out the rivals that take long, or none."""
    make = field["MAKERS"]["scikit-learn"]

    def make_quick(**head):
        return (rival for rival in make(**head) if not rival.name.startswith(LONG))

    with pytest.MonkeyPatch.context() as patch:
        if request.param == "quick rivals":
            patch.setitem(field["MAKERS"], "scikit-learn", make_quick)
        yield request.param


def run_field(field, *arguments):
    """Run the script on one thread, as it says, and return what it writes to stdout and to stderr."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err), threadpool_limits(1):
        patch.setattr(sys, "argv", ["compare", *map(str, arguments)])
        field["main"]()
    return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def printed(field, rivals, small, tmp_path_factory):
    """What the script writes to its file, to stdout and to stderr."""
    path = tmp_path_factory.mktemp("field") / "rows.jsonl"
    out, err = run_field(field, "--bank", small, "--json", path, "--splits", SPLITS)
    return path.read_text(), out, err


@pytest.fixture(scope="module")
def compared(printed):
    return [json.loads(line) for line in printed[0].splitlines()]


def splits_of(rows):
    """Yield A, B and the rest of 400 rows, told in another way than the script's."""
    for seed in range(SPLITS):
        inside = rows[np.random.default_rng(seed).permutation(400)]
        yield inside[:100], inside[100:200], inside[200:]


def test_every_rival_is_judged_on_the_same_sets_or_says_why_not(compared, rivals):
    fewest = 28 if rivals == "all rivals" else 23
    assert len({(row["detector"], row["library"], row["given"]) for row in compared}) == len(compared) >= fewest
    for row in compared:
        assert row["library"] in row["versions"]
        if "note" not in row:
            assert list(row["auroc"]) == list(row["fpr95"]) == ["cifar100", "svhn", "uniform-noise"]
            assert 1 <= row["splits"] <= SPLITS


def test_rows_are_found_only_by_who_keeps_known_rows_to_decide_against(compared):
    for row in compared:
        if "note" not in row:
            assert ("found" in row) == (row["given"] in ("nothing", "A", "A, labels", "A, B, mix"))


def test_a_library_that_is_not_installed_is_left_out_and_named(field, compared, printed):
    found = {row["library"] for row in compared}
    named = set(re.findall(r"^(\S+) is left out", printed[2], re.MULTILINE))
    assert found | named == set(field["MAKERS"])
    assert not found & named
    assert {"truing", "scikit-learn"} <= found


@pytest.mark.parametrize("name", ["cifar100", "svhn", "uniform-noise"])
def test_the_rivals_agree_with_scikit_learn(compared, name):
    outside = bank().outside[name][:100]
    rows = {(row["detector"], row["given"]): row["auroc"][name][0] for row in compared if "auroc" in row}
    found = {}
    for known, held, rest in splits_of(bank().inside[:400]):
        features = np.concatenate((rest.features, outside.features)).astype(np.float64)
        base = np.concatenate((truing.msp(rest.logits), truing.msp(outside.logits)))
        is_in = np.arange(len(features)) < len(rest)
        forest = IsolationForest(random_state=0).fit(known.features.astype(np.float64))
        everything = np.concatenate((known.features, held.features, features))
        is_known = np.arange(len(everything)) < len(known)
        member = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(everything, is_known)
        wanted = {
            ("msp", "nothing"): base,
            ("msp + DLR", "mix"): LinearRegression().fit(features, base).predict(features),
            ("IsolationForest", "A"): forest.score_samples(features),
            ("LocalOutlierFactor", "mix"): LocalOutlierFactor().fit(features).negative_outlier_factor_,
            ("LogisticRegression, features", "A, B, mix"): member.decision_function(features),
        }
        for rival, scores in wanted.items():
            found.setdefault(rival, []).append(roc_auc_score(is_in, scores))
    for rival, aurocs in found.items():
        assert rows[rival] == pytest.approx(np.mean(aurocs), abs=1e-4), rival
    if ("MaxSoftmax", "nothing") in rows:
        assert rows["MaxSoftmax", "nothing"] == pytest.approx(rows["msp", "nothing"], abs=2e-3)
        assert rows["EnergyBased", "nothing"] == pytest.approx(rows["energy", "nothing"], abs=2e-3)


def test_contrast_finds_rows_by_their_p_values(compared):
    (row,) = [row for row in compared if row["detector"] == "contrast"]
    outside = bank().outside["svhn"][:100]
    shares = []
    for known, held, rest in splits_of(bank().inside[:400]):
        mix = truing.Outputs.concatenate([truing.Outputs(part.features, part.logits) for part in (rest, outside)])
        fit = truing.fit_contrast(mix, known, calibration=held)
        below = (fit.predict(held)[None, :] <= fit.predict(outside)[:, None]).sum(axis=1)
        shares.append(np.mean((1 + below) / (1 + len(held)) <= 0.05))
    assert row["found"]["svhn"] == pytest.approx([np.mean(shares), abs(shares[0] - shares[1]) / 2], abs=1e-4)


def test_the_table_of_the_field_is_sorted_and_comes_from_its_rows(field, compared, printed):
    assert field["text"](compared) in printed[1]
    means = [np.mean([row["auroc"][name][0] for name in ("cifar100", "svhn")]) for row in compared if "auroc" in row]
    shown = re.findall(r"(?:nothing|mix|A|B|labels) +[\d.]+ ± *[\d.?]+ +([\d.]+)", printed[1])
    np.testing.assert_allclose(np.array(shown, float), 100 * np.sort(means)[::-1], atol=0.051)


def test_an_interrupted_comparison_goes_on_and_one_library_can_be_measured_again(field, small, compared, tmp_path):
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


def test_the_page_shows_the_stored_rows_of_the_field(field):
    results = EXAMPLES.parent / "docs" / "results"
    page, rows = (results / "field.md").read_text(), field["read"](results / "field.jsonl")
    assert {row["bank"] for row in rows} == set(field["TITLES"])
    assert set(field["TITLES"]) | {"best", "ahead", "sets"} <= set(re.findall(r"^<!-- (\S+) -->$", page, re.MULTILINE))
    assert field["fill"](page, rows) == page


@pytest.mark.slow
def test_the_page_of_scores_shows_what_its_example_prints():
    example = runpy.run_path(str(EXAMPLES / "score_the_banks.py"))
    page = (EXAMPLES.parent / "docs" / "scores.md").read_text()
    has_rows = [path.parent for name in example["INSIDE"] for path in example["BANKS"].glob(f"*/{name}.npz")]
    folders = sorted(folder for folder in has_rows if "imagenet" not in folder.name)
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


def test_the_patterns_of_notes_match_notes_of_the_library():
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
        said |= {name for name, words in notes["NOTES"].items() if re.search(words, " ".join(found.notes))}
    assert said == set(notes["NOTES"])
