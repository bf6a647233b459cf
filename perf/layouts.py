"""What it takes to read a table in blocks, for each way to lay it out in files: processor seconds for a gigabyte.

500,000 rows of 128 float32 features and 10 logits, a block of 8,192 rows at a time, on one thread, from files that the
system has in memory: what a disk takes comes on top, and a layout that packs reads less of it. Beside it the same bytes
by `np.fromfile`, block by block. Rows that are not sealed; a last row has what it takes to compare a seal.

The rows are those of `_features.like_a_network`, of which half is zero, and logits of a linear head.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np
import pyarrow
from pyarrow import ipc, parquet

from _features import like_a_network
from _rows import Row, costs, report
from _timing import REPEATS, Measure
from truing.io.npz import Arrays, write_npz
from truing.io.parts import read_blocks

ROWS, COLUMNS, CLASSES = 500_000, 128, 10
BLOCK = 8192
GIGABYTE = 1e9


def table_of(columns: Arrays, kind: str) -> pyarrow.Table:
    """Return columns (n, d) as an Arrow table of lists of fixed length, or of bytes."""
    return pyarrow.table({name: _column(array, kind) for name, array in columns.items()})


def _column(array: np.ndarray, kind: str) -> pyarrow.Array:
    if kind == "lists":
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.shape[1])
    width = pyarrow.binary(array.shape[1] * array.itemsize)
    return pyarrow.FixedSizeBinaryArray.from_buffers(width, len(array), [None, pyarrow.py_buffer(array)])


def write_set(folder: Path, columns: Arrays) -> Path:
    for name, array in columns.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def write_stored(folder: Path, columns: Arrays) -> Path:
    np.savez(folder / "x.npz", **columns)
    return folder / "x.npz"


def write_deflated(folder: Path, columns: Arrays) -> Path:
    np.savez_compressed(folder / "x.npz", **columns)
    return folder / "x.npz"


def write_sealed(folder: Path, columns: Arrays) -> Path:
    write_npz(folder / "x.npz", columns)
    return folder / "x.npz"


def write_parquet(kind: str, compression: str) -> Callable[[Path, Arrays], Path]:
    def write(folder: Path, columns: Arrays) -> Path:
        # Few numbers are equal, so that a dictionary of them is in vain.
        table = table_of(columns, kind)
        parquet.write_table(table, folder / "x.parquet", compression=compression, use_dictionary=False)
        return folder / "x.parquet"

    return write


def write_arrow(kind: str, compression: str | None) -> Callable[[Path, Arrays], Path]:
    def write(folder: Path, columns: Arrays) -> Path:
        table = table_of(columns, kind)
        options = ipc.IpcWriteOptions(compression=compression)
        with ipc.new_file(str(folder / "x.arrow"), table.schema, options=options) as file:
            file.write_table(table, max_chunksize=65_536)
        return folder / "x.arrow"

    return write


LAYOUTS: dict[str, Callable[[Path, Arrays], Path]] = {
    ".npy set": write_set,
    ".npz, stored": write_stored,
    ".npz, deflated": write_deflated,
    "Parquet, lists of fixed length": write_parquet("lists", "none"),
    "Parquet, lists of fixed length, snappy": write_parquet("lists", "snappy"),
    "Parquet, bytes of fixed length": write_parquet("bytes", "none"),
    "Parquet, bytes of fixed length, snappy": write_parquet("bytes", "snappy"),
    "Arrow, lists of fixed length": write_arrow("lists", None),
    "Arrow, lists of fixed length, lz4": write_arrow("lists", "lz4"),
    "Arrow, bytes of fixed length": write_arrow("bytes", None),
    ".npz, stored and sealed": write_sealed,
}


def made(rows: int) -> Arrays:
    features, _ = like_a_network(rows, COLUMNS)
    head = np.random.default_rng(1).standard_normal((COLUMNS, CLASSES), np.float32)
    return {"features": features, "logits": features @ head}


def read(part: Path) -> int:
    """Read a part in blocks, and return how many rows it has."""
    return sum(len(block["features"]) for block in read_blocks(part, BLOCK))


def read_plain(files: dict[Path, int]) -> int:
    """Read files of float32 rows of some width side by side, in the same blocks."""
    rows = 0
    opened = [(path.open("rb"), width) for path, width in files.items()]
    while True:
        blocks = [np.fromfile(file, np.float32, BLOCK * width).reshape(-1, width) for file, width in opened]
        if not len(blocks[0]):
            break
        rows += len(blocks[0])
    for file, _ in opened:
        file.close()
    return rows


def measure() -> Iterator[Row]:
    columns = made(ROWS)
    gigabytes = sum(array.nbytes for array in columns.values()) / GIGABYTE
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = {}
        for column, array in columns.items():
            array.tofile(folder / column)
            plain[folder / column] = array.shape[1]
        for layout, write in LAYOUTS.items():
            place = folder / "part"
            place.mkdir()
            part = write(place, columns)
            size = sum(file.stat().st_size for file in place.iterdir()) / GIGABYTE
            ours, theirs = (
                Measure(seconds / gigabytes, runs=REPEATS)
                for seconds in turns(lambda part=part: read(part), lambda: read_plain(plain))
            )
            note = f"{size / gigabytes:.2f} bytes in the file for one"
            yield costs(f"1 GB of rows from {layout}", ours, "np.fromfile", theirs, note=note)
            for file in place.iterdir():
                file.unlink()
            place.rmdir()


def turns(*readers: Callable[[], int]) -> list[float]:
    """Return the median processor time of each reader, which take turns, once all have run."""
    seconds: list[list[float]] = [[] for _ in readers]
    for repeat in range(REPEATS + 1):
        for reader, taken in zip(readers, seconds, strict=True):
            start = process_time()
            assert reader() == ROWS
            if repeat:
                taken.append(process_time() - start)
    return [median(taken) for taken in seconds]


if __name__ == "__main__":
    report(measure, "pyarrow")
