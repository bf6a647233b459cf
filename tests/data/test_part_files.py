"""The parts of a table are listed in natural order and read in blocks, in the memory of one block."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing.data.columns import read_columns, read_ids, write_columns
from truing.data.jobs.score_files import read_score_blocks
from truing.data.part_files import layout_of, parts_of, read_blocks, root_of

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import ipc, parquet  # noqa: E402

in_one_folder = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# The file format and how the arrays are laid out in it.
LAYOUTS = [
    *("npy", "npy by-columns", "npz", "npz deflated", "npz deflated by-columns", "parquet by-truing"),
    *("parquet fixed-lists", "parquet plain-lists snappy", "parquet bytes"),
    *("arrow fixed-lists", "arrow plain-lists", "arrow bytes", "arrow fixed-lists zstd"),
]
# Formats of wide tables, which have a column for each feature.
WIDE = ["npz", "npz deflated", "parquet", "arrow", "arrow zstd"]
every_layout = pytest.mark.parametrize("layout", LAYOUTS)
every_wide_layout = pytest.mark.parametrize("layout", WIDE)


def as_column(array, how):
    """Return an array as an Arrow column: numbers, or lists or bytes of one length."""
    if not isinstance(array, np.ndarray) or array.ndim == 1:
        return array
    if "plain-lists" in how:
        offsets = np.arange(len(array) + 1, dtype=np.int32) * array.shape[1]
        return pyarrow.ListArray.from_arrays(offsets, pyarrow.array(array.reshape(-1)))
    if "bytes" in how:
        return pyarrow.array([row.tobytes() for row in array], pyarrow.binary(array.shape[1] * array.itemsize))
    return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.shape[1])


def as_table(columns, how):
    table = pyarrow.table({name: as_column(array, how) for name, array in columns.items()})
    if "bytes" not in how:
        return table
    metadata = {name: {"dtype": f"<f{array.itemsize}"} for name, array in columns.items() if array.ndim == 2}
    return table.cast(pyarrow.schema([field.with_metadata(metadata.get(field.name)) for field in table.schema]))


def write_table(path, table, group=5, compression=None):
    """Write an Arrow table in groups of rows."""
    if path.suffix == ".parquet":
        parquet.write_table(table, path, group, compression=compression or "none")
        return
    with ipc.new_file(str(path), table.schema, options=ipc.IpcWriteOptions(compression=compression)) as file:
        file.write_table(table, group)


def write(layout, folder, columns, group=5):
    """Write columns in a layout, and return the path of the part."""
    kind, *how = layout.split()
    part = folder / f"x.{kind}"
    if "by-truing" in how:
        write_columns(part, columns)
    elif kind in ("parquet", "arrow"):
        write_table(
            part, as_table(columns, how), group, next((name for name in ("snappy", "zstd") if name in how), None)
        )
    else:
        columns = {
            name: np.asarray(array, order="F" if "by-columns" in how else "C") for name, array in columns.items()
        }
        if kind == "npz":
            (np.savez_compressed if "deflated" in how else np.savez)(part, **columns)
            return part
        part = folder / "x_features.npy"
        for name, array in columns.items():
            np.save(folder / f"x_{name}.npy", array)
    return part


def made(rows, width, dtype=np.float32, classes=3):
    """Return columns of a table whose numbers are all different."""
    numbers = np.arange(rows * (width + classes)).astype(dtype)
    return {
        "features": numbers[: rows * width].reshape(rows, width),
        "logits": numbers[rows * width :].reshape(rows, classes) * dtype(-0.5),
        "labels": np.arange(rows) % 7,
    }


def concatenated(blocks):
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def assert_equal_columns(actual, expected):
    assert set(actual) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, strict=True)


@every_layout
@settings(in_one_folder, max_examples=25)
@given(
    total=st.integers(1, 60),
    width=st.integers(1, 5),
    dtype=st.sampled_from([np.float16, np.float32, np.float64]),
    rows=st.integers(1, 70),
    group=st.integers(1, 70),
)
def test_blocks_are_the_rows_that_were_written(tmp_path, layout, total, width, dtype, rows, group):
    columns = made(total, width, dtype)
    part = write(layout, tmp_path, columns, group)
    blocks = list(read_blocks(part, rows))
    sizes = [len(block["features"]) for block in blocks]
    assert sizes == [rows] * (total // rows) + [total % rows] * (total % rows > 0)
    assert_equal_columns(concatenated(blocks), columns)
    assert_equal_columns(read_columns(part), columns)
    assert layout_of(part).columns == {name: (array.dtype, array.shape[1:]) for name, array in columns.items()}
    assert layout_of(part).rows == total


@every_layout
def test_only_requested_columns_are_read_and_a_part_without_rows_has_no_blocks(tmp_path, layout):
    columns = made(9, 4)
    part = write(layout, tmp_path, columns)
    blocks = list(read_blocks(part, 4, ["labels", "scores"], "labels"))
    assert_equal_columns(concatenated(blocks), {"labels": columns["labels"]})
    assert set(layout_of(part, ["logits"]).columns) == {"logits"}
    part = write(layout, tmp_path, made(0, 4))
    assert list(read_blocks(part, 4)) == []
    assert layout_of(part).rows == 0


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout.startswith("np")])
def test_blocks_have_native_byte_order(tmp_path, layout):
    columns = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in made(11, 3).items()}
    part = write(layout, tmp_path, columns)
    blocks = concatenated(list(read_blocks(part, 4)))
    for name, array in columns.items():
        np.testing.assert_array_equal(blocks[name], array)
        assert blocks[name].dtype.isnative
        assert layout_of(part).columns[name][0] == blocks[name].dtype


# --- Wide tables: one column of numbers per feature


@every_wide_layout
@settings(in_one_folder, max_examples=25)
@given(
    data=st.data(),
    total=st.integers(1, 40),
    numbers=st.lists(st.integers(0, 200), min_size=1, max_size=14, unique=True),
    rows=st.integers(1, 50),
    group=st.integers(1, 50),
)
def test_a_pattern_reads_columns_in_natural_order_as_one_array(tmp_path, layout, data, total, numbers, rows, group):
    kinds = {n: data.draw(st.sampled_from(["?", "i1", "u2", "i4", "f2", "f4", "f8"])) for n in numbers}
    values = np.arange(total * 300).reshape(total, 300)
    columns = {f"f{n}": (values[:, n] % 90).astype(kind) for n, kind in kinds.items()}
    part = write(layout, tmp_path, {"id": np.arange(total), **columns, "scores": values[:, 0]}, group)
    features = np.stack([columns[f"f{n}"] for n in sorted(numbers)], axis=1)
    blocks = list(read_blocks(part, rows, ["f*", "logits", "scores"], "f*"))
    assert_equal_columns(concatenated(blocks), {"f*": features, "scores": values[:, 0]})
    assert_equal_columns(read_columns(part, named={"features": "f*"}), {"features": features, "scores": values[:, 0]})
    shape = layout_of(part, ["f*"])
    assert shape.columns == {"f*": (features.dtype, (len(numbers),))}
    assert shape.matched["f*"] == [f"f{n}" for n in sorted(numbers)]
    assert shape.rows == total


@every_wide_layout
def test_a_column_of_the_exact_name_wins_over_a_pattern(tmp_path, layout):
    part = write(layout, tmp_path, {"f*": np.arange(4.0), "f1": np.ones(4), "g[1]": np.arange(4)})
    (block,) = read_blocks(part, 4, ["f*", "g[1]"], "f*")
    assert_equal_columns(block, {"f*": np.arange(4.0), "g[1]": np.arange(4)})
    assert layout_of(part, ["f*"]).matched["f*"] == ["f*"]


# --- Row identifiers

WORDS = ["a", "bb", "", "Zürich, x", "5"]
IDS = {
    "int8": (pyarrow.array([5, 4, 3, 2, -1], pyarrow.int8()), np.array([5, 4, 3, 2, -1], np.int8)),
    "uint64": (pyarrow.array([2**64 - 1, 4, 3, 2, 1], pyarrow.uint64()), np.array([2**64 - 1, 4, 3, 2, 1], np.uint64)),
    "large string": (pyarrow.array(WORDS, pyarrow.large_string()), WORDS),
    "dictionary": (pyarrow.array(WORDS).dictionary_encode(), WORDS),
    "binary": (pyarrow.array([word.encode() for word in WORDS]), WORDS),
    "date": (pyarrow.array(range(5), pyarrow.int32()).cast(pyarrow.date32()), [f"1970-01-0{n}" for n in range(1, 6)]),
    "double": (pyarrow.array([0.5, 1.5, 2.5, 3.5, 4.5]), ["0.5", "1.5", "2.5", "3.5", "4.5"]),
    "bool": (pyarrow.array([True, False, True, True, False]), ["true", "false", "true", "true", "false"]),
}


@pytest.mark.parametrize("layout", ["parquet", "arrow zstd", "npz deflated"])
@pytest.mark.parametrize("kind", IDS)
def test_ids_of_every_type_are_read_with_the_rows(tmp_path, layout, kind):
    column, values = IDS[kind]
    expected, features = np.array(values), np.arange(10.0).reshape(5, 2)
    column = expected if "npz" in layout else column
    part = write(layout, tmp_path, {"key": column, "features": features, "f0": np.arange(5)}, 3)
    for rows in (1, 2, 9):
        for name, array in (("features", features), ("f?", np.arange(5)[:, None])):
            blocks = list(read_blocks(part, rows, [name], name, "key"))
            np.testing.assert_array_equal(concatenated(blocks)[name], array, strict=True)
            np.testing.assert_array_equal(concatenated(blocks)["key"], expected, strict=rows == 9)
            if not isinstance(values, list):
                assert {block["key"].dtype for block in blocks} == {expected.dtype}
        np.testing.assert_array_equal(concatenated(list(read_blocks(part, rows, [], "key", "key")))["key"], expected)
    np.testing.assert_array_equal(read_ids(part, "key"), expected, strict=True)
    assert set(layout_of(part, ["features"], "key").columns) == {"features"}


# --- Unsuitable columns


def packed(width, rows=3, metadata=None):
    """Return a table with a column of bytes."""
    field = pyarrow.field("features", pyarrow.binary(width), metadata=metadata)
    return pyarrow.table([pyarrow.array([b"123456"[:width]] * rows, field.type)], pyarrow.schema([field]))


NUMBERS = {"f0": np.ones(3), "f1": np.ones(3), "labels": np.arange(3), "lost": np.ones(3)}
KEYED = {"features": np.arange(3.0), "id1": np.arange(3), "f0": np.arange(3)}
GAP = [[1.0], [1.0], None]
RAGGED = "features must .*(missing values, got 1|lengths 1, None)|Expected all lists to be of size=1"  # By pyarrow 15.

# The format, the columns, the names that are read, the column of row identifiers, and the error.
UNSUITABLE = [
    (
        "parquet",
        {"features": [[1.0, 2.0]] * 3 + [[1.0]] * 3},
        ["features"],
        None,
        "lists of one length, got lengths 2, 1",
    ),
    ("parquet", {"features": pyarrow.array(GAP, pyarrow.list_(pyarrow.float64(), 1))}, ["features"], None, RAGGED),
    ("arrow", {"features": pyarrow.array(GAP, pyarrow.list_(pyarrow.float64()))}, ["features"], None, RAGGED),
    ("parquet", {"features": [[1.0], [None]]}, ["features"], None, "no missing values, got 1"),
    ("arrow", {"features": pyarrow.array([b"1234", None], pyarrow.binary(4))}, ["features"], None, "no missing values"),
    ("parquet", packed(6), ["features"], None, "whole float32 numbers, got 6 bytes per row"),
    ("parquet", packed(4, metadata={"dtype": "object"}), ["features"], None, "a dtype of <f2, <f4 or <f8, got object"),
    ("parquet", {"f0": [1.0, 2.0], "f1": [1.0, None]}, ["f*"], None, "f1 must have no missing values, got 1"),
    ("parquet", {"f0": [1.0, 2.0], "f1": [[1.0], [2.0]]}, ["f*"], None, r"per row, got f1 \(list<.*double>\)"),
    ("parquet", pyarrow.Table.from_arrays([[1.0], [2.0]], names=["f0", "f0"]), ["f*"], None, "contains f0 2 times"),
    ("npz", {"f0": np.ones(2), "f1": np.ones((2, 1)), "f2": np.float64(1)}, ["f*"], None, "per row, got f1, f2"),
    ("npz", {"f0": np.ones(5), "f1": np.ones(1)}, ["f*"], None, "same number of rows, got 5 of f0, 1 of f1"),
    ("npy", {"features": np.ones((9, 2)), "logits": np.ones((7, 2))}, ["features", "logits"], None, "7 of logits$"),
    ("npz", {"features": np.float64(3)}, ["features"], None, "must contain an array of features, got one number"),
    *((layout, KEYED, ["scores"], None, r"must contain scores, got features, id1, f0$") for layout in WIDE),
    ("npy", KEYED, ["scores"], None, r"x_scores\.npy next to x_features\.npy"),
    *((layout, NUMBERS, ["F*"], None, r"columns that match F\*, got f0, f1, labels, lost$") for layout in WIDE),
    *((layout, NUMBERS, ["l*"], None, r"l\* must match no column that has another use, got lab") for layout in WIDE),
    *((layout, KEYED, ["features"], "id*", r"must contain id\*, got features, id1, f0$") for layout in WIDE),
    *((layout, KEYED, ["features"], "features", "must have a separate column of row identif") for layout in WIDE),
    *(
        (layout, KEYED, ["[if]?*[0-9]", "features"], "id1", "match no column that has another use, got id1")
        for layout in WIDE
    ),
    ("parquet", {"features": [1.0], "key": [[1]]}, ["features"], "key", "an integer or a string in each row, got list"),
    ("parquet", {"features": [1.0], "key": [None]}, ["features"], "key", "key must have no missing"),
    ("parquet", {"features": [1.0], "key": [b"\xff"]}, ["features"], "key", "got binary: Invalid UTF8"),
    ("parquet", {"features": [1.0], "key": ["b" * 5000]}, ["features"], "key", "at most 4096 characters, got 5000"),
    ("npz", {"features": np.ones(2), "key": np.ones(2)}, ["features"], "key", "key must be integers or strings"),
    ("npz", {"features": np.ones(2), "key": np.array([b"a", b"b"])}, ["features"], "key", "integers or strings"),
    ("npy", {"features": np.ones(2)}, ["features"], "key", "fixed names, got the name key"),
    ("npy", {"features": np.ones(2)}, ["f*"], None, r"fixed names, got the name f\*"),
]


@pytest.mark.parametrize(("layout", "columns", "names", "ids", "message"), UNSUITABLE)
def test_unsuitable_columns_are_an_error_that_names_the_file(tmp_path, layout, columns, names, ids, message):
    if isinstance(columns, dict):
        part = write(layout, tmp_path, columns)
    else:
        part = tmp_path / "x.parquet"
        write_table(part, columns)
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message) as error:
        list(read_blocks(part, 3, names, names[-1], ids))
    assert part.name in str(error.value)
    if "*" in names[-1]:
        with pytest.raises(ValueError, match=message):
            read_columns(part, named={"features": names[0]})


def test_a_file_of_truing_save_has_no_rows(tmp_path):
    truing.save(truing.fit_direct(np.eye(3), [1.0, 2.0, 4.0]), tmp_path / "fit.npz")
    for read in (lambda part: next(read_blocks(part, 4)), layout_of):
        with pytest.raises(ValueError, match=r"fit\.npz must contain rows, got a fit that truing.save wrote"):
            read(tmp_path / "fit.npz")
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        next(read_blocks(tmp_path / "fit.npz", 0))


# --- Damage


def attempt(read):
    """Return what a function returns, or None, and the message of its error, if any."""
    try:
        return read(), ""
    except (ValueError, OSError) as error:
        return None, str(error)


@every_layout
def test_a_file_that_is_cut_anywhere_is_reported_as_truncated_or_empty(tmp_path, layout):
    part = write(layout, tmp_path, made(20, 3), 7)
    contents = part.read_bytes()
    for place in range(0, len(contents), 10):
        part.write_bytes(contents[:place])
        for read in (lambda: list(read_blocks(part, 6)), lambda: read_columns(part)):
            with pytest.raises(ValueError, match=rf"{part.name} must .*it is {'truncated' if place else 'empty'}"):
                read()


@pytest.mark.parametrize("layout", ["npz", "npz deflated", "npz deflated by-columns", "parquet by-truing"])
@settings(in_one_folder, max_examples=100)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), rows=st.integers(1, 30))
def test_a_flipped_bit_is_an_error_or_changes_no_number(tmp_path, layout, where, bit, rows):
    columns = made(20, 3)
    part = write(layout, tmp_path, columns, 7)
    contents = bytearray(part.read_bytes())
    # pyarrow (19 and newer) ends the process at some flipped bits of the footer, in `RowGroupMetaData.column`.
    footer = 8 + int.from_bytes(contents[-8:-4], "little") if "parquet" in layout else 0
    contents[int(where * (len(contents) - footer))] ^= 1 << bit
    part.write_bytes(contents)
    blocks, error = attempt(lambda: list(read_blocks(part, rows)))
    part.unlink()
    if error:
        assert part.name in error
        assert "\n" not in error
        return
    for name, array in concatenated(blocks).items():  # The flipped bit may belong to the date of a file.
        np.testing.assert_array_equal(array, columns[name])


def test_a_wrong_number_of_rows_in_the_metadata_is_an_error(tmp_path):
    part = write("parquet", tmp_path, {"scores": np.arange(20.0)}, 20)
    contents = part.read_bytes()
    place = contents.index(b"\x16\x28", contents.index(b"schema"))  # Field 3 of the footer: 20 rows, as 2 × 20.
    for rows in (19, 21):
        part.write_bytes(contents[: place + 1] + bytes([2 * rows]) + contents[place + 2 :])
        for read in (lambda: list(read_blocks(part, 6, needed="scores")), lambda: list(read_score_blocks(part))):
            with pytest.raises(ValueError, match=rf"x\.parquet must have {rows} rows, as in its metadata, got 20"):
                read()


@pytest.mark.parametrize("layout", ["npz deflated", "parquet plain-lists snappy", "arrow fixed-lists zstd"])
def test_a_small_part_that_unpacks_to_a_huge_part_is_an_error(tmp_path, layout):
    part = write(layout, tmp_path, {"features": np.zeros((500_000, 40), np.float32)}, 500_000)
    assert part.stat().st_size < 600_000
    with pytest.raises(ValueError, match=r"x\.\w+ .*it unpacks to [0-9,]+ bytes, more than the [0-9,]+ allowed"):
        next(read_blocks(part, 6))


@every_layout
def test_a_file_that_is_cut_while_it_is_read_is_an_error_unless_all_rows_are_in_memory(tmp_path, layout):
    columns = made(60_000, 3)
    part = write(layout, tmp_path, columns, 500)
    blocks = read_blocks(part, 10)
    first = next(blocks)
    with part.open("r+b") as file:
        file.truncate(60_000)
    rest, error = attempt(lambda: list(blocks))
    if error:
        assert f"{part.name} must be " in error
        if layout.startswith("npy") or ("arrow" in layout and "zstd" not in layout):
            assert ": it is truncated" in error
        return
    assert_equal_columns(concatenated([first, *rest]), columns)
    assert layout == "npz deflated by-columns" or layout.startswith("parquet")


def test_a_pickle_is_never_loaded(tmp_path):
    objects = np.array([{}, []], dtype=object)
    np.save(tmp_path / "features.npy", objects, allow_pickle=True)
    np.savez(tmp_path / "x.npz", features=objects)
    for part in (tmp_path, tmp_path / "x.npz"):
        for read in (lambda part: next(read_blocks(part, 1)), truing.Outputs.load):
            with pytest.raises(ValueError, match="it holds pickled objects, which are never loaded"):
                read(part)


# --- Memory

PEAK = """
import json, sys
from pathlib import Path
from truing.data.part_files import read_blocks

