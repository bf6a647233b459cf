"""The user's own scores and methods in the experiments."""

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.bench.experiments.records import read
from truing.cli.command import run as main

MODULE = """
import numpy as np

def half(outputs):
    return outputs.logits.max(axis=1) / 2

def mean_apart(outputs):
    return -np.linalg.norm(outputs.features - outputs.features.mean(axis=0), axis=1)

def first_feature(features, scores):
    return lambda rows: rows[:, 0]

def few(outputs):
    return np.zeros(3)

def broken(outputs):
    return {}["x"]

def centred_in_place(features, scores):
    features -= features.mean(axis=0)
    return lambda rows: rows[:, 0]

def shifted_in_place(outputs):
    outputs.features[0] = 0
    return outputs.logits.max(axis=1)

class Column:
    def __call__(self, features, scores):
        return lambda rows: rows[:, 0]

column = Column()
number = 3
"""
TOML = """
name = "own-scores"
network = "ResNet-56"
inside = "in.npz"
draws = false
[outside]
digits = "digits.npz"
[scores]
"""


@pytest.fixture
def folder(embedded, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "own_scores_of_tests", raising=False)
    (tmp_path / "own_scores_of_tests.py").write_text(MODULE)
    for name, outputs in (("in", embedded.inside[::20]), ("digits", embedded.outside["svhn"][::20])):
        arrays = {"features": outputs.features, "logits": outputs.logits}
        np.savez(tmp_path / f"{name}.npz", **arrays, my_column=outputs.logits.min(axis=1))
    return tmp_path


def run(folder, scores, *options):
    (folder / "own.toml").write_text(TOML + scores)
    line = ["bench", "run", "table", "--setting", str(folder / "own.toml"), "--workers", "1"]
    return main([*line, "-o", str(folder / "rows"), *options])


def row_of(folder, base, method="none"):
    rows = [row for row in read(folder / "rows").rows if (row["base"], row["method"]) == (base, method)]
    return next(row for row in rows if row["scored"] == "fitted")


def both(folder):
    return [truing.Outputs.load(folder / f"{name}.npz") for name in ("in", "digits")]


def test_a_function_of_all_rows_or_a_column_can_be_a_base_score(folder):
    assert run(folder, 'apart = "own_scores_of_tests:mean_apart"\nlowest = "my_column"\n') == 0
    parts = both(folder)
    features = np.concatenate([part.features for part in parts])
    lowest = np.concatenate([part.logits.min(axis=1) for part in parts])
    for base, method, scores in (
        ("apart", "none", -np.linalg.norm(features - features.mean(axis=0), axis=1)),
        ("lowest", "none", lowest),
        ("lowest", "DLR", truing.fit_direct(features, lowest).predict(features)),
    ):
        expected = truing.auroc(scores[: len(parts[0])], scores[len(parts[0]) :])
        assert row_of(folder, base, method)["auroc"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["first_feature", "column"])
def test_a_method_joins_the_cases_that_compare_methods(folder, monkeypatch, name):
    monkeypatch.syspath_prepend(folder)
    assert run(folder, "", "--method", f"own_scores_of_tests:{name}") == 0
    expected = truing.auroc(*(part.features[:, 0] for part in both(folder)))
    for base in ("msp", "energy"):
        assert row_of(folder, base, name)["auroc"] == pytest.approx(expected, abs=1e-6)


def test_a_changed_module_repeats_the_jobs(folder, capsys):
    assert run(folder, 'half = "own_scores_of_tests:half"\n') == 0
    assert run(folder, 'half = "own_scores_of_tests:half"\n') == 0
    assert "repeated" not in capsys.readouterr().out
    with (folder / "own_scores_of_tests.py").open("a") as file:
        file.write("# changed\n")
    assert run(folder, 'half = "own_scores_of_tests:half"\n') == 0
    assert "1 outdated jobs repeated" in capsys.readouterr().out


def test_a_scores_column_is_used_or_rejected(folder, embedded, capsys):
    for name, outputs in (("in", embedded.inside[::20]), ("digits", embedded.outside["svhn"][::20])):
        scores = outputs.logits.min(axis=1)
        truing.Outputs(outputs.features, outputs.logits, scores=scores).save(folder / f"{name}.npz")
    assert run(folder, "") == 1
    assert 'mine = "scores"' in capsys.readouterr().err
    assert run(folder, 'mine = "scores"\n') == 0
    expected = truing.auroc(*(part.scores for part in both(folder)))
    assert row_of(folder, "mine")["auroc"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        ('mine = "no_column"\n', (), "no_column"),
        ('mine = "own_scores_of_tests:few"\n', (), "must return one score per row, 600, got 3"),
        ('mine = "own_scores_of_tests:broken"\n', (), "broken failed with KeyError: 'x' (own_scores_of_tests.py, line"),
        ('mine = "own_scores_of_tests:shifted_in_place"\n', (), "ValueError: assignment destination is read-only"),
        ("", ("--method", "own_scores_of_tests:centred_in_place"), "ValueError: output array is read-only"),
        ('mine = "own_scores_of_tests:number"\n', (), "must name a function of the module"),
        ("", ("--method", "math"), "a function must be given as module:function, got 'math'"),
        ("", ("--method", "math:sqrt", "--method", "cmath:sqrt"), "functions with different names"),
    ],
)
def test_invalid_scores_and_methods_are_errors(folder, capsys, scores, options, message):
    assert run(folder, scores, *options) == 1
    assert message in capsys.readouterr().err


def test_a_method_needs_a_case_that_compares_methods(folder, capsys):
    (folder / "own.toml").write_text(TOML)
    line = ["bench", "run", "rate", "--setting", str(folder / "own.toml"), "--method", "math:sqrt"]
    assert main([*line, "-o", str(folder / "rows")]) == 1
    assert "--method must be used with at least one of the cases table" in capsys.readouterr().err


def test_a_copy_of_the_in_distribution_set_is_not_an_out_of_distribution_set(folder, capsys):
    outputs = truing.Outputs.load(folder / "in.npz")
    outputs.save(folder / "digits.npz")
    assert run(folder, "") == 1
    assert "digits must differ from the in-distribution set in" in capsys.readouterr().err


@pytest.mark.slow
def test_the_example_in_the_documentation_gives_the_numbers_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "experiments.md").read_text()
    python, module = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(python, "page", "exec"), {})
    Path("my_scores.py").write_text(module)
    Path("my.toml").write_text(re.search(r"```toml\n(.*?)```", page, re.DOTALL)[1])
    for command in re.findall(r"^\$ truing (.*)$", page, re.MULTILINE):
        assert main(shlex.split(command)) == 0
    shown = re.findall(r"^\| (?:msp|norm|gen).*\|$", page, re.MULTILINE)
    assert shown
    assert set(shown) <= set(Path("tables.md").read_text().splitlines())
