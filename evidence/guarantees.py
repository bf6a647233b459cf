"""Measure procedures for the false discovery rate of a whole stream, on streams drawn from the banks.

Each repetition draws the in-distribution rows that are fitted, the reference, and the rows of the stream, with
replacement. A contrast is fitted once and frozen, so a stream is a sequence of p-values. The procedures are Benjamini
and Hochberg's, batch by batch, and three of the package online-fdr: BatchPRDS; e-LOND with an e-value of m + 1 for a
p-value of 1 / (m + 1) and 0 for others; and LORD++ at 6 / pi squared of the level, at which it is valid for a shared
reference. LORD++ runs on the first 32,000 rows only, because its time grows with the number of refused rows.

    TRUING_DATA=DIR python -m evidence.guarantees [--repetitions 3] [--batches 10000]
"""

import argparse
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from online_fdr.e_values import ELond
from online_fdr.p_values import BatchPRDS, LordPlusPlus

import truing

DATA = (Path(__file__).parent.parent / os.environ.get("TRUING_DATA", "../shared/data")).resolve() / "banks"
LEVEL, ROWS, LORD_ROWS, SEED = 0.05, 32, 32_000, 15


class Bank(NamedTuple):
    """The sets of a bank, the number of fitted rows, and the number of reference rows."""

    network: str
    inside: str
    outside: tuple[str, ...]
    fitted: int
    reference: int


BANKS = [
    Bank("cifar10-resnet56", "cifar10-test", ("svhn", "dtd10", "scenes", "mnist"), 2000, 5000),
    Bank("cifar10-wrn40-2", "cifar10-test", ("svhn", "dtd10", "scenes", "mnist"), 2000, 5000),
    Bank("cifar100-resnet14", "cifar100-test", ("svhn", "dtd10", "scenes", "mnist"), 2000, 5000),
    Bank("imagenet-efficientnet-lite0", "imagenet-val-5000", ("dtd10", "scenes"), 1000, 2500),
]

# The share of out rows in a batch, and the number of batches with out rows in each thousand.
STREAMS = {
    "none out": (0.0, 1000),
    "1 % out": (0.01, 1000),
    "5 % out": (0.05, 1000),
    "20 % out": (0.2, 1000),
    "bursts of 20 %, 100 batches in 1,000": (0.2, 100),
    "bursts of 50 %, 20 batches in 1,000": (0.5, 20),
}


def frozen(bank: Bank, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return p-values of in-distribution rows and of out rows, by a contrast that has seen neither."""
    inside = truing.Outputs.load(DATA / bank.network / f"{bank.inside}.npz")
    outside = truing.Outputs.concatenate([truing.Outputs.load(DATA / bank.network / f"{n}.npz") for n in bank.outside])
    inside, outside = inside[rng.permutation(len(inside))], outside[rng.permutation(len(outside))]
    fitted, half = inside[: bank.fitted], bank.fitted // 2
    rows = truing.Outputs.concatenate([fitted[:half], outside[:600]])
    fit = truing.fit_contrast(rows, fitted[half:], components=128 if bank.network.startswith("imagenet") else None)
    reference, rest = np.split(fit.predict(inside[bank.fitted :]), [bank.reference])
    return truing.p_values(reference, rest), truing.p_values(reference, fit.predict(outside[600:]))


def drawn(p_in: Any, p_out: Any, share: float, busy: int, batches: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return the p-values of a stream, and which of its rows are out."""
    batch = np.repeat(np.arange(batches), ROWS)
    is_out = (rng.random(len(batch)) < share) & (batch % 1000 >= 1000 - busy)
    p = np.where(is_out, p_out[rng.integers(len(p_out), size=len(batch))], rng.choice(p_in, len(batch)))
    return p, is_out


def by_batch(decide: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a procedure that decides batch by batch."""
    return lambda p: np.concatenate([decide(batch) for batch in p.reshape(-1, ROWS)])


def lord(p: Any) -> Any:
    """Return which of the first rows LORD++ refuses."""
    level = LEVEL * 6 / np.pi**2
    method = LordPlusPlus(level, level / 2)
    return np.array([method.test_one(float(value)) for value in p[:LORD_ROWS]])


def procedures(reference: int) -> dict[str, Callable[[Any], Any]]:
    """Return the procedures by name: each takes p-values and returns which rows are refused."""
    prds, lond = BatchPRDS(LEVEL), ELond(LEVEL)
    return {
        "BH, batch by batch": by_batch(lambda batch: truing.benjamini_hochberg(batch, fdr=LEVEL)),
        "BatchPRDS": by_batch(lambda batch: prds.test_batch(batch.tolist())),
        "e-LOND": lambda p: np.array([lond.test_one((reference + 1.0) * (v * (reference + 1) < 1.5)) for v in p]),
        "LORD++": lord,
    }


def measured(bank: Bank, repetitions: int, batches: int) -> Iterator[str]:
    """Yield a line for each stream and procedure: FDR with its standard error, and power."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for repetition in range(repetitions):
        rng = np.random.default_rng([SEED, repetition])
        p_in, p_out = frozen(bank, rng)
        for stream, (share, busy) in STREAMS.items():
            p, is_out = drawn(p_in, p_out, share, busy, batches, rng)
            for name, decide in procedures(bank.reference).items():
                refused = decide(p)
                found[stream, name].append(shares(refused, is_out[: len(refused)]))
    for (stream, name), pairs in found.items():
        yield f"| {bank.network} | {stream} | {name} | {summary(pairs)} |"


def shares(refused: Any, is_out: Any) -> tuple[float, float]:
    """Return the share of refused rows that are in-distribution, and the share of out rows that are refused."""
    return (refused & ~is_out).sum() / max(1, refused.sum()), (refused & is_out).sum() / max(1, is_out.sum())


def summary(pairs: list[tuple[float, float]]) -> str:
    """Return the FDR with its standard error and the power, as means in per cent, and the number of streams."""
    false, power = 100 * np.array(pairs).T
    return f"{false.mean():.2f} ± {false.std() / np.sqrt(len(false)):.2f} | {power.mean():.1f} | {len(false)}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--batches", type=int, default=10_000)
    options = parser.parse_args()
    measurements = (measured(bank, options.repetitions, options.batches) for bank in BANKS)
    show("| bank | stream | procedure | FDR, % | power, % | streams |", chain.from_iterable(measurements))


def show(head: str, lines: Iterable[str]) -> None:
    """Print a table in Markdown, line by line as they come."""
    columns = head.count("|") - 1
    print(f"{head}\n|{' --- |' * columns}")
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    main()
