"""A table on a real cluster, a scheduler and workers that talk over TCP: the bits of one process, whatever dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import truing
from truing.data import jobs as parts
from truing.data.jobs import Table
from truing.regression.robust import SAMPLED_ROWS

from .files import read, written

distributed = pytest.importorskip("distributed", reason="needs dask's distributed")

import dask.array  # noqa: E402

from truing.dask import ArrayTable, OnDask  # noqa: E402

CUTS = [300, 600, 601, 1200, 1800, 2400, 3000, 3500]


class Cluster:
    """A scheduler and workers, each a process."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start(
            "dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", self.file
        )
        for _ in range(2):
            self.add_worker()

    def add_worker(self) -> None:
        self._start("dask_worker", "--scheduler-file", self.file, "--nthreads", "1", "--no-nanny", "--no-dashboard")

    def kill_workers(self, count: int) -> None:
        for process in [worker for worker in self.processes[1:] if worker.poll() is None][:count]:
            process.kill()
            process.wait()

    def client(self) -> Any:
        return distributed.Client(scheduler_file=str(self.file), timeout=60)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()

    def _start(self, module: str, *options: object) -> None:
        command = [sys.executable, "-m", f"distributed.cli.{module}", *map(str, options)]
        self.processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, to be harmed."""
    made = Cluster(tmp_path)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def lasting_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        yield made
    finally:
        made.stop()


def equal(found: parts.TableDetection, wanted: parts.TableDetection) -> None:
    """Assert the same bits in every column of every file."""
    assert [file.name for file in found.files] == [file.name for file in wanted.files]
    for name, column in read(wanted.files).items():
        np.testing.assert_array_equal(read(found.files)[name], column)
    assert (found.threshold, found.refused, found.notes) == (wanted.threshold, wanted.refused, wanted.notes)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "dlr", "components": 20, "fdr": 0.1},
        {"method": "contrast"},
        pytest.param({"method": "dlr"}, marks=pytest.mark.slow),
        pytest.param({"method": "rlr"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_cluster_gives_the_bits_of_one_process(
    rows: truing.Outputs,
    reference: truing.Outputs,
    lasting_cluster: Cluster,
    tmp_path: Path,
    options: dict[str, Any],
) -> None:
    table = Table.of(written(tmp_path / "rows", rows, CUTS, "parquet"))
    wanted = parts.detect(table, tmp_path / "here", reference, **options)
    with lasting_cluster.client() as client:
        equal(parts.detect(table, tmp_path / "there", reference, **options, runner=OnDask(client)), wanted)


@pytest.mark.slow
def test_a_cluster_gives_the_bits_of_one_process_where_rlr_takes_a_sample(
    rng: np.random.Generator, lasting_cluster: Cluster, tmp_path: Path
) -> None:
    features = np.abs(rng.standard_normal((SAMPLED_ROWS + 5000, 4), np.float32))
    many = truing.Outputs(features, scores=np.where(features[:, 0] > 1, 1.0, rng.random(len(features))))
    table = Table.of(written(tmp_path / "rows", many, [70_000, 70_001, 150_000]))
    options: dict[str, Any] = {"method": "rlr", "components": 2, "kind": "npy"}
    wanted = parts.detect(table, tmp_path / "here", many[:300], **options)
    with lasting_cluster.client() as client:
        found = parts.detect(table, tmp_path / "there", many[:300], **options, runner=OnDask(client))
    for one, other in zip(found.files, wanted.files, strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("method", ["dlr", "rlr", "contrast"])
def test_dask_arrays_give_the_bits_of_files_cut_alike(
    rows: truing.Outputs, reference: truing.Outputs, lasting_cluster: Cluster, tmp_path: Path, method: str
) -> None:
    table = Table.of(written(tmp_path / "rows", rows, [1500, 2500]))
    wanted = parts.detect(table, tmp_path / "files", reference, method=method)
    chunks = (1500, 1000, 1500)
    features = dask.array.from_array(rows.features, chunks=(chunks, 20))
    logits = dask.array.from_array(rows.logits, chunks=(700, 10))
    arrays = ArrayTable.of_arrays(features, logits)
    with lasting_cluster.client() as client:
        found = parts.detect(arrays, tmp_path / "arrays", reference, method=method, kind="csv", runner=OnDask(client))
    assert (found.threshold, found.refused, found.notes) == (wanted.threshold, wanted.refused, wanted.notes)
    np.testing.assert_array_equal(read(found.files)["scores"], read(wanted.files)["scores"])


def test_a_chunk_whose_scores_are_gone_is_scored_again(lasting_cluster: Cluster, tmp_path: Path) -> None:
    features = np.random.default_rng(0).normal(size=(1000, 3))
    fit = truing.fit_direct(features, features[:, 0])
    table = ArrayTable.of_arrays(dask.array.from_array(features, chunks=((100, 600, 300), 3)))
    with lasting_cluster.client() as client:
        files = parts.apply(fit, table, tmp_path / "scores", runner=OnDask(client))
        before = [file.read_bytes() for file in files]
        files[1].unlink()
        assert parts.apply(fit, table, tmp_path / "scores", runner=OnDask(client)) == files
    assert [file.read_bytes() for file in files] == before


def test_dask_arrays_that_will_not_do_are_refused(tmp_path: Path) -> None:
    features, logits = dask.array.ones((10, 3)), dask.array.ones((9, 2))
    with pytest.raises(TypeError, match=r"features must be a dask\.array, got ndarray"):
        ArrayTable.of_arrays(np.ones((10, 3)))
    with pytest.raises(ValueError, match="logits must have 10 rows, as the features have, got 9"):
        ArrayTable.of_arrays(features, logits)
    with pytest.raises(ValueError, match="features must have 2 dimensions of known length"):
        ArrayTable.of_arrays(features[features[:, 0] > 0])
    with pytest.raises(ValueError, match="needs a runner on their cluster"):
        parts.fit(ArrayTable.of_arrays(features, features))


def test_wide_sums_are_added_on_the_workers(lasting_cluster: Cluster, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    wide = truing.Outputs(rng.normal(size=(700, 520)).astype(np.float32), rng.normal(size=(700, 3)))
    table = Table.of(written(tmp_path / "rows", wide, [10 * number for number in range(1, 40)]))
    with lasting_cluster.client() as client:
        runner = OnDask(client)
        found = parts.moments(table, runner=runner, folder=tmp_path / "partial")
    wanted = parts.moments(table)
    np.testing.assert_array_equal(found.comoment, wanted.comoment)


class Interrupting(OnDask):
    """Does something to the cluster after each result, of which it is told the number."""

    def __init__(self, client: Any, harm: Any) -> None:
        super().__init__(client)
        self.results, self.harm = 0, harm

    def run(self, task: Any, numbers: Sequence[int], seen: Any) -> Iterator[Any]:
        for result in super().run(task, numbers, seen):
            self.results += 1
            self.harm(self.results)
            yield result


@pytest.mark.parametrize(
    "lost",
    [
        {2: 1, 12: 1},
        pytest.param({12: 1}, marks=pytest.mark.slow),
        pytest.param({2: 2}, marks=pytest.mark.slow),
        pytest.param({12: 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_workers_that_die_change_nothing(
    rows: truing.Outputs,
    reference: truing.Outputs,
    cluster: Cluster,
    tmp_path: Path,
    lost: dict[int, int],
) -> None:
    """After 2 results, in the first pass, or 12, in the second; once all of both are lost, another comes."""
    table = Table.of(written(tmp_path / "rows", rows, CUTS))
    wanted = parts.detect(table, tmp_path / "here", reference, method="contrast")

    def harm(results: int) -> None:
        cluster.kill_workers(lost.get(results, 0))
        if sum(count for after, count in lost.items() if after <= results) == 2 and results in lost:
            cluster.add_worker()

    with cluster.client() as client:
        runner = Interrupting(client, harm)
        equal(parts.detect(table, tmp_path / "there", reference, method="contrast", runner=runner), wanted)


DRIVER = """
import sys, time
import truing
from distributed import Client
from truing.data import jobs as parts
from truing.dask import OnDask

