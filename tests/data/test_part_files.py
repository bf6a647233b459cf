"""The parts of a table: found in order, and read in blocks, in the memory of a block, that are the rows written."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing.data import npz
from truing.data.columns import read_columns, write_columns
from truing.data.part_files import columns_of, parts_of, read_blocks, rows_of

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import ipc, parquet  # noqa: E402

in_one_folder = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def as_lists(array, kind):
    """Return an array as an Arrow column: numbers, or lists or bytes of one length."""
    if array.ndim == 1:
        return pyarrow.array(array)
    if kind == "fixed":
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.shape[1])
    if kind == "plain":
        offsets = np.arange(len(array) + 1, dtype=np.int32) * array.shape[1]
        return pyarrow.ListArray.from_arrays(offsets, pyarrow.array(array.reshape(-1)))
    return pyarrow.array([row.tobytes() for row in array], pyarrow.binary(array.shape[1] * array.itemsize))


def as_table(columns, kind):
    table = pyarrow.table({name: as_lists(array, kind) for name, array in columns.items()})
    if kind != "bytes":
        return table
    metadata = {name: {"dtype": f"<f{array.itemsize}"} for name, array in columns.items() if array.ndim == 2}
    return table.cast(pyarrow.schema([field.with_metadata(metadata.get(field.name)) for field in table.schema]))


def write_parquet(kind, compression):
    def write(folder, columns, group):
        parquet.write_table(as_table(columns, kind), folder / "x.parquet", group, compression=compression)
        return folder / "x.parquet"

    return write


def write_arrow(kind, compression):
    def write(folder, columns, group):
        table = as_table(columns, kind)
        options = ipc.IpcWriteOptions(compression=compression)
        with ipc.new_file(str(folder / "x.arrow"), table.schema, options=options) as file:
            file.write_table(table, group)
        return folder / "x.arrow"

    return write


def write_set(order):
    def write(folder, columns, group):
        for name, array in columns.items():
            np.save(folder / f"x_{name}.npy", np.asarray(array, order=order))
        return folder / "x_features.npy"

    return write


def write_npz_of_numpy(save, order):
    def write(folder, columns, group):
        save(folder / "x.npz", **{name: np.asarray(array, order=order) for name, array in columns.items()})
        return folder / "x.npz"

    return write


def write_ours(ending):
    def write(folder, columns, group):
        write_columns(folder / f"x.{ending}", columns)
        return folder / f"x.{ending}"

    return write


LAYOUTS = {
    "npy set": write_set("C"),
    "npy set by columns": write_set("F"),
    "npz stored": write_npz_of_numpy(np.savez, "C"),
    "npz deflated": write_npz_of_numpy(np.savez_compressed, "C"),
    "npz by columns": write_npz_of_numpy(np.savez_compressed, "F"),
    "Parquet of fixed lists": write_parquet("fixed", "none"),
    "Parquet of fixed lists, snappy": write_parquet("fixed", "snappy"),
    "Parquet of plain lists": write_parquet("plain", "snappy"),
    "Parquet of bytes": write_parquet("bytes", "none"),
    "Arrow of fixed lists": write_arrow("fixed", None),
    "Arrow of plain lists": write_arrow("plain", None),
    "Arrow of bytes": write_arrow("bytes", None),
    "Arrow of fixed lists, packed": write_arrow("fixed", "zstd"),
    "npz of ours": write_ours("npz"),
    "Parquet of ours": write_ours("parquet"),
    "Arrow of ours": write_ours("arrow"),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def made(rows, width, dtype, classes=3):
    """Return columns of a table whose numbers are all different."""
    numbers = np.arange(rows * (width + classes)).astype(dtype)
    return {
        "features": numbers[: rows * width].reshape(rows, width),
        "logits": numbers[rows * width :].reshape(rows, classes) * dtype(-0.5),
        "labels": np.arange(rows) % 7,
    }


def concatenated(blocks):
    return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def assert_equal_columns(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True)


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
    part = LAYOUTS[layout](tmp_path, columns, group)
    blocks = list(read_blocks(part, rows))
    assert [len(block["features"]) for block in blocks] == [rows] * (total // rows) + [total % rows] * (
        total % rows > 0
    )
    assert_equal_columns(concatenated(blocks), columns)
    assert_equal_columns(concatenated(blocks), read_columns(part))
    assert columns_of(part) == {name: (array.dtype, array.shape[1:]) for name, array in columns.items()}
    assert rows_of(part) == total


@every_layout
def test_only_what_is_wanted_is_read_and_without_rows_there_are_no_blocks(tmp_path, layout):
    columns = made(9, 4, np.float32)
    part = LAYOUTS[layout](tmp_path, columns, 5)
    blocks = list(read_blocks(part, 4, ["labels", "scores"], "labels"))
    assert_equal_columns(concatenated(blocks), {"labels": columns["labels"]})
    assert set(columns_of(part, ["logits"])) == {"logits"}
    part = LAYOUTS[layout](tmp_path, made(0, 4, np.float32), 5)
    assert list(read_blocks(part, 4)) == []
    assert rows_of(part) == 0


@pytest.mark.parametrize("layout", ["npy set", "npy set by columns", "npz stored", "npz deflated", "npz by columns"])
def test_numbers_of_another_byte_order_come_in_the_machine_s_own(tmp_path, layout):
    columns = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in made(11, 3, np.float64).items()}
    part = LAYOUTS[layout](tmp_path, columns, 5)
    found = concatenated(list(read_blocks(part, 4)))
    for name, array in columns.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype.isnative
        assert columns_of(part)[name][0] == found[name].dtype


def test_rows_of_any_shape_are_read_however_they_stand(tmp_path):
    array = np.arange(7 * 2 * 3 * 4, dtype=np.float32).reshape(7, 2, 3, 4)
    for order in "CF":
        np.save(tmp_path / "features.npy", np.asarray(array, order=order))
        np.savez(tmp_path / "x.npz", features=np.asarray(array, order=order))
        for part in (tmp_path, tmp_path / "x.npz"):
            np.testing.assert_array_equal(concatenated(list(read_blocks(part, 3)))["features"], array)


@every_layout
def test_a_part_without_what_is_needed_says_what_it_holds(tmp_path, layout):
    columns = made(9, 4, np.float32)
    part = LAYOUTS[layout](tmp_path, columns, 5)
    wanted = (
        r"no file .*x_scores\.npy beside x_features\.npy"
        if "set" in layout
        else r"x\.\w+ must hold scores, got features, logits, labels$"
    )
    with pytest.raises((ValueError, FileNotFoundError), match=wanted):
        next(read_blocks(part, 4, needed="scores"))


@pytest.mark.parametrize("layout", ["npy set", "npz stored"])
def test_columns_of_different_lengths_are_refused(tmp_path, layout):
    columns = made(9, 4, np.float32)
    part = LAYOUTS[layout](tmp_path, {**columns, "logits": columns["logits"][:7]}, 5)
    with pytest.raises(ValueError, match=r"got 9 of features, 7 of logits, 9 of labels"):
        next(read_blocks(part, 4))


def test_what_is_no_row_is_refused(tmp_path):
    np.savez(tmp_path / "x.npz", features=np.float64(3))
    with pytest.raises(ValueError, match=r"x\.npz must hold rows of features, got one number"):
        next(read_blocks(tmp_path / "x.npz", 4))
    truing.save(truing.fit_direct(np.eye(3), [1.0, 2.0, 4.0]), tmp_path / "fit.npz")
    for read in (lambda part: next(read_blocks(part, 4)), columns_of, rows_of):
        with pytest.raises(ValueError, match=r"fit\.npz must hold rows, got a fit that truing.save wrote"):
            read(tmp_path / "fit.npz")
    with pytest.raises(ValueError, match="rows must be at least 1, got 0"):
        next(read_blocks(tmp_path / "x.npz", 0))


def test_lists_that_grow_longer_in_a_later_block_are_refused(tmp_path):
    table = pyarrow.table({"features": pyarrow.array([[1.0, 2.0]] * 4 + [[1.0, 2.0, 3.0]] * 4)})
    parquet.write_table(table, tmp_path / "x.parquet")
    blocks = read_blocks(tmp_path / "x.parquet", 4)
    assert next(blocks)["features"].shape == (4, 2)
    with pytest.raises(ValueError, match=r"x\.parquet .*features must be lists of one length, got lengths 2, 3"):
        next(blocks)


@pytest.mark.parametrize(
    ("field", "wanted"),
    [
        (pyarrow.field("features", pyarrow.binary(6)), "features must be whole float32 numbers, got 6 bytes a row"),
        (
            pyarrow.field("features", pyarrow.binary(6), metadata={"dtype": "object"}),
            "features must say a dtype of <f2, <f4 or <f8, got object",
        ),
    ],
)
def test_bytes_that_are_no_whole_numbers_are_refused(tmp_path, field, wanted):
    table = pyarrow.table([pyarrow.array([b"123456"] * 3, pyarrow.binary(6))], pyarrow.schema([field]))
    parquet.write_table(table, tmp_path / "x.parquet")
    for read in (lambda part: next(read_blocks(part, 2)), columns_of, read_columns):
        with pytest.raises(ValueError, match=rf"x\.parquet .*{wanted}"):
            read(tmp_path / "x.parquet")


@pytest.mark.parametrize("ending", ["parquet", "arrow"])
def test_missing_values_are_refused(tmp_path, ending):
    kinds = [
        pyarrow.array([b"1234"] * 3 + [None], pyarrow.binary(4)),
        pyarrow.array([[1.0]] * 3 + [None], pyarrow.list_(pyarrow.float64(), 1)),
        pyarrow.array([[1.0]] * 3 + [[None]], pyarrow.list_(pyarrow.float64())),
    ]
    for column in kinds:
        table = pyarrow.table({"features": column})
        if ending == "parquet":
            parquet.write_table(table, tmp_path / "x.parquet")
        else:
            with ipc.new_file(str(tmp_path / "x.arrow"), table.schema) as file:
                file.write_table(table)
        # A missing list among lists is one without a length.
        with pytest.raises(
            ValueError, match=rf"x\.{ending} .*features must .*(no missing values, got 1|lengths 1, None)"
        ):
            list(read_blocks(tmp_path / f"x.{ending}", 3))


# --- Damage


def read_or_refused(part, rows, contents):
    """Return the rows of a damaged part, None where it is refused by its name."""
    part.write_bytes(contents)
    try:
        return list(read_blocks(part, rows))
    except (ValueError, OSError) as error:
        refused = str(error)
    assert part.name in refused
    assert "\n" not in refused
    return None


@every_layout
@settings(in_one_folder, max_examples=25)
@given(where=st.floats(0, 1, exclude_max=True), rows=st.integers(1, 30))
def test_a_part_cut_anywhere_is_refused_by_its_name(tmp_path, layout, where, rows):
    part = LAYOUTS[layout](tmp_path, made(20, 3, np.float32), 7)
    contents = part.read_bytes()
    assert read_or_refused(part, rows, contents[: int(where * len(contents))]) is None


@pytest.mark.slow
@every_layout
def test_a_part_cut_at_every_byte_is_refused_by_its_name(tmp_path, layout):
    part = LAYOUTS[layout](tmp_path, made(20, 3, np.float32), 7)
    contents = part.read_bytes()
    for place in range(len(contents)):
        assert read_or_refused(part, 6, contents[:place]) is None, place


@pytest.mark.parametrize("layout", ["npz stored", "npz deflated", "npz by columns", "npz of ours", "Parquet of ours"])
@settings(in_one_folder, max_examples=100)
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), rows=st.integers(1, 30))
def test_a_flipped_bit_is_found_before_the_last_block_or_changes_nothing(tmp_path, layout, where, bit, rows):
    columns = made(20, 3, np.float32)
    part = LAYOUTS[layout](tmp_path, columns, 7)
    contents = bytearray(part.read_bytes())
    contents[int(where * len(contents))] ^= 1 << bit
    try:
        blocks = read_or_refused(part, rows, contents)
    finally:
        part.unlink()
    if blocks is not None:  # The bit was in a place that does not affect the arrays, such as a date.
        for name, array in concatenated(blocks).items():
            np.testing.assert_array_equal(array, columns[name])


@pytest.mark.parametrize("layout", ["npy set", "npy set by columns"])
def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path, layout):
    part = LAYOUTS[layout](tmp_path, made(60_000, 3, np.float32), 7)
    blocks = read_blocks(part, 10)
    next(blocks)
    with part.open("r+b") as file:
        file.truncate(60_000)
    with pytest.raises(ValueError, match=r"x_features\.npy must be an .npy file .*: it is cut short: \d+ bytes are"):
        list(blocks)


@every_layout
def test_want_of_memory_is_not_taken_for_damage(tmp_path, layout, monkeypatch):
    part = LAYOUTS[layout](tmp_path, made(20, 3, np.float32), 7)

    def empty(*arguments, **options):
        raise MemoryError("Unable to allocate 9 TiB")

    if "Parquet" in layout or "packed" in layout:
        monkeypatch.setattr("truing.data.table_blocks.column_as_array", empty)
    else:
        monkeypatch.setattr(np, "empty", empty)
    with pytest.raises(MemoryError, match=r"not enough memory to read .*x[._]"):
        list(read_blocks(part, 6))


@pytest.mark.parametrize("layout", ["npz deflated", "Parquet of fixed lists, snappy", "Arrow of fixed lists, packed"])
def test_a_small_part_that_unpacks_to_a_huge_one_is_refused(tmp_path, layout, monkeypatch):
    monkeypatch.setattr(npz, "ALWAYS_ALLOWED_BYTES", 2**20)
    part = LAYOUTS[layout](tmp_path, {"features": np.zeros((500_000, 4), np.float32)}, 500_000)
    assert part.stat().st_size < 70_000
    with pytest.raises(ValueError, match=r"x\.\w+ .*it unpacks to [0-9,]+ bytes, more than the [0-9,]+ that"):
        next(read_blocks(part, 6))


def test_a_pickle_is_never_loaded(tmp_path):
    np.save(tmp_path / "features.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", features=np.array([{}, []], dtype=object))
    for part in (tmp_path, tmp_path / "x.npz"):
        with pytest.raises(ValueError, match="it holds pickled objects, which are never loaded"):
            next(read_blocks(part, 1))


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
    rows = sum(len(block["features"]) for block in read_blocks(part, 1024))
    return rows, high_water() - before

sizes = json.loads(sys.argv[1])
for small, _ in sizes.values():  # So that libraries are loaded and do not count.
    peak(Path(small))
print(json.dumps({layout: [peak(Path(part)) for part in parts] for layout, parts in sizes.items()}))
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory is read from /proc")
def test_ten_times_the_rows_take_no_more_memory(tmp_path, rng):
    sizes = {layout: [] for layout in LAYOUTS if layout != "npz by columns"}  # Which is read whole.
    for rows in (5_000, 50_000):
        columns = {
            "features": rng.standard_normal((rows, 64), np.float32),
            "logits": rng.standard_normal((rows, 10), np.float32),
        }
        for layout, parts_of_it in sizes.items():
            folder = tmp_path / layout / str(rows)
            folder.mkdir(parents=True)
            parts_of_it.append(str(LAYOUTS[layout](folder, columns, 5_000)))
    done = subprocess.run([sys.executable, "-c", PEAK, json.dumps(sizes)], capture_output=True, text=True, check=True)
    for layout, ((once, peak), (ten_times, larger)) in json.loads(done.stdout).items():
        assert ten_times == 10 * once
        assert larger < peak + 8e6, layout  # The larger is 15 MB; a block of it is 0.3 MB.


# --- Which they are


def touch(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def names_of(path, folder):
    return [str(part.relative_to(folder)) for part in parts_of(path)]


@settings(in_one_folder, max_examples=50)
@given(numbers=st.lists(st.integers(0, 10**12), min_size=1, max_size=12, unique=True))
def test_numbers_in_names_are_ordered_as_numbers(tmp_path_factory, numbers):
    folder = tmp_path_factory.mktemp("parts")
    touch(folder, *(f"part-{number}.parquet" for number in numbers))
    expected = [f"part-{number}.parquet" for number in sorted(numbers)]
    assert names_of(folder, folder) == expected
    assert names_of(folder / "*.parquet", folder) == expected


def test_a_file_is_one_part_and_so_is_a_folder_of_features(tmp_path):
    touch(tmp_path, "x.parquet", "a[1].npz", "features.npy", "logits.npy", "features-2.npy")
    assert names_of(tmp_path / "x.parquet", tmp_path) == ["x.parquet"]
    assert names_of(tmp_path / "a[1].npz", tmp_path) == ["a[1].npz"]
    assert names_of(tmp_path / "features-2.npy", tmp_path) == ["features-2.npy"]
    assert parts_of(str(tmp_path)) == [tmp_path]


def test_a_folder_stands_for_its_files_of_every_kind_and_for_sets(tmp_path):
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


@settings(in_one_folder, max_examples=30)
@given(depths=st.lists(st.integers(0, 3), min_size=1, max_size=5))
def test_a_glob_of_folders_within_folders_finds_every_part_once(tmp_path_factory, depths):
    folder = tmp_path_factory.mktemp("parts")
    touch(folder, *("/".join([*("abc"[:depth]), f"{number}.npz"]) for number, depth in enumerate(depths)))
    touch(folder, "set/features.npy", "set/logits.npy", "a/_temporary/9.npz", ".hidden/9.npz")
    expected = {str(path.relative_to(folder)) for path in folder.rglob("[0-8].npz")}
    assert set(names_of(folder / "**" / "*.npz", folder)) == expected
    found = names_of(folder / "**" / "*", folder)
    assert sorted(found) == sorted({*expected, "set"})


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        (["a.parquet", "notes.txt"], r"notes\.txt must end in \.npz, \.parquet, \.arrow, \.feather, or be an \.npy"),
        (["a.parquet", "scores.npy"], r"scores\.npy must end in .* or be an \.npy with features in its name"),
        (["a.parquet", "more/b.parquet"], r"more must be a part .*a folder without features\.npy: a glob such as"),
    ],
)
def test_what_may_be_rows_that_would_be_missed_is_refused_by_name(tmp_path, names, refused):
    touch(tmp_path, *names)
    with pytest.raises(ValueError, match=refused):
        parts_of(tmp_path)


def test_where_there_are_no_parts_it_is_said_what_there_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    touch(tmp_path, "empty/_SUCCESS", "more/a.parquet", "more/b.parquet")
    for path, text in {
        "empty": r"no parts of a table in the folder empty, which holds _SUCCESS",
        "more/*.npz": r"no file matches more/\*\.npz: the folder more holds a\.parquet, b\.parquet",
        "none/*.npz": r"no file matches none/\*\.npz: there is no folder none",
        "*.npz": r"no file matches \*\.npz: the folder \. holds empty, more",
        "mor?": r"mor\? matches folders alone: mor\?/\* would match the files in more",
        "none.npz": r"there is no file none\.npz",
        "none_features.npy": r"there is no file none_features\.npy",
    }.items():
        with pytest.raises(FileNotFoundError, match=text):
            parts_of(path)
    touch(tmp_path, "x.txt")
    with pytest.raises(ValueError, match=r"x\.txt must end in"):
        parts_of("x.txt")
