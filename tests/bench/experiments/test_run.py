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
OPTIONS = {"conventions": "truing", "workers": 1, "progress": lambda names, total, label: list(names)}


def run_case(case, folder, target, **options):
    return run.run(CASES[case], SETTING, in_folders((folder,), SETTING), target, **(OPTIONS | options))


def rows_in(folder, case="combinations"):
    rows = [row for row in read(folder).rows if row["case"] == case]
    return sorted(rows, key=lambda row: str(sorted(row.items())))


@pytest.fixture(scope="module")
def done(banks, tmp_path_factory):
    """The folder of the rows of two cases on real outputs, and the missing files of each case."""
    target = tmp_path_factory.mktemp("results")
    return target, {case: run_case(case, banks, target).missing for case in ("combinations", "noise")}


def test_missing_files_are_named_and_the_other_jobs_run(done):
    target, missing = done
    assert "tinyimagenet-crop" in missing["combinations"]
    assert {"odin-clean/uniform-noise", "gaussian-noise"} <= set(missing["noise"])
    sets = ("svhn-recropped", "dtd10", "scenes")
    pairs = ("svhn-recropped + dtd10", "svhn-recropped + scenes", "dtd10 + scenes")
    assert {row["outside"] for row in read(target).rows} == {*sets, *pairs, " + ".join(sets), "uniform-noise"}


def test_finished_jobs_are_not_repeated(done, banks, monkeypatch):
    monkeypatch.setattr(run, "run_task", lambda task: pytest.fail(f"{task.name} ran twice"))
    before = {path: path.read_bytes() for path in done[0].rglob("*.jsonl")}
    run_case("combinations", banks, done[0])
    assert {path: path.read_bytes() for path in done[0].rglob("*.jsonl")} == before


def test_an_interrupted_run_continues_to_the_same_rows(done, banks, tmp_path, monkeypatch):
    run_task, count = run.run_task, iter(range(100))

    def interrupted(task):
        if next(count) == 2:
            raise KeyboardInterrupt
        return run_task(task)

    monkeypatch.setattr(run, "run_task", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_case("combinations", banks, tmp_path)
    assert 0 < len(rows_in(tmp_path)) < len(rows_in(done[0]))
    monkeypatch.setattr(run, "run_task", run_task)
    run_case("combinations", banks, tmp_path)
    assert rows_in(tmp_path) == rows_in(done[0])


def test_two_processes_give_the_rows_of_one(done, banks, tmp_path):
    run_case("combinations", banks, tmp_path, workers=2)
    assert rows_in(tmp_path) == rows_in(done[0])


def children(process):
    """Return the processes that a process has started."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return {int(child) for one in lists for child in one.read_text().split()}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to see processes")
def test_workers_end_when_their_run_is_killed(banks, tmp_path):
    words = ["-m", "truing", "bench", "run", "samples", "--workers", "2", "--banks", str(banks), "-o", str(tmp_path)]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL)
    try:
        workers = set()
        while len(workers) < 3 and process.poll() is None:  # Two workers and multiprocessing's resource tracker.
            workers = children(process.pid)
            sleep(0.05)
        assert len(workers) >= 3
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        ends = monotonic() + 60
        while any(Path(f"/proc/{worker}/exe").exists() for worker in workers) and monotonic() < ends:
            sleep(0.05)
        assert not [worker for worker in workers if Path(f"/proc/{worker}/exe").exists()]
    finally:
        process.kill()
        process.wait()


def task_of(case, folders, outside, folder=""):
    wanted = tasks(CASES[case], SETTING, in_folders(folders, SETTING), "truing")
    (task,) = [task for task in wanted if (task.outside, task.folder) == ((outside,), folder)]
    return task


def test_a_file_comes_from_the_first_folder_that_has_it(banks, tmp_path):
    other = tmp_path / "cifar10-resnet56"
    other.mkdir()
    (other / "svhn.npz").write_bytes((banks / "cifar10-resnet56" / "dtd10.npz").read_bytes())
    task = task_of("table", (tmp_path, banks), "svhn")
    assert task.paths == {"cifar10-test": banks / "cifar10-resnet56" / "cifar10-test.npz", "svhn": other / "svhn.npz"}


def test_odin_has_its_own_files_with_their_own_features(tmp_path, rng):
    folder = tmp_path / "cifar10-resnet56" / "odin-clean"
    folder.mkdir(parents=True)
    for name, rows in (("cifar10-test", 40), ("svhn", 8)):
        truing.Outputs(rng.normal(size=(rows, 3)), scores=rng.normal(size=rows)).save(folder / f"{name}.npz")
    mix = task_of("online", (tmp_path,), "svhn", "odin-clean").mix()
    assert list(mix.scores) == ["odin"]
    assert mix.features.shape == (48, 3)


def test_odin_on_imagenet_is_msp_at_its_temperature(tmp_path, rng):
    setting = SETTINGS["imagenet-efficientnet-lite0"]
    (tmp_path / setting.name).mkdir()
    logits = rng.normal(size=(20, 5))
    for name in (setting.inside, "dtd10"):
        truing.Outputs(rng.normal(size=(20, 3)), logits).save(tmp_path / setting.name / f"{name}.npz")
    task = tasks(CASES["table"], setting, in_folders((tmp_path,), setting), "truing")[0]
    np.testing.assert_allclose(task.mix().scores["odin"][:20], truing.msp(logits, 1000.0))
    assert not tasks(CASES["online"], setting, in_folders((tmp_path,), setting), "truing")


def test_react_without_a_clip_gives_the_scores_of_the_network(bank):
    outputs = bank("cifar10-resnet56", "svhn")
    task = tasks(CASES["react"], SETTING, in_folders((DATA / "banks",), SETTING), "truing")[0]
    scores = task.reacted()(outputs.features, 1e9)
    np.testing.assert_allclose(scores["msp"], truing.msp(outputs.logits), atol=1e-5)


def test_rows_by_the_authors_conventions_are_separate(banks, tmp_path):
    setting = replace(SETTING, outside={"svhn": "svhn-recropped"})
    case = replace(CASES["table"], bases=("msp",))
    for conventions in ("truing", "authors"):
        options = OPTIONS | {"conventions": conventions}
        run.run(case, setting, in_folders((banks,), setting), tmp_path, **options)
    fitted = [row for row in read(tmp_path).rows if (row["base"], row["scored"]) == ("msp", "fitted")]
    auroc = {(row["conventions"], row["method"]): row["auroc"] for row in fitted}
    assert auroc["truing", "DLR"] == auroc["authors", "DLR"]
    assert auroc["truing", "RLR"] != auroc["authors", "RLR"]
