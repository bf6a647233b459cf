"""Columns of files: endings in any case, exact numbers, and errors that name the file and the column."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing.cli.command import run as main
from truing.data.jobs.score_files import read_score_blocks

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import feather  # noqa: E402

FEATURES, SCORES = np.arange(12.0).reshape(4, 3), np.array([0.5, -1.25, 1e-300, 3.0])
ENDINGS = ["npz", "parquet", "arrow", "feather"]
in_one_folder = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_scores(path):
    return np.concatenate(list(read_score_blocks(Path(path))))


@pytest.mark.parametrize("ending", [*ENDINGS, "NPZ", "Parquet", "aRROW"])
def test_endings_are_case_insensitive(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    truing.Outputs(FEATURES, scores=SCORES).save(path)
    np.testing.assert_array_equal(truing.Outputs.load(path).features, FEATURES)
    np.testing.assert_array_equal(read_scores(path), SCORES)


@in_one_folder
@given(
    scores=st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=9),
    start=st.sampled_from(["", "\ufeff"]),
    end=st.sampled_from(["\n", "\r\n"]),
    quote=st.sampled_from(["", '"']),
)
def test_scores_in_csv_files_are_read_exactly(tmp_path, scores, start, end, quote):
    lines = [f"{start}row,scores", *(f"{row},{quote}{score!r}{quote}" for row, score in enumerate(scores))]
    (tmp_path / "x.csv").write_bytes(end.join(lines).encode())
    np.testing.assert_array_equal(read_scores(tmp_path / "x.csv"), scores)


@in_one_folder
@given(
    names=st.permutations(["scores", "row", "base"]).map(lambda names: names[: names.index("scores") + 1]),
    fields=st.lists(st.integers(1, 5), min_size=1, max_size=4),
)
def test_a_csv_line_with_another_number_of_fields_is_an_error(tmp_path, names, fields):
    lines = [",".join(names), *(",".join(["0.5"] * count) for count in fields)]
    (tmp_path / "x.csv").write_text("\n".join(lines))
    bad = next((number for number, count in enumerate(fields) if count != len(names)), None)
    if bad is None:
        np.testing.assert_array_equal(read_scores(tmp_path / "x.csv"), [0.5] * len(fields))
        return
    expected = rf"x\.csv .*: line {bad + 2} must have {len(names)} fields, as the first line, got {fields[bad]}"
    with pytest.raises(ValueError, match=expected):
        read_scores(tmp_path / "x.csv")


def test_file_names_with_invalid_text_are_read_written_and_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = b"caf\xe9.parquet".decode(errors="surrogateescape")
    truing.Outputs(FEATURES, FEATURES).save(tmp_path / name)
    for flag in ([], ["--json"]):
        assert main(["detect", name, "-o", f"out-{name}", *flag]) == 0
        printed = capsys.readouterr().out
        assert r"out-caf\xe9.parquet" in (json.loads(printed)["output"] if flag else printed)
        assert len(read_scores(tmp_path / f"out-{name}")) == 4


def test_a_column_of_scores_must_contain_numbers(tmp_path):
    for name, column in {
        "dictionary": pyarrow.array([1.0, 1.0, 2.0]).dictionary_encode(),
        "string": pyarrow.array(["a", "b", "c"]),
        "date32": pyarrow.array([1, 2, 3], pyarrow.date32()),
        "list<": pyarrow.array([[[1.0]], [[2.0]], [[3.0]]]),
        "struct": pyarrow.array([{"a": 1.0}] * 3),
        "decimal": pyarrow.array([1, 2, 3]).cast(pyarrow.decimal128(20, 1)),
    }.items():
        feather.write_feather(pyarrow.table({"labels": ["a", "b", "c"], "scores": column}), str(tmp_path / "x.arrow"))
        with pytest.raises(ValueError, match=rf"x\.arrow .*scores must be numbers or lists of numbers, got {name}"):
            read_scores(tmp_path / "x.arrow")
    feather.write_feather(pyarrow.table({"labels": ["a", "b"], "scores": [0.5, 1.5]}), str(tmp_path / "x.arrow"))
    np.testing.assert_array_equal(read_scores(tmp_path / "x.arrow"), [0.5, 1.5])


def test_a_folder_without_features_is_an_error_that_lists_the_files(tmp_path):
    (tmp_path / "a.parquet").touch()
    with pytest.raises(FileNotFoundError, match=r"no features\.npy in the folder .*, which contains a\.parquet"):
        truing.Outputs.load(tmp_path)
