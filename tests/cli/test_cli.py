"""The commands on files: results, errors and warnings."""

import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.cli.command import run as main

COMMANDS = ["detect", "decide", "learn", "score", "fit", "apply", "merge", "threshold", "evaluate", "export"]
COMMANDS += ["demo", "bench", "serve"]
GROUPS = np.repeat(np.arange(40), 5)
NAMES = np.array([f"video {number}, ä" for number in GROUPS])
REFERENCE = ["--reference", "reference.npz"]


@pytest.fixture
def folder(tmp_path, monkeypatch, rng) -> Path:
    """Return a working directory with 200 test rows and 100 reference rows."""
    monkeypatch.chdir(tmp_path)
    features = rng.normal(1, 1, size=(300, 5))
    logits = features @ rng.normal(size=(5, 4)) + rng.normal(size=(300, 4))
    rows = truing.Outputs(features, logits, rng.integers(0, 4, size=300))
    rows[:200].save("test.npz")
    rows[200:].save("reference.npz")
    return tmp_path


@pytest.fixture
def rows(folder) -> truing.Outputs:
    return truing.Outputs.load("test.npz")


@pytest.fixture
def reference(folder) -> truing.Outputs:
    return truing.Outputs.load("reference.npz")


def run(capsys, *arguments: str) -> str:
    """Run a command that succeeds, and return its standard output."""
    assert main(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def warnings_of(capsys, *arguments: str) -> list[str]:
    """Run a command that succeeds, and return its warnings."""
    assert main(list(arguments)) == 0
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("truing: warning: ") for line in lines)
    return [line.removeprefix("truing: warning: ") for line in lines]


def error_of(capsys, *arguments: str) -> str:
    """Run a command that fails: one line on stderr, exit code 1, nothing on stdout, and no new file."""
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    try:
        code = main(list(arguments))
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("truing")
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before
    return err


def columns_of(name: str) -> dict[str, list]:
    """Return the columns of a result file as lists."""
    path = Path(name)
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        return {column: [line[column] for line in lines] for column in lines[0]}
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {column: file[column].tolist() for column in file}
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pydict()


