import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

import truing
from truing.bench.experiments import run
from truing.bench.experiments.cases import CASES
from truing.bench.experiments.records import read
from truing.bench.experiments.settings import SETTINGS
from truing.bench.experiments.tasks import in_folders, tasks

from ...conftest import DATA

SETTING = SETTINGS["cifar10-resnet56"]


def go(case, folders, target, **options):
    wanted = {"conventions": "truing", "workers": 1, "progress": lambda names, total, label: list(names)}
    return run.run(CASES[case], SETTING, in_folders(folders, SETTING), target, **(wanted | options))


def ordered(folder):
    return sorted(read(folder).rows, key=lambda row: str(sorted(row.items())))


@pytest.fixture(scope="module")
def done(banks, tmp_path_factory):
    """The rows of two cases on real outputs."""
    target = tmp_path_factory.mktemp("results")
    missing = {case: go(case, (banks,), target).missing for case in ("combinations", "noise")}
    return target, missing


def test_files_that_are_missing_are_named_and_the_rest_is_run(done):
    target, missing = done
    assert "tinyimagenet-crop" in missing["combinations"]
    assert "odin-clean/uniform-noise" in missing["noise"]
    assert "gaussian-noise" in missing["noise"]
    shown = {row["outside"] for row in read(target).rows}
    assert shown == {
        "svhn-recropped",
        "dtd10",
        "scenes",
        "svhn-recropped + dtd10",
        "svhn-recropped + scenes",
        "dtd10 + scenes",
        "svhn-recropped + dtd10 + scenes",
        "uniform-noise",
    }


def test_rows_hold_what_the_library_gives(done, banks):
    folder = banks / "cifar10-resnet56"
    inside, outside = (truing.Outputs.load(folder / f"{name}.npz") for name in ("cifar10-test", "svhn"))
    features = np.concatenate([inside.features, outside.features])
    scores = truing.energy(np.concatenate([inside.logits, outside.logits]))
    trued = truing.fit_direct(features, scores).predict(features)
    known = truing.evaluate(trued[: len(inside)], trued[len(inside) :])
    wanted = {"outside": "svhn-recropped", "base": "energy", "method": "DLR", "scored": "fitted"}
    (row,) = [row for row in read(done[0]).rows if wanted.items() <= row.items()]
    assert row["auroc"] == pytest.approx(known.auroc, abs=1e-6)
    assert (row["rows_in"], row["rows_out"]) == (len(inside), len(outside))


def test_what_is_done_is_not_done_again(done, banks, monkeypatch):
    monkeypatch.setattr(run, "run_task", lambda task: pytest.fail(f"{task.name} was run again"))
    before = {path: path.read_bytes() for path in done[0].rglob("*.jsonl")}
    go("combinations", (banks,), done[0])
    assert {path: path.read_bytes() for path in done[0].rglob("*.jsonl")} == before


