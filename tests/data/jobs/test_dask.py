"""A cluster of a scheduler and two workers over TCP writes the bytes of one process, even if processes die."""

import subprocess
import sys

import numpy as np
import pytest

import truing
from truing import parts
from truing.parts import Table

from .files import contents, read, written

distributed = pytest.importorskip("distributed", reason="needs dask's distributed")

import dask.array  # noqa: E402

from truing.dask import ArrayTable, OnDask  # noqa: E402

CUTS = [300, 600, 601, 1200, 1800, 2400, 3000, 3500]


class Cluster:
    """A scheduler and workers, each a process."""

    def __init__(self, folder):
        self.file, self.processes = folder / "scheduler.json", []
        self._start("scheduler", "--host", "127.0.0.1", "--port", "0")
        for _ in range(2):
            self.add_worker()

    def add_worker(self):
        self._start("worker", "--nthreads", "1", "--no-nanny")

    def kill_a_worker(self):
        process = next(worker for worker in self.processes[1:] if worker.poll() is None)
        process.kill()
        process.wait()

    def client(self):
        return distributed.Client(scheduler_file=str(self.file), timeout=60)

    def stop(self):
        for process in reversed(self.processes):
            process.kill()
            process.wait()

    def _start(self, role, *options):
        words = [sys.executable, "-m", f"distributed.cli.dask_{role}", "--scheduler-file", str(self.file)]
        words += ["--no-dashboard", *options]
        self.processes.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))


@pytest.fixture
def cluster(tmp_path):
    """Return a cluster for one test, which may kill its workers."""
    made = Cluster(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def lasting_cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


CASES = [{"method": "contrast", "head": True}, {"method": "dlr", "components": 20, "fdr": 0.1}, {"method": "rlr"}]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_a_cluster_writes_the_bytes_of_one_process(rows, reference, head, lasting_cluster, tmp_path, options):
    options = options | ({"head": head} if "head" in options else {})
    table = Table.of(written(tmp_path / "rows", rows, CUTS, "parquet"))
    expected = parts.detect(table, tmp_path / "here", reference, **options)
    with lasting_cluster.client() as client:
        result = parts.detect(table, tmp_path / "there", reference, **options, runner=OnDask(client))
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert (result.threshold, result.refused, result.notes) == (expected.threshold, expected.refused, expected.notes)


def test_a_cluster_decides_new_parts_as_one_process_does(rows, reference, lasting_cluster, tmp_path):
    detector = truing.Detector("msp", method="dlr")
    detector.calibrate(reference)
    detector.learn(rows[:1000])
    table = Table.of(written(tmp_path / "rows", rows[1000:], [1000, 1001]))
    parts.decide(detector, table, tmp_path / "here", fdr=0.1)
    with lasting_cluster.client() as client:
        parts.decide(detector, table, tmp_path / "there", fdr=0.1, runner=OnDask(client))
        assert parts.decide(detector, table, tmp_path / "there", fdr=0.1, runner=OnDask(client)).kept_parts == 3
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_dask_arrays_give_the_bits_of_files_with_the_same_rows(rows, reference, lasting_cluster, tmp_path):
    table = Table.of(written(tmp_path / "rows", rows, [1500, 2500]))
    expected = parts.detect(table, tmp_path / "files", reference, method="contrast")
    features = dask.array.from_array(rows.features, chunks=((1500, 1000, 1500), 20))
    arrays = ArrayTable.of_arrays(features, dask.array.from_array(rows.logits, chunks=(700, 10)))
    with lasting_cluster.client() as client:
        result = parts.detect(arrays, tmp_path / "arrays", reference, method="contrast", runner=OnDask(client))
    assert (result.threshold, result.refused, result.notes) == (expected.threshold, expected.refused, expected.notes)
    np.testing.assert_array_equal(read(result.files)["scores"], read(expected.files)["scores"])


def test_invalid_dask_arrays_are_rejected():
    features, logits = dask.array.ones((10, 3)), dask.array.ones((9, 2))
    with pytest.raises(TypeError, match=r"features must be a dask\.array, got ndarray"):
        ArrayTable.of_arrays(np.ones((10, 3)))
    with pytest.raises(ValueError, match="logits must have 10 rows, as the features have, got 9"):
        ArrayTable.of_arrays(features, logits)
    with pytest.raises(ValueError, match="features must have 2 dimensions of known length"):
        ArrayTable.of_arrays(features[features[:, 0] > 0])
    with pytest.raises(ValueError, match="needs a runner on the cluster of the arrays"):
        parts.fit(ArrayTable.of_arrays(features, features))


def test_workers_add_wide_sums_to_the_same_bits(lasting_cluster, tmp_path):
    rng = np.random.default_rng(0)
    wide = truing.Outputs(rng.normal(size=(700, 520)).astype(np.float32), rng.normal(size=(700, 3)))
    table = Table.of(written(tmp_path / "rows", wide, [10 * number for number in range(1, 40)]))
    with lasting_cluster.client() as client:
        result = parts.moments(table, runner=OnDask(client), folder=tmp_path / "partial")
    np.testing.assert_array_equal(result.comoment, parts.moments(table).comoment)


def test_a_part_that_changes_on_a_cluster_leaves_no_results(rows, reference, lasting_cluster, tmp_path):
    table = Table.of(written(tmp_path / "rows", rows, CUTS))

    def progress(name, done, of):
        if name == "sums" and done == of:
            rows[:10].save(tmp_path / "rows" / "part-0.npz")

    with lasting_cluster.client() as client, pytest.raises(ValueError, match=r"part-0\.npz must not change"):
        parts.detect(table, tmp_path / "out", reference, method="dlr", runner=OnDask(client), progress=progress)
    assert not (tmp_path / "out").exists()


class Interrupting(OnDask):
    """Does something to the cluster after each result, given the number of results so far."""

    def __init__(self, client, harm):
        super().__init__(client)
        self.results, self.harm = 0, harm

    def run(self, task, groups, seen):
        for result in super().run(task, groups, seen):
            self.results += 1
            self.harm(self.results)
            yield result


def test_workers_that_die_change_nothing(rows, reference, cluster, tmp_path):
    """One worker dies in the first pass, the other in the second pass, and then another worker starts."""
    table = Table.of(written(tmp_path / "rows", rows, CUTS))
    parts.detect(table, tmp_path / "here", reference, method="contrast")

    def harm(results):
        if results in (2, 12):
            cluster.kill_a_worker()
        if results == 12:
            cluster.add_worker()

    with cluster.client() as client:
        parts.detect(table, tmp_path / "there", reference, method="contrast", runner=Interrupting(client, harm))
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
