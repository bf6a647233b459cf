"""Inside `truing.bench`, inputs, experiments and report do not import one another."""

import pytest

from ..conftest import ROOT
from ..layout import imported

BENCH = ROOT / "src" / "truing" / "bench"
FOLDERS = ("inputs", "experiments", "report")
READ = {f"truing.bench.experiments.{name}" for name in ("records", "cases", "settings")}
"""The report reads the records, cases and settings of the experiments."""


def module_of(path):
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_no_other_folder_except_that_the_report_reads_records(folder):
    others = tuple(f"truing.bench.{name}." for name in FOLDERS if name != folder)
    above = ("truing.bench.cli", "truing.bench.demo")
    for path in (BENCH / folder).rglob("*.py"):
        foreign = {
            name for name in imported(path, module_of(path)) if f"{name}.".startswith(others) or name.startswith(above)
        }
        assert foreign <= (READ if folder == "report" else set()), path
