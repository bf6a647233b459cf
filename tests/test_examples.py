"""The examples run, and say what an independent computation says."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression
from sklearn.metrics import roc_auc_score

import truing

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
