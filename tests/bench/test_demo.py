import errno
import inspect
import os
import sys
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp, softmax
from sklearn.metrics import roc_auc_score

import truing
from truing.bench import demo
from truing.bench.experiments.cases import CASES, DEMO, KEEP, PENALTY
from truing.bench.report import terminal

from .conftest import SMALL
from .reading import Reader, check_that_nothing_is_loaded

every_base = pytest.mark.parametrize("base", ["msp", "energy"])
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


@every_base
def test_base_and_dlr_on_svhn_agree_with_lstsq_and_scikit_learn(base, svhn, rows_of_svhn):
    features, logits = svhn
    scores = FORMULA[base](logits)
    design = np.column_stack([features, np.ones(len(features))])
    trued = design @ np.linalg.lstsq(design, scores, rcond=None)[0]
    for method, values in (("none", scores), ("DLR", trued)):
        row = rows_of_svhn[base, method]
        assert (row["fpr95"], row["auroc"]) == pytest.approx(brute_force(values), abs=1e-6)


@every_base
def test_rlr_on_svhn_is_lstsq_on_the_rows_it_trusts(base, svhn, rows_of_svhn):
    features, logits = svhn
    scores = FORMULA[base](logits)
    design = np.column_stack([features, np.ones(len(features))])
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    trusted = np.argsort(np.abs(truing.huber(unit, scores, 1e-5).residual))[: int(0.8 * len(scores))]
    coef = np.linalg.lstsq(design[trusted], scores[trusted], rcond=None)[0]
    row = rows_of_svhn[base, "RLR"]
    assert (row["fpr95"], row["auroc"]) == pytest.approx(brute_force(design @ coef), abs=1e-6)


def test_rlr_runs_with_the_library_s_own_defaults():
    defaults = inspect.signature(truing.fit_robust).parameters
    assert (defaults["keep"].default, defaults["penalty"].default) == (KEEP, PENALTY)


@pytest.mark.usefixtures("on_the_small_bank")
def test_the_demo_gives_the_same_rows_every_time(small, ran):
    assert demo.measure(list(DEMO), small).rows == ran.rows


def test_the_demo_runs_cases_of_the_experiments_at_one_repeat(ran):
    assert {row["case"] for row in ran.rows} <= set(CASES)
    assert {row["repeats"] for row in ran.rows if "repeats" in row} == {1}


@pytest.mark.usefixtures("on_the_small_bank")
def test_without_a_path_the_demo_only_tells(ran, small, capsys):
    demo.run(None, small)
    assert capsys.readouterr() == (terminal.text(ran.rows) + "\n", "")


@pytest.mark.usefixtures("on_the_small_bank")
def test_with_a_path_it_writes_the_report_and_says_where(small, ran, html, tmp_path, capsys):
    path = tmp_path / "report.html"
    demo.run(path, small)
    assert capsys.readouterr().out == f"{terminal.text(ran.rows)}\n\nReport: {path}\n"
    assert path.read_text(encoding="utf-8") == html


def test_the_report_is_whole_loads_nothing_and_says_where_it_hurts(ran, html):
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    check_that_nothing_is_loaded(html, reader)
    for paragraph in (terminal.hurts(ran.rows), "1,000 rows of CIFAR-10 test", terminal.notes(ran.rows)[2]):
        assert paragraph in html
    for row in terminal.fitted(ran.rows):
        assert reader.numbers[terminal.per_cent(row["auroc"])] > 0


def test_the_summary_has_every_method_that_the_introduction_names_and_says_what_the_setting_is(ran, html):
    front = html.partition('<section class="page"')[0]
    summary = front.partition("FPR95, set by set")[0]
    for name in ("msp", "msp + DLR", "msp + RLR", "msp + Online DLR"):
        assert f'<th scope="row">{name}</th>' in summary
    online = [
        row["auroc"] for row in terminal.fitted(ran.rows) if (row["base"], row["method"]) == ("msp", "Online DLR")
    ]
    line = summary.partition('<th scope="row">msp + Online DLR</th>')[2].partition("</tr>")[0]
    assert f"<td>{terminal.per_cent(np.mean(online))}</td>" in line
    assert "cifar10-resnet56-sample: FPR95" in front
    found = summary.partition("mean over the sets, with known rows</caption>")[2]
    shares = [row["detected"] for row in terminal.decided(ran.rows) if row["method"] == "contrast"]
    line = found.partition('<th scope="row">gen + contrast</th>')[2].partition("</tr>")[0]
    assert f"<td>{terminal.per_cent(np.mean(shares))}</td>" in line
    assert "not the paper’s method" in found
    assert "RLR" not in found.partition("</table>")[2].partition("<table>")[0]  # It is not run with known rows here.
    for metric in ("fpr95", "auroc"):
        mean = np.mean([row[metric] for row in terminal.decided(ran.rows) if row["method"] == "contrast"])
        assert f"known rows contrast {terminal.per_cent(mean)}" in front
    assert "outputs that come with truing" in html


@pytest.mark.usefixtures("on_the_small_bank")
def test_a_failure_leaves_an_earlier_report_as_it_was(small, monkeypatch, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("earlier")
    monkeypatch.setattr(demo, "report", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        demo.run(path, small)
    assert [(entry.name, entry.read_text()) for entry in tmp_path.iterdir()] == [("report.html", "earlier")]


@pytest.mark.usefixtures("on_the_small_bank")
def test_a_full_disk_names_the_file_behind_the_table(ran, html, small, monkeypatch, tmp_path, capsys):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    monkeypatch.setattr(demo, "report", lambda _: html)
    with pytest.raises(OSError, match=r"No space left on device: .*report\.html"):
        demo.run(tmp_path / "report.html", small)
    assert capsys.readouterr().out == terminal.text(ran.rows) + "\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["folder", "matplotlib"])
def test_what_is_missing_is_said_before_the_work(missing, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "measure", lambda *_: pytest.fail("the work began"))
    if missing == "matplotlib":
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ImportError, match="truing"):
            demo.run(tmp_path / "report.html")
    else:
        with pytest.raises(FileNotFoundError, match="no folder"):
            demo.run(tmp_path / "nowhere" / "report.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("on_the_small_bank")
def test_a_terminal_sees_the_progress(small, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    demo.measure([DEMO[0]], small)
    assert "3 of 3, cifar100" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_report_weighs_less_than_three_megabytes(tmp_path):
    demo.run(tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 3e6
