"""Untrusted `.npz` files: reading takes bounded memory and trusts no size that the file states."""

import io
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import truing
from truing.data import npz
from truing.data.npz import read_npz, write_npz

MEGABYTE = 2**20


@contextmanager
def at_most(allowed: int) -> Iterator[None]:
    """Fail when the block allocates more bytes than allowed at any time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] <= allowed
    finally:
        tracemalloc.stop()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def write_zip(path: Path, members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in members:
            archive.writestr(name, data)


def change_directory(path: Path, member: int, offset: int, value: int) -> None:
    """Overwrite four bytes in the directory entry of one member."""
    data = bytearray(path.read_bytes())
    place = -1
    for _ in range(member + 1):
        place = data.index(b"PK\x01\x02", place + 1)
    struct.pack_into("<I", data, place + offset, value)
    path.write_bytes(data)


CHECKSUM, PACKED, UNPACKED, PLACE = 16, 20, 24, 42  # Offsets in a directory entry.


def test_a_small_file_that_unpacks_to_a_huge_array_is_an_error_before_reading(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", features=np.zeros((25 * MEGABYTE, 1)))
    assert (tmp_path / "bomb.npz").stat().st_size < MEGABYTE
    with (
        at_most(MEGABYTE),
        pytest.raises(ValueError, match=r"unpacks to 209,715,328 bytes, more than the [0-9,]+ allowed"),
    ):
        truing.Outputs.load(tmp_path / "bomb.npz")


@pytest.mark.parametrize("count", [2000, 70_000])
def test_a_zip_of_very_many_arrays_is_an_error_before_they_are_listed(tmp_path, count):
    with zipfile.ZipFile(tmp_path / "many.npz", "w") as archive:
        archive.comment = b"a comment"
        for number in range(count):  # Above 65,535 members, a zip has another kind of end record.
            archive.writestr(f"{number}.npy", b"")
    message = "its directory must be at most 65,536 bytes, enough for a few hundred"
    with at_most(MEGABYTE), pytest.raises(ValueError, match=message):
        read_npz(tmp_path / "many.npz")


def test_a_few_hundred_arrays_are_read(tmp_path):
    arrays = {f"array {number}": np.array([number]) for number in range(600)}
    write_npz(tmp_path / "many.npz", arrays)
    assert read_npz(tmp_path / "many.npz") == arrays


def test_a_duplicate_name_is_an_error(tmp_path):
    for second in ("features.npy", "features"):
        with warnings.catch_warnings(action="ignore"):  # The writer itself warns of it.
            write_zip(tmp_path / "x.npz", [("features.npy", npy(np.eye(2))), (second, npy(np.zeros((2, 2))))])
        with pytest.raises(ValueError, match="it contains features twice"):
            truing.Outputs.load(tmp_path / "x.npz")


@pytest.mark.parametrize("compression", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_compression_that_numpy_does_not_use_is_an_error(tmp_path, compression):
    write_zip(tmp_path / "x.npz", [("features.npy", npy(np.eye(9)))], compression)
    with pytest.raises(ValueError, match="features must be stored or deflated, got another compression"):
        truing.Outputs.load(tmp_path / "x.npz")


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(st.integers(0, 4000), min_size=1, max_size=4),
    compression=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    member=st.integers(0, 3),
    offset=st.sampled_from([CHECKSUM, PACKED, UNPACKED, PLACE]),
    value=st.one_of(st.integers(0, 2**16), st.sampled_from([0, 1, 2**31, 2**32 - 2])),
)
def test_wrong_sizes_are_errors_or_change_nothing_and_take_no_extra_memory(
    tmp_path, rows, compression, member, offset, value
):
    path = tmp_path / "x.npz"
    arrays = {f"a{number}": np.full((count, 16), float(number)) for number, count in enumerate(rows)}
    write_zip(path, [(f"{name}.npy", npy(array)) for name, array in arrays.items()], compression)
    change_directory(path, member % len(rows), offset, value)
    allowed = max(npz.MAX_EXPANSION * path.stat().st_size, npz.ALWAYS_ALLOWED_BYTES)
    with at_most(allowed + 4 * MEGABYTE):  # The directory and two chunks of a member need extra memory.
        try:
            loaded = read_npz(path)
        except ValueError as error:
            loaded, message = None, str(error)
    if loaded is None:
        assert path.name in message
        return
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i1", "u8", "?"])
def test_arrays_of_any_shape_order_and_type_are_read_as_written(tmp_path, dtype):
    arrays = {
        f"{shape} {order}": np.asarray(np.ones(shape).cumsum().reshape(shape) % 2, dtype, order)
        for shape in [(), (0,), (3,), (2, 0), (40, 70)]
        for order in "CF"
    }
    write_npz(tmp_path / "ours.npz", arrays)
    np.savez_compressed(tmp_path / "numpy.npz", **arrays)
    for path in tmp_path.iterdir():
        loaded = read_npz(path)
        for name, array in arrays.items():
            np.testing.assert_array_equal(loaded[name], array, strict=True)
