"""Measure the methods at several shares of out-of-distribution rows, on six networks, for docs/results/out-share.md.

A random half of the in-distribution rows is the reference, and the other half is tested, with out rows of one set.
CLINC150 has its official split. If a set has too few rows for a share, there are fewer in-distribution rows. DLR and
RLR use 64 principal components on ImageNet, as in docs/reproduce.md.

    TRUING_DATA=DIR python -m evidence.out_share
"""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

import truing
from truing import Outputs

from . import banks
from .experiment import Experiment, table
from .rows import Row

SHARES = (0.005, 0.02, 0.05, 0.1, 0.2, 0.5)
METHODS: dict[str, dict[str, Any]] = {
    "MSP": {"method": "none", "base": "msp"},
    "energy": {"method": "none", "base": "energy"},
    "GEN": {"method": "none", "base": "gen"},
    "energy + DLR": {"method": "dlr", "base": "energy"},
    "energy + RLR": {"method": "rlr", "base": "energy"},
    "contrast": {"method": "contrast", "base": "gen"},
}
COMPONENTS = {"imagenet-efficientnet-lite0": 64}
FALSE_ALARM = 0.05
SEED, SPLITS = 30, 2


def measure() -> Iterator[Row]:
    """Yield one row of means over sets and splits for each network, share and method."""
    warnings.simplefilter("ignore", truing.TruingWarning)  # Notes on many rows out, and on few rows to learn from.
    for network in banks.INSIDE:
        cases: dict[tuple[float, str], list[Row]] = {}
        sets = banks.outside(network)
        for split in range(SPLITS):
            rng = np.random.default_rng([SEED, split])
            reference, test = map(banks.plain, banks.reference_and_test(network, rng))
            for outside in sets.values():
                outside = outside[rng.permutation(len(outside))]
                for share in SHARES:
                    inside, out = with_share(test, outside, share)
                    for method in METHODS:
                        numbers = numbers_of(inside, out, reference, options_of(network, method))
                        cases.setdefault((share, method), []).append(numbers)
        for (share, method), some in cases.items():
            means = {key: round(float(np.mean([numbers[key] for numbers in some])), 4) for key in some[0]}
            about = {"data": network, "seed": SEED, "splits": SPLITS, "sets": len(sets)}
            yield about | {"share": share, "method": method} | means
        print(network, flush=True)


def with_share(inside: Outputs, outside: Outputs, share: float) -> tuple[Outputs, Outputs]:
    """Return as many in-distribution and out rows as possible, so that a share of the rows is out."""
    rows_out = min(len(outside), round(share / (1 - share) * len(inside)))
    return inside[: round((1 - share) / share * rows_out)], outside[:rows_out]


def options_of(network: str, method: str) -> dict[str, Any]:
    """Return the options of `truing.detect`."""
    options = METHODS[method]
    return {**options, "components": COMPONENTS.get(network)} if options["method"] in ("dlr", "rlr") else options


def numbers_of(inside: Outputs, outside: Outputs, reference: Outputs, options: dict[str, Any]) -> Row:
    """Return the AUROC and the shares of refused rows in per cent."""
    rows, rows_in = Outputs.concatenate([inside, outside]), len(inside)
    result = truing.detect(rows, reference, false_alarm=FALSE_ALARM, **options)
    return {
        "auroc": 100 * truing.auroc(result.scores[:rows_in], result.scores[rows_in:]),
        "refused": 100 * result.is_out[rows_in:].mean(),
        "false_alarms": 100 * result.is_out[:rows_in].mean(),
    }


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the tables of docs/results/out-share.md."""
    cells = {(row["data"], row["method"], row["share"]): row for row in rows}
    texts = {"splits": f"{rows[0]['splits']}"}
    for title, keys in (("quality", ("auroc", "refused")), ("false alarms", ("false_alarms",))):
        lines = [
            (network, method, *(shown(cells[network, method, share], keys) for share in SHARES))
            for network in banks.INSIDE
            for method in METHODS
        ]
        texts[title] = table(("network", "method", *(f"{100 * share:g} %" for share in SHARES)), lines, right=6)
    return texts


def shown(row: Row, keys: tuple[str, ...]) -> str:
    """Return some numbers of a row with one decimal."""
    return " / ".join(f"{row[key]:.1f}" for key in keys)


EXPERIMENT = Experiment("out_share", measure, sections, pages=("docs/results/out-share.md",))

if __name__ == "__main__":
    EXPERIMENT.main()