class Slow(OnDask):
    def run(self, *arguments):
        for result in super().run(*arguments):
            yield result
            time.sleep(0.2)

scheduler, rows, folder, held = sys.argv[1:]
runner = Slow(Client(scheduler_file=scheduler))
parts.detect(parts.Table.of(rows), folder, truing.Outputs.load(held), method="dlr", runner=runner)
"""


def test_a_driver_that_is_killed_goes_on(
    rows: truing.Outputs,
    reference: truing.Outputs,
    lasting_cluster: Cluster,
    tmp_path: Path,
) -> None:
    folder = written(tmp_path / "rows", rows, CUTS)
    reference.save(tmp_path / "held.npz")
    wanted = parts.detect(Table.of(folder), tmp_path / "here", reference, method="dlr")
    (tmp_path / "driver.py").write_text(DRIVER)
    arguments = [lasting_cluster.file, folder, tmp_path / "there", tmp_path / "held.npz"]
    driver = subprocess.Popen([sys.executable, tmp_path / "driver.py", *arguments])
    partial = tmp_path / "there" / ".partial"
    while driver.poll() is None and not list(partial.glob("sums-00000[2-9].npz")):
        time.sleep(0.01)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = len(list(partial.glob("sums-*.npz")))
    assert 0 < done < len(CUTS) + 1
    with lasting_cluster.client() as client:
        equal(
            parts.detect(Table.of(folder), tmp_path / "there", reference, method="dlr", runner=OnDask(client)), wanted
        )
