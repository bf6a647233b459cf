import re
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.metrics import roc_auc_score

import truing
from truing.bench import demo
from truing.bench.experiments.cases import DEMO
from truing.bench.report import terminal

from .conftest import SMALL
from .reading import Reader, check_that_nothing_is_loaded

FORMULA = {"msp": lambda f: softmax(f, axis=1).max(axis=1), "energy": lambda f: logsumexp(f, axis=1)}


@pytest.fixture
def on_the_small_bank(monkeypatch):
    monkeypatch.setattr(demo, "SETTING", replace(demo.SETTING, outside={name: name for name in SMALL}))


@pytest.fixture(scope="session")
def svhn(embedded):
    """CIFAR-10 test and svhn, stacked, in float64."""
    parts = (embedded.inside, embedded.outside["svhn"])
    return [np.concatenate([vars(part)[name] for part in parts]).astype(float) for name in ("features", "logits")]


@pytest.fixture(scope="session")
def html(ran):
    """The report of the demo on the small bank."""
    return demo.report(ran)


@pytest.fixture(scope="session")
def rows_of_svhn():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "SETTING", replace(demo.SETTING, outside={"svhn": "svhn"}))
        results = demo.measure([DEMO[0]])
    return {(row["base"], row["method"]): row for row in results.rows if row["scored"] == "fitted"}


def brute_force(scores, rows_in=10_000):
    """FPR95 and AUROC without truing: the first threshold with enough recall, and scikit-learn."""
    scores_in, scores_out = scores[:rows_in], scores[rows_in:]
    accepted = (t for t in np.sort(scores_in)[::-1] if (scores_in >= t).mean() >= 0.95)
    is_in = np.arange(len(scores)) < rows_in
    return (scores_out >= next(accepted)).mean(), roc_auc_score(is_in, scores)


@pytest.mark.parametrize("base", ["msp", "energy"])
def test_the_numbers_of_svhn_agree_with_an_independent_computation(base, svhn, rows_of_svhn):
    features, logits = svhn
    scores = FORMULA[base](logits)
    design = np.column_stack([features, np.ones(len(features))])
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    kept = np.argsort(np.abs(truing.huber(unit, scores, 1e-5).residual))[: int(0.8 * len(scores))]
    trued = {"none": scores}
    for method, rows in (("DLR", slice(None)), ("RLR", kept)):
        trued[method] = design @ np.linalg.lstsq(design[rows], scores[rows], rcond=None)[0]
    for method, values in trued.items():
        row = rows_of_svhn[base, method]
        assert (row["fpr95"], row["auroc"]) == pytest.approx(brute_force(values), abs=1e-6)


@pytest.mark.usefixtures("on_the_small_bank")
def test_the_demo_prints_its_tables_and_writes_the_report_if_it_has_a_path(small, ran, html, tmp_path, capsys):
    demo.run(None, small)
    assert capsys.readouterr() == (terminal.text(ran.rows) + "\n", "")
    path = tmp_path / "report.html"
    demo.run(path, small)
    assert capsys.readouterr().out == f"{terminal.text(ran.rows)}\n\nReport: {path}\n"
    assert path.read_text(encoding="utf-8") == html
    assert path.stat().st_size < 3e6
    with pytest.raises(FileNotFoundError, match="no folder"):
        demo.run(tmp_path / "nowhere" / "report.html", small)


def test_the_report_loads_nothing_and_has_the_numbers_of_the_terminal(ran, html):
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    check_that_nothing_is_loaded(html, reader)
    front = html.partition('<section class="page"')[0]
    mean = next(line for line in terminal.lines(ran.rows) if line.outside == terminal.MEAN)
    before, contrast = mean.cells["base"].fpr95, mean.cells["contrast"].fpr95
    assert f"Mean FPR95 over 3 out-of-distribution sets: msp {before} % → <b>contrast {contrast} %</b>" in front
    assert terminal.hurts(ran.rows) in front
    cells = set(re.findall(r"<td>(?:<b>)?([\d.]+)(?:</b>)?</td>", front))
    for line in terminal.lines(ran.rows):
        assert {number for cell in line.cells.values() for number in (cell.fpr95, cell.auroc)} <= cells
    assert {terminal.per_cent(share) for _, _, shares in terminal.detected(ran.rows)[1] for share in shares} <= cells
    for metric in ("fpr95", "auroc"):
        assert f"with reference contrast {getattr(mean.cells['contrast'], metric)}" in front