def high_water():
    return next(int(text.split()[1]) * 1024 for text in open("/proc/self/status") if text.startswith("VmHWM"))

def peak(part):
    Path("/proc/self/clear_refs").write_text("5")
    before = high_water()
    name = "f[0-9]*" if part.parent.parent.name.startswith("wide") else "features"
    rows = sum(len(block[name]) for block in read_blocks(part, 1024, [name, "logits"], name))
    return rows, high_water() - before

parts = {layout: [Path(part) for part in both] for layout, both in json.loads(sys.argv[1]).items()}
for small, _ in parts.values():  # This loads the libraries, so that they do not count.
    peak(small)
print(json.dumps({layout: [peak(part) for part in both] for layout, both in parts.items()}))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_ten_times_the_rows_need_no_more_memory(tmp_path, rng):
    # The layout "npz deflated by-columns" is not tested, because its parts are read whole.
    layouts = [layout for layout in LAYOUTS if layout != "npz deflated by-columns"]
    parts = {layout: [] for layout in (*layouts, *(f"wide {layout}" for layout in WIDE))}
    for rows in (5_000, 50_000):
        columns = {
            "features": rng.standard_normal((rows, 64), np.float32),
            "logits": rng.standard_normal((rows, 10), np.float32),
        }
        wide = {f"f{n}": column for n, column in enumerate(columns["features"].T)}
        for layout, both in parts.items():
            folder = tmp_path / layout / str(rows)
            folder.mkdir(parents=True)
            is_wide = layout.startswith("wide")
            both.append(str(write(layout.removeprefix("wide "), folder, wide if is_wide else columns, 5_000)))
    words = [sys.executable, "-c", PEAK, json.dumps(parts)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    for layout, ((few, peak), (many, larger)) in json.loads(done.stdout).items():
        assert many == 10 * few
        assert larger < peak + 8e6, layout  # The larger file has 15 MB, one block 0.3 MB.


# --- Files, folders and globs


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def names_of(path, folder):
    return [str(part.relative_to(folder)) for part in parts_of(path)]


def test_the_parts_of_a_folder_are_its_files_and_sets(tmp_path):
    touch(tmp_path, "b.NPZ", "a.arrow", "c.feather", "d.parquet", "_SUCCESS", "_temporary.txt", ".d.parquet.crc")
    touch(tmp_path, "e_features.npy", "e_logits.npy", "e_labels.npy", "f10_features.npy", "f9_features.npy")
    touch(tmp_path, "day-10/features.npy", "day-10/logits.npy", "day-9/features.npy", "_draft/x.parquet")
    touch(tmp_path, ".truing-0123456789abcdef-x.draft")
    files = ["a.arrow", "b.NPZ", "c.feather", "d.parquet"]
    sets = ["day-9", "day-10", "e_features.npy", "f9_features.npy", "f10_features.npy"]
    assert names_of(tmp_path, tmp_path) == [*files, *sets]
    assert names_of(tmp_path / "*.parquet", tmp_path) == ["d.parquet"]
    assert names_of(tmp_path / "day-*", tmp_path) == ["day-9", "day-10"]
    assert names_of(tmp_path / "day-*" / "*.npy", tmp_path) == ["day-9/features.npy", "day-10/features.npy"]


@settings(in_one_folder, max_examples=40)
@given(
    paths=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=4).map(tuple), min_size=1, max_size=8, unique=True)
)
def test_parts_at_any_depth_are_listed_in_natural_order(tmp_path_factory, paths):
    folder = tmp_path_factory.mktemp("parts")
    names = ["/".join([*(f"day={n}" for n in above), f"part-{last}.parquet"]) for *above, last in paths]
    touch(folder, *names, "day=1/_SUCCESS", "day=1/_temporary/0.parquet", "day=2/.hidden/0.parquet", "day=2/.x.crc")
    (folder / "day=31" / "empty").mkdir(parents=True)
    # Folders are ordered among files by name, and day comes before part.
    expected = sorted(
        zip(paths, names, strict=True), key=lambda pair: [*((0, n) for n in pair[0][:-1]), (1, pair[0][-1])]
    )
    assert names_of(folder, folder) == [name for _, name in expected]
    assert set(names_of(folder / "**" / "*.parquet", folder)) == set(names)


