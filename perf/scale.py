"""A table in parts against a plain loop over the same files: time, memory, and growth with the rows.

2,000,000 rows of 128 float32 features and 10 logits in 8 Parquet files, as bytes and as lists. The loop reads a file a
batch at a time by pyarrow, takes the largest softmax probability and adds up ZᵀZ and Zᵀs in float64 on one thread: the
least that a fit by DLR needs. Ours is `parts.moments`, in this process on all cores, and on two processes of Dask. Each
part is a link to one file, so that all are in the system's memory; what a disk takes comes on top.
"""

import multiprocessing
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import process_time

import numpy as np
from pyarrow import parquet

import truing.parts
from _features import like_a_network
from _rows import Row, costs, faster, report, value
from _timing import STATUS, Measure, _give_back_free_memory, _high_water, race
from layouts import table_of
from truing.dask import OnDask, cluster
from truing.parts import Table

COLUMNS, CLASSES = 128, 10
PART = 250_000
BATCH = 2**15
WIDTHS = {"features": COLUMNS, "logits": CLASSES}


def write_part(path: Path, kind: str, rows: int = PART) -> Path:
    """Write rows like a network's as a Parquet file."""
    features = like_a_network(rows, COLUMNS)[0].astype(np.float32)
    head = np.random.default_rng(0).normal(0, 0.3, (COLUMNS, CLASSES)).astype(np.float32)
    table = table_of({"features": features, "logits": features @ head}, kind)
    parquet.write_table(table, path, compression="none", use_dictionary=False, row_group_size=2**16)
    return path


def linked(folder: Path, part: Path, count: int) -> Path:
    """Return a folder of so many parts, all of them links to one."""
    folder.mkdir()
    for number in range(count):
        (folder / f"part-{number}.parquet").symlink_to(part)
    return folder


def batches(folder: Path) -> Iterator[list[np.ndarray]]:
    for path in sorted(folder.iterdir()):
        for batch in parquet.ParquetFile(path).iter_batches(BATCH, use_threads=False):
            yield [_numbers(batch[name], width) for name, width in WIDTHS.items()]


def _numbers(column: object, width: int) -> np.ndarray:
    if hasattr(column, "flatten") and str(column.type).startswith("fixed_size_list"):
        return column.flatten().to_numpy().reshape(-1, width)
    return np.frombuffer(column.buffers()[1], np.float32).reshape(-1, width)[column.offset :][: len(column)]


def plain_loop(folder: Path) -> np.ndarray:
    """Return Σ xxᵀ of x = [features, score, 1]."""
    total = np.zeros((COLUMNS + 2, COLUMNS + 2))
    for features, logits in batches(folder):
        x = np.ones((len(features), COLUMNS + 2))
        x[:, :COLUMNS] = features
        x[:, COLUMNS] = 1 / np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)
        total += x.T @ x
    return total


def ours(folder: Path, runner: OnDask | None = None) -> truing.Moments:
    return truing.parts.moments(Table.of(folder), runner=runner)


def memory(small: Path, large: Path) -> Measure:
    """Return the most memory that a table takes beyond what a small one has taken, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return Measure(float(pool.apply(_memory, (small, large))), "B")


def _memory(small: Path, large: Path) -> int:
    import pyarrow

    ours(small)
    pyarrow.default_memory_pool().release_unused()
    if STATUS.exists():
        _give_back_free_memory()
        Path("/proc/self/clear_refs").write_text("5")
    before = _high_water()
    ours(large)
    return _high_water() - before


def seconds_of_processor(folder: Path) -> tuple[Measure, Measure]:
    times = []
    for work in (ours, plain_loop):
        start = process_time()
        work(folder)
        times.append(Measure(process_time() - start))
    return times[0], times[1]


def rows_of(folder: Path) -> Iterator[Row]:
    small = linked(folder / "small", write_part(folder / "few.parquet", "bytes", 1000), 1)
    for kind in ("bytes", "lists"):
        part = write_part(folder / f"{kind}.parquet", kind)
        table = linked(folder / kind, part, 8)
        what = f"moments of 2,000,000 × 128, Parquet of {kind}"
        with cluster(workers=2) as runner:
            here, there, loop = race(partial(ours, table), partial(ours, table, runner), partial(plain_loop, table))
        yield costs(f"{what}: one process", here, "plain pyarrow and NumPy", loop, 1.15)
        yield faster(f"{what}: two workers", there, "plain pyarrow and NumPy", loop, 1.3)
        own, theirs = seconds_of_processor(table)
        yield costs(f"{what}: processor seconds", own, "plain pyarrow and NumPy", theirs)
        found, sums = ours(table), plain_loop(table)
        gram = found.comoment[:-1, :-1] + found.rows * np.outer(found.mean[:-1], found.mean[:-1])
        error = np.abs(gram - sums[:COLUMNS, :COLUMNS]).max() / np.abs(gram).max()
        yield value("difference of ZᵀZ from the loop's, as a share", float(error), 1e-12)
    sizes = [100_000, 1_000_000, 10_000_000]
    files = {250_000: folder / "bytes.parquet", 100_000: write_part(folder / "tenth.parquet", "bytes", 100_000)}
    tables = [linked(folder / f"{rows}", files[100_000], rows // 100_000) for rows in sizes]
    times = [race(partial(ours, table), repeats=3)[0].value for table in tables]
    exponent = float(np.polyfit(np.log(sizes[1:]), np.log(times[1:]), 1)[0])
    told = ", ".join(f"{rows:,}: {seconds:.2f} s" for rows, seconds in zip(sizes, times, strict=True))
    yield value("exponent of time against rows, 10⁶ to 10⁷", exponent, 1.1, note=told)
    for table, rows in zip(tables[1:], sizes[1:], strict=True):
        yield value(f"MB of memory, {rows:,} × 128", memory(small, table).value / 1e6, 300)


def measure() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        yield from rows_of(Path(name))


if __name__ == "__main__":
    report(measure, "distributed", "pyarrow")
