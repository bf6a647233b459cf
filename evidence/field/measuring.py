"""Measure every rival on every network: means over a few splits."""

from collections.abc import Iterator
from time import process_time
from typing import Any

import numpy as np

from .. import banks
from ..rows import Row
from . import of_packages, of_papers, of_pytorch_ood, of_scikit_learn, of_truing
from .protocol import METRICS, SEED, Rival, Split, judge, pieces, split

SPLITS = 3
MAKERS = {
    "truing": of_truing.rivals,
    "pytorch-ood": of_pytorch_ood.rivals,
    "papers": of_papers.rivals,
    "pulearn": of_packages.of_pulearn,
    "fcnd": of_packages.of_fcnd,
    "pyod": of_packages.of_pyod,
    "scikit-learn": of_scikit_learn.rivals,
}
PACKAGES = ("scikit-learn", "torch", "pytorch-ood", "pulearn", "fcnd", "pyod")


def measure() -> Iterator[Row]:
    """Yield a row for every network and rival."""
    for network in banks.INSIDE:
        splits = [split(network, seed) for seed in range(SPLITS)]
        for library, make in MAKERS.items():
            for rival in make(splits[0]):
                row = {"data": network, "seed": SEED, "detector": rival.name, "library": library, "given": rival.given}
                print(network, library, rival.name, rival.given, flush=True)
                yield row | measured(rival, splits)


def measured(rival: Rival, splits: list[Split]) -> Row:
    """Return the numbers of one rival, or a note why it cannot run."""
    start = process_time()
    try:
        used = splits[:1] if rival.is_slow else splits
        results = [{name: judge(*scores) for name, *scores in pieces(rival, one)} for one in used]
    except (AssertionError, RuntimeError, ValueError) as error:
        return {"note": str(error).split("\n")[0] or type(error).__name__}
    seconds = (process_time() - start) / len(results) / len(results[0])
    return {"splits": len(results), "seconds": float(f"{seconds:.3g}")} | summary(results)


def summary(results: list[dict[str, dict[str, float]]]) -> Row:
    """Return for each metric the mean of each set, the mean of each split, and their mean and standard error."""
    row: Row = {}
    for metric in METRICS:
        if metric in next(iter(results[0].values())):
            table = {name: [one[name][metric] for one in results] for name in results[0]}
            row[metric] = {name: rounded(np.mean(values)) for name, values in table.items()}
            means = np.mean(list(table.values()), axis=0)
            row[f"means {metric}"] = [rounded(mean) for mean in means]
            row[f"mean {metric}"] = rounded(means.mean())
            row[f"error {metric}"] = rounded(means.std(ddof=1) / len(means) ** 0.5) if len(means) > 1 else None
    return row


def rounded(number: Any) -> float:
    """Return a number with five decimals."""
    return round(float(number), 5)
