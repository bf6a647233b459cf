"""Ctrl-C at any time gives one line on stderr and exit code 130, without a traceback."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import numpy as np
import pytest

import truing
import truing_command

ENVIRONMENT = {
    **os.environ,
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(Path(truing.__file__).parents[1]),
}
INTERRUPTED = (130, "", "truing: interrupted\n")

# Interrupts work even if the test run itself was started in the background, where SIGINT is ignored.
START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.{disposition})
"""
AT_IMPORT = """
class Finder:
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder)
"""
AT_EXIT = """
import atexit
atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""
RUN = """
from truing_command import main
sys.exit(main())
"""


def python(code: str, *arguments: str, disposition: str = "default_int_handler") -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr of the command, started after some code."""
    words = [sys.executable, "-c", START.format(disposition=disposition) + code + RUN, *arguments]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("module", ["numpy.linalg", "truing.cli.command"])
def test_an_interrupt_while_libraries_load_is_reported_in_one_line(module):
    assert python(AT_IMPORT.format(module=module), "--help") == INTERRUPTED


@pytest.mark.parametrize("module", ["pyarrow.lib"])
def test_an_interrupt_while_a_command_loads_a_library_writes_nothing(tmp_path, rng, module):
    truing.Outputs(rng.normal(size=(20, 8)), rng.normal(size=(20, 5))).save(tmp_path / "rows.parquet")
    words = ["score", str(tmp_path / "rows.parquet"), "-o", str(tmp_path / "scores.npy")]
    assert python(AT_IMPORT.format(module=module), *words) == INTERRUPTED
    assert [path.name for path in tmp_path.iterdir()] == ["rows.parquet"]


def test_an_interrupt_after_the_command_is_done_changes_nothing():
    assert python(AT_EXIT, "--version") == (0, f"truing {truing.__version__}\n", "")


def test_a_command_started_with_interrupts_ignored_ignores_them(tmp_path):
    np.save(tmp_path / "scores.npy", np.arange(9.0))
    code = AT_IMPORT.format(module="numpy") + AT_EXIT
    exit_code, out, err = python(code, "threshold", str(tmp_path / "scores.npy"), disposition="SIG_IGN")
    assert (exit_code, err) == (0, "")
    assert '"rows": 9' in out


def test_the_installed_command_starts_in_the_module_that_handles_early_interrupts():
    (script,) = entry_points(group="console_scripts", name="truing")
    assert script.load() is truing_command.main
