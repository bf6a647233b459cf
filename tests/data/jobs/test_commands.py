"""Commands on tables in parts and on moments give the results of memory. Wrong input gets one line."""

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.cli.command import run as run_command

from .files import contents, read, written


@pytest.fixture
def run(rows, reference, tmp_path, monkeypatch, capsys):
    """Return a function that runs a command in a folder with a table, the same rows in one file, and a reference."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "logs", rows, [1000, 2500], "parquet")
    rows.save("all.npz")
    reference.save("held.npz")

    def run(*words, fails=False):
        assert run_command(words) == int(fails)
        out, errors = capsys.readouterr()
        lines = [line for line in errors.splitlines() if not line.startswith("truing: warning: ")]
        assert len(lines) == int(fails)
        return lines[0] if fails else out

    return run


@pytest.mark.parametrize(
    "outputs", [["logs"], ["logs/*.parquet"], [f"logs/part-{number}.parquet" for number in range(3)]]
)
def test_detect_prints_the_same_for_a_table_and_one_file(run, outputs):
    table = json.loads(run("detect", *outputs, "--reference", "held.npz", "-o", "scores", "--json"))
    whole = json.loads(run("detect", "all.npz", "--reference", "held.npz", "--json"))
    assert (table.pop("output"), whole.pop("output")) == ("scores", None)
    assert whole["method"] == "contrast"
    assert table == whole  # To the bit, including the fit and the threshold.
    assert run("detect", *outputs, "--reference", "held.npz", "-o", "scores").splitlines()[-1] == "wrote      scores"


def test_moments_of_several_places_can_be_added_and_subtracted(run):
    for number in range(3):
        run("fit", f"logs/part-{number}.parquet", "--moments", f"m{number}.npz", "--model", "r56", "-o", "one.npz")
    run("merge", "m0.npz", "m1.npz", "m2.npz", "-o", "all-moments.npz")
    assert run("merge", "all-moments.npz", "--minus", "m1.npz", "-o", "two.npz").startswith("rows       2,500, 64")
    run("fit", "all-moments.npz", "-o", "merged.npz")
    run("fit", "logs", "--moments", "of-table.npz", "-o", "table.npz")
    run("fit", "all.npz", "-o", "whole.npz")
    for name in ("merged.npz", "table.npz"):
        np.testing.assert_allclose(truing.load(name).coef, truing.load("whole.npz").coef, atol=1e-12)
    left = truing.load("m0.npz") + truing.load("m2.npz")
    run("fit", "two.npz", "--components", "5", "-o", "left.npz")
    np.testing.assert_allclose(truing.load("left.npz").coef, left.solve(components=5).coef, atol=1e-12)


def test_scores_of_a_table_are_the_scores_of_one_file(run, rows):
    run("score", "logs", "--base", "energy", "--temperature", "2", "-o", "base")
    base = read(sorted(Path("base").glob("*.parquet")))["scores"]
    np.testing.assert_array_equal(base, truing.energy(rows.logits, 2.0))
    for outputs in ("logs", "all.npz"):
        run("fit", outputs, "--reference", "held.npz", "-o", f"{Path(outputs).stem}-fit.npz")
    run("apply", "logs-fit.npz", "logs", "-o", "trued")
    run("apply", "all-fit.npz", "all.npz", "-o", "trued.npy")
    scores = read(sorted(Path("trued").glob("*.parquet")))["scores"]
    np.testing.assert_array_equal(scores, np.load("trued.npy"))
    run("apply", "all-fit.npz", "held.npz", "-o", "in.npy")
    expected = json.loads(truing.evaluate(np.load("in.npy"), scores).json())
    assert json.loads(run("evaluate", "in.npy", "trued/*.parquet")) == expected
    threshold = json.loads(run("threshold", "trued", "--accept", "0.9"))["threshold"]
    assert threshold == truing.threshold_at(scores, accept=0.9)


# Commands and the expected message. Each command is split at spaces.
DETECT, DECIDE = "detect logs --reference held.npz -o x", "--false-alarm 0.05 -o x"
WRONG = [
    ("detect logs", "-o must be a folder for the results of a table"),
    ("detect no/*.npz -o x", "no file matches no/*.npz: there is no folder no"),
    ("detect logs -o logs/out", "-o must not be read as part of the rows"),
    ("detect logs/../*/*.parquet -o out", "-o must not be read as part of the rows"),
    ("fit logs -o logs/fit.npz", "-o must not be read as part of the rows"),
    ("fit al?.npz --moments all.npz -o x.npz", "--moments must not be read as part of"),
    ("apply fit.npz logs/*-0.* -o logs/part-0.parquet", "must not be read as part of the rows"),
    ("apply narrow-fit.npz logs -o x", "table must have 5 features, as"),
    ("apply fit.npz all.npz --workers 2 -o x.csv", "--workers needs"),
    ("fit logs --workers 0 -o x.npz", "workers must be at least 1, got 0"),
    ("detect logs --method online -o x", "online"),
    ("detect logs --report x.html -o x", "--report needs the rows in one file"),
    ("detect logs --features f? -o x", "must contain columns that match f?"),
    ("detect wide --features f* -o x", "must have the same columns f*"),
    ("detect logs --id name -o x", "must contain name, got features, logits"),
    ("detect logs --save x.npz -o x", "--save needs --reference"),
    (f"{DETECT} --save logs/x.npz", "--save must not be read as part of the rows"),
    (f"{DETECT} --method rlr --save x.npz", "method must be dlr or contrast to save a detector, got 'rlr'"),
    (f"decide fit.npz logs {DECIDE}", "fit.npz must contain a detector"),
    (f"decide bare.npz logs {DECIDE}", "must be calibrated with reference rows"),
    (f"decide narrow-det.npz logs {DECIDE}", "must have 5 features, as the detector"),
    (f"decide det.npz logs --features emb {DECIDE}", "must contain emb"),
    ("decide det.npz logs -o x.csv", "-o must be a folder"),
    ("decide det.npz logs -o logs/out", "-o must not be read as part of the rows"),
    ("decide det.npz logs -o file", "file must be a folder, got a file"),
    ("learn fit.npz logs", "fit.npz must contain a detector"),
    ("learn narrow-det.npz logs", "5"),
    ("merge m.npz m.npz -o x.npz", "each file of moments must be given once"),
    ("merge m.npz fit.npz -o x.npz", "fit.npz must contain moments"),
    ("merge m.npz energy.npz -o x.npz", "must have the base 'msp'"),
    ("merge m.npz other.npz -o x.npz", "must have the model 'r56'"),
    ("merge m.npz --minus all-m.npz -o x.npz", "all-m.npz: the subtracted moments"),
    ("merge m.npz -o m.npz", "-o and MOMENTS must be different files, got m.npz"),
    ("fit m.npz --base msp -o x.npz", "--base needs rows, but OUTPUTS holds"),
    ("fit m.npz --method rlr -o x.npz", "--method must be dlr for moments, got rlr"),
]


def exit_code_of(words):
    try:
        return run_command(words)
    except SystemExit as error:
        return error.code


def test_wrong_input_gets_one_line_and_writes_nothing(run, rows, capsys):
    run("fit", "logs/part-0.parquet", "--moments", "m.npz", "--model", "r56", "-o", "fit.npz")
    run("fit", "logs/part-1.parquet", "--base", "energy", "--moments", "energy.npz", "-o", "fit.npz")
    run("fit", "logs/part-1.parquet", "--moments", "other.npz", "--model", "wrn", "-o", "fit.npz")
    run("fit", "logs", "--moments", "all-m.npz", "-o", "fit.npz")
    narrow = truing.Outputs(rows.features[:, :5], rows.logits)
    narrow.save("narrow.npz")
    run("fit", "narrow.npz", "-o", "narrow-fit.npz")
    for name, learned in (("bare", rows), ("det", rows), ("narrow-det", narrow)):
        detector = truing.Detector("msp", method="dlr")
        detector.learn(learned)
        if name != "bare":
            detector.calibrate(learned[:100])
        truing.save(detector, f"{name}.npz")
    Path("wide").mkdir()
    for number, second in enumerate(("f2", "f3")):
        np.savez(f"wide/{number}.npz", **{"f1": np.ones(3), second: np.ones(3)}, logits=np.ones((3, 2)))
    Path("file").touch()
    before = contents(Path())
    for case, message in WRONG:
        if "--workers" in case and find_spec("distributed") is None:
            continue
        assert exit_code_of(case.split()) == 1, case
        out, error = capsys.readouterr()
        assert message in error, case
        assert (out, error.count("\n")) == ("", 1), case
        assert contents(Path()) == before, case
        assert sorted(path.name for path in Path().iterdir() if path.is_dir()) == ["logs", "wide"], case
