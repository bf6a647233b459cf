"""The numbers that the paper prints, by the names that truing uses. paper.csv holds all tables of the paper."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from ..experiments.cases import Case

PRINTED = Path(__file__).parent / "paper.csv"
AVERAGE = "average"
BASES = {
    "msp": "MSP",
    "energy": "Energy",
    "odin": "ODIN",
    "odin-perturbed": "ODIN",
    "kl_uniform": "KL",
    "gradnorm": "GradNorm",
    "isolation-forest": "IsolationForest",
    "lof": "LOF",
    "gmm-10": "GMM",
    "gmm-100": "GMM",
    "gmm-1000-diagonal": "GMM",
}
METHODS = {
    "none": "",
    "Online DLR": "OnlineDLR",
    "ReAct + DLR, raw": "ReAct+DLR",
    "ReAct + DLR, clipped": "ReAct+DLR",
}


@dataclass(frozen=True)
class Printed:
    """The paper's numbers for one method on one set, as shares. `note` names a misprint or a gap."""

    fpr95: float
    auroc: float
    aupr: float | None
    note: str


def printed(
    case: Case, inside: str, base: str, method: str, outside: str = AVERAGE, batch: int | None = None
) -> Printed | None:
    """Return the paper's numbers for a base score and method, or None if the paper has none.

    >>> from truing.bench.experiments.cases import MAIN
    >>> printed(MAIN, "CIFAR-10", "msp", "DLR").fpr95
    0.123
    """
    name = METHODS.get(method, method)
    names = [name] if batch is None else [f"{name} batch={batch}", name]
    for table in case.paper_tables:
        for method_name in names:
            numbers = _all().get((table, inside, outside, BASES.get(base, base), method_name))
            if numbers is not None:
                return numbers
    return None


def mean_of(numbers: list[Printed]) -> Printed:
    """Return the mean of the paper's numbers of single sets, with all of their notes."""
    aupr = [one.aupr for one in numbers if one.aupr is not None]
    return Printed(
        fmean(one.fpr95 for one in numbers),
        fmean(one.auroc for one in numbers),
        fmean(aupr) if len(aupr) == len(numbers) else None,
        "; ".join(dict.fromkeys(one.note for one in numbers if one.note)),
    )


@cache
def _all() -> Mapping[tuple[str, ...], Printed]:
    with PRINTED.open(encoding="utf-8", newline="") as file:
        return {
            tuple(row[name] for name in ("table", "in_dist", "out_dist", "base", "method")): Printed(
                _share(row["fpr95"]),
                _share(row["auroc"]),
                _share(row["aupr"]) if row["aupr"] else None,
                row["note"],
            )
            for row in csv.DictReader(file)
        }


def _share(per_cent: str) -> float:
    return round(float(per_cent) / 100, 6)
