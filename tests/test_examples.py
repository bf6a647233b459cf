"""The examples run and agree with independent computations."""

import importlib
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score

import truing
from truing.bench.bank import bank

EXAMPLES = Path(__file__).parent.parent / "examples"


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