def test_parts_are_below_the_root_of_their_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "parts/day=1/a.parquet", "parts/b[1].npz", "set/features.npy", "c.npz")
    for path, root in {
        "parts": "parts",
        ".": ".",
        "parts/b[1].npz": "parts",
        "parts/day=1/a.parquet": "parts/day=1",
        "parts/*/*.parquet": "parts",
        "parts/**/*": "parts",
        "parts/day=?/a.parquet": "parts",
        "*.npz": ".",
        "c.npz": ".",
        "set": ".",
        "none.npz": ".",
    }.items():
        assert root_of(path) == Path(root), path
        for part in parts_of(path) if path not in (".", "none.npz") else ():
            assert part.relative_to(root_of(path)).name
    assert root_of(tmp_path / "parts" / "*") == tmp_path / "parts"


def test_links_to_folders_are_followed_and_loops_are_an_error(tmp_path):
    touch(tmp_path, "elsewhere/a.parquet", "parts/b.parquet")
    (tmp_path / "parts" / "linked").symlink_to("../elsewhere")
    assert names_of(tmp_path / "parts", tmp_path / "parts") == ["b.parquet", "linked/a.parquet"]
    for name, target in (("folder", ".."), ("loop.parquet", "loop.parquet")):
        (tmp_path / "parts" / name).symlink_to(target)
        with pytest.raises(OSError, match=r"^cannot read .*: it is a loop of symbolic links$"):
            parts_of(tmp_path / "parts")
        (tmp_path / "parts" / name).unlink()


