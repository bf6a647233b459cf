"""The commands on tables in parts and on moments: what they write, and one clear line for what will not do."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.cli import command as cli
from truing.cli import tables as table_commands

from .files import read, written

Run = Callable[..., str]


@pytest.fixture
def run(
    rows: truing.Outputs,
    reference: truing.Outputs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Return what runs a command in a folder with a table, the same rows in a file, and known rows."""
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "logs", rows, [1000, 2500], "parquet")
    rows.save("all.npz")
    reference.save("held.npz")

    def run(*arguments: str, fails: bool = False) -> str:
        assert cli.run(arguments) == int(fails)
        out, err = capsys.readouterr()
        assert bool(err) == fails
        return err if fails else out

    return run


@pytest.mark.parametrize("outputs", ["logs", "logs/*.parquet"])
def test_detect_of_a_table_says_what_it_says_of_one_file(run: Run, outputs: str) -> None:
    in_parts = json.loads(run("detect", outputs, "--reference", "held.npz", "-o", "scores", "--json"))
    whole = json.loads(run("detect", "all.npz", "--reference", "held.npz", "--json"))
    assert (in_parts.pop("output"), whole.pop("output")) == ("scores", None)
    assert whole["method"] == "contrast"
    assert in_parts == whole  # To the bit, the fit and the threshold included.
    assert run("detect", outputs, "--reference", "held.npz", "-o", "scores").splitlines()[-1] == "wrote      scores"


def test_results_of_one_file_go_to_a_folder_where_that_is_asked_for(run: Run) -> None:
    run("detect", "all.npz", "--reference", "held.npz", "--method", "dlr", "-o", "scores")
    found = truing.detect(truing.Outputs.load("all.npz"), truing.Outputs.load("held.npz"), method="dlr")
    columns = read([Path("scores/all.csv")])
    np.testing.assert_allclose(columns["scores"], found.scores, atol=1e-12)
    np.testing.assert_array_equal(columns["p_values"], found.p_values)


@pytest.mark.parametrize("options", [[], ["--method", "rlr"], ["--reference", "held.npz"]])
def test_fit_and_apply_of_a_table_are_those_of_one_file(run: Run, options: list[str]) -> None:
    run("fit", "logs", *options, "-o", "parts.npz")
    run("fit", "all.npz", *options, "-o", "whole.npz")
    run("apply", "parts.npz", "logs", "-o", "trued")
    run("apply", "whole.npz", "all.npz", "-o", "trued.npy")
    scores = read(sorted(Path("trued").glob("*.parquet")))["scores"]
    wanted = np.load("trued.npy")
    assert np.abs(scores - wanted).max() < 1e-9 * np.std(wanted)
    assert not list(Path().glob(".*"))


def test_a_large_file_is_read_a_block_at_a_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("fit", "all.npz", "-o", "whole.npz")
    run("apply", "whole.npz", "all.npz", "-o", "whole.npy")
    monkeypatch.setattr(table_commands, "LARGE", 1000)
    monkeypatch.setattr(cli, "_rows", None)  # What reads all of it.
    run("fit", "all.npz", "-o", "blocks.npz")
    run("apply", "whole.npz", "all.npz", "-o", "blocks.npy")
    np.testing.assert_allclose(truing.load("blocks.npz").coef, truing.load("whole.npz").coef, atol=1e-12)
    np.testing.assert_array_equal(np.load("blocks.npy"), np.load("whole.npy"))


def test_a_glob_of_one_folder_lets_fits_lie_below_it(run: Run) -> None:
    Path("fits").mkdir()
    run("fit", "all*.npz", "-o", "fits/all.npz")
    assert truing.load("fits/all.npz").rows == 4000


def test_scores_of_no_rows_are_an_error(run: Run, rows: truing.Outputs) -> None:
    run("fit", "logs", "-o", "fit.npz")
    Path("bad").mkdir()
    np.savez("bad/rows.npz", features=np.full((5, 64), np.nan), logits=rows.logits[:5])
    Path("old.csv").write_text("old")
    told = run("apply", "fit.npz", "bad/*.npz", "-o", "old.csv", "--skip-bad-rows", fails=True)
    assert "must have a row that can be read, got none" in told


