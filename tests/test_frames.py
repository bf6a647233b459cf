"""A detection as a table: the same columns as its file, in every library."""

import sys

import numpy as np
import pytest

import truing
from truing.cli.command import run as main

LIBRARIES = ["pandas", pytest.param("polars", marks=pytest.mark.slow), "pyarrow"]  # Polars is large.
NUMBERS = ["row", "base", "scores", "rank", "p_values", "is_out"]


@pytest.fixture
def rows(rng) -> truing.Outputs:
    features = rng.normal(1, 1, size=(300, 5))
    return truing.Outputs(features, features @ rng.normal(size=(5, 4)) + rng.normal(size=(300, 4)))


@pytest.fixture
def result(rows) -> truing.Detection:
    with pytest.warns(truing.TruingWarning, match="no row can be refused"):
        return truing.detect(rows[:200], rows[200:], false_alarm=0.005)


def names(frame):
    return list(frame.column_names if hasattr(frame, "column_names") else frame.columns)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_table_has_a_line_for_each_row(result, library):
    pytest.importorskip(library)
    ids = [f"image-{row}" for row in range(200)]
    frame = result.to_frame(library, ids=ids)
    assert type(frame).__module__.split(".")[0] == library
    assert names(frame) == ["id", *NUMBERS, "notes"]
    assert list(map(str, np.asarray(frame["id"]))) == ids
    np.testing.assert_array_equal(frame["row"], range(200))
    np.testing.assert_array_equal(frame["base"], result.base_scores)
    np.testing.assert_array_equal(frame["scores"], result.scores)
    np.testing.assert_array_equal(frame["p_values"], result.p_values)
    np.testing.assert_array_equal(frame["is_out"], result.is_out)
    ranks = [1 + sum(other < score for other in result.scores) for score in result.scores]
    np.testing.assert_array_equal(frame["rank"], ranks)
    assert result.notes
    assert {str(note) for note in np.asarray(frame["notes"])} == {"; ".join(result.notes)}


@pytest.mark.parametrize("library", LIBRARIES)
def test_without_a_reference_a_table_has_no_decisions(rows, library):
    pytest.importorskip(library)
    assert names(truing.detect(rows).to_frame(library)) == ["row", "base", "scores", "rank", "notes"]
    stream = truing.detect(rows, method="online", order="score-first").to_frame(library)
    assert names(stream) == ["row", "base", "scores", "trued", "notes"]
    np.testing.assert_array_equal(stream["trued"], np.arange(300) >= 32)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_table_equals_the_parquet_file_of_the_command_and_can_be_written_to_parquet(tmp_path, rows, library):
    package = pytest.importorskip(library)
    parquet = pytest.importorskip("pyarrow.parquet")
    rows[:200].save(tmp_path / "rows.npz")
    rows[200:].save(tmp_path / "reference.npz")
    words = [tmp_path / "rows.npz", "--reference", tmp_path / "reference.npz", "-o", tmp_path / "result.parquet"]
    assert main(["detect", *map(str, words)]) == 0
    file = parquet.read_table(tmp_path / "result.parquet")
    frame, path = truing.detect(rows[:200], rows[200:]).to_frame(library), tmp_path / "frame.parquet"
    if library == "pandas":
        frame.to_parquet(path)
    elif library == "polars":
        frame.write_parquet(path)
    else:
        package.parquet.write_table(frame, path)
    again = parquet.read_table(path)
    assert again.column_names == [*file.column_names, "notes"]
    for name in file.column_names:
        np.testing.assert_array_equal(file[name], again[name])


def test_invalid_requests_are_rejected_by_name(result, monkeypatch):
    """NumPy has no missing integers. In float64, 2**53 + 1 would become another number."""
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    ids = [2**53 + 1 + row for row in range(200)]
    for given in (ids, [f"image-{number}" for number in ids]):
        assert result.to_frame("pyarrow", ids=pyarrow.array(given))["id"].to_pylist() == given
    some = [*ids[:-1], None]
    missing = "ids must have no missing values, got 1"
    for wrong, message in (
        ([1, 2, 3], "ids and scores must have the same number of rows, got ids 3, scores 200"),
        (np.ones((200, 1)), r"ids must be 1-D \(n,\), got shape \(200, 1\)"),
        (np.where(np.arange(200) == 7, np.nan, 1.0), missing),
        (["nan"] * 199 + [None], missing),
        (some, missing),
        (pyarrow.array(some), missing),
        (pandas.Series(some, dtype="Int64"), missing),
        (pandas.Series(pandas.to_datetime(["2020-01-01"] * 199 + [None])), missing),
    ):
        with pytest.raises(ValueError, match=message):
            result.to_frame("pyarrow", ids=wrong)
    with pytest.raises(ValueError, match="library must be one of pandas, polars, pyarrow, got 'dplyr'"):
        result.to_frame("dplyr")
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(ImportError, match=r"to_frame\('polars'\) needs polars: pip install polars"):
        result.to_frame("polars")
