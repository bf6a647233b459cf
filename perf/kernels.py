"""Whole jobs with the compiled kernels, compared with the same jobs in plain NumPy.

A kernel stays if it makes such a job at least 1.5 times as fast. Two processes take turns, one of them with
TRUING_KERNELS=plain. The rows are synthetic and float32. Both sides use one thread.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from statistics import median
from time import perf_counter

import numpy as np

import truing

from ._features import synthetic_outputs
from ._rows import Row, faster, report
from ._timing import REPEATS, Measure

ROWS, CLASSES, REFERENCE = 600_000, 100, 2_000
BATCHES, BATCH = 100, 32
TARGET = 1.5
EXPONENTIALS = "One exponential in float64 per logit."
LIMITS = {
    "detect by DLR": "Only the sums and scores are kernels; p-values and notes are NumPy on both sides.",
    "msp": EXPONENTIALS,
    "energy": EXPONENTIALS,
    "kl_uniform": EXPONENTIALS,
    "gen": "One power per selected probability, after the exponentials.",
    "max_logit": "Reading the logits, and finding the largest of each row.",
    "gradnorm": "One exponential per logit, and reading the features.",
}
STREAM = f"stream, {BATCHES} batches of {BATCH} × 128"


@cache
def logits() -> np.ndarray:
    return np.random.default_rng(0).normal(0, 3, (ROWS, CLASSES)).astype(np.float32)


@cache
def outputs(rows: int, features: int) -> truing.Outputs:
    return synthetic_outputs(rows, features)


def detect(rows: int, features: int) -> None:
    every = outputs(rows + REFERENCE, features)
    truing.detect(every[REFERENCE:], every[:REFERENCE], method="dlr")


def stream(features: int) -> None:
    rows = outputs(BATCH * BATCHES, features)
    detector = truing.Detector("energy")
    for start in range(0, len(rows), BATCH):
        detector.learn_and_score(rows[start : start + BATCH])


def gradnorm() -> None:
    truing.gradnorm(outputs(ROWS, 64).features, logits())


JOBS: dict[str, Callable[[], object]] = {
    "detect by DLR, 10,000 × 64": lambda: detect(10_000, 64),
    "detect by DLR, 1,000,000 × 128": lambda: detect(1_000_000, 128),
    f"msp, {ROWS:,} × {CLASSES}": lambda: truing.msp(logits()),
    f"energy, {ROWS:,} × {CLASSES}": lambda: truing.energy(logits()),
    f"kl_uniform, {ROWS:,} × {CLASSES}": lambda: truing.kl_uniform(logits()),
    f"gen, {ROWS:,} × {CLASSES}": lambda: truing.gen(logits()),
    f"max_logit, {ROWS:,} × {CLASSES}": lambda: truing.max_logit(logits()),
    f"gradnorm, {ROWS:,} × {CLASSES}": gradnorm,
    STREAM: lambda: stream(128),
}


def seconds(job: str) -> float:
    """Run a job once and return its time in seconds."""
    truing.threads(1)
    start = perf_counter()
    JOBS[job]()
    return perf_counter() - start


def pool(kernels: str) -> ProcessPoolExecutor:
    """Return a pool with one running process that uses these kernels."""
    os.environ["TRUING_KERNELS"] = kernels
    process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    process.submit(int).result()
    return process


def measure() -> Iterator[Row]:
    with pool("plain") as plain, pool("") as compiled:
        for job in JOBS:
            times: dict[ProcessPoolExecutor, list[float]] = {compiled: [], plain: []}
            for process in times:
                process.submit(seconds, job).result()  # Make the rows.
            for _ in range(REPEATS):
                for process, taken in times.items():
                    taken.append(process.submit(seconds, job).result())
            ours, theirs = (Measure(median(taken), runs=REPEATS) for taken in times.values())
            if job == STREAM:
                yield faster(job, ours, "plain NumPy", theirs, limit="No kernel takes so few rows.")
            else:
                yield faster(job, ours, "plain NumPy", theirs, TARGET, limit=LIMITS[job.split(",")[0]])


if __name__ == "__main__":
    report(measure)
