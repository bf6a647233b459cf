"""A file written a block at a time is the file written at once, or there is none."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from truing.data.blocks import writing_blocks
from truing.data.columns import read_columns, write_columns
from truing.data.jobs.score_files import read_score_blocks

SCALARS = ["x.csv", "x.npy", "x.parquet", "x.arrow", "x.feather"]
TABLES = SCALARS[2:]
every_kind = pytest.mark.parametrize("name", SCALARS)


def read_scores(path):
    return np.concatenate(list(read_score_blocks(Path(path))))


def made(rows):
    return {"scores": np.arange(rows) / 7, "is_out": np.arange(rows) % 3 == 0, "row": np.arange(rows)}


def write_in_blocks(path, columns, cuts):
    bounds = [0, *sorted(cuts), len(columns["scores"])]
    with writing_blocks(path) as writer:
        for start, stop in pairwise(bounds):
            writer.write({name: array[start:stop] for name, array in columns.items()})
    assert writer.rows == len(columns["scores"])


@every_kind
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), rows=st.integers(0, 40))
def test_a_file_written_in_blocks_equals_a_file_written_at_once(tmp_path, name, data, rows):
    if name in TABLES:
        pytest.importorskip("pyarrow")
    columns = made(rows)
    write_in_blocks(tmp_path / name, columns, data.draw(st.lists(st.integers(0, rows), max_size=5)))
    write_columns(tmp_path / f"whole-{name}", columns)
    if name not in TABLES:
        assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    elif rows:
        found, expected = (read_columns(tmp_path / file, "row", list(columns)) for file in (name, f"whole-{name}"))
        for column in columns:
            np.testing.assert_array_equal(found[column], expected[column], strict=True)


@pytest.mark.parametrize("name", [name for name in SCALARS if name != "x.npy"])
def test_strings_of_any_length_are_written(tmp_path, name):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, feather, parquet

    words = ["a", "", 'b"c, d', "Zürich", "e" * 300, "7"]
    ids = [np.array(words[:1]), np.array(words[1:2]), np.array(words[2:4]), np.array(words[4:])]
    with writing_blocks(tmp_path / name) as writer:
        for block in ids:
            writer.write({"key": block, "scores": np.arange(len(block)) / 7})
    if name == "x.csv":
        types = csv.ConvertOptions(column_types={"key": pyarrow.string()})
        table = csv.read_csv(tmp_path / name, convert_options=types)
    else:
        table = (parquet.read_table if name == "x.parquet" else feather.read_table)(str(tmp_path / name))
    assert table.schema.field("key").type == pyarrow.string()
    assert table.column("key").to_pylist() == words
    with pytest.raises(ValueError, match=r"the columns of the first block, key \(strings, 1\), got key \(int64, 1\)"):
        write_words_then_numbers(tmp_path / name)


def write_words_then_numbers(path):
    with writing_blocks(path) as writer:
        writer.write({"key": np.array(["a"])})
        writer.write({"key": np.arange(1)})


@every_kind
@pytest.mark.parametrize("before", [True, False], ids=["over another", "new"])
def test_a_failed_write_leaves_the_old_file(tmp_path, name, before):
    if name in TABLES:
        pytest.importorskip("pyarrow")
    if before:
        write_columns(tmp_path / name, {"scores": np.arange(3.0)})

    def fail():
        with writing_blocks(tmp_path / name) as writer:
            writer.write(made(5))
            raise RuntimeError("the network is down")

    with pytest.raises(RuntimeError, match="the network is down"):
        fail()
    assert [file.name for file in tmp_path.iterdir()] == [name] * before
    if before:
        np.testing.assert_array_equal(read_scores(tmp_path / name), np.arange(3.0))


@every_kind
def test_a_file_without_blocks_is_an_error(tmp_path, name):
    with pytest.raises(ValueError, match=rf"{name} needs at least one block of rows, got none"):
        write_nothing(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def write_nothing(path):
    with writing_blocks(path):
        pass


def test_a_format_that_cannot_hold_the_columns_is_an_error(tmp_path):
    others = (
        r"x\.npz must end in \.csv, \.npy, \.parquet, \.arrow, \.feather: an \.npz file cannot be written in blocks"
    )
    with pytest.raises(ValueError, match=others):
        write_nothing(tmp_path / "x.npz")
    columns = {"features": np.eye(3), "scores": np.ones(3)}
    for name in ("x.csv", "x.npy"):
        with pytest.raises(
            ValueError, match=rf"{name} must end in \.parquet, \.arrow, \.feather to hold features, scor"
        ):
            write_in_blocks(tmp_path / name, columns, [])
    assert list(tmp_path.iterdir()) == []


@every_kind
@pytest.mark.parametrize(
    ("second", "wanted"),
    [
        (
            {"scores": np.ones(2)},
            r"must have the columns of the first block, .*is_out \(bool, 1\).*, got scores \(float64, 1\)",
        ),
        (
            {**made(2), "scores": np.ones(2, np.float32)},
            r"all blocks of .* must have the columns of the first block, .*got scores \(float32, 1\)",
        ),
        ({**made(2), "row": np.arange(3)}, r"the columns of a block must have the same length, got \[2, 3\]"),
    ],
)
def test_all_blocks_must_have_the_same_columns(tmp_path, name, second, wanted):
    if name in TABLES:
        pytest.importorskip("pyarrow")

    def write():
        with writing_blocks(tmp_path / name) as writer:
            writer.write(made(2))
            writer.write(second)

    with pytest.raises(ValueError, match=wanted):
        write()
    assert list(tmp_path.iterdir()) == []


PEAK = """
import json, sys
from pathlib import Path
import numpy as np
from truing.data.blocks import writing_blocks

def high_water():
    return next(int(text.split()[1]) * 1024 for text in open("/proc/self/status") if text.startswith("VmHWM"))

def peak(path, blocks):
    Path("/proc/self/clear_refs").write_text("5")
    before, rng = high_water(), np.random.default_rng(1)
    with writing_blocks(path) as writer:
        for _ in range(blocks):
            writer.write({"scores": rng.random(4096), "p": rng.random(4096)})
    return high_water() - before

for name in sys.argv[1:]:
    peak(Path(name), 2)
print(json.dumps({name: [peak(Path(name), blocks) for blocks in (15, 150)] for name in sys.argv[1:]}))
"""
