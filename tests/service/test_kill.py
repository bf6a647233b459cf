"""A process that is killed at any moment: nothing acknowledged is lost, and nothing counted twice."""

import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.service.log import segments
from truing.service.store import Store

from .streams import CLASSES, FEATURES, batch, bits, ids, replayed

ROOT = Path(__file__).parent.parent.parent
THREADS = 4


def killed(rng: np.random.Generator, folder: Path, removed: Path, starts: list[int]) -> list[tuple[int, int, int]]:
    """Run clients on a directory, kill the process, and return what it said was acknowledged.

    One in four is killed as it starts and recovers, the others while their clients are at work.
    """
    command = [sys.executable, "-m", "tests.service.client", folder, removed, *map(str, starts)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        if rng.random() < 0.25:
            time.sleep(rng.uniform(0.2, 1.0))
        else:
            assert process.stdout.readline() == b"ready\n"
            time.sleep(rng.uniform(0.0, 0.8))
        process.kill()
        lines = process.stdout.read().decode().splitlines(keepends=True)
    assert process.returncode == -signal.SIGKILL
    return [tuple(map(int, line.split())) for line in lines if line.endswith("\n") and line != "ready\n"]


def all_ids(folder: Path, removed: Path, work: Path) -> list[str]:
    """Return the ids of all batches that were ever learned, in order, those in removed segments too."""
    shutil.copytree(removed, work)
    for path in segments(folder).values():
        shutil.copy(path, work)
    return ids(work)


def survive(tmp_path: Path, kills: int, seed: int) -> None:
    folder, removed = tmp_path / "state", tmp_path / "removed"
    removed.mkdir()
    rng = np.random.default_rng(seed)
    starts, acknowledged, replayed_to = [0] * THREADS, set(), truing.Detector()
    known: list[str] = []
    retries = 0
    for kill in range(kills):
        for number, turn, is_repeated in killed(rng, folder, removed, starts):
            assert is_repeated or f"{number}-{turn}" not in acknowledged  # A retry of what is in the state.
            retries += is_repeated
            acknowledged.add(f"{number}-{turn}")
            starts[number] = max(starts[number], turn + 1)
        if not (folder / "settings.npz").exists():
            continue
        # A copy is recovered, so that the next process has to recover the directory itself.
        shutil.copytree(folder, tmp_path / f"copy{kill}")
        store = Store(tmp_path / f"copy{kill}", truing.Detector(), features=FEATURES, classes=CLASSES)
        order = all_ids(tmp_path / f"copy{kill}", removed, tmp_path / f"work{kill}")
        counts = Counter(order)
        assert acknowledged <= set(order)
        assert set(counts.values()) <= {1}
        assert len(set(order) - acknowledged) <= THREADS * (kill + 1)  # In flight when the process was killed.
        assert order[: len(known)] == known
        for name in order[len(known) :]:
            replayed_to.learn(batch(name))
        known = order
        assert bits(store.contents.detector) == bits(replayed_to)
        assert store.contents.batches == len(order)
        assert set(store.recent) == set(order)
        store.close()
        shutil.rmtree(tmp_path / f"copy{kill}")
        shutil.rmtree(tmp_path / f"work{kill}")
    assert len(acknowledged) > 5 * kills
    assert retries > kills
    assert bits(replayed_to) == bits(replayed(known))


def test_ten_kills_lose_nothing_acknowledged_and_count_nothing_twice(tmp_path):
    survive(tmp_path, 10, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_two_hundred_kills_lose_nothing_acknowledged_and_count_nothing_twice(tmp_path, seed):
    survive(tmp_path, 20, seed)
