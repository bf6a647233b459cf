"""A table in many files, compared with a plain loop over the same files: time, memory, and growth with the rows.

The table has 2,000,000 rows of 128 float32 features and 10 logits in 8 Parquet files, with features as bytes of fixed
length or as lists. The plain loop reads batches with pyarrow, computes MSP, and sums ZᵀZ and Zᵀs in float64 on one
thread. truing computes `parts.moments`: in this process on all cores, and on two Dask workers. Memory is measured
for whole jobs, `parts.detect` by DLR and by contrast. All parts are links to one file in the page cache, so the time
of a disk is not included.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow
from pyarrow import parquet

from truing import Moments, parts
from truing.dask import OnDask, cluster

from ._features import synthetic_outputs
from ._rows import Row, costs, faster, report, value
from ._timing import alone, race, spelled

COLUMNS, CLASSES = 128, 10
WIDTHS = {"features": COLUMNS, "logits": CLASSES}
PART, PARTS = 250_000, 8
BATCH = 2**15
SIZES = (250_000, 1_000_000, 10_000_000)
SPARE_BYTES = 300e6
LIMITS = {
    "bytes": "One ZᵀZ pass in float64.",
    "lists": "One ZᵀZ pass in float64, and the decoding of lists.",
    "dlr": "Blocks of 16 MB, and buffers of pyarrow.",
    "contrast": "Several copies of a sample of at most 100,000 rows.",
}


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in ("bytes", "lists"):
            part = write_part(folder / f"{kind}.parquet", kind)
            yield from beside_a_plain_loop(linked(folder / kind, part, PARTS), kind)
        yield from as_rows_grow(folder)


def beside_a_plain_loop(table: Path, kind: str) -> Iterator[Row]:
    work = f"moments of {PART * PARTS:,} × {COLUMNS}, Parquet of {kind}"
    moments, sums = ours(table), plain_loop(table)
    gram = moments.comoment[:-1, :-1] + moments.rows * np.outer(moments.mean[:-1], moments.mean[:-1])
    apart = np.abs(gram - sums[:COLUMNS, :COLUMNS]).max() / np.abs(gram).max()
    with cluster(workers=2) as runner:
        functions = partial(ours, table), partial(ours, table, runner), partial(plain_loop, table)
        here, there, loop = race(*functions, repeats=3)
    note, limit = f"ZᵀZ differs by {apart:.0e} of the largest", LIMITS[kind]
    yield costs(f"{work}: one process", here, "plain loop", loop, 1.15, note=note, limit=limit)
    yield faster(f"{work}: two Dask workers", there, "plain loop", loop, 1.3, limit=limit)


def as_rows_grow(folder: Path) -> Iterator[Row]:
    small = linked(folder / "small", write_part(folder / "few.parquet", "bytes", 1_000), 1)
    for rows in SIZES:
        table = linked(folder / f"{rows}", folder / "bytes.parquet", rows // PART)
        for method in ("dlr", "contrast"):
            work = f"detect by {method}, {rows:,} × {COLUMNS}"
            taken, memory = alone(detected, (table, method), (small, method))
            yield value(
                f"memory: {work}", memory, SPARE_BYTES, note=f"in {spelled(taken.value, 's')}", limit=LIMITS[method]
            )


def write_part(path: Path, kind: str, rows: int = PART) -> Path:
    """Write synthetic rows as a Parquet file."""
    outputs = synthetic_outputs(rows, COLUMNS, CLASSES)
    columns = {"features": outputs.features, "logits": outputs.logits}
    table = pyarrow.table({name: column_of(array, kind) for name, array in columns.items()})
    parquet.write_table(table, path, compression="none", use_dictionary=False, row_group_size=2**16)
    return path


def column_of(array: np.ndarray, kind: str) -> pyarrow.Array:
    """Return a matrix as an Arrow column of lists of fixed length, or of bytes."""
    if kind == "lists":
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.shape[1])
    width = pyarrow.binary(array.shape[1] * array.itemsize)
    return pyarrow.FixedSizeBinaryArray.from_buffers(width, len(array), [None, pyarrow.py_buffer(array)])


def linked(folder: Path, part: Path, count: int) -> Path:
    """Return a folder with `count` hard links to one part."""
    folder.mkdir()
    for number in range(count):
        (folder / f"part-{number}.parquet").hardlink_to(part)
    return folder


def ours(folder: Path, runner: OnDask | None = None) -> Moments:
    return parts.moments(parts.Table.of(folder), runner=runner)


def detected(folder: Path, method: str) -> int:
    """Return the number of rows that a whole job decides."""
    reference = synthetic_outputs(2_000, COLUMNS, CLASSES)
    with tempfile.TemporaryDirectory() as results:
        return parts.detect(parts.Table.of(folder), f"{results}/scores", reference, method=method).rows


def plain_loop(folder: Path) -> np.ndarray:
    """Return Σ xxᵀ over all rows, where x = [features, score, 1]."""
    total = np.zeros((COLUMNS + 2, COLUMNS + 2))
    for features, logits in batches(folder):
        x = np.ones((len(features), COLUMNS + 2))
        x[:, :COLUMNS] = features
        x[:, COLUMNS] = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
        total += x.T @ x
    return total


def batches(folder: Path) -> Iterator[list[np.ndarray]]:
    for path in sorted(folder.iterdir()):
        for batch in parquet.ParquetFile(path).iter_batches(BATCH, use_threads=False):
            yield [numbers(batch[name], width) for name, width in WIDTHS.items()]


def numbers(column: pyarrow.Array, width: int) -> np.ndarray:
    if pyarrow.types.is_fixed_size_list(column.type):
        return column.flatten().to_numpy().reshape(-1, width)
    return np.frombuffer(column.buffers()[1], np.float32).reshape(-1, width)[column.offset :][: len(column)]


if __name__ == "__main__":
    report(measure, "distributed", "pyarrow")
