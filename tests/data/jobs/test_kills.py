"""A command that is killed at random times and resumed writes the same bytes as an undisturbed run."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import truing

from .files import contents, written

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no signals of this kind")

ENVIRONMENT = {
    **os.environ,
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(Path(truing.__file__).parents[1]),
}

# The command says when all libraries are loaded, so that signals arrive while it works. Interrupts work even if the
# test run was started in the background, where they are ignored.
COMMAND = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import truing.cli.command, pyarrow.parquet
os.write(1, b"ready\\n")
from truing_command import main
sys.exit(main())
"""
DETECT = ["detect", "rows/*", "--reference", "held.npz", "--fdr", "0.1", "-o", "out", "--save", "out.npz"]
DECIDE = ["decide", "detector.npz", "rows", "-o", "out", "--false-alarm", "0.05"]


@pytest.fixture
def folder(rows, reference, tmp_path):
    """Return a folder with a table of many parts, reference rows and a detector."""
    written(tmp_path / "rows", rows, range(100, 4000, 100), "parquet")
    reference.save(tmp_path / "held.npz")
    detector = truing.Detector("msp", method="dlr")
    detector.calibrate(reference)
    detector.learn(rows)
    truing.save(detector, tmp_path / "detector.npz")
    return tmp_path


def start(folder, words):
    """Start a command, and return its process when all libraries are loaded."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process):
    """Return the exit code and stderr of a process."""
    with process:
        _, errors = process.communicate(timeout=300)
    return process.returncode, errors


@pytest.mark.parametrize("words", [DETECT, DECIDE], ids=["detect", "decide"])
def test_a_killed_command_resumes_to_the_same_bytes(folder, words):
    begun = time.perf_counter()
    assert finish(start(folder, words)) == (0, "")
    undisturbed, seconds = contents(folder), time.perf_counter() - begun
    shutil.rmtree(folder / "out")
    (folder / "out.npz").unlink(missing_ok=True)
    draw = random.Random(0)
    for _ in range(3):
        process = start(folder, words)
        time.sleep(draw.uniform(0, 0.2 * seconds))
        process.kill()
        assert finish(process)[0] in (-signal.SIGKILL, 0)
    assert finish(start(folder, words)) == (0, "")
    assert contents(folder) == undisturbed


def test_an_interrupted_command_says_how_to_resume(folder):
    process = start(folder, DECIDE)
    while process.poll() is None and not list((folder / "out").glob("part-*")):
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (130, "truing: interrupted: run the same command again to resume\n")
    assert 0 < len(list((folder / "out").glob("part-*"))) < 40
    assert finish(start(folder, DECIDE)) == (0, "")
    assert len(list((folder / "out").glob("part-*"))) == 40
    assert not (folder / "out" / ".partial").exists()
