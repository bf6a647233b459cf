"""The benchmarks run, compare like with like, and the documented tables are those of the stored rows."""

import doctest
import importlib
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import truing

PERF = Path(__file__).parent.parent / "perf"
README = PERF / "README.md"
SCRIPTS = sorted(path.stem for path in PERF.glob("[a-z]*.py"))


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch):
    monkeypatch.syspath_prepend(PERF)


def script(name: str) -> ModuleType:
    """Import a script; skip the test if a package that it compares with is missing."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("truing"):
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
    assert f"| `{name}.py` |" in README.read_text()


def test_the_readme_shows_the_stored_rows_of_scripts_that_exist():
    rows, table = script("_rows"), script("_table")
    stored = rows.read()
    assert {row["script"] for row in stored} <= set(SCRIPTS)
    assert README.read_text().partition(table.MARK)[2].strip() == table.tables(stored)


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


def test_numbers_are_written_as_in_their_examples():
    assert doctest.testmod(script("_timing")).failed == 0
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?|unknown", script("_rows")._commit())
