"""A process that is killed at any moment: nothing acknowledged is lost, and nothing counted twice."""

import copy
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.decisions.drift import DriftWatch
from truing.service.log import segments
from truing.service.store import Store

from .streams import (
    CLASSES,
    FEATURES,
    KNOWN_ROWS,
    WATCHED,
    batch,
    bits,
    every_record,
    groups,
    replayed,
    watch_of_records,
)

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
    """Return all records that were ever written, in order, those in removed segments too."""
    shutil.copytree(removed, work)
    shutil.copy(folder / "settings.npz", work)
    for path in segments(folder).values():
        shutil.copy(path, work)
    return list(every_record(work))


def made(detector: str) -> truing.Detector:
    return truing.Detector() if detector == "plain" else WATCHED[detector]()


def with_watch(detector: truing.Detector, watch: DriftWatch) -> truing.Detector:
    changed = copy.copy(detector)
    changed.state = replace(detector.state, drift=watch)
    return changed


def survive(tmp_path: Path, kills: int, seed: int, detector: str = "plain") -> None:
    folder, removed = tmp_path / "state", tmp_path / "removed"
    removed.mkdir()
    rng = np.random.default_rng(seed)
    starts, acknowledged, replayed_to = [0] * THREADS, set(), made(detector)
    known: list[str] = []
    retries = 0
    for kill in range(5 * kills):  # More of them where the machine is so busy that little is done between two.
        if kill >= kills and retries >= THREADS and len(acknowledged) > 5 * kills:
            break
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
        written = all_records(tmp_path / f"copy{kill}", removed, tmp_path / f"work{kill}")
        learned = [record for record in written if record.kind == "learn"]
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
        if replayed_to.reference is not None:  # The records say what the drift alarm saw.
            expected = with_watch(replayed_to, watch_of_records(replayed_to, learned))
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


def test_four_kills_lose_nothing_acknowledged_and_count_nothing_twice(tmp_path):
    survive(tmp_path, 4, seed=1)


@pytest.mark.parametrize("detector", ["window", pytest.param("rlr", marks=pytest.mark.slow)])
def test_kills_lose_nothing_that_the_guards_of_a_stream_saw(tmp_path, detector):
    survive(tmp_path, 4, seed=3, detector=detector)


def as_recorded(written: list[object]) -> tuple[truing.Detector, list[str]]:
    """Return a plain detector that has done what records say, and the ids of the batches that it knows."""
    detector, known = truing.Detector(), []
    for kind, records in groupby(written, lambda record: record.kind):
        if kind == "learn":
            together = groups(records)
            replayed(together, detector)
            known += [name for names in together for name in names]
        elif kind == "calibrate":
            *_, last = records
            reference = truing.Outputs(**last.arrays)
            detector.calibrate(reference)
        else:
            assert kind == "reset"
            detector, known = truing.Detector(), []
            detector.calibrate(reference)  # Which came before any reset.
    return detector, known


def survive_changes(tmp_path: Path, kills: int, seed: int) -> None:
    folder, removed = tmp_path / "state", tmp_path / "removed"
    removed.mkdir()
    rng = np.random.default_rng(seed)
    starts, acknowledged, resets = [0] * THREADS, set(), 0
    for kill in range(kills):
        for number, turn, _ in killed(rng, folder, removed, "changed", starts):
            if number < 0:
                resets += 1
            else:
                acknowledged.add(f"{number}-{turn}")
                starts[number] = max(starts[number], turn + 1)
        if not (folder / "settings.npz").exists():
            continue
        shutil.copytree(folder, tmp_path / f"copy{kill}")
        store = Store(tmp_path / f"copy{kill}")
        written = all_records(tmp_path / f"copy{kill}", removed, tmp_path / f"work{kill}")
        detector, known = as_recorded(written)
        kinds = Counter(record.kind for record in written)
        assert resets <= kinds["reset"] <= resets + kill + 1
        assert kinds["reset"] <= kinds["calibrate"] <= kinds["reset"] + kill + 1
        assert acknowledged <= {record.about["id"] for record in written if record.kind == "learn"}
        assert len(set(known)) == len(known)
        assert bits(store.contents.detector) == bits(detector)
        assert list(store.recent) == known
        assert store.contents.batches == len(known)
        store.close()
    assert resets >= kills
    assert len(acknowledged) >= kills


def test_kills_while_the_state_is_calibrated_and_reset_lose_nothing_acknowledged(tmp_path):
    survive_changes(tmp_path, 4, seed=5)


@pytest.mark.slow
def test_sixty_kills_while_the_state_is_calibrated_and_reset_lose_nothing_acknowledged(tmp_path):
    survive_changes(tmp_path, 60, seed=6)


@pytest.mark.slow
@pytest.mark.parametrize("detector", WATCHED)
def test_twenty_kills_lose_nothing_that_the_guards_of_a_stream_saw(tmp_path, detector):
    survive(tmp_path, 20, seed=4, detector=detector)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_two_hundred_kills_lose_nothing_acknowledged_and_count_nothing_twice(tmp_path, seed):
    survive(tmp_path, 20, seed)