def test_moments_of_several_places_add_up_and_can_be_taken_away(run: Run) -> None:
    for number in range(3):
        run("fit", f"logs/part-{number}.parquet", "--moments", f"m{number}.npz", "--model", "r56", "-o", "one.npz")
    run("merge", "m0.npz", "m1.npz", "m2.npz", "-o", "all-moments.npz")
    assert run("merge", "all-moments.npz", "--minus", "m1.npz", "-o", "two.npz").startswith(
        "rows       2,500, 64 features"
    )
    run("fit", "all-moments.npz", "-o", "merged.npz")
    run("fit", "logs", "--moments", "of-table.npz", "-o", "table.npz")
    run("fit", "all.npz", "-o", "whole.npz")
    whole = truing.load("whole.npz")
    for name in ("merged.npz", "table.npz"):
        np.testing.assert_allclose(truing.load(name).coef, whole.coef, atol=1e-12)
    left = truing.load("m0.npz") + truing.load("m2.npz")
    run("fit", "two.npz", "--components", "5", "-o", "left.npz")
    np.testing.assert_allclose(truing.load("left.npz").coef, left.solve(components=5).coef, atol=1e-12)


def test_scores_in_parts_are_evaluated_together(run: Run) -> None:
    run("fit", "logs", "-o", "fit.npz")
    run("apply", "fit.npz", "logs", "-o", "trued")
    run("apply", "fit.npz", "held.npz", "-o", "known.npy")
    scores = read(sorted(Path("trued").glob("*.parquet")))["scores"]
    wanted = truing.evaluate(np.load("known.npy"), scores)
    for outside in ("trued", "trued/*.parquet"):
        assert json.loads(run("evaluate", "known.npy", outside)) == json.loads(wanted.json())
    assert json.loads(run("threshold", "trued", "--accept", "0.9"))["threshold"] == truing.threshold_at(
        scores, accept=0.9
    )
    Path("empty").mkdir()
    assert "there are no files of scores in empty" in run("threshold", "empty", fails=True)


@pytest.mark.slow
def test_a_cluster_of_processes_gives_the_same_files(run: Run) -> None:
    pytest.importorskip("distributed", reason="needs dask's distributed")
    run("detect", "logs", "--reference", "held.npz", "-o", "here")
    run("detect", "logs", "--reference", "held.npz", "-o", "there", "--workers", "2")
    for file in Path("here").glob("*.parquet"):
        assert file.read_bytes() == (Path("there") / file.name).read_bytes()


