"""Metrics and thresholds of scores in many files equal those in memory bit for bit, in bounded memory."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import truing
from truing.data.jobs import scores
from truing.metrics import CONVENTIONS

ENDINGS = ["npy", "csv", "npz", "parquet", "arrow", "feather"]

tied = arrays(np.float64, st.integers(1, 80), elements=st.integers(-4, 4).map(float))
apart = arrays(np.float64, st.integers(1, 80), elements=st.floats(-100, 100))
either = st.one_of(tied, apart)


def write(path, values):
    """Write scores, which may be empty, with a second column if the format has columns."""
    rows, kind = np.arange(len(values)), path.suffix
    if kind == ".npy":
        np.save(path, values)
    elif kind == ".npz":
        np.savez(path, rows=rows, scores=values)
    elif kind == ".csv":
        path.write_text("\n".join(["rows,scores", *(f"{row},{score!r}" for row, score in enumerate(values.tolist()))]))
    elif kind == ".parquet":
        pyarrow.parquet.write_table(pyarrow.table({"rows": rows, "scores": values}), path)
    else:
        table = pyarrow.table({"rows": rows, "scores": values})
        with pyarrow.ipc.new_file(path, table.schema) as file:
            file.write_table(table)


def write_parts(folder, values, cuts, endings):
    """Write scores to files, cut at these rows, and return the files."""
    folder.mkdir()
    bounds = [0, *sorted(cuts), len(values)]
    files = [folder / f"part-{number}.{endings[number % len(endings)]}" for number in range(len(bounds) - 1)]
    for file, (start, stop) in zip(files, pairwise(bounds), strict=True):
        write(file, values[start:stop])
    return files


def assert_equals_memory(files_in, files_out, scores_in, scores_out):
    for convention in CONVENTIONS:
        result = scores.evaluate(files_in, files_out, convention=convention)
        assert result == truing.evaluate(scores_in, scores_out, convention=convention)
    for accept in (0.01, 0.5, 0.95, 1.0):
        assert scores.threshold_at(files_in, accept=accept) == truing.threshold_at(scores_in, accept=accept)


@settings(max_examples=60)
@given(scores_in=either, scores_out=either, data=st.data())
def test_metrics_of_files_are_metrics_of_memory_for_any_parts(scores_in, scores_out, data):
    assume(not np.array_equal(np.sort(scores_in), np.sort(scores_out)))
    with TemporaryDirectory() as name:
        files = []
        for side, values in (("in", scores_in), ("out", scores_out)):
            cuts = data.draw(st.lists(st.integers(0, len(values)), max_size=5))  # Equal cuts make empty files.
            endings = data.draw(st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=3))
            files.append(data.draw(st.permutations(write_parts(Path(name) / side, values, cuts, endings))))
        assert_equals_memory(*files, scores_in, scores_out)


def test_metrics_of_millions_of_scores_are_metrics_of_memory(tmp_path, rng):
    """There are enough scores for several sorted runs, and ties across runs."""
    scores_in, scores_out = rng.normal(size=2_300_000).round(4), rng.normal(-1, 1, size=300_000).round(4)
    scores_in[:300_000] = 0.5
    files_in = write_parts(tmp_path / "in", scores_in, [1_000_000, 1_000_001], ["npy", "npz"])
    files_out = write_parts(tmp_path / "out", scores_out, [], ["parquet"])
    assert scores.evaluate(files_in, files_out) == truing.evaluate(scores_in, scores_out)
    assert scores.threshold_at(files_in, accept=0.3) == truing.threshold_at(scores_in, accept=0.3)


def test_a_folder_and_a_glob_are_read_with_their_subfolders(tmp_path, bank):
    outputs = bank("cifar10-resnet56", "cifar10-test")[:50]
    values = np.arange(50.0)
    for number, day in enumerate(("date=2026-11-17", "date=2026-11-18")):
        write_parts(tmp_path / day, values[25 * number :][:25], [10], ["parquet", "npz"])
    truing.save(truing.fit_direct(outputs.features, truing.msp(outputs.logits)), tmp_path / "fit.npz")
    for name in ("found.json", "job.json", ".hidden.csv", "_done.csv", "notes.txt"):
        (tmp_path / name).write_text("{}")
    expected = truing.threshold_at(values, accept=0.5)
    for paths in (
        tmp_path,
        str(tmp_path),
        tmp_path / "*" / "part-*",
        tmp_path / "**" / "*",
        sorted(tmp_path.glob("d*")),
    ):
        assert scores.threshold_and_rows(paths, accept=0.5) == (expected, 50)
    with pytest.raises(ValueError, match=r"scores_in must have each file once, got .*part-0.parquet 2 times"):
        scores.threshold_at([tmp_path, tmp_path / "date=2026-11-18" / "part-0.parquet"])
    np.save(tmp_path / "wide.npy", np.zeros((3, 2)))
    for paths, message in (
        ([], "scores_in must be at least one path, got none"),
        (tmp_path / "notes.txt", "must end in"),
        (tmp_path / "wide.npy", r"must be 1-D \(n,\), got shape \(3, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            scores.threshold_at(paths)


@pytest.mark.parametrize(
    ("ending", "bad"), [*((ending, np.nan) for ending in ENDINGS), ("npy", np.inf), ("csv", 1e200)]
)
def test_errors_name_the_file_and_the_row(tmp_path, ending, bad):
    """The row is in the second block that is read."""
    values = np.append(np.zeros(300_000), bad)
    files = write_parts(tmp_path / "in", values, [2], [ending])
    message = rf"scores in .*part-1\.{ending} must be finite .*, got {re.escape(str(bad))} in row 299998"
    with pytest.raises(ValueError, match=message):
        scores.threshold_at(files)


def test_temporary_files_are_removed_after_an_error_too(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    files_in = write_parts(tmp_path / "in", np.array([1.0, 2.0]), [], ["npy"])
    files_out = write_parts(tmp_path / "out", np.array([0.0, np.nan]), [1], ["npy"])
    scores.evaluate(files_in, files_out[0], folder=place)
    with pytest.raises(ValueError, match="finite"):
        scores.evaluate(files_in, files_out, folder=place)
    assert not list(place.iterdir())
    with pytest.raises(FileNotFoundError, match=r"folder must be a folder for temporary files, got .*gone"):
        scores.threshold_at(files_in, folder=tmp_path / "gone")


def test_a_report_of_files_has_no_figure(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1.0, 2.0]))
    np.save(tmp_path / "b.npy", np.array([1.0, 3.0]))
    with pytest.raises(ValueError, match=r"needs the scores in memory: create the report with truing\.evaluate"):
        scores.evaluate(tmp_path / "a.npy", tmp_path / "b.npy").plot()


# A child process starts with the peak memory of its parent in `ru_maxrss`, but not in /proc.
needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")

PEAK = """
import sys
from truing.data.jobs import scores
scores.evaluate(sys.argv[1], sys.argv[2])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def peak_of_evaluation(folder, rows):
    """Return the most memory in MB that a process uses to evaluate twice this number of scores."""
    rng = np.random.default_rng(0)
    for side in ("in", "out"):
        (folder / side).mkdir(parents=True)
        for number, start in enumerate(range(0, rows, 10**6)):
            np.save(folder / side / f"{number}.npy", rng.normal(size=min(10**6, rows - start)))
    words = [sys.executable, "-c", PEAK, folder / "in", folder / "out"]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout) / 1024


@needs_proc
def test_memory_does_not_grow_with_the_number_of_scores(tmp_path):
    growth = peak_of_evaluation(tmp_path / "many", 6_000_000) - peak_of_evaluation(tmp_path / "few", 2_000_000)
    assert growth < 16  # The additional scores take at least 64 MB.
