"""A process that is killed at any moment: nothing acknowledged is lost, and nothing counted twice."""

import copy
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.guards import Guards
from truing.service.log import segments
from truing.service.store import Store

from .streams import CLASSES, FEATURES, KNOWN_ROWS, WATCHED, batch, bits, groups, guards_of_records, records, replayed

ROOT = Path(__file__).parent.parent.parent
THREADS = 4


def killed(
    rng: np.random.Generator, folder: Path, removed: Path, detector: str, starts: list[int]
) -> list[tuple[int, int, int]]:
    """Run clients on a directory, kill the process, and return what it said was acknowledged.

    One in four is killed as it starts and recovers, the others while their clients are at work.
    """
    command = [sys.executable, "-m", "tests.service.client", folder, removed, detector, *map(str, starts)]
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


def all_records(folder: Path, removed: Path, work: Path) -> list[object]:
    """Return the records of all batches that were ever learned, in order, those in removed segments too."""
    shutil.copytree(removed, work)
    shutil.copy(folder / "settings.npz", work)
    for path in segments(folder).values():
        shutil.copy(path, work)
    return list(records(work))


def made(detector: str) -> truing.Detector:
    return truing.Detector() if detector == "plain" else WATCHED[detector]()


def with_guards(detector: truing.Detector, guards: Guards) -> truing.Detector:
    changed = copy.copy(detector)
    changed.state = replace(detector.state, guards=guards)
    return changed


def survive(tmp_path: Path, kills: int, seed: int, detector: str = "plain") -> None:
    folder, removed = tmp_path / "state", tmp_path / "removed"
    removed.mkdir()
    rng = np.random.default_rng(seed)
    starts, acknowledged, replayed_to = [0] * THREADS, set(), made(detector)
    known: list[str] = []
    retries = 0
    for kill in range(kills):
        for number, turn, is_repeated in killed(rng, folder, removed, detector, starts):
            assert is_repeated or f"{number}-{turn}" not in acknowledged  # A retry of what is in the state.
            retries += is_repeated
            acknowledged.add(f"{number}-{turn}")
            starts[number] = max(starts[number], turn + 1)
        if not (folder / "settings.npz").exists():
            continue
        # A copy is recovered, so that the next process has to recover the directory itself.
        shutil.copytree(folder, tmp_path / f"copy{kill}")
        store = Store(tmp_path / f"copy{kill}", made(detector), features=FEATURES, classes=CLASSES)
        learned = all_records(tmp_path / f"copy{kill}", removed, tmp_path / f"work{kill}")
        order = [record.about["id"] for record in learned]
        if detector != "plain" and replayed_to.reference is None and store.contents.reference_rows:
            replayed_to.calibrate(batch("reference", KNOWN_ROWS))
        counts = Counter(order)
        assert acknowledged <= set(order)
        assert set(counts.values()) <= {1}
        assert len(set(order) - acknowledged) <= THREADS * (kill + 1)  # In flight when the process was killed.
        assert order[: len(known)] == known
        replayed(groups(learned[len(known) :]), replayed_to)
        known = order
        expected = replayed_to
        if replayed_to.reference is not None:  # What the guards saw is theirs who ran, and in the records.
            expected = with_guards(replayed_to, guards_of_records(replayed_to, learned))
        assert bits(store.contents.detector) == bits(expected)
        assert store.contents.batches == len(order)
        assert set(store.recent) == set(order)
        store.close()
        shutil.rmtree(tmp_path / f"copy{kill}")
        shutil.rmtree(tmp_path / f"work{kill}")
    assert len(acknowledged) > 5 * kills
    assert retries >= THREADS
    again = made(detector)
    if replayed_to.reference is not None:
        again.calibrate(batch("reference", KNOWN_ROWS))
    assert bits(replayed_to) == bits(replayed(groups(learned), again))


def test_ten_kills_lose_nothing_acknowledged_and_count_nothing_twice(tmp_path):
    survive(tmp_path, 10, seed=1)


@pytest.mark.parametrize("detector", ["window", "rlr"])
def test_kills_lose_nothing_that_the_guards_of_a_stream_saw(tmp_path, detector):
    survive(tmp_path, 4, seed=3, detector=detector)


@pytest.mark.slow
@pytest.mark.parametrize("detector", WATCHED)
def test_twenty_kills_lose_nothing_that_the_guards_of_a_stream_saw(tmp_path, detector):
    survive(tmp_path, 20, seed=4, detector=detector)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_two_hundred_kills_lose_nothing_acknowledged_and_count_nothing_twice(tmp_path, seed):
    survive(tmp_path, 20, seed)
