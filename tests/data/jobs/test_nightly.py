"""A table gets a new folder of rows every night. The commands decide and learn the new parts once."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import truing
from truing import parts
from truing.cli.command import run as run_command

from .files import contents, read, written

COLUMNS = ["--features", "emb", "--logits", "out"]
RATE = 0.05
DECIDE = ["decide", "detector.npz", "rows", *COLUMNS, "--id", "key", "--false-alarm", str(RATE)]
LEARN = ["learn", "detector.npz", "rows", *COLUMNS]


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Return a function that runs a command in a temporary folder and returns the words it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*words, fails=False):
        assert run_command(words) == int(fails), capsys.readouterr().err
        out, errors = capsys.readouterr()
        lines = [line for line in errors.splitlines() if not line.startswith("truing: warning: ")]
        assert len(lines) == int(fails)
        return lines[0] if fails else out

    return run


@pytest.fixture
def night(bank, run, tmp_path):
    """Return a function that writes the rows of a night, 1,200 in and 150 out, in two parts with ids."""
    inside, outside = bank("cifar10-resnet56", "cifar10-test"), bank("cifar10-resnet56", "svhn")
    inside[5000:6800].save("held.npz")

    def write(day):
        rows = truing.Outputs.concatenate([inside[1200 * day :][:1200], outside[150 * day :][:150]])
        names = np.array([f"{day}-{'in' if row < 1200 else 'out'}-{row}" for row in range(1350)])
        order = np.random.default_rng(day).permutation(1350)
        folder = tmp_path / "rows" / f"date={day + 1}"
        folder.mkdir(parents=True)
        for number, part in enumerate((order[:900], order[900:])):
            columns = {"emb": list(rows.features[part]), "out": list(rows.logits[part]), "key": names[part]}
            pyarrow.parquet.write_table(pyarrow.table(columns), folder / f"part-{number}.parquet")

    return write


@pytest.mark.parametrize("method", ["contrast", "dlr"])
def test_a_new_night_is_decided_and_learned_once(night, run, tmp_path, method):
    night(0)
    detect = ["detect", "rows", *COLUMNS, "--id", "key", "--reference", "held.npz", "--method", method]
    detect += ["-o", "detected", "--save", "detector.npz"]
    run(*detect)
    files = sorted(tmp_path.glob("detected/date=1/*.parquet"))
    assert sorted(read(files)["id"]) == sorted(read(sorted(tmp_path.glob("rows/date=1/*")))["key"])
    before = contents(tmp_path)
    run(*detect)
    assert contents(tmp_path) == before
    night(1)
    summary = json.loads(run(*DECIDE, "-o", "decided", "--json"))
    assert (summary["rows"], summary["kept_parts"]) == (1350, 0)
    assert summary["notes"][0].startswith("2 parts skipped: the detector has learned these rows")
    assert not (tmp_path / "decided" / "date=1").exists()
    columns = read(sorted(tmp_path.glob("decided/date=2/*.parquet")))
    is_in = np.array(["-in-" in name for name in columns["id"]])
    error = np.sqrt(RATE * (1 - RATE) * (1 / 1200 + 1 / summary["reference_rows"]))
    assert abs(columns["is_out"][is_in].mean() - RATE) < 3 * error
    assert columns["is_out"][~is_in].mean() > 0.5
    learned = run(*LEARN)
    assert learned.startswith("learned    1,350 rows in 2 new parts, 2 parts learned before\n")
    before = contents(tmp_path)
    assert "decide new parts with a saved detector and truing decide" in run(*detect, fails=True)
    assert run(*DECIDE, "-o", "decided").startswith("rows       no new rows; 2 parts done before")
    assert run(*LEARN).startswith("learned    no new parts, 4 parts learned before\n")
    assert contents(tmp_path) == before
    night_after(night, run, tmp_path)


def night_after(night, run, tmp_path):
    """Check the third night. Decided parts stay unchanged, even if a learned part changes later."""
    decided = contents(tmp_path / "decided" / "date=2")
    night(2)
    summary = json.loads(run(*DECIDE, "-o", "decided", "--json"))
    assert (summary["rows"], summary["kept_parts"]) == (1350, 2)
    run(*LEARN)
    assert contents(tmp_path / "decided" / "date=2") == decided
    changed = tmp_path / "rows/date=2/part-1.parquet"
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(changed)[:100], changed)
    summary = json.loads(run(*DECIDE, "-o", "decided", "--json"))
    assert (summary["rows"], summary["kept_parts"]) == (0, 3)
    assert summary["notes"][0].startswith("2 parts skipped: the detector has learned these rows")
    assert summary["notes"][1].startswith("1 part skipped: changed since the detector learned them")
    assert run(*LEARN).startswith("learned    no new parts, 6 parts learned before")
    assert contents(tmp_path / "decided" / "date=2") == decided


def test_a_part_that_changes_before_it_is_learned_is_decided_again(night, run, tmp_path):
    night(0)
    run("detect", "rows", *COLUMNS, "--id", "key", "--reference", "held.npz", "-o", "first", "--save", "detector.npz")
    night(1)
    run(*DECIDE, "-o", "decided")
    changed = tmp_path / "rows/date=2/part-1.parquet"
    pyarrow.parquet.write_table(pyarrow.parquet.read_table(changed)[:100], changed)
    summary = json.loads(run(*DECIDE, "-o", "decided", "--json"))
    assert (summary["rows"], summary["kept_parts"]) == (100, 1)
    assert "1 part changed since the last call and decided again" in summary["notes"]
    assert len(read([tmp_path / "decided/date=2/part-1.parquet"])["id"]) == 100


def test_one_command_decides_new_parts_and_learns_them(night, run, tmp_path):
    night(0)
    run("detect", "rows", *COLUMNS, "--id", "key", "--reference", "held.npz", "-o", "first", "--save", "detector.npz")
    for day in (1, 2):
        night(day)
        printed = run(*DECIDE, "--learn", "-o", "decided")
        assert f"learned    1,350 rows in 2 new parts, {2 * day} parts learned before\n" in printed
        assert f"detector   {1350 * (day + 1):,} rows learned" in printed
    assert not list(tmp_path.glob(".*"))
    before = contents(tmp_path)
    run(*DECIDE, "--learn", "-o", "decided")
    assert contents(tmp_path) == before


def test_decisions_do_not_depend_on_the_number_of_parts(night, run, tmp_path):
    """Each part gets the decisions of `Detector.decide` on its own rows."""
    for day in range(2):
        night(day)
    run("detect", "rows/date=1", *COLUMNS, "--reference", "held.npz", "-o", "detected", "--save", "detector.npz")
    run(*DECIDE, "-o", "decided")
    detector = truing.load(tmp_path / "detector.npz")
    for part in sorted(tmp_path.glob("rows/date=2/*")):
        result = detector.decide(truing.Outputs.load(part, features="emb", logits="out"), false_alarm=RATE)
        columns = read([tmp_path / "decided" / "date=2" / part.name])
        np.testing.assert_array_equal(columns["scores"], result.scores)
        np.testing.assert_array_equal(columns["p_values"], result.p_values)
        np.testing.assert_array_equal(columns["is_out"], result.is_out)


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_parts_are_learned_as_rows_in_memory_or_not_at_all(rows, reference, tmp_path, method):
    in_memory, of_parts = (truing.Detector("msp", method=method) for _ in range(2))
    for detector in (in_memory, of_parts):
        detector.calibrate(reference)
    for part in (rows[:700], rows[700:701], rows[701:]):
        in_memory.learn(part)
    table = parts.Table.of(written(tmp_path / "rows", rows, [700, 701]))
    learned, rows_learned, _ = parts.learn(of_parts, table)
    assert (learned.state.rows, rows_learned, of_parts.state.rows) == (4000, 4000, 0)
    np.testing.assert_array_equal(learned.score(rows), in_memory.score(rows))
    (tmp_path / "rows" / "part-2.npz").unlink()
    with pytest.raises(OSError, match=r"part-2\.npz"):
        parts.learn(of_parts, table)
    some, rows_learned, readable = parts.learn(of_parts, replace(table, skip_bad_parts=True))
    assert (some.state.rows, rows_learned, len(readable), len(readable.unreadable)) == (701, 701, 2, 1)


def test_a_folder_takes_the_decisions_of_one_rate_and_one_reference(night, run, tmp_path):
    for day in range(3):
        night(day)
    detect = ["detect", "rows/date=1", *COLUMNS, "--method", "dlr"]
    run(*detect, "--reference", "held.npz", "-o", "first", "--save", "detector.npz")
    run(*DECIDE, "-o", "decided")
    truing.Outputs.load("held.npz")[:-1].save("fewer.npz")
    run(*detect, "--reference", "fewer.npz", "-o", "second", "--save", "other.npz")
    before = contents(tmp_path)
    other_rate = run(*DECIDE[:-2], "--fdr", "0.1", "-o", "decided", fails=True)
    assert "difference in rate (rate {'false_alarm': 0.05} there, {'fdr': 0.1} here)" in other_rate
    other_reference = run("decide", "other.npz", *DECIDE[2:], "-o", "decided", fails=True)
    assert "with a difference in reference: give another folder" in other_reference
    assert contents(tmp_path) == before
    # The parts of two days have the same names if each day is a table of its own.
    run("decide", "detector.npz", "rows/date=2", *DECIDE[3:], "-o", "alone")
    before = contents(tmp_path)
    taken = run("decide", "detector.npz", "rows/date=3", *DECIDE[3:], "-o", "alone", fails=True)
    assert "alone/part-0.parquet holds the results of" in taken
    assert contents(tmp_path) == before


def test_a_saved_detector_of_another_job_is_replaced(rows, reference, run, tmp_path):
    """A finished job replaces a detector that another job saved under the same name."""
    rows[:1000].save("rows.npz")
    reference.save("held.npz")
    detect = ["detect", "rows.npz", "--reference", "held.npz", "-o", "out"]
    run(*detect)
    truing.save(truing.Detector("msp"), "detector.npz")
    run(*detect, "--save", "detector.npz")
    assert truing.load("detector.npz").state.rows == 1000
    run("learn", "detector.npz", "rows.npz")
    before = contents(tmp_path)
    run(*detect, "--save", "detector.npz")
    assert contents(tmp_path) == before


def test_results_stay_in_their_folder_and_have_their_own_names(rows, reference, run, tmp_path, monkeypatch):
    reference.save("held.npz")
    for name in ("here/sub/a.npz", "there/a.npz", "there/a.parquet", "there/a.npz.npz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        rows[:300].save(tmp_path / name)
    monkeypatch.chdir(tmp_path / "here")
    before = contents(tmp_path)
    run("detect", "../there", "sub/a.npz", "--reference", "../held.npz", "-o", "out")
    results = {name.removeprefix("here/out/") for name in contents(tmp_path) if name not in before}
    tables = {name for name in results if name.endswith(".csv")}
    assert tables == {"here/sub/a.csv", "there/a.npz.csv", "there/a.parquet.csv", "there/a.npz.npz.csv"}
    assert results - tables == {"_job.json", "found.json", "fit.npz"}
    twice = run("detect", "sub/a.npz", "../here/sub/a.npz", "-o", "twice", fails=True)
    assert "is the same part as sub/a.npz: rows would count twice" in twice


def test_two_commands_that_learn_at_once_lose_nothing(rows, reference, run, tmp_path):
    """A command fails while another command uses the detector, or starts from the result of the other command."""
    rows[:1000].save("rows.npz")
    reference.save("held.npz")
    run("detect", "rows.npz", "--reference", "held.npz", "--method", "dlr", "-o", "out", "--save", "detector.npz")
    for number in range(4):
        rows[1000 + 500 * number :][:500].save(f"new-{number}.npz")
    words = [sys.executable, "-m", "truing", "learn", "detector.npz"]
    commands = [subprocess.Popen([*words, f"new-{number}.npz"], stderr=subprocess.PIPE) for number in range(4)]
    errors = [command.communicate()[1].decode() for command in commands]
    learned = sum(command.returncode == 0 for command in commands)
    assert learned >= 1
    assert all("is in use" in error for error in errors if error)
    assert truing.load("detector.npz").state.rows == 1000 + 500 * learned
    run("learn", "detector.npz", *(f"new-{number}.npz" for number in range(4)))
    assert truing.load("detector.npz").state.rows == 3000


def test_a_folder_keeps_the_format_of_its_first_results(rows, reference, tmp_path):
    detector = truing.Detector("msp", method="dlr")
    detector.calibrate(reference)
    detector.learn(rows)
    folder = written(tmp_path / "rows", rows, [500], "parquet")
    parts.decide(detector, parts.Table.of(folder), tmp_path / "out", false_alarm=0.1)
    rows[:50].save(folder / "late.npz")
    result = parts.decide(detector, parts.Table.of(folder), tmp_path / "out", false_alarm=0.1)
    assert (result.rows, result.kept_parts, result.files[0].name) == (50, 2, "late.parquet")


def test_the_detector_of_a_table_is_the_detector_of_memory(rows, reference, run, tmp_path):
    rows.save("rows.npz")
    reference.save("held.npz")
    run("detect", "rows.npz", "--reference", "held.npz", "-o", "one.csv", "--save", "one.npz")
    run("detect", "rows.npz", "--reference", "held.npz", "-o", "many", "--save", "many.npz")
    one, many = truing.load("one.npz"), truing.load("many.npz")
    np.testing.assert_array_equal(one.decide(rows, fdr=0.1).scores, many.decide(rows, fdr=0.1).scores)
    assert run("learn", "one.npz", "rows.npz").startswith("learned    no new parts, 1 part learned before")