WRONG = {
    "no folder for results": (["detect", "logs"], "-o must name a folder for the results of a table"),
    "nothing matches": (["detect", "no/*.npz", "-o", "x"], "no file matches no/*.npz: there is no folder no"),
    "the rows' own folder": (["detect", "logs", "-o", "logs"], "-o must lie elsewhere than the rows, got logs"),
    "a folder among the rows": (["detect", "logs", "-o", "logs/out"], "-o must lie elsewhere than the rows"),
    "a fit over a part": (
        ["fit", "logs/*.parquet", "--moments", "x.npz", "-o", "logs/a.npz.parquet"],
        "must end in .npz",
    ),
    "a fit among the rows": (["fit", "logs", "-o", "logs/fit.npz"], "-o must lie elsewhere than the rows"),
    "a fit that matches": (["fit", "al?.npz", "-o", "alx.npz"], "-o must lie elsewhere than the rows, got alx.npz"),
    "moments over rows": (["fit", "al?.npz", "--moments", "all.npz", "-o", "x.npz"], "--moments must lie elsewhere"),
    "a fit below": (["fit", "**/al?.npz", "-o", "aly.npz"], "-o must lie elsewhere than the rows, got aly.npz"),
    "results below": (["detect", "logs/../*/*.parquet", "-o", "out"], "-o must lie elsewhere than the rows, got out"),
    "scores over the one part": (
        ["apply", "fit.npz", "logs/*-0.parquet", "-o", "logs/part-0.parquet"],
        "lie elsewhere",
    ),
    "options of moments": (["fit", "m.npz", "--workers", "2", "-o", "x.npz"], "--workers goes with a table in parts"),
    "moments of too many components": (
        ["fit", "logs", "--components", "65", "--moments", "x.npz", "-o", "y.npz"],
        "components must be at least 1 and at most 64, got 65",
    ),
    "a file for many parts": (["apply", "fit.npz", "logs", "-o", "x.csv"], "-o must be a folder for the scores of a"),
    "a file for many results": (["detect", "logs", "-o", "x.csv"], "-o must name a folder for the results of a table"),
    "another width of a table": (
        ["apply", "narrow-fit.npz", "logs", "-o", "x"],
        "table must have 5 features, as",
    ),
    "skipping in memory": (["detect", "all.npz", "--skip-bad-rows"], "--skip-bad-rows goes with a table in parts"),
    "workers in memory": (
        ["apply", "fit.npz", "all.npz", "--workers", "2", "-o", "x.csv"],
        "--workers goes with a table",
    ),
    "a stream": (["detect", "logs", "--method", "online", "-o", "x"], "method must not be online"),
    "ids": (["detect", "logs", "--id", "name", "-o", "x"], "--id goes with rows in one file"),
    "a page": (["detect", "logs", "--report", "x.html", "-o", "x"], "--report goes with rows in one file"),
    "twice": (["merge", "m.npz", "m.npz", "-o", "x.npz"], "each file of moments must be given once"),
    "a fit among moments": (["merge", "m.npz", "fit.npz", "-o", "x.npz"], "fit.npz must hold moments"),
    "another score": (["merge", "m.npz", "energy.npz", "-o", "x.npz"], "must hold moments of the base 'msp'"),
    "another width": (["merge", "m.npz", "narrow.npz", "-o", "x.npz"], "must hold moments of 64 features"),
    "another network": (["merge", "m.npz", "other.npz", "-o", "x.npz"], "must hold moments of the model 'r56'"),
    "more than there is": (
        ["merge", "m.npz", "--minus", "all-m.npz", "-o", "x.npz"],
        "all-m.npz: the moments taken away",
    ),
    "over its own": (["merge", "m.npz", "-o", "m.npz"], "-o must be a file of its own, got m.npz"),
    "a score of moments": (
        ["fit", "m.npz", "--base", "msp", "-o", "x.npz"],
        "--base goes with rows, and OUTPUTS holds",
    ),
    "RLR of moments": (["fit", "m.npz", "--method", "rlr", "-o", "x.npz"], "--method must be dlr for moments, got rlr"),
    "a name without moments": (["fit", "all.npz", "--model", "r56", "-o", "x.npz"], "--model goes with --moments"),
    "no workers": (["fit", "logs", "--workers", "0", "-o", "x.npz"], "workers must be at least 1, got 0"),
}


def test_what_will_not_do_gets_one_line_and_writes_nothing(run: Run) -> None:
    run("fit", "logs/part-0.parquet", "--moments", "m.npz", "--model", "r56", "-o", "fit.npz")
    run("fit", "logs/part-1.parquet", "--base", "energy", "--moments", "energy.npz", "-o", "fit.npz")
    run("fit", "logs/part-1.parquet", "--moments", "other.npz", "--model", "wrn", "-o", "fit.npz")
    run("fit", "logs", "--moments", "all-m.npz", "-o", "fit.npz")
    run("fit", "logs/part-1.parquet", "--moments", "next.npz", "-o", "fit.npz")
    run("merge", "m.npz", "next.npz", "-o", "sum.npz")
    narrow = truing.Outputs.load("all.npz")
    truing.Outputs(narrow.features[:, :5], narrow.logits).save("narrow-rows.npz")
    run("fit", "narrow-rows.npz", "--moments", "narrow.npz", "-o", "narrow-fit.npz")
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    for arguments, message in WRONG.values():
        error = run(*arguments, fails=True)
        assert message in error
        assert error.count("\n") == 1
        assert before == {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
