"""The shape of the experiments: three folders that do not import one another, and cases known by what they carry."""

import ast

import pytest

from truing.bench.code import imported
from truing.bench.experiments.cases import CASES

from ..conftest import ROOT

BENCH = ROOT / "src" / "truing" / "bench"
FOLDERS = ("inputs", "experiments", "report")
READ = {f"truing.bench.experiments.{name}" for name in ("records", "cases", "settings")}
"""What a report reads of the experiments: records, cases, and the settings, values that records hold and cases take."""

OTHER_MEANINGS = {
    "report/paper.py": {"table"},  # A column of paper.csv.
    "experiments/own_setting.py": {"noise"},  # A table of sets, in TOML.
}


def module_of(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_no_other_save_that_the_report_reads_records_and_cases(folder):
    """By the imports in the source, at the top of a module or inside a function."""
    others = tuple(f"truing.bench.{name}." for name in FOLDERS if name != folder)
    above = ("truing.bench.cli", "truing.bench.demo")
    seen = 0
    for path in (BENCH / folder).rglob("*.py"):
        found = set(imported(path, module_of(path)))
        seen += len(found)
        foreign = {name for name in found if f"{name}.".startswith(others) or name.startswith(above)}
        assert foreign <= (READ if folder == "report" else set()), path
    assert seen > 20


def docstrings(tree):
    """Return the string constants that are statements: docstrings, of attributes too."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


@pytest.mark.parametrize("folder", ["experiments", "report", "."])
def test_no_module_but_that_of_the_cases_knows_one_by_its_name(folder):
    paths = [path for path in (BENCH / folder).glob("*.py") if path.name != "cases.py"]
    assert paths
    for path in paths:
        tree = ast.parse(path.read_text())
        prose = docstrings(tree)
        strings = {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        }
        allowed = OTHER_MEANINGS.get(str(path.relative_to(BENCH)), set())
        allowed |= {"rate"} if path.name == "cli.py" else set()  # The learning rate.
        assert not strings & set(CASES) - allowed, path
