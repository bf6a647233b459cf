import csv
import json
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.cli.command import run as main
from truing.detection import detect
from truing.options import FEWEST_FOR_CONTRAST
from truing.report import summary

COMMANDS = [
    "detect",
    "decide",
    "learn",
    "merge",
    "score",
    "fit",
    "apply",
    "export",
    "threshold",
    "evaluate",
    "demo",
    "bench",
    "serve",
]


@pytest.fixture
def here(tmp_path, monkeypatch, rng) -> Path:
    monkeypatch.chdir(tmp_path)
    features = rng.normal(1, 1, size=(300, 5))
    rows = truing.Outputs(
        features, features @ rng.normal(size=(5, 4)) + rng.normal(size=(300, 4)), rng.integers(0, 4, size=300)
    )
    rows[:200].save("test.npz")
    rows[200:].save("held.npz")
    return tmp_path


def run(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def fails(capsys, *arguments: str) -> str:
    """Run a command that must fail as every command fails: one line on stderr, code 1, nothing on stdout."""
    try:
        code = main(list(arguments))
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("truing")
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_a_place_in_the_docs(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"example: truing {command}" in " ".join(capsys.readouterr().out.split())
    assert f"truing {command}" in (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def test_detect_is_the_whole_job(here, capsys):
    printed = run(capsys, "detect", "test.npz", "--reference", "held.npz", "--method", "dlr", "-o", "scores.csv")
    with (here / "scores.csv").open() as file:
        table = list(csv.DictReader(file))
    rows, held = truing.Outputs.load("test.npz"), truing.Outputs.load("held.npz")
    fit = truing.fit_direct(
        np.concatenate((rows.features, held.features)), truing.msp(np.concatenate((rows.logits, held.logits)))
    )
    np.testing.assert_allclose([float(row["scores"]) for row in table], fit.predict(rows.features), atol=1e-12)
    threshold = truing.threshold_at(fit.predict(held.features), accept=0.95)
    refused = [row["is_out"] == "True" for row in table]
    np.testing.assert_array_equal(refused, fit.predict(rows.features) < threshold)
    assert "200 of 5 features" in printed
    assert "msp, trued by dlr" in printed
    stored = truing.detect(rows, held, method="dlr").threshold
    assert stored == pytest.approx(threshold, abs=1e-5)
    assert f"accept 0.95 by 100 reference rows, threshold {stored:.6g}" in printed
    assert f"{sum(refused)} rows, {sum(refused) / 200:.1%}" in printed
    assert "scores.csv" in printed


def test_the_json_summary_says_the_same_for_machines(here, capsys):
    arguments = ["detect", "test.npz", "--reference", "held.npz", "--base", "energy", "--method", "rlr", "--json"]
    facts = json.loads(run(capsys, *arguments))
    rows, held = truing.Outputs.load("test.npz"), truing.Outputs.load("held.npz")
    fit = truing.fit_robust(
        np.concatenate((rows.features, held.features)), truing.energy(np.concatenate((rows.logits, held.logits)))
    )
    threshold = truing.threshold_at(fit.predict(held.features), accept=0.95)
    refused = int(np.sum(fit.predict(rows.features) < threshold))
    expected = {"rows": 200, "dimensions": 5, "base": "energy", "method": "rlr", "rate": {"accept": 0.95}}
    expected |= {"reference_rows": 100, "refused": refused, "output": None, "report": None}
    assert {name: facts[name] for name in expected} == expected
    assert facts["threshold"] == truing.detect(rows, held, base="energy", method="rlr").threshold
    assert facts["threshold"] == pytest.approx(threshold, rel=1e-5)
    assert facts["fit"] == pytest.approx({"rank": 5, "explained": fit.explained, "fitted_rows": 240.0})


def test_without_a_reference_there_is_a_rank_and_no_in_or_out(here, capsys):
    printed = run(capsys, "detect", "test.npz", "-o", "scores.csv")
    assert "scores but no decisions" in printed
    with (here / "scores.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0]) == ["row", "base", "scores", "rank"]
    least = min(table, key=lambda row: float(row["scores"]))
    assert least["rank"] == "1"


@pytest.mark.parametrize("name", ["out.csv", "out.npy", "out.npz", "out.parquet", "out.arrow"])
def test_every_output_kind_holds_the_same_scores(here, capsys, name):
    from truing.data.jobs.score_files import read_score_blocks

    run(capsys, "detect", "test.npz", "-o", "plain.npy")
    run(capsys, "detect", "test.npz", "-o", name)
    if name.endswith(".csv"):
        with (here / name).open() as file:
            found = [float(row["scores"]) for row in csv.DictReader(file)]
    else:
        found = np.concatenate(list(read_score_blocks(Path(name))))
    np.testing.assert_array_equal(found, np.load("plain.npy"))


def test_score_first_marks_the_rows_before_any_fit(here, capsys):
    arguments = ["detect", "test.npz", "--method", "online", "--batch", "50", "--order", "score-first"]
    printed = run(capsys, *arguments, "-o", "scores.csv")
    assert "50 rows came before any fit" in printed
    with (here / "scores.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [row["trued"] for row in table] == ["False"] * 50 + ["True"] * 150


def test_the_steps_give_what_detect_gives(here, capsys):
    for method in ("dlr", "rlr"):
        run(capsys, "detect", "test.npz", "--base", "energy", "--method", method, "-o", "whole.npy")
        run(capsys, "fit", "test.npz", "--base", "energy", "--method", method, "-o", "fit.npz")
        run(capsys, "apply", "fit.npz", "test.npz", "-o", "steps.npy")
        np.testing.assert_array_equal(np.load("steps.npy"), np.load("whole.npy"))
    run(capsys, "score", "test.npz", "--base", "energy", "-o", "base.npy")
    np.testing.assert_array_equal(np.load("base.npy"), truing.energy(truing.Outputs.load("test.npz").logits))
    found = json.loads(run(capsys, "threshold", "base.npy", "--accept", "0.9"))
    assert found == {"threshold": truing.threshold_at(np.load("base.npy"), accept=0.9), "accept": 0.9, "rows": 200}


def test_saved_moments_add_up_to_the_fit(here, capsys):
    run(capsys, "fit", "test.npz", "--moments", "moments.npz", "-o", "fit.npz")
    np.testing.assert_array_equal(truing.load("moments.npz").solve().coef, truing.load("fit.npz").coef)
    assert "--moments goes with --method dlr" in fails(
        capsys, "fit", "test.npz", "--method", "rlr", "--moments", "m.npz", "-o", "f.npz"
    )
    assert not (here / "f.npz").exists()


def test_the_scores_of_a_table_are_read_back(here, capsys):
    run(capsys, "detect", "test.npz", "-o", "scores.csv")
    run(capsys, "detect", "test.npz", "-o", "scores.npy")
    assert run(capsys, "threshold", "scores.csv") == run(capsys, "threshold", "scores.npy")
    (here / "bad.csv").write_text("scores\nmany\n")
    assert "bad.csv must be a .csv file with a column of scores: the score in line 2" in fails(
        capsys, "threshold", "bad.csv"
    )


def test_evaluate_prints_the_report(here, capsys):
    run(capsys, "score", "test.npz", "-o", "in.npy")
    run(capsys, "score", "held.npz", "-o", "out.npy")
    found = json.loads(run(capsys, "evaluate", "in.npy", "out.npy", "--outputs", "test.npz", "--convention", "paper"))
    rows = truing.Outputs.load("test.npz")
    expected = truing.evaluate(np.load("in.npy"), np.load("out.npy"), convention="paper", correct=rows.correct())
    assert found == json.loads(expected.json())
    right = rows.logits.argmax(axis=1) == rows.labels
    is_refused = np.load("in.npy") < truing.threshold_at(np.load("in.npy"), accept=0.95)
    assert found["refused_right"] == pytest.approx(np.mean(is_refused[right]))
    assert found["refused_wrong"] == pytest.approx(np.mean(is_refused[~right]))


WRONG = {
    "no command": ([], "required"),
    "unknown command": (["guess"], "invalid choice"),
    "missing file": (["detect", "gone.npz"], "there is no file gone.npz"),
    "missing reference": (["detect", "test.npz", "--reference", "gone.npz"], "there is no file gone.npz"),
    "unknown base": (["detect", "test.npz", "--base", "tea"], "invalid choice: 'tea'"),
    "bad number": (["detect", "test.npz", "--components", "many"], "invalid int value: 'many'"),
    "too many components": (["detect", "test.npz", "--components", "9"], "at least 1 and at most 5, got 9"),
    "accept out of range": (
        ["detect", "test.npz", "--reference", "held.npz", "--accept", "95"],
        "accept must be above 0",
    ),
    "two rates": (["detect", "test.npz", "--reference", "held.npz", "--accept", "0.9", "--fdr", "0.1"], "not allowed"),
    "a rate without a reference": (["detect", "test.npz", "--fdr", "0.1"], "need a reference"),
    "unknown ending": (["detect", "test.npz", "-o", "scores.xls"], "scores.xls must end in"),
    "no folder": (["detect", "test.npz", "-o", "gone/scores.csv"], "there is no folder gone"),
    "no scores given": (
        ["score", "test.npz", "--base", "given", "-o", "x.npy"],
        "the score given needs scores, got Outputs(",
    ),
    "no output": (["score", "test.npz"], "the following arguments are required: -o"),
    "not a fit": (["apply", "test.npz", "test.npz", "-o", "x.npy"], "must be a file saved by truing.save"),
    "a detector as a fit": (
        ["apply", "detector.npz", "test.npz", "-o", "x.npy"],
        "detector.npz must hold a LinearFit or a ContrastFit, got Detector: save its current_fit",
    ),
    "an empty file": (["detect", "empty.npz"], "empty.npz must be an .npz file of plain arrays: it is empty"),
    "garbage": (["detect", "garbage.npz"], "garbage.npz must be an .npz file"),
    "nan": (["detect", "nan.npz"], "features must be finite"),
    "an option of another method": (["detect", "test.npz", "--order", "score-first"], "--order goes with --method onl"),
    "a share of another method": (["detect", "test.npz", "--keep", "7"], "--keep goes with --method rlr"),
    "the input as output": (
        ["detect", "test.npz", "-o", "test.npz"],
        "-o must be a file of its own, got test.npz, which OUTPUTS",
    ),
    "the moments as output": (
        ["fit", "test.npz", "--moments", "m.npz", "-o", "m.npz"],
        "-o must be a file of its own, got m.npz",
    ),
    "one good output of two": (
        ["fit", "test.npz", "--moments", "m.npz", "-o", "gone/f.npz"],
        "there is no folder gone",
    ),
    "a fit that is gone": (["apply", "gone.npz", "test.npz", "-o", "x.npy"], "there is no file gone.npz"),
    "scores that are gone": (["threshold", "gone.npy"], "there is no file gone.npy"),
    "a huge share": (["detect", "test.npz", "--reference", "held.npz", "--accept", "1e999"], "accept must be above 0"),
    "zero batch": (["detect", "test.npz", "--method", "online", "--batch", "0"], "batch must be at least 1"),
    "negative penalty": (["fit", "test.npz", "--method", "rlr", "--penalty", "-1", "-o", "x.npz"], "penalty must be"),
    "a fit of another ending": (["fit", "test.npz", "-o", "fit.npy"], "fit.npy must end in .npz, got .npy"),
    "a demo of another ending": (["demo", "-o", "demo.pdf"], "demo.pdf must end in .html, .htm, got .pdf"),
    "a reference that the score does not use": (
        ["score", "test.npz", "--base", "energy", "--reference", "held.npz", "-o", "x.npy"],
        "--reference goes with --base fdbd, nci, vim or knn",
    ),
    "a reference without a base score": (
        ["score", "test.npz", "--reference", "held.npz", "-o", "x.npy"],
        "--reference goes with --base fdbd",
    ),
    "a head that no score looks at": (
        ["detect", "test.npz", "--head", "held.npz"],
        "--head goes with --base scale, ash, fdbd, nci or vim",
    ),
    "a column of another name": (["threshold", "named.csv"], "it must have one column that is named scores, got score"),
    "labels missing": (
        ["evaluate", "in.npy", "in.npy", "--outputs", "nolabels.npz"],
        "correct() needs labels, got Outputs(",
    ),
    "an output without a name": (["detect", "test.npz", "-o", ""], "argument -o: a file's name must not be empty"),
    "an input without a name": (["detect", ""], "a file's name must not be empty"),
    "a name of two lines": (["detect", "two\n  lines.npz"], r"there is no file two\n  lines.npz"),
    "a folder as output": (["detect", "test.npz", "-o", "folder.csv"], "folder.csv: it is a folder"),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_gets_one_clear_line_and_writes_nothing(here, capsys, arguments, message):
    (here / "garbage.npz").write_bytes(b"garbage")
    (here / "empty.npz").touch()
    truing.save(truing.Detector(), here / "detector.npz")
    (here / "folder.csv").mkdir()
    np.savez("nan.npz", features=np.array([[np.nan]]), logits=np.ones((1, 2)))
    np.savez("nolabels.npz", features=np.ones((3, 1)), logits=np.ones((3, 2)))
    np.save("in.npy", np.arange(3.0))
    (here / "named.csv").write_text("score\n1.0\n")
    before = sorted(here.iterdir())
    assert message in fails(capsys, *arguments)
    assert sorted(here.iterdir()) == before


def test_the_installed_command_runs(here):
    command = Path(sys.executable).with_name("truing")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"truing {truing.__version__}\n"
    done = subprocess.run([command, "detect", "gone.npz"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "truing: there is no file gone.npz\n")


def test_a_reader_that_has_read_enough_is_no_error(here):
    command = f"{Path(sys.executable).with_name('truing')} bench data | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.mark.parametrize("rows", [1, 2, 12, 5_250_000])
@pytest.mark.parametrize("reference", [None, 1, 1200])
def test_numbers_of_rows_are_written_out_and_one_is_one(rows, reference):
    facts = {"rows": rows, "dimensions": 1, "base": "msp", "method": "dlr"}
    facts |= {"fit": {"rank": 1, "explained": 0.5, "fitted_rows": float(rows)}, "out_share_at_least": None}
    facts |= {"reference_rows": reference, "rate": {"accept": 0.9}, "threshold": None}
    facts |= {"refused": None if reference is None else min(rows, 1), "output": None, "report": None, "notes": []}
    text = summary.text(facts)
    assert f"of {rows:,} row{'s' if rows > 1 else ''}\n" in text + "\n"
    assert not re.search(r"\b1 (rows|reference rows|features)\b|\be\+|\d{4}", text)


def test_a_note_of_one_row_is_in_the_singular(here):
    rows = truing.Outputs.load("test.npz")
    few = detect(rows[:3], method="online", batch=2, order="score-first").notes
    assert [note for note in few if note.startswith("1 row was scored by a fit to few rows for its rank of 1,")]
    before = detect(rows[:2], method="online", batch=1, order="score-first").notes
    assert [note for note in before if note.startswith("1 row came before any fit")]


def test_of_one_row_there_is_nothing_to_fit_and_the_summary_says_so(here, capsys):
    truing.Outputs.load("test.npz")[:1].save("one.npz")
    printed = run(capsys, "detect", "one.npz")
    assert "fit        rank 0, the same score for every row, fitted to 1 row\n" in printed
    assert "the features do not vary: every row gets the same score" in printed
    assert "explains" not in printed
    assert "few rows" not in printed


def test_progress_shows_on_a_terminal_alone(here, capsys, monkeypatch):
    run(capsys, "detect", "test.npz", "--method", "online", "--batch", "100")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for method in ("online", "dlr"):  # Which are soon done.
        assert main(["detect", "test.npz", "--method", method]) == 0
        assert capsys.readouterr().err == ""
    monkeypatch.setattr("truing.cli.command.SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr("truing.cli.command._SECONDS_BETWEEN", 0.0)
    assert main(["detect", "test.npz", "--method", "online", "--batch", "100"]) == 0
    shown = capsys.readouterr().err
    assert "100 of 200 rows (50%)" in shown
    assert shown.endswith("\r\x1b[K")


def test_progress_is_wiped_before_the_answer_is_printed(here, monkeypatch):
    class Terminal(StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    monkeypatch.setattr("truing.cli.command.SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr("truing.cli.command._SECONDS_BETWEEN", 0.0)
    assert main(["detect", "test.npz", "--method", "online", "--batch", "100"]) == 0
    progress, answer = terminal.getvalue().rsplit("\r\x1b[K", 1)
    assert progress.endswith(" s")
    assert answer.startswith("rows ")


def test_a_number_of_threads_that_is_none_is_refused_whatever_the_rows(here, capsys, monkeypatch):
    monkeypatch.setenv("TRUING_THREADS", "abc")
    assert main(["detect", "test.npz"]) == 1
    assert capsys.readouterr().err == "truing: TRUING_THREADS must be a whole number of threads, got 'abc'\n"


def test_a_contrast_is_fitted_applied_and_detected_by_commands(here, capsys):
    rows, held = truing.Outputs.load("test.npz"), truing.Outputs.load("held.npz")
    for method in ([], ["--method", "contrast"]):
        run(capsys, "fit", "test.npz", *method, "--reference", "held.npz", "-o", "fit.npz")
        run(capsys, "apply", "fit.npz", "test.npz", "-o", "trued.npy")
        np.testing.assert_array_equal(np.load("trued.npy"), truing.fit_contrast(rows, held).predict(rows))
    contrast = ("detect", "test.npz", "--method", "contrast", "--reference", "held.npz")
    assert "energy, trued by contrast" in run(capsys, *contrast, "--same-mix", "--base", "energy")
    facts = json.loads(run(capsys, *contrast, "--json"))
    fit = truing.detect(rows, held, method="contrast").fit
    assert facts["fit"]["trust"] == pytest.approx(fit.trust)
    assert facts["fit"]["gain"] == pytest.approx(fit.gain)
    assert facts["fit"]["reference_rows_fitted"] == facts["reference_rows"] == 50


def test_by_default_detect_contrasts_with_a_reference_that_is_large_enough(here, capsys, rng):
    rows = truing.Outputs(rng.normal(size=(FEWEST_FOR_CONTRAST, 5)), rng.normal(size=(FEWEST_FOR_CONTRAST, 4)))
    for known, method in ((rows, "contrast"), (rows[1:], "dlr")):
        known.save("known.npz")
        assert json.loads(run(capsys, "detect", "test.npz", "--reference", "known.npz", "--json"))["method"] == method


def test_a_contrast_chooses_its_base_score_if_there_is_a_head(here, capsys):
    rng = np.random.default_rng(0)
    head = {"weight": rng.normal(size=(4, 8)), "bias": np.zeros(4)}
    features = rng.normal(size=(1300, 8)) + 3 * head["weight"][rng.integers(4, size=1300)]
    features[:300] *= 4  # Far away, with large logits: fdbd finds these rows, gen does not.
    features[:300] += 10 * rng.normal(size=(300, 8))
    outputs = truing.Outputs(features, features @ head["weight"].T)
    np.savez("head.npz", **head)
    outputs[:800].save("rows.npz")
    outputs[800:].save("known.npz")
    command = ("detect", "rows.npz", "--reference", "known.npz", "--json", "--head", "head.npz")
    found = truing.detect(outputs[:800], outputs[800:], head=tuple(head.values()))
    assert found.base == "fdbd"
    assert json.loads(run(capsys, *command))["base"] == found.base
    run(capsys, "fit", *command[1:4], "--head", "head.npz", "-o", "fit.npz")
    assert truing.load("fit.npz").base == found.base
    assert main([*command, "--method", "dlr"]) == 1
    assert "--head goes with --base" in capsys.readouterr().err


def test_a_head_and_a_bank_serve_the_scores_that_need_them(here, capsys, rng):
    rows, held = truing.Outputs.load("test.npz"), truing.Outputs.load("held.npz")
    head = {"weight": rng.normal(size=(rows.logits.shape[1], 5)), "bias": rng.normal(size=rows.logits.shape[1])}
    np.savez("head.npz", **head)
    run(capsys, "score", "test.npz", "--base", "scale", "--head", "head.npz", "-o", "scores.npy")
    np.testing.assert_array_equal(np.load("scores.npy"), truing.scale(rows.features, head["weight"], head["bias"]))
    run(capsys, "score", "test.npz", "--base", "knn", "--reference", "held.npz", "-o", "near.npy")
    np.testing.assert_array_equal(np.load("near.npy"), truing.knn(rows.features, held.features))
    run(capsys, "detect", "test.npz", "--reference", "held.npz", "--base", "ash", "--head", "head.npz")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fit", "test.npz", "--method", "contrast", "-o", "f.npz"], "--method contrast needs --reference"),
        (
            ["fit", "test.npz", "--method", "dlr", "--reference", "held.npz", "-o", "f.npz"],
            "--reference goes with --method contrast",
        ),
        (
            ["fit", "test.npz", "--reference", "held.npz", "--moments", "m.npz", "-o", "f.npz"],
            "--moments goes with --method dlr",
        ),
        (["detect", "test.npz", "--same-mix"], "--same-mix goes with --reference"),
        (["detect", "test.npz", "--method", "contrast"], "method contrast needs a reference"),
        (["detect", "test.npz", "--base", "scale"], "--base scale needs --head: the weight and bias of the last layer"),
        (
            ["score", "test.npz", "--base", "knn", "-o", "s.npy"],
            "--base knn needs --reference: known in-distribution rows",
        ),
        (["detect", "test.npz", "--base", "scale", "--head", "held.npz"], "weight"),
        (
            ["fit", "test.npz", "--method", "contrast", "--reference", "held.npz", "--no-intercept", "-o", "f.npz"],
            "--no-intercept does not go with --method contrast",
        ),
    ],
)
def test_options_of_a_contrast_that_do_not_fit_are_refused(here, capsys, arguments, message):
    assert main(arguments) == 1
    assert message in capsys.readouterr().err
    assert not (here / "f.npz").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["score", "test.npz", "--base", "scale", "--head", "head.npz", "-o", "head.npz"],
        ["score", "test.npz", "--base", "knn", "--reference", "held.npz", "-o", "held.npz"],
        ["detect", "test.npz", "--base", "scale", "--head", "head.npz", "-o", "head.npz"],
        ["fit", "test.npz", "--base", "scale", "--head", "head.npz", "-o", "head.npz"],
        ["fit", "test.npz", "--base", "scale", "--head", "head.npz", "--moments", "head.npz", "-o", "fit.npz"],
    ],
)
def test_no_command_writes_over_its_own_head_or_bank(here, capsys, rng, arguments):
    np.savez("head.npz", weight=rng.normal(size=(4, 5)), bias=rng.normal(size=4))
    before = {name: (here / name).read_bytes() for name in ("head.npz", "held.npz")}
    written = "--moments" if "--moments" in arguments else "-o"
    read = "--reference" if "--reference" in arguments else "--head"
    assert main(arguments) == 1
    assert re.search(rf"{written} must be a file of its own, got \S+, which {read} names", capsys.readouterr().err)
    assert {name: (here / name).read_bytes() for name in before} == before


TABLES = ["named.npz", "named.parquet", "named.feather"]
WORDS = [f"image {row}, ä" for row in range(200)]


def named(path, **ids):
    """Write rows whose columns have other names, and what names the rows."""
    rows = truing.Outputs.load("test.npz")
    columns = {"emb": rows.features, "out": rows.logits, **ids}
    if path.endswith(".npz"):
        np.savez(path, **columns)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        table = pyarrow.table({name: pyarrow.array(list(column)) for name, column in columns.items()})
        import pyarrow.feather
        import pyarrow.parquet

        write = pyarrow.parquet.write_table if path.endswith(".parquet") else pyarrow.feather.write_feather
        write(table, path)


@pytest.mark.parametrize("output", ["found.csv", "found.npz", "found.parquet"])
@pytest.mark.parametrize("ids", [WORDS, list(range(1000, 1200))], ids=["words", "numbers"])
@pytest.mark.parametrize("path", TABLES)
def test_columns_of_other_names_are_read_and_rows_keep_their_ids(here, capsys, path, ids, output):
    named(path, key=np.array(ids))
    names = ["--features", "emb", "--logits", "out"]
    run(capsys, "detect", "test.npz", "-o", "plain.npy")
    run(capsys, "detect", path, *names, "--id", "key", "-o", output)
    columns = columns_of(here / output)
    assert list(columns)[:3] == ["id", "row", "base"]
    assert [type(ids[0])(value) for value in columns["id"]] == ids
    np.testing.assert_array_equal(np.array(columns["scores"], float), np.load("plain.npy"))
    run(capsys, "score", path, *names, "--id", "key", "--base", "energy", "-o", output)
    columns = columns_of(here / output)
    assert list(columns) == ["id", "row", "scores"]
    expected = truing.energy(truing.Outputs.load("test.npz").logits)
    np.testing.assert_array_equal(np.array(columns["scores"], float), expected)
    run(capsys, "fit", path, *names, "-o", "fit.npz")
    run(capsys, "apply", "fit.npz", path, *names, "--id", "key", "-o", output)
    assert [type(ids[0])(value) for value in columns_of(here / output)["id"]] == ids


def columns_of(path):
    """Return the columns of a result file as lists."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        return {name: [line[name] for line in lines] for name in lines[0]}
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {name: file[name].tolist() for name in file}
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pydict()


def test_the_index_that_pandas_writes_names_rows_like_any_column(here, capsys):
    pandas = pytest.importorskip("pandas")
    rows = truing.Outputs.load("test.npz")
    days = pandas.date_range("2024-01-01", periods=200)
    frame = pandas.DataFrame({"features": list(rows.features), "logits": list(rows.logits)}, index=days)
    frame.to_parquet("days.parquet")
    run(capsys, "detect", "days.parquet", "--id", "__index_level_0__", "-o", "found.csv")
    assert columns_of(here / "found.csv")["id"][31].startswith("2024-02-01")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["named.npz", "--features", "z"], "named.npz must hold z, got"),
        (["named.npz", "--features", "emb", "--logits", "z"], "named.npz must hold z, got"),
        (["named.parquet", "--features", "emb", "--logits", "z"], "named.parquet must hold z, got"),
        (["named.npz", "--features", "emb", "--id", "z", "-o", "found.csv"], "named.npz must hold z, got"),
        (["named.parquet", "--features", "emb", "--logits", "out", "--id", "z", "-o", "f.csv"], "must hold z, got"),
        (["named.npz", "--features", "emb", "--logits", "out", "--id", "few", "-o", "f.csv"], "few 3, features 200"),
        (["named.npz", "--features", "emb", "--logits", "out", "--id", "emb", "-o", "f.csv"], "emb must be integers"),
        (
            ["named.parquet", "--features", "emb", "--logits", "out", "--id", "emb", "-o", "f.csv"],
            "emb must be an int",
        ),
        (["named.npz", "--id", "key"], "--id goes with -o"),
        (
            ["val_features.npy", "--features", "emb"],
            "fixed names, got the name emb",
        ),
        (
            ["val_features.npy", "--id", "key", "-o", "f.csv"],
            "fixed names, got the name key",
        ),
    ],
)
def test_a_name_of_no_column_is_refused(here, capsys, arguments, message):
    rows = truing.Outputs.load("test.npz")
    named("named.npz", key=np.arange(200), few=np.arange(3))
    named("named.parquet", key=np.arange(200))
    np.save("val_features.npy", rows.features)
    np.save("val_logits.npy", rows.logits)
    assert message in fails(capsys, "detect", *arguments)
    assert not (here / "f.csv").exists()
