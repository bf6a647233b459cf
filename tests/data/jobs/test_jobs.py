"""Jobs over a table resume where they stopped, reject the folder of another job, and take bounded memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import truing
from truing import parts
from truing.data.jobs.jobs import InProcess, digest
from truing.parts import Table

from .files import contents, read, write_part, written


class Counting(InProcess):
    """A runner that lists the parts it works on, and may be interrupted after some parts."""

    def __init__(self, stop_after=None):
        self.worked_on, self.stop_after = [], stop_after

    def run(self, task, groups, seen):
        for place, result in super().run(task, groups, seen):
            if len(self.worked_on) == self.stop_after:
                raise KeyboardInterrupt
            self.worked_on += groups[place]
            yield place, result


def test_a_stopped_job_resumes_where_it_stopped(rows, reference, tmp_path):
    table = Table.of(written(tmp_path / "rows", rows, [500, 1000, 2000]))
    whole = Counting()
    parts.detect(table, tmp_path / "whole", reference, method="contrast", fdr=0.1, runner=whole)
    for stop_after in range(0, len(whole.worked_on), 2):
        folder = tmp_path / f"stopped-{stop_after}"
        first, second, third = Counting(stop_after), Counting(), Counting()
        with pytest.raises(KeyboardInterrupt):
            parts.detect(table, folder, reference, method="contrast", fdr=0.1, runner=first)
        result = parts.detect(table, folder, reference, method="contrast", fdr=0.1, runner=second)
        assert first.worked_on + second.worked_on == whole.worked_on
        assert contents(folder) == contents(tmp_path / "whole")
        again = parts.detect(table, folder, reference, method="contrast", fdr=0.1, runner=third)
        assert (third.worked_on, again.notes, again.refused) == ([], result.notes, result.refused)


def test_a_damaged_or_missing_result_is_computed_again(rows, reference, tmp_path):
    table = Table.of(written(tmp_path / "rows", rows, [500, 1000, 2000]))
    parts.detect(table, tmp_path / "whole", reference, method="dlr")
    with pytest.raises(KeyboardInterrupt):
        parts.detect(table, tmp_path / "out", reference, method="dlr", runner=Counting(6))
    stored = sorted((tmp_path / "out" / ".partial").glob("*.npz"))
    damaged = bytearray(stored[-1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    stored[-1].write_bytes(damaged)
    (tmp_path / "out" / "part-0.csv").write_bytes(b"")
    parts.detect(table, tmp_path / "out", reference, method="dlr")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("text", ["[]", '{"files": 5}', "x"])
def test_a_damaged_summary_is_written_again(rows, reference, tmp_path, text):
    table = Table.of(written(tmp_path / "rows", rows[:300], [100]))
    parts.detect(table, tmp_path / "out", reference, method="dlr")
    before = contents(tmp_path / "out")
    assert isinstance(json.loads(before["found.json"])["refused"], int)
    (tmp_path / "out" / "found.json").write_text(text)
    parts.detect(table, tmp_path / "out", reference, method="dlr")
    (tmp_path / "out" / "fit.npz").unlink()
    parts.detect(table, tmp_path / "out", reference, method="dlr")
    assert contents(tmp_path / "out") == before
    (tmp_path / "out" / "_job.json").write_text(text)
    with pytest.raises(ValueError, match=r"is damaged|another job"):
        parts.detect(table, tmp_path / "out", reference, method="dlr")


def test_the_folder_of_another_job_is_an_error(rows, reference, tmp_path):
    table = Table.of(written(tmp_path / "rows", rows, [500]))
    parts.detect(table, tmp_path / "out", reference, method="dlr")
    before = contents(tmp_path / "out")
    for difference, options in {
        "method": {"method": "none"},
        "options": {"method": "dlr", "components": 3},
        "kind": {"method": "dlr", "kind": "npy"},
        "base": {"method": "dlr", "base": "energy"},
        "split": {"method": "dlr", "rng": np.random.default_rng(0)},
    }.items():
        with pytest.raises(ValueError, match=f"results of another job, with a difference in {difference}.*: give"):
            parts.detect(table, tmp_path / "out", reference, **options)
    with pytest.raises(ValueError, match="a difference in reference"):
        parts.detect(table, tmp_path / "out", reference[:-1], method="dlr")
    os.utime(tmp_path / "rows" / "part-1.npz", (1.0, 1.0))
    with pytest.raises(ValueError, match="a difference in files: give another folder, or decide new parts"):
        parts.detect(Table.of(tmp_path / "rows"), tmp_path / "out", reference, method="dlr")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"new or empty folder, got one with other files, such as thesis\.txt"):
        parts.detect(table, tmp_path / "mine", reference)
    assert contents(tmp_path / "mine") == {"thesis.txt": b"mine"}
    assert contents(tmp_path / "out") == before


def test_a_job_does_not_run_twice_at_once(rows, reference, tmp_path):
    table = Table.of(written(tmp_path / "rows", rows, [1000]))
    attempts = []

    def again(*progress):
        if not attempts:
            attempts.append(1)
            with pytest.raises(OSError, match="is in use by another process that runs the same job"):
                parts.detect(table, tmp_path / "out", reference, method="dlr")

    result = parts.detect(table, tmp_path / "out", reference, method="dlr", progress=again)
    assert (len(attempts), result.rows) == (1, 4000)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_two_functions_of_one_name_are_two_jobs(rows, reference, tmp_path):
    table = Table.of(written(tmp_path / "rows", rows, [1000]))

    def base_of(column):
        return lambda outputs: outputs.logits[:, column]

    parts.detect(table, tmp_path / "out", reference, base=base_of(0))
    with pytest.raises(ValueError, match="another job, with a difference in base"):
        parts.detect(table, tmp_path / "out", reference, base=base_of(1))
    fit = truing.fit_contrast(rows, reference, base=base_of(2))
    np.testing.assert_array_equal(read(parts.apply(fit, table, tmp_path / "applied"))["scores"], fit.predict(rows))


def test_parts_may_have_no_rows_but_must_have_columns(rows, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    lists = {"features": rows.features[:50].tolist(), "logits": rows.logits[:50].tolist()}
    whole = pyarrow.table(lists, pyarrow.schema([(name, pyarrow.list_(pyarrow.float32())) for name in lists]))
    for number, some in enumerate((whole[:0], whole[:20], whole[:0], whole[20:])):
        pyarrow.parquet.write_table(some, folder / f"part-{number}.parquet")
    assert parts.moments(Table.of(folder)).rows == 50
    write_part(tmp_path, "empty", {"features": rows.features[:0], "logits": rows.logits[:0]})
    with pytest.raises(ValueError, match="a table must have at least one row, got none in 1 part"):
        parts.detect(Table.of(tmp_path / "empty.npz"), tmp_path / "out")
    write_part(tmp_path, "narrow", {"features": np.ones((5, 0)), "logits": np.ones((5, 2))})
    with pytest.raises(ValueError, match="must have at least one column of features"):
        Table.of(tmp_path / "narrow.npz")
    with pytest.raises(ValueError, match=r"is the same part as .*rows would count twice"):
        Table.of([folder / "part-1.parquet", folder])
    with pytest.raises(TypeError, match="table must be a Table, got str"):
        parts.fit(str(folder))
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="must be a folder, got a file"):
        parts.detect(Table.of(folder), tmp_path / "file")
    assert not (tmp_path / "out").exists()


def test_a_file_of_a_set_must_not_change_during_a_job(rows, tmp_path):
    write_part(tmp_path, "set", {"features": rows.features, "logits": rows.logits}, "npy")
    table = Table.of(tmp_path / "set")
    np.save(tmp_path / "other.npy", rows.logits[::-1])
    (tmp_path / "other.npy").rename(tmp_path / "set" / "logits.npy")
    with pytest.raises(ValueError, match="set must not change during the job"):
        parts.fit(table)


# A child process starts with the peak memory of its parent in `ru_maxrss`, but not in /proc.
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")

MEMORY = """
import sys
from pathlib import Path
import numpy as np
import truing
from truing import parts

