"""The three folders of the experiments do not import one another, except for what a report reads."""

import pytest

from truing.bench.code import imported

from ..conftest import ROOT

BENCH = ROOT / "src" / "truing" / "bench"
FOLDERS = ("inputs", "experiments", "report")
READ = {f"truing.bench.experiments.{name}" for name in ("records", "cases", "settings")}
"""The modules of the experiments that a report may import."""


def module_of(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_no_other_folder_except_what_a_report_reads(folder):
    others = tuple(f"truing.bench.{name}." for name in FOLDERS if name != folder)
    above = ("truing.bench.cli", "truing.bench.demo")
    count = 0
    for path in (BENCH / folder).rglob("*.py"):
        imports = set(imported(path, module_of(path)))
        count += len(imports)
        foreign = {name for name in imports if f"{name}.".startswith(others) or name.startswith(above)}
        assert foreign <= (READ if folder == "report" else set()), path
    assert count > 20
