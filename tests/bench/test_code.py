import subprocess
import sys

import pytest

from truing.bench import code

from ..conftest import ROOT

PRINT = "from truing.bench.code import code_version; print(code_version('truing.bench.experiments.run')['sha256'])"


def digest(folder):
    done = subprocess.run(
        [sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(folder)}
    )
    return done.stdout.strip()


@pytest.mark.slow
def test_another_digest_is_other_code_behind_the_rows_and_nothing_else(tmp_path):
    """On a copy of the source: a line in the solver, in an experiment, or in what neither imports."""
    import shutil

    shutil.copytree(ROOT / "src", tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.npz", "__pycache__"))
    before = digest(tmp_path)
    assert before == code.code_version("truing.bench.experiments.run")["sha256"]
    for module, matters in (
        ("regression/moments.py", True),
        ("bench/experiments/mixes.py", True),
        ("bench/experiments/classical.py", True),
        ("bench/report/page.py", False),
        ("bench/inputs/train.py", False),
        ("cli/command.py", False),
    ):
        path = tmp_path / "truing" / module
        text = path.read_text()
        path.write_text(text + "\n# Another line.\n")
        assert (digest(tmp_path) != before) == matters, module
        path.write_text(text)
    assert digest(tmp_path) == before


def test_the_code_behind_a_module_includes_imports_in_functions_and_packages():
    behind = code._closure("truing.bench.inputs.extract")
    assert "truing.torch.odin" in behind
    assert "truing.bench.inputs.networks.bit" in behind  # Imported inside a function.
