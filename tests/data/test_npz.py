"""An `.npz` from anyone: what it may cost to read, and what is never believed."""

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
    """Overwrite four bytes in the entry of one member in the zip's directory."""
    data = bytearray(path.read_bytes())
    place = -1
    for _ in range(member + 1):
        place = data.index(b"PK\x01\x02", place + 1)
    struct.pack_into("<I", data, place + offset, value)
    path.write_bytes(data)


PACKED, UNPACKED, PLACE = 20, 24, 42  # In an entry: the size packed, the size unpacked, where the member starts.


def test_a_small_file_that_unpacks_to_a_huge_array_is_an_error_before_reading(tmp_path):
    np.savez_compressed(tmp_path / "bomb.npz", features=np.zeros((25 * MEGABYTE, 1)))
    assert (tmp_path / "bomb.npz").stat().st_size < MEGABYTE
    with (
        at_most(MEGABYTE),
        pytest.raises(ValueError, match=r"unpacks to 209,715,328 bytes, more than the [0-9,]+ allowed"),
    ):
        truing.Outputs.load(tmp_path / "bomb.npz")


def test_a_size_that_is_too_small_in_the_directory_is_an_error(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", features=np.zeros((8 * MEGABYTE, 1)))
    change_directory(tmp_path / "x.npz", 0, UNPACKED, 4096)
    with at_most(MEGABYTE), pytest.raises(ValueError, match=r"x\.npz must be an .npz file"):
        truing.Outputs.load(tmp_path / "x.npz")
    write_zip(tmp_path / "y.npz", [("features.npy", npy(np.zeros((500, 8))))], zipfile.ZIP_DEFLATED)
    header = npy(np.zeros((500, 8)))[:128].replace(b"(500, 8)", b"(400, 8)")
    assert len(header) == 128
    write_zip(tmp_path / "y.npz", [("features.npy", header + bytes(500 * 64))], zipfile.ZIP_DEFLATED)
    change_directory(tmp_path / "y.npz", 0, UNPACKED, 128 + 400 * 64)
    with pytest.raises(ValueError, match="Bad CRC-32"):
        truing.Outputs.load(tmp_path / "y.npz")


def test_a_size_that_is_too_large_in_the_directory_is_an_error(tmp_path):
    header = npy(np.zeros((5, 8)))[:128].replace(b"(5, 8), ", b"(90, 8),")
    write_zip(tmp_path / "x.npz", [("features.npy", header + bytes(5 * 64))], zipfile.ZIP_DEFLATED)
    change_directory(tmp_path / "x.npz", 0, UNPACKED, 128 + 90 * 64)
    with pytest.raises(ValueError, match=r"x\.npz must be an .npz file"):
        truing.Outputs.load(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("is_large", "comment"),
    [
        (False, b""),
        (False, b"a comment"),
        (True, b"a comment"),
    ],
)
def test_a_zip_of_very_many_arrays_is_an_error_before_they_are_listed(tmp_path, monkeypatch, is_large, comment):
    path = tmp_path / "many.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.comment = comment
        for number in range(70_000 if is_large else 2000):  # Beyond 65,535 the end of a zip is another.
            archive.writestr(f"{number}.npy", b"")

    def listed(self):
        raise AssertionError("the arrays were listed")

    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", listed)
    with pytest.raises(ValueError, match="its directory must be at most 65,536 bytes, enough for a few hundred"):
        read_npz(path)


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


numbers = st.one_of(st.integers(0, 2**16), st.sampled_from([0, 1, 2**31, 2**32 - 2]))


def check_wrong_size(path: Path, rows: list[int], compression: int, lie: tuple[int, int, int]) -> None:
    arrays = {f"a{number}": np.full((count, 16), float(number)) for number, count in enumerate(rows)}
    write_zip(path, [(f"{name}.npy", npy(array)) for name, array in arrays.items()], compression)
    member, offset, value = lie
    change_directory(path, member % len(rows), offset, value)
    most = max(npz.MAX_EXPANSION * path.stat().st_size, npz.ALWAYS_ALLOWED_BYTES)
    # Beside the arrays: the zip's directory, a chunk of a member packed and unpacked.
    with at_most(most + 4 * MEGABYTE):
        try:
            found = read_npz(path)
        except ValueError as error:
            found, refused = None, str(error)
    if found is None:
        assert path.name in refused
        return
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


a_lie = st.tuples(st.integers(0, 3), st.sampled_from([16, PACKED, UNPACKED, PLACE]), numbers)
lying = given(
    rows=st.lists(st.integers(0, 4000), min_size=1, max_size=4),
    compression=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    lie=a_lie,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@lying
def test_wrong_sizes_are_errors_or_change_nothing_and_take_no_extra_memory(tmp_path, rows, compression, lie):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(npz, "ALWAYS_ALLOWED_BYTES", MEGABYTE)
        check_wrong_size(tmp_path / "x.npz", rows, compression, lie)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "i1", "u8", "?"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (40, 70)])
def test_arrays_of_any_shape_order_and_type_are_read_as_written(tmp_path, order, dtype, shape):
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape) % 2, dtype=dtype, order=order)
    for write in (lambda path: write_npz(path, {"a": array}), lambda path: np.savez_compressed(path, a=array)):
        write(tmp_path / "x.npz")
        found = read_npz(tmp_path / "x.npz")["a"]
        np.testing.assert_array_equal(found, array)
        assert (found.dtype, found.shape) == (array.dtype, shape)
