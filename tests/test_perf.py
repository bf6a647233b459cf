"""The benchmarks import, compare like with like, and the page shows the stored rows."""

import doctest
import importlib
from dataclasses import asdict
from types import ModuleType

import numpy as np
import pytest

import truing
from evidence.experiment import SECTION, fill
from evidence.rows import ROOT

PERF = ROOT / "perf"
SCRIPTS = sorted(path.stem for path in PERF.glob("[a-z]*.py"))


def script(name: str) -> ModuleType:
    """Import a script; skip the test if a package that it compares with is missing."""
    try:
        return importlib.import_module(f"perf.{name}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("truing", "evidence", "perf")):
            raise
        pytest.skip(f"needs {error.name}")


@pytest.fixture
def pair(rng):
    features = np.abs(rng.standard_normal((300, 4))) + 0.1
    return features, features @ [1.0, -0.5, 0.2, 0.0] + 0.3 + 0.1 * rng.standard_t(2, 300)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_imports_says_what_it_measures_and_is_in_the_readme(name):
    module = script(name)
    assert callable(module.measure)
    assert module.__doc__
    assert f"| `{name}.py` |" in (PERF / "README.md").read_text()


def test_the_page_shows_the_stored_rows_of_every_script():
    page, rows = script("_page"), script("_rows")
    assert sorted(page.SCRIPTS) == SCRIPTS
    stored = rows.read(rows.STORED)
    assert {row["script"] for row in stored} == set(SCRIPTS)
    text, texts = page.PAGE.read_text(), page.texts(stored)
    assert fill(text, texts) == text
    assert {match["name"] for match in SECTION.finditer(text)} == set(texts)


def test_the_authors_lasso_keeps_the_rows_that_rlr_keeps(rng):
    rlr = script("rlr")
    features = np.abs(rng.standard_normal((200, 4))) + 0.1
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    scores = unit @ [1.0, -0.5, 0.2, 0.7] + np.where(np.arange(200) < 40, 1.0, 0.01) * rng.standard_normal(200)
    theirs, ours = rlr.authors_kept(features, scores), rlr.our_kept(features, scores)
    assert np.count_nonzero(theirs) == np.count_nonzero(ours) == 160
    assert np.count_nonzero(theirs & ours) >= 157


def test_algorithm_3_scores_as_the_detector_does(pair):
    features, scores = pair
    rival, detector = script("stream").Algorithm3(4), truing.Detector("given")
    for part in (slice(0, 100), slice(100, 132)):
        rival.learn(features[part], scores[part])
        detector.learn(truing.Outputs(features[part], scores=scores[part]))
    np.testing.assert_allclose(rival.score(features[100:132]), detector.score(truing.Outputs(features[100:132])))


def test_the_pipeline_decides_as_detect_does():
    detect = script("detect")
    every = script("_features").synthetic_outputs(3000, 8)
    ours, theirs = detect.ours(every[1000:], every[:1000], "dlr"), detect.pipeline(every[1000:], every[:1000])
    assert np.mean(ours.is_out == theirs) > 0.99


def test_a_row_is_judged_by_its_ratio_and_by_its_second_target():
    rows = script("_rows")
    one, ten = rows.Measure(1.0), rows.Measure(10.0)
    assert rows.faster("w", one, "r", ten, 10).met is True
    assert rows.faster("w", one, "r", ten, 11).met is False
    assert rows.faster("w", one, "r", ten, 10, also="equal", ok=False).met is False
    assert rows.costs("w", ten, "r", one, 10).met is True
    assert rows.costs("w", ten, "r", one).met is None
    assert rows.value("w", rows.Measure(2e-8, ""), 1e-8).met is False


@pytest.mark.parametrize(
    ("make", "ours", "theirs", "ratio"),
    [("faster", 1, 2, "2 × faster"), ("faster", 2, 1, "0.5 × as fast"), ("costs", 2, 1, "2 × the cost")],
)
def test_a_ratio_says_whether_it_is_a_speed_up_or_a_cost(make, ours, theirs, ratio):
    rows = script("_rows")
    row = getattr(rows, make)("w", rows.Measure(ours), "r", rows.Measure(theirs))
    assert rows.cells(asdict(row))[3] == ratio


def test_durations_and_sizes_are_written_as_in_their_examples():
    assert doctest.testmod(script("_timing")) == (0, 2)  # Failed and attempted.