folder, count, method = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
features, logits = rng.normal(size=(50_000, 64)).astype(np.float32), rng.normal(size=(50_000, 10)).astype(np.float32)
(folder / "rows").mkdir(parents=True)
for number in range(count):
    np.savez(folder / "rows" / f"part-{number}.npz", features=features, logits=logits)
reference = truing.Outputs(features[:900] + 0.1, logits[:900])
parts.detect(parts.Table.of(folder / "rows"), folder / "out", reference, method=method, fdr=0.1, kind="npy")
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_memory_does_not_grow_with_the_number_of_rows(tmp_path, method):
    """The sample of a contrast is largest at about 100,000 rows."""
    peak = {}
    for count in (4, 20):
        words = [sys.executable, "-c", MEMORY, str(tmp_path / str(count)), str(count), method]
        peak[count] = int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    assert peak[20] < 1.1 * peak[4]


def test_digests_of_jobs_distinguish_nesting_and_types():
    assert digest([1, 12]) != digest([11, 2])
    assert digest([[1], [2]]) != digest([[1, 2], []])
    assert digest(1) != digest("1")
    assert digest(np.float64(0.5), np.array([1.0])) == digest(0.5, np.array([1.0]))
    with pytest.raises(TypeError, match="plain values and arrays, got object"):
        digest(object())


def test_parts_that_differ_are_rejected(rows, tmp_path):
    folder = written(tmp_path / "rows", rows, [1000])
    others = {
        "narrow": (truing.Outputs(rows.features[:, :63], rows.logits), "features of 64 columns", "63 columns"),
        "bare": (truing.Outputs(rows.features, scores=rows.features[:, 0]), "logits of 10 columns", "no logits"),
    }
    for name, (other, expected, received) in others.items():
        other.save(folder / f"x-{name}.npz")
        with pytest.raises(ValueError, match=rf"x-{name}\.npz must have {expected}, as .*got .*{received}"):
            Table.of(folder)
        (folder / f"x-{name}.npz").unlink()
