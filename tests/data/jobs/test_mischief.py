"""A part that changes, vanishes or breaks during a job is an error, or is skipped with a note."""

import os
import shutil
from itertools import product

import numpy as np
import pytest

import truing
from truing import parts
from truing.parts import Table

from .files import contents, read

HARMED = "part-0.npz"
CUTS = {"date=1": slice(0, 1000), "date=2": slice(1000, 2500), "date=3": slice(2500, 4000)}


@pytest.fixture
def table(rows, tmp_path):
    """Write three dated folders of parts, and return a function that makes their table."""
    for day, part in CUTS.items():
        (tmp_path / "rows" / day).mkdir(parents=True)
        rows[part].save(tmp_path / "rows" / day / HARMED)
    return lambda **options: Table.of(tmp_path / "rows", **options)


def harm(path, kind, rows):
    """Damage or replace a part that a job reads."""
    old = path.stat()
    if kind == "changed":
        rows[:1500].save(path)
    elif kind == "truncated":
        path.write_bytes(path.read_bytes()[:-1000])
    elif kind == "narrow":
        truing.Outputs(rows.features[:1500, :63], rows.logits[:1500]).save(path)
    elif kind == "copied":
        shutil.copyfile(path, path.with_suffix(".copy"))
        path.with_suffix(".copy").rename(path)
        os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns + 1))
    else:
        path.rename(path.parents[2] / "aside.npz")
        if kind == "unreadable":
            path.symlink_to("nowhere")


HARMS = ("changed", "deleted", "truncated", "unreadable", "narrow", "copied")
TIMES = ("before the first pass", "between passes", "during the last pass")


class Mischief:
    """Damages a part, and adds foreign files to the folder of results, at some point of a job."""

    def __init__(self, folder, out, kind, when, rows):
        self.folder, self.out, self.kind, self.when, self.rows, self.is_done = folder, out, kind, when, rows, False
        self.foreign = {"mine.txt": b"1", "date=1/mine.csv": b"2", "date=9/mine.txt": b"3", ".partial/mine.txt": b"4"}

    def act(self):
        self.is_done = True
        harm(self.folder / "date=2" / HARMED, self.kind, self.rows)
        for name, data in self.foreign.items():
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            (self.out / name).write_bytes(data)

    def progress(self, name, done, of):
        is_between = self.when == "between passes" and done == of
        is_late = self.when == "during the last pass" and name == "scores" and done == 2500
        if not self.is_done and (is_between or is_late):
            self.act()

    def kept(self):
        """Check that the foreign files are intact, and return the other files in the folder of results."""
        left = contents(self.out)
        assert {name: left.pop(name) for name in self.foreign if name in left} == (self.foreign if self.is_done else {})
        return set(left)


@pytest.mark.parametrize(("kind", "when", "skip"), [*product(HARMS, TIMES, [False, True])])
def test_a_damaged_part_is_an_error_or_skipped(table, rows, reference, tmp_path, kind, when, skip):
    whole = table(skip_bad_parts=skip)
    out = tmp_path / "out"
    mischief = Mischief(tmp_path / "rows", out, kind, when, rows)
    if when == TIMES[0]:
        harm(tmp_path / "rows" / "date=2" / HARMED, kind, rows)
    options = {"method": "rlr", "false_alarm": 0.05}
    if skip and when == TIMES[0] and kind in ("deleted", "unreadable"):
        result = parts.detect(whole, out, reference, **options)
        expected = truing.detect(rows[np.r_[0:1000, 2500:4000]], reference, **options)
        assert "date=2/part-0.npz" in result.skipped_parts[0]
        assert result.notes[0].startswith("1 unreadable part skipped")
        np.testing.assert_array_equal(read(result.files)["scores"], expected.scores)
        return
    with pytest.raises((ValueError, OSError), match=r"date=2/part-0\.npz") as caught:
        parts.detect(whole, out, reference, **options, progress=mischief.progress)
    left = mischief.kept()
    if isinstance(caught.value, ValueError):
        assert left == set()
        assert out.exists() == mischief.is_done
        return
    # The system could not read the part: the job can resume when the part is back.
    results = set() if when == TIMES[0] else {"date=1/part-0.csv"}
    assert {name for name in left if not name.startswith(".partial/")} == {"_job.json"} | results
    (tmp_path / "aside.npz").replace(tmp_path / "rows" / "date=2" / HARMED)
    result = parts.detect(table(skip_bad_parts=skip), out, reference, **options)
    np.testing.assert_array_equal(read(result.files)["scores"], truing.detect(rows, reference, **options).scores)
    mischief.kept()


@pytest.mark.parametrize(
    ("kind", "when", "skip", "rate"),
    [
        *product(["truncated", "deleted"], TIMES[::2], [False, True], [{"false_alarm": 0.05}]),
        *product(["changed", "deleted"], TIMES[::2], [False, True], [{"fdr": 0.1}]),
    ],
    ids=str,
)
def test_a_damaged_part_is_not_decided(table, rows, reference, tmp_path, kind, when, skip, rate):
    detector = truing.Detector("msp", method="dlr")
    detector.calibrate(reference)
    detector.learn(rows)
    expected = contents(parts.decide(detector, table(), tmp_path / "expected", **rate).files[0].parents[1])
    whole, out = table(skip_bad_parts=skip), tmp_path / "out"
    mischief = Mischief(tmp_path / "rows", out, kind, when, rows)
    if when == TIMES[0]:
        harm(tmp_path / "rows" / "date=2" / HARMED, kind, rows)
    is_gone = kind in ("deleted", "unreadable")
    is_skipped = skip and is_gone and (when == TIMES[0] or "fdr" not in rate)
    if is_skipped:
        result = parts.decide(detector, whole, out, **rate, progress=mischief.progress)
        assert "date=2/part-0.npz" in result.skipped_parts[0]
        assert (result.rows, len(result.files)) == (2500, 2)
    else:
        with pytest.raises((ValueError, OSError), match=r"date=2/part-0\.npz"):
            parts.decide(detector, whole, out, **rate, progress=mischief.progress)
    left = mischief.kept()
    assert "date=2/part-0.csv" not in left
    if "fdr" not in rate:  # Each part is decided by itself, so the other results are complete.
        decided = {name for name in left if name.endswith(".csv")}
        assert decided == {"date=1/part-0.csv", *(["date=3/part-0.csv"] if is_skipped else [])}
        assert all((out / name).read_bytes() == expected[name] for name in decided)
    elif not is_skipped and not is_gone:
        assert left == set()


def test_the_folder_of_a_fit_keeps_the_files_of_others(table, tmp_path):
    """Hidden files do not make a folder another job's folder."""
    (tmp_path / "partial" / ".mine").mkdir(parents=True)
    (tmp_path / "partial" / ".env").write_text("mine")
    (tmp_path / "partial" / ".mine" / "file").write_text("mine")
    parts.fit(table(), folder=tmp_path / "partial")
    assert contents(tmp_path / "partial") == {".env": b"mine", ".mine/file": b"mine"}