def write(path: str, **columns: object) -> None:
    """Write columns to an `.npz` or Parquet file."""
    if path.endswith(".npz"):
        np.savez(path, **columns)
        return
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({name: list(column) for name, column in columns.items()}), path)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example_and_is_documented(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"example: truing {command}" in " ".join(capsys.readouterr().out.split())
    assert f"truing {command}" in (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


@pytest.mark.parametrize(("method", "base"), [("dlr", "msp"), ("rlr", "energy"), ("contrast", "energy")])
def test_detect_prints_and_writes_the_result_of_the_library(capsys, rows, reference, method, base):
    options = ["--method", method, "--base", base]
    printed = run(capsys, "detect", "test.npz", *REFERENCE, *options, "-o", "scores.csv")
    result = truing.detect(rows, reference, method=method, base=base)
    columns = columns_of("scores.csv")
    np.testing.assert_array_equal(np.array(columns["scores"], float), result.scores)
    assert columns["is_out"] == [str(is_out) for is_out in result.is_out]
    assert f"{base}, trued by {method}" in printed
    assert f"accept 0.95 by {result.reference_rows} reference rows, threshold {result.threshold:.6g}" in printed
    assert f"{result.is_out.sum()} rows, {result.is_out.mean():.1%}" in printed
    printed = json.loads(run(capsys, "detect", "test.npz", *REFERENCE, *options, "--json"))
    expected = {"rows": 200, "dimensions": 5, "base": base, "method": method, "rate": {"accept": 0.95}}
    expected |= {"refused": int(result.is_out.sum()), "threshold": result.threshold, "notes": list(result.notes)}
    assert {name: printed[name] for name in expected} == expected


def test_without_a_reference_there_are_ranks_and_no_decisions(folder, capsys):
    assert any(
        "scores but no decisions" in line for line in warnings_of(capsys, "detect", "test.npz", "-o", "scores.csv")
    )
    columns = columns_of("scores.csv")
    assert list(columns) == ["row", "base", "scores", "rank"]
    assert columns["rank"][int(np.argmin(np.array(columns["scores"], float)))] == "1"


def test_score_first_marks_the_rows_before_any_fit(folder, capsys):
    arguments = ["detect", "test.npz", "--method", "online", "--batch", "50", "--order", "score-first"]
    assert any("50 rows came before any fit" in line for line in warnings_of(capsys, *arguments, "-o", "scores.csv"))
    assert columns_of("scores.csv")["trued"] == ["False"] * 50 + ["True"] * 150


@pytest.mark.parametrize("method", ["dlr", "rlr"])
def test_fit_and_apply_give_the_scores_of_detect(folder, capsys, method):
    run(capsys, "detect", "test.npz", "--base", "energy", "--method", method, "-o", "whole.npy")
    run(capsys, "fit", "test.npz", "--base", "energy", "--method", method, "-o", "fit.npz")
    run(capsys, "apply", "fit.npz", "test.npz", "-o", "steps.npy")
    np.testing.assert_array_equal(np.load("steps.npy"), np.load("whole.npy"))


@pytest.mark.parametrize("method", [[], ["--method", "contrast"]])
def test_fit_with_a_reference_is_a_contrast(capsys, rows, reference, method):
    run(capsys, "fit", "test.npz", *method, *REFERENCE, "-o", "fit.npz")
    run(capsys, "apply", "fit.npz", "test.npz", "-o", "trued.npy")
    np.testing.assert_array_equal(np.load("trued.npy"), truing.fit_contrast(rows, reference).predict(rows))


def test_threshold_and_evaluate_print_the_results_of_the_library(capsys, rows):
    run(capsys, "score", "test.npz", "--base", "energy", "-o", "in.npy")
    run(capsys, "score", "reference.npz", "-o", "out.npy")
    scores_in, scores_out = np.load("in.npy"), np.load("out.npy")
    np.testing.assert_array_equal(scores_in, truing.energy(rows.logits))
    printed = json.loads(run(capsys, "threshold", "in.npy", "--accept", "0.9"))
    assert printed == {"threshold": truing.threshold_at(scores_in, accept=0.9), "accept": 0.9, "rows": 200}
    printed = run(capsys, "evaluate", "in.npy", "out.npy", "--outputs", "test.npz", "--convention", "paper")
    expected = truing.evaluate(scores_in, scores_out, convention="paper", correct=rows.correct())
    assert json.loads(printed) == json.loads(expected.json())


def test_base_scores_use_the_head_and_the_reference(capsys, rows, reference, rng):
    head = {"weight": rng.normal(size=(4, 5)), "bias": rng.normal(size=4)}
    np.savez("head.npz", **head)
    run(capsys, "score", "test.npz", "--base", "scale", "--head", "head.npz", "-o", "scores.npy")
    np.testing.assert_array_equal(np.load("scores.npy"), truing.scale(rows.features, head["weight"], head["bias"]))
    run(capsys, "score", "test.npz", "--base", "knn", *REFERENCE, "-o", "near.npy")
    np.testing.assert_array_equal(np.load("near.npy"), truing.knn(rows.features, reference.features))
    printed = run(capsys, "detect", "test.npz", *REFERENCE, "--method", "contrast", "--head", "head.npz", "--json")
    expected = truing.detect(rows, reference, method="contrast", head=tuple(head.values()))
    assert json.loads(printed)["base"] == expected.base


@pytest.mark.parametrize("path", ["reference.npz", "reference.parquet"])
@pytest.mark.parametrize("labels", [GROUPS, NAMES], ids=["numbers", "names"])
def test_groups_of_the_reference_stay_together(folder, capsys, path, labels):
    sample = truing.sample()
    rows, known = sample[:300], sample[300 : 300 + len(GROUPS)]
    rows.save("test.npz")
    write(path, features=known.features, logits=known.logits, video=labels)
    options = ["--reference", path, "--groups", "video"]
    run(capsys, "detect", "test.npz", *options, "-o", "found.npz")
    expected = truing.detect(rows, known, groups=labels)
    np.testing.assert_array_equal(columns_of("found.npz")["p_values"], expected.p_values)
    assert not np.array_equal(expected.p_values, truing.detect(rows, known).p_values)
    run(capsys, "fit", "test.npz", *options, "-o", "fit.npz")
    expected_fit = truing.fit_contrast(rows, known, groups=labels)
    np.testing.assert_array_equal(truing.load("fit.npz").predict(rows), expected_fit.predict(rows))
    Path("parts").mkdir()
    rows[:200].save("parts/a.npz")
    rows[200:].save("parts/b.npz")
    printed = json.loads(run(capsys, "detect", "parts", *options, "-o", "found", "--json"))
    assert printed["refused"] == expected.is_out.sum()


@pytest.mark.parametrize("output", ["found.csv", "found.npz", "found.parquet"])
@pytest.mark.parametrize("path", ["named.npz", "named.parquet"])
@pytest.mark.parametrize("ids", [[f"image {row}, ä" for row in range(200)], list(range(1000, 1200))], ids=type)
def test_columns_may_have_other_names_and_results_have_the_ids(capsys, rows, path, ids, output):
    write(path, emb=rows.features, out=rows.logits, key=ids)
    names = [path, "--features", "emb", "--logits", "out"]
    run(capsys, "fit", *names, "-o", "fit.npz")
    for command in (["detect"], ["score", "--base", "msp"], ["apply", "fit.npz"]):
        run(capsys, *command, *names, "--id", "key", "-o", output)
        columns = columns_of(output)
        assert [type(ids[0])(value) for value in columns["id"]] == ids
        expected = truing.msp(rows.logits) if command[0] == "score" else truing.detect(rows).scores
        np.testing.assert_array_equal(np.array(columns["scores"], float), expected)


def test_a_pandas_table_with_a_column_for_each_feature_is_read(capsys, rows, reference):
    pandas = pytest.importorskip("pandas")
    days = pandas.date_range("2024-01-01", periods=200)
    for path, outputs, index in (("rows.parquet", rows, days), ("known.parquet", reference, None)):
        columns = {f"f{number}": column for number, column in enumerate(outputs.features.T)}
        columns |= {f"l{number}": column for number, column in enumerate(outputs.logits.T)}
        pandas.DataFrame(columns | {"file": "cat.png", "label": 1}, index=index).to_parquet(path)
    assert "f* must match only columns with" in error_of(capsys, "detect", "rows.parquet", "--features", "f*")
    label = "the pattern l* matches label, as well as l0 to l3"
    wide = ["detect", "rows.parquet", "--features", "f[0-9]*", "--logits", "l*"]
    assert any(line.startswith(label) for line in warnings_of(capsys, *wide))
    patterns = ["--features", "f[0-9]*", "--logits", "l[0-9]*", "--id", "__index_level_0__"]
    run(capsys, "detect", "rows.parquet", "--reference", "known.parquet", *patterns, "-o", "found.csv")
    columns = columns_of("found.csv")
    np.testing.assert_array_equal(np.array(columns["scores"], float), truing.detect(rows, reference).scores)
    assert columns["id"][31].startswith("2024-02-01")


def test_a_column_of_scores_is_the_default_base_score(capsys, rows, reference):
    own = {"test.npz": rows, "reference.npz": reference}
    own = {path: truing.Outputs(some.features, some.logits, scores=some.features[:, 0]) for path, some in own.items()}
    for path, some in own.items():
        some.save(path)
    assert "given, trued by dlr" in run(capsys, "detect", "test.npz", *REFERENCE)
    assert "given, trued by dlr" in run(capsys, "detect", "test.npz", *REFERENCE, "-o", "parts")
    run(capsys, "score", "test.npz", "-o", "base.npy")
    np.testing.assert_array_equal(np.load("base.npy"), own["test.npz"].scores)
    run(capsys, "fit", "test.npz", "-o", "fit.npz")
    expected = truing.fit_direct(rows.features, rows.features[:, 0])
    np.testing.assert_array_equal(truing.load("fit.npz").coef, expected.coef)
    reference.save("reference.npz")
    assert "reference must have scores, as the outputs have" in error_of(capsys, "detect", "test.npz", *REFERENCE)
    unused = "the column scores is not used: the base score is msp"
    assert unused in warnings_of(capsys, "detect", "test.npz", *REFERENCE, "--base", "msp")
    assert unused in warnings_of(capsys, "score", "test.npz", "--base", "msp", "-o", "base.npy")


def copy_of_reference(path: str) -> str:
    shutil.copy("reference.npz", path)
    return path


SAME_ROWS = {
    "the same file": lambda: "reference.npz",
    "a link": lambda: Path("link.npz").symlink_to("reference.npz") or "link.npz",
    "a copy": lambda: copy_of_reference("copy.npz"),
    "another format": lambda: truing.Outputs.load("reference.npz").save("copy.parquet") or "copy.parquet",
    "a part": lambda: Path("parts").mkdir() or (copy_of_reference("parts/a.npz") and "parts"),
}


@pytest.mark.parametrize("same", SAME_ROWS.values(), ids=SAME_ROWS)
@pytest.mark.parametrize(
    "command",
    [
        ["detect", "--method", "dlr"],
        ["detect", "-o", "found"],
        ["fit", "--method", "contrast", "-o", "fit.npz"],
        ["score", "--base", "knn", "-o", "scores"],
    ],
    ids=" ".join,
)
def test_the_reference_must_differ_from_the_rows(folder, capsys, command, same):
    rows = same()
    if rows == "parts" and "-o" not in command:
        command = [*command, "-o", "found"]
    message = error_of(capsys, command[0], rows, *command[1:], *REFERENCE)
    assert re.search("--reference and OUTPUTS must be different files|reference must differ from outputs", message)


def test_scores_of_inside_and_outside_must_differ(folder, capsys):
    np.save("a.npy", np.arange(5.0))
    Path("copy.csv").write_text("scores\n0\n1\n2\n3\n4\n")
    Path("link.npy").symlink_to("a.npy")
    for other in ("a.npy", "link.npy", "copy.csv"):
        for more in ([], ["--outputs", "test.npz"]):
            message = error_of(capsys, "evaluate", "a.npy", other, *more)
            assert re.search("must be different files, got .* for both|must differ from scores_in", message)


def test_a_warning_is_printed_once_on_one_line(folder, capsys):
    lines = warnings_of(capsys, "detect", "test.npz", "--json")
    assert lines == list(dict.fromkeys(lines)) != []


WRONG = {
    "an unknown option": ("detect test.npz --tea", "truing detect: unrecognized arguments: --tea (see truing detect"),
    "rows in a .csv file": ("detect named.csv", "to hold rows, got .csv: convert it"),
    "no scores": ("score test.npz --base given -o x.npy", "the score given needs scores, got Outputs("),
    "a detector as a fit": (
        "apply detector.npz test.npz -o x.npy",
        "must contain a LinearFit or a ContrastFit, got Det",
    ),
    "an option of another method": ("detect test.npz --order score-first", "--order needs --method online"),
    "a share of another method": ("detect test.npz --keep 7", "--keep needs --method rlr"),
    "two outputs in one file": ("fit test.npz --moments m.npz -o m.npz", "-o and --moments must be different files"),
    "a head as output": ("score test.npz --base scale --head test.npz -o test.npz", "-o and OUTPUTS must be"),
    "one bad output of two": ("fit test.npz --moments m.npz -o gone/f.npz", "there is no folder gone"),
    "a demo of another ending": ("demo -o demo.pdf", "demo.pdf must end in .html, .htm, got .pdf"),
    "an unused reference": (
        "score test.npz --base energy --reference reference.npz -o x.npy",
        "--reference needs --base fdbd, nci, vim or knn",
    ),
    "an unused head": ("detect test.npz --head reference.npz", "--head needs --base scale, ash, fdbd, nci or vim"),
    "a head that is missing": ("detect test.npz --base scale", "--base scale needs --head: the weight and bias of"),
    "rows as a head": ("detect test.npz --base scale --head reference.npz", "reference.npz must contain weight"),
    "a reference that is missing": ("score test.npz --base knn -o x.npy", "--base knn needs --reference: in-distr"),
    "a folder as output": ("detect test.npz -o folder.csv", "folder.csv: it is a folder"),
    "a contrast without a reference": (
        "fit test.npz --method contrast -o f.npz",
        "--method contrast needs --reference",
    ),
    "a reference of a dlr": (
        "fit test.npz --method dlr --reference reference.npz -o f.npz",
        "--reference needs --method contrast",
    ),
    "moments of a contrast": (
        "fit test.npz --reference reference.npz --moments m.npz -o f.npz",
        "--moments needs --method dlr",
    ),
    "a contrast without an intercept": (
        "fit test.npz --method contrast --reference reference.npz --no-intercept -o f.npz",
        "--no-intercept cannot be used with --method contrast",
    ),
    "a mix without a reference": ("detect test.npz --same-mix", "--same-mix needs --reference"),
    "groups without a reference": ("detect test.npz --groups video", "--groups needs --reference"),
    "groups of a dlr": ("fit test.npz --groups video -o f.npz", "--groups needs --method contrast"),
    "an unknown group column": (
        "detect test.npz --reference reference.npz --groups video",
        "--groups video: reference.npz must contain video, got features, logits, labels\n",
    ),
    "a group column of lists": (
        "detect test.npz --reference reference.npz --groups logits",
        "--groups logits: logits must be integers",
    ),
    "a wrong column": ("detect test.npz --features z", "test.npz must contain z, got features, logits, labels"),
    "an unnamed column": ("detect named.npz", "named.npz must contain features, got emb, few: name the column"),
    "ids of few rows": ("detect named.npz --features emb --id few -o f.csv", "few 3, features 200"),
    "ids of lists": ("detect named.npz --features emb --id emb -o f.csv", "emb must be integers"),
    "ids without an output": ("detect test.npz --id labels", "--id needs -o"),
    "a name in .npy files": ("detect val_features.npy --features emb", "fixed names, got the name emb"),
    "a false discovery rate of a network": (
        "export --fdr 0.05 fit.npz model.onnx -o x.onnx",
        "--fdr needs all rows of a batch, but a network decides each row by itself: use --false-alarm",
    ),
    "an unknown option of export": (
        "export fit.npz model.onnx --tea -o x.onnx",
        "truing export: unrecognized arguments: --tea (see truing export --help)",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_gets_one_clear_line_and_writes_nothing(folder, capsys, rows, arguments, message):
    Path("empty.npz").touch()
    Path("folder.csv").mkdir()
    Path("named.csv").write_text("score\n1.0\n")
    truing.save(truing.Detector(), "detector.npz")
    np.savez("nan.npz", features=np.array([[np.nan]]), logits=np.ones((1, 2)))
    np.savez("named.npz", emb=rows.features, few=np.arange(3))
    np.save("val_features.npy", rows.features)
    np.save("in.npy", np.arange(3.0))
    np.save("out.npy", np.arange(2.0))
    assert message in error_of(capsys, *arguments.split())


def test_an_invalid_number_of_threads_is_an_error(folder, capsys, monkeypatch):
    monkeypatch.setenv("TRUING_THREADS", "abc")
    assert "TRUING_THREADS must be a whole number of threads, got 'abc'" in error_of(capsys, "detect", "test.npz")


def test_one_row_has_a_fit_of_rank_0(capsys, rows):
    rows[:1].save("one.npz")
    assert "fit        rank 0, the same score for every row, fitted to 1 row\n" in run(capsys, "detect", "one.npz")
