"""A file written in blocks equals a file written at once. A failed write leaves the old file."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from truing.data.blocks import writing_blocks
from truing.data.columns import read_columns, write_columns

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import csv, feather, parquet  # noqa: E402

every_kind = pytest.mark.parametrize("name", ["x.csv", "x.npy", "x.parquet", "x.arrow", "x.feather"])


def made(rows):
    return {"scores": np.arange(rows) / 7, "is_out": np.arange(rows) % 3 == 0, "row": np.arange(rows)}


def write_blocks(path, blocks):
    with writing_blocks(path) as writer:
        for block in blocks:
            writer.write(block)
    return writer.rows


@every_kind
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), rows=st.integers(0, 40))
def test_a_file_written_in_blocks_equals_a_file_written_at_once(tmp_path, name, data, rows):
    columns = made(rows)
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=5)))
    blocks = [{key: array[start:stop] for key, array in columns.items()} for start, stop in pairwise([0, *cuts, rows])]
    assert write_blocks(tmp_path / name, blocks) == rows
    write_columns(tmp_path / f"whole-{name}", columns)
    if name in ("x.csv", "x.npy"):
        assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    elif rows:
        parts, whole = (read_columns(tmp_path / file, "row", list(columns)) for file in (name, f"whole-{name}"))
        for column in columns:
            np.testing.assert_array_equal(parts[column], whole[column], strict=True)


@pytest.mark.parametrize("name", ["x.csv", "x.parquet", "x.feather"])
def test_strings_of_any_length_are_written(tmp_path, name):
    words = ["a", "", 'b"c, d', "Zürich", "e" * 300, "7"]
    ids = [np.array(words[:1]), np.array(words[1:2]), np.array(words[2:4]), np.array(words[4:])]
    write_blocks(tmp_path / name, ({"key": block, "scores": np.arange(len(block)) / 7} for block in ids))
    if name == "x.csv":
        types = csv.ConvertOptions(column_types={"key": pyarrow.string()})
        table = csv.read_csv(tmp_path / name, convert_options=types)
    else:
        table = (parquet.read_table if name == "x.parquet" else feather.read_table)(str(tmp_path / name))
    assert table.schema.field("key").type == pyarrow.string()
    assert table.column("key").to_pylist() == words
    with pytest.raises(ValueError, match=r"the columns of the first block, key \(strings, 1\), got key \(int64, 1\)"):
        write_blocks(tmp_path / name, [{"key": ids[0]}, {"key": np.arange(1)}])


@every_kind
@pytest.mark.parametrize("before", [[], [3]], ids=["no file", "an old file"])
def test_a_failed_write_leaves_the_old_file_or_no_file(tmp_path, name, before):
    for rows in before:
        write_blocks(tmp_path / name, [made(rows)])
    contents = [path.read_bytes() for path in tmp_path.iterdir()]

    def blocks():
        yield made(5)
        raise RuntimeError("the network is down")

    with pytest.raises(RuntimeError, match="the network is down"):
        write_blocks(tmp_path / name, blocks())
    assert [path.read_bytes() for path in tmp_path.iterdir()] == contents
    assert len(contents) == len(before)


@every_kind
def test_blocks_must_exist_and_have_the_same_columns(tmp_path, name):
    other_columns = r"all blocks of .* must have the columns of the first block, .*is_out \(bool, 1\).*, got scores"
    for blocks, message in (
        ([], rf"{name} needs at least one block of rows, got none"),
        ([made(2), {"scores": np.ones(2)}], rf"{other_columns} \(float64, 1\)"),
        ([made(2), {**made(2), "scores": np.ones(2, np.float32)}], rf"{other_columns} \(float32, 1\)"),
        (
            [made(2), {**made(2), "row": np.arange(3)}],
            r"the columns of a block must have the same length, got \[2, 3\]",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            write_blocks(tmp_path / name, blocks)
        assert list(tmp_path.iterdir()) == []


def test_a_format_that_cannot_hold_the_columns_is_an_error(tmp_path):
    features = {"features": np.eye(3), "scores": np.ones(3)}
    tables = r"\.parquet, \.arrow, \.feather"
    for name, message in {
        "x.npz": rf"must end in \.csv, \.npy, {tables}: an \.npz file cannot be written in blocks",
        "x.csv": rf"must end in {tables} to hold features, scores",
        "x.npy": rf"must end in {tables} to hold features, scores",
    }.items():
        with pytest.raises(ValueError, match=rf"{name} {message}"):
            write_blocks(tmp_path / name, [features])
    assert list(tmp_path.iterdir()) == []
