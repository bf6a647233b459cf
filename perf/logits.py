"""Base scores of the logits, on one thread, against plain passes of max, exp and sum, and torch's logsumexp.

Three plain passes, of which the fastest counts: over the whole array in its own type, as most would write it; a block
of rows at a time; and with each column of a block in one piece. The last two compute in float32, ours in float64. What
the same passes take in float64 stands beside: without AVX-512 NumPy's exp of a double takes three times that of a
float. GEN takes two powers of every probability that it sums.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import truing
from _rows import Row, costs, report
from _timing import Measure, race

SIZES = ((600_000, 10), (600_000, 100), (100_000, 1000))
SCORES = {"msp": truing.msp, "energy": truing.energy, "kl_uniform": truing.kl_uniform, "gen": truing.gen}
NUMBERS_AT_ONCE = 2**15


def whole(logits: NDArray[Any]) -> NDArray[Any]:
    return np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)


def in_blocks(logits: NDArray[Any], dtype: type) -> NDArray[Any]:
    """Return the sums, from rows that are copied into one buffer, a few at a time."""
    step = NUMBERS_AT_ONCE // logits.shape[1]
    buffer, sums = np.empty((step, logits.shape[1]), dtype), np.empty(len(logits), dtype)
    for start in range(0, len(logits), step):
        part = logits[start : start + step]
        block = buffer[: len(part)]
        np.copyto(block, part)
        block -= block.max(axis=1, keepdims=True)
        np.exp(block, out=block).sum(axis=1, out=sums[start : start + step])
    return sums


def in_columns(logits: NDArray[Any], dtype: type) -> NDArray[Any]:
    """Return the sums, from a few rows at a time whose columns are in one piece."""
    step = NUMBERS_AT_ONCE // logits.shape[1]
    sums = np.empty(len(logits), dtype)
    for start in range(0, len(logits), step):
        block = np.array(logits[start : start + step].T, dtype=dtype, order="C")
        block -= block.max(axis=0)
        np.exp(block, out=block).sum(axis=0, out=sums[start : start + step])
    return sums


def fastest(*measures: Measure) -> Measure:
    return min(measures, key=lambda measure: measure.value)


def one_size(rows: int, classes: int, dtype: type) -> Iterator[Row]:
    logits = np.random.default_rng(0).normal(0, 3, (rows, classes)).astype(np.float32).astype(dtype)
    tensor = torch.from_numpy(logits)
    passes: list[Callable[[], object]] = [
        partial(in_blocks, logits, np.float32),
        partial(in_columns, logits, np.float32),
        partial(in_blocks, logits, np.float64),
        partial(in_columns, logits, np.float64),
        partial(torch.logsumexp, tensor, 1),
    ]
    if dtype is not np.float16:  # NumPy takes twenty times as long for an array of halves.
        passes.append(partial(whole, logits))
    measures = race(*(partial(score, logits) for score in SCORES.values()), *passes)
    count = len(SCORES)
    ours, (rows_32, columns_32, rows_64, columns_64, torches, *wholes) = measures[:count], measures[count:]
    plain, double = fastest(rows_32, columns_32, *wholes), fastest(rows_64, columns_64)
    for name, mine in zip(SCORES, ours, strict=True):
        work = f"{name}, {rows:,} × {classes:,} {np.dtype(dtype).name}"
        note = f"{mine.value / wholes[0].value:.2f} × the pass over the whole array" if wholes else ""
        yield costs(work, mine, "fastest plain max, exp, sum", plain, 1.5, note=note)
        yield costs(work, mine, "the same passes in float64", double)
        if name == "energy":
            yield costs(work, mine, "torch.logsumexp, one thread", torches, 1.0)


def measure() -> Iterator[Row]:
    truing.threads(1)
    torch.set_num_threads(1)
    for rows, classes in SIZES:
        for dtype in (np.float32, np.float16):
            yield from one_size(rows, classes, dtype)


if __name__ == "__main__":
    report(measure, "torch")
