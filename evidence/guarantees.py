"""The false discovery rate of a whole stream: decisions batch by batch, and three procedures of the package online-fdr.

Each repetition draws the in-distribution rows for the fit, the reference, and, with replacement, the rows of the
stream. A contrast is fitted once and frozen, so a stream is a sequence of p-values. The procedures are Benjamini
and Hochberg's, batch by batch, as with `fdr=`; BatchPRDS; e-LOND with an e-value of m + 1 for a p-value of 1 / (m + 1)
and 0 for others; and LORD++ at 6 / pi squared of the level, at which it is valid for a shared reference.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from online_fdr.e_values import ELond
from online_fdr.p_values import BatchPRDS, LordPlusPlus

import truing

from .banks import inside, load, plain
from .experiment import Experiment, table
from .rows import Row

LEVEL, BATCH, BATCHES, SEED, REPETITIONS = 0.05, 32, 1000, 15, 10
LEARNED_OUT = 600  # Out rows that the contrast learns from. They are not in the streams.


class Bank(NamedTuple):
    """A network, its out-of-distribution sets, and the numbers of fitted rows and of reference rows."""

    network: str
    outside: tuple[str, ...]
    fitted: int
    reference: int


SETS = ("svhn", "dtd10", "scenes", "mnist")
USED = (
    Bank("cifar10-resnet56", SETS, 2000, 5000),
    Bank("cifar10-wrn40-2", SETS, 2000, 5000),
    Bank("cifar100-resnet14", SETS, 2000, 5000),
    Bank("imagenet-efficientnet-lite0", ("dtd10", "scenes"), 1000, 2500),
)

# The share of out rows in a batch, and the number of batches with out rows. The other batches come first.
STREAMS = {
    "1 %": (0.01, 1000),
    "20 %": (0.2, 1000),
    "20 % in the last 100 batches": (0.2, 100),
}
TITLES = {"batch": "`fdr=`, each batch", "prds": "BatchPRDS", "e-lond": "e-LOND", "lord": "LORD++"}


def measure() -> Iterator[Row]:
    """Yield the means over all repetitions for each bank, stream and procedure."""
    for bank in USED:
        results = defaultdict(list)
        for repetition in range(REPETITIONS):
            rng = np.random.default_rng([SEED, repetition])
            p_in, p_out = frozen(bank, rng)
            for stream, (share, busy) in STREAMS.items():
                p, is_out = drawn(p_in, p_out, share, busy, rng)
                for procedure, decide in procedures(bank.reference).items():
                    results[stream, procedure].append(shares(decide(p), is_out))
        for (stream, procedure), pairs in results.items():
            fdr, power = np.mean(pairs, axis=0).tolist()
            row = {"stream": stream, "procedure": procedure, "streams": len(pairs), "fdr": fdr, "power": power}
            yield {"data": bank.network, "seed": SEED, **row}


def frozen(bank: Bank, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return p-values of in-distribution rows and of out rows, by a contrast that has seen neither."""
    rows_in = plain(inside(bank.network))
    rows_out = truing.Outputs.concatenate([plain(load(bank.network, name)) for name in bank.outside])
    rows_in, rows_out = rows_in[rng.permutation(len(rows_in))], rows_out[rng.permutation(len(rows_out))]
    fitted, half = rows_in[: bank.fitted], bank.fitted // 2
    rows = truing.Outputs.concatenate([fitted[:half], rows_out[:LEARNED_OUT]])
    fit = truing.fit_contrast(rows, fitted[half:], components=128 if bank.network.startswith("imagenet") else None)
    reference, rest = np.split(fit.predict(rows_in[bank.fitted :]), [bank.reference])
    return truing.p_values(reference, rest), truing.p_values(reference, fit.predict(rows_out[LEARNED_OUT:]))


def drawn(p_in: Any, p_out: Any, share: float, busy: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Return the p-values of a stream, and which of its rows are out."""
    batch = np.repeat(np.arange(BATCHES), BATCH)
    is_out = (rng.random(len(batch)) < share) & (batch >= BATCHES - busy)
    p = np.where(is_out, rng.choice(p_out, len(batch)), rng.choice(p_in, len(batch)))
    return p, is_out


def procedures(reference: int) -> dict[str, Callable[[Any], Any]]:
    """Return the procedures by name. Each takes the p-values of a stream and returns which rows are refused."""
    prds, lond = BatchPRDS(LEVEL), ELond(LEVEL)
    level = LEVEL * 6 / np.pi**2
    lord = LordPlusPlus(level, level / 2)
    return {
        "batch": by_batch(lambda batch: truing.benjamini_hochberg(batch, fdr=LEVEL)),
        "prds": by_batch(lambda batch: prds.test_batch(batch.tolist())),
        "e-lond": lambda p: np.array([lond.test_one((reference + 1.0) * (v * (reference + 1) < 1.5)) for v in p]),
        "lord": lambda p: np.array([lord.test_one(v) for v in p.tolist()]),
    }


def by_batch(decide: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a procedure that decides batch by batch."""
    return lambda p: np.concatenate([decide(batch) for batch in p.reshape(-1, BATCH)])


def shares(refused: Any, is_out: Any) -> tuple[float, float]:
    """Return the share of refused rows that are in-distribution, and the share of out rows that are refused."""
    return (refused & ~is_out).sum() / max(1, refused.sum()), (refused & is_out).sum() / max(1, is_out.sum())


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the table of streams and procedures, as means over the banks."""
    lines = []
    for stream in STREAMS:
        cells = []
        for procedure in TITLES:
            chosen = [row for row in rows if (row["stream"], row["procedure"]) == (stream, procedure)]
            fdr, power = (100 * np.mean([row[key] for row in chosen]) for key in ("fdr", "power"))
            cells.append(f"{fdr:.1f} / {power:.1f}")
        lines.append([stream, *cells])
    return {
        "streams": table(["out rows", *TITLES.values()], lines, right=len(TITLES)),
        "repetitions": str(sum(row["streams"] for row in rows) // (len(STREAMS) * len(TITLES))),
    }


EXPERIMENT = Experiment("guarantees", measure, sections, ("docs/guarantees.md",), ("online-fdr",))

if __name__ == "__main__":
    EXPERIMENT.main()
