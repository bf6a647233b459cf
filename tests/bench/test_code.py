import os
import shutil
import subprocess
import sys

import pytest

from ..conftest import ROOT

PRINT = "from truing.bench.code import code_version; print(code_version('truing.bench.experiments.run')['sha256'])"


def code_hash(folder):
    env = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", PRINT], capture_output=True, text=True, check=True, env=env)
    return done.stdout.strip()


@pytest.mark.slow
def test_the_code_hash_changes_only_with_the_code_that_makes_the_rows(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.npz", "__pycache__"))
    before = code_hash(tmp_path)
    for module, is_behind_rows in (
        ("regression/moments.py", True),
        ("bench/experiments/classical.py", True),  # Imported inside a function.
        ("bench/report/page.py", False),
        ("cli/command.py", False),
    ):
        path = tmp_path / "truing" / module
        text = path.read_text()
        path.write_text(text + "\n# Another line.\n")
        assert (code_hash(tmp_path) != before) == is_behind_rows, module
        path.write_text(text)
    assert code_hash(tmp_path) == before