def test_a_folder_that_is_linked_twice_is_an_error(tmp_path):
    touch(tmp_path, "0/a.parquet")
    (tmp_path / "latest").symlink_to("0")
    with pytest.raises(ValueError, match=r"(latest|0) is the same folder as .*(0|latest): rows"):
        parts_of(tmp_path)
    for number in range(1, 60):  # 2^60 paths lead to the same file.
        (tmp_path / "deep" / str(number)).mkdir(parents=True)
        for name in "ab":
            (tmp_path / "deep" / str(number) / name).symlink_to(f"../{number - 1}" if number > 1 else "../../0")
    with pytest.raises(ValueError, match=r"is the same folder as .*: rows would count twice"):
        parts_of(tmp_path / "deep" / "59")


def test_a_file_that_is_not_a_part_is_an_error(tmp_path):
    touch(tmp_path, "a.parquet")
    for name, message in {
        "notes.txt": r"notes\.txt must end in \.npz, \.parquet, \.arrow, \.feather, or be an \.npy",
        "scores.npy": r"scores\.npy must end in .* or be an \.npy file with features in its name",
        "more/again/notes.txt": r"more/again/notes\.txt must end in \.npz, \.parquet",
    }.items():
        touch(tmp_path, name)
        with pytest.raises(ValueError, match=message):
            parts_of(tmp_path)
        (tmp_path / name).unlink()


def test_an_error_for_missing_parts_lists_the_files_of_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "empty/_SUCCESS", "more/a.parquet", "more/b.parquet")
    for path, text in {
        "empty": r"no parts of a table in the folder empty, which contains _SUCCESS",
        "more/*.npz": r"no file matches more/\*\.npz: the folder more contains a\.parquet, b\.parquet",
        "none/*.npz": r"no file matches none/\*\.npz: there is no folder none",
        "*.npz": r"no file matches \*\.npz: the folder \. contains empty, more",
        "none.npz": r"there is no file none\.npz",
        "none_features.npy": r"there is no file none_features\.npy",
    }.items():
        with pytest.raises(FileNotFoundError, match=text):
            parts_of(path)
    touch(tmp_path, "x.txt")
    with pytest.raises(ValueError, match=r"x\.txt must end in"):
        parts_of("x.txt")
