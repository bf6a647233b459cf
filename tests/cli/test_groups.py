"""The option --groups: commands split a reference by the groups that a column of its file names."""

import json
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.cli.command import run as main

FILMS, FRAMES = 40, 5
NUMBERS = np.repeat(np.arange(FILMS), FRAMES)
WORDS = np.array([f"film {number}, ä" for number in NUMBERS])
FILES = ["held.npz", "held.parquet", "held.feather"]


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = truing.sample()
    rows[:300].save("test.npz")
    rows[300 : 300 + len(NUMBERS)].save("plain.npz")
    return tmp_path


def write_reference(path: str, **more: np.ndarray) -> None:
    """Write the rows of plain.npz with more columns."""
    rows = truing.Outputs.load("plain.npz")
    write(path, {"features": rows.features, "logits": rows.logits, **more})


def write(path: str, columns: dict[str, np.ndarray]) -> None:
    if path.endswith(".npz"):
        np.savez(path, **columns)
        return
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({name: pyarrow.array(list(column)) for name, column in columns.items()})
    if path.endswith(".parquet"):
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        pytest.importorskip("pyarrow.feather").write_feather(table, path)


def run(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def error(capsys, *arguments: str) -> str:
    assert main(list(arguments)) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("labels", [NUMBERS, WORDS], ids=["numbers", "words"])
def test_detect_splits_the_reference_by_the_groups_of_the_column(here, capsys, path, labels):
    write_reference(path, film=labels)
    run(capsys, "detect", "test.npz", "--reference", path, "--groups", "film", "-o", "found.npz")
    rows, held = truing.Outputs.load("test.npz"), truing.Outputs.load(path)
    with np.load("found.npz") as found:
        np.testing.assert_array_equal(found["p_values"], truing.detect(rows, held, groups=labels).p_values)
        assert not np.array_equal(found["p_values"], truing.detect(rows, held).p_values)


@pytest.mark.parametrize("path", FILES)
def test_fit_splits_the_reference_by_the_groups_of_the_column(here, capsys, path):
    write_reference(path, film=WORDS)
    fit = ("fit", "test.npz", "--method", "contrast", "--reference", path)
    run(capsys, *fit, "--groups", "film", "-o", "fit.npz")
    rows, held = truing.Outputs.load("test.npz"), truing.Outputs.load(path)
    expected = truing.fit_contrast(rows, held, groups=WORDS).predict(rows)
    np.testing.assert_array_equal(truing.load("fit.npz").predict(rows), expected)


def test_tables_in_parts_take_groups(here, capsys):
    write_reference("held.npz", film=NUMBERS)
    rows, held = truing.Outputs.load("test.npz"), truing.Outputs.load("held.npz")
    (here / "parts").mkdir()
    rows[:200].save("parts/a.npz")
    rows[200:].save("parts/b.npz")
    arguments = ("detect", "parts", "--reference", "held.npz", "--method", "contrast", "-o", "found", "--json")
    found = json.loads(run(capsys, *arguments, "--groups", "film"))
    expected = truing.detect(rows, held, method="contrast", groups=NUMBERS)
    assert found["refused"] == int(expected.is_out.sum())
    assert found["reference_rows"] == expected.reference_rows


@pytest.mark.parametrize("path", FILES)
@pytest.mark.parametrize("command", [("detect",), ("fit", "--method", "contrast", "-o", "fit.npz")])
def test_a_missing_column_is_an_error_that_names_the_option_the_column_and_the_columns_of_the_file(
    here, capsys, path, command
):
    write_reference(path, film=NUMBERS)
    name, *more = command
    message = error(capsys, name, "test.npz", *more, "--reference", path, "--groups", "movie")
    assert message == f"truing: --groups movie: {path} must hold movie, got features, logits, film\n"
    assert not (here / "fit.npz").exists()


def test_a_column_that_is_not_one_label_per_row_is_an_error(here, capsys):
    write_reference("held.npz", film=NUMBERS[:9], one=np.zeros(len(NUMBERS), int), share=NUMBERS / 7)
    arguments = ("detect", "test.npz", "--reference", "held.npz", "--groups")
    assert "groups must have shape (200,), one label per reference row, got shape (9,)" in error(
        capsys, *arguments, "film"
    )
    assert "groups must have at least 2 different labels, got 1" in error(capsys, *arguments, "one")
    assert "--groups share: share must be integers or strings (n,), got float64" in error(capsys, *arguments, "share")
    assert "--groups logits: logits must be integers" in error(capsys, *arguments, "logits")


@pytest.mark.parametrize("path", FILES[1:])
def test_a_reference_without_rows_is_an_error(here, capsys, path):
    write(path, {"features": np.zeros((0, 64)), "logits": np.zeros((0, 10)), "film": NUMBERS[:0]})
    assert f"{path} must have at least one row" in error(
        capsys, "detect", "test.npz", "--reference", path, "--groups", "film"
    )


def test_a_folder_of_arrays_has_no_column_to_name(here, capsys):
    held = truing.Outputs.load("plain.npz")
    (here / "held").mkdir()
    np.save("held/features.npy", held.features)
    np.save("held/logits.npy", held.logits)
    message = error(capsys, "detect", "test.npz", "--reference", "held", "--groups", "film")
    assert message.startswith("truing: --groups film: held is an .npy file, whose columns have fixed names")


def test_groups_go_with_a_reference(here, capsys):
    assert "--groups goes with --reference" in error(capsys, "detect", "test.npz", "--groups", "film")
    message = error(capsys, "fit", "test.npz", "--groups", "film", "-o", "fit.npz")
    assert "--groups goes with --method contrast" in message
    message = error(capsys, "serve", "--state", "state", "--features", "64", "--classes", "10", "--groups", "film")
    assert "--groups needs --reference, got none" in message
    assert not (here / "state").exists()