def test_an_interrupted_run_goes_on_to_the_same_rows(done, banks, tmp_path, monkeypatch):
    work, count = run.run_task, iter(range(100))

    def interrupted(task):
        if next(count) == 2:
            raise KeyboardInterrupt
        return work(task)

    monkeypatch.setattr(run, "run_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go("combinations", (banks,), tmp_path)
    assert 0 < len(read(tmp_path).rows) < len([row for row in read(done[0]).rows if row["case"] == "combinations"])
    monkeypatch.setattr(run, "run_task", work)
    go("combinations", (banks,), tmp_path)
    both = [row for row in ordered(done[0]) if row["case"] == "combinations"]
    assert ordered(tmp_path) == both


@pytest.mark.parametrize("case", ["combinations", pytest.param("noise", marks=pytest.mark.slow)])
def test_two_processes_give_the_rows_of_one(done, banks, tmp_path, case):
    go(case, (banks,), tmp_path, workers=2)
    assert ordered(tmp_path) == [row for row in ordered(done[0]) if row["case"] == case]


def children(process):
    """Return the processes that a process has started, by its threads."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return {int(child) for one in lists for child in one.read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to see processes")
@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL], ids=["terminated", "killed"]
)
def test_no_worker_outlives_a_run(banks, tmp_path, how):
    words = ["-m", "truing", "bench", "run", "samples", "--workers", "2", "--banks", str(banks), "-o", str(tmp_path)]
    begun = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    try:
        workers = set()
        while len(workers) < 3 and begun.poll() is None:  # Two, and what keeps track of their resources.
            workers = children(begun.pid)
            sleep(0.05)
        assert len(workers) >= 3
        begun.send_signal(how)
        begun.wait(60)
        ends = monotonic() + 60
        while any(Path(f"/proc/{worker}/exe").exists() for worker in workers) and monotonic() < ends:
            sleep(0.05)
        assert not [worker for worker in workers if Path(f"/proc/{worker}/exe").exists()]
    finally:
        begun.kill()
        begun.wait()


def test_a_file_is_taken_from_the_first_folder_that_has_it(banks, tmp_path):
    other = tmp_path / "cifar10-resnet56"
    other.mkdir()
    (other / "svhn.npz").write_bytes((banks / "cifar10-resnet56" / "dtd10.npz").read_bytes())
    (task,) = [
        task
        for task in tasks(CASES["table"], SETTING, in_folders((tmp_path, banks), SETTING), "truing")
        if task.outside == ("svhn",) and not task.folder
    ]
    assert task.paths == {"cifar10-test": banks / "cifar10-resnet56" / "cifar10-test.npz", "svhn": other / "svhn.npz"}


def test_odin_comes_from_files_of_its_own_with_their_own_features(banks, tmp_path):
    folder = tmp_path / "cifar10-resnet56" / "odin-clean"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, rows in (("cifar10-test", 40), ("svhn", 8)):
        truing.Outputs(rng.normal(size=(rows, 3)), scores=rng.normal(size=rows)).save(folder / f"{name}.npz")
    found = [
        task
        for task in tasks(CASES["online"], SETTING, in_folders((tmp_path,), SETTING), "truing")
        if task.folder == "odin-clean"
    ]
    mix = next(task for task in found if task.outside == ("svhn",)).mix()
    assert list(mix.scores) == ["odin"]
    assert mix.features.shape == (48, 3)


def test_on_imagenet_odin_is_msp_at_its_temperature(tmp_path):
    setting = SETTINGS["imagenet-efficientnet-lite0"]
    folder = tmp_path / setting.name
    folder.mkdir()
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(20, 5))
    for name in (setting.inside, "dtd10"):
        truing.Outputs(rng.normal(size=(20, 3)), logits).save(folder / f"{name}.npz")
    task = tasks(CASES["table"], setting, in_folders((tmp_path,), setting), "truing")[0]
    np.testing.assert_allclose(task.mix().scores["odin"][:20], truing.msp(logits, 1000.0))
    assert not tasks(CASES["online"], setting, in_folders((tmp_path,), setting), "truing")


def test_react_sends_clipped_features_through_the_head(bank):
    """On the real head: features that nothing clips give the network's own logits, and so its own scores."""
    outputs = bank("cifar10-resnet56", "svhn")
    task = tasks(CASES["react"], SETTING, in_folders((DATA / "banks",), SETTING), "truing")[0]
    scores = task.reacted()(outputs.features, 1e9)
    np.testing.assert_allclose(scores["msp"], truing.msp(outputs.logits), atol=1e-5)


def test_the_authors_conventions_have_rows_of_their_own(banks, tmp_path):
    setting = replace(SETTING, outside={"svhn": "svhn-recropped"})
    case = replace(CASES["table"], bases=("msp",))
    options = {"workers": 1, "progress": lambda names, total, label: list(names)}
    for conventions in ("truing", "authors"):
        run.run(case, setting, in_folders((banks,), setting), tmp_path, conventions=conventions, **options)
    rows = {(row["conventions"], row["base"], row["method"], row["scored"]): row for row in read(tmp_path).rows}
    for method in ("none", "DLR"):
        assert rows["truing", "msp", method, "fitted"]["auroc"] == rows["authors", "msp", method, "fitted"]["auroc"]
    assert rows["truing", "msp", "RLR", "fitted"]["auroc"] != rows["authors", "msp", "RLR", "fitted"]["auroc"]
