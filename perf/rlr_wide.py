"""RLR of wide features, 1,280 of them, against itself by continuation alone, as it fits where unknowns are few.

Rows are those of the ImageNet bank, which has 7,700, and 20,000 with the same network's features of small images. Both
sides are one thread and give the same certificate. Continuation takes minutes for many rows and is run once there:
--slow does so.
"""

from collections.abc import Iterator
from math import inf

import numpy as np

import truing
from _features import Pair, imagenet, twenty_thousand_wide
from _rows import Row, faster, report, skipped
from _timing import difference, race
from truing.huber_regression import solver
from truing.rows import Rows

PENALTY = 1e-5
RIVAL = "by continuation alone"


def regression(pair: Pair) -> truing.huber_regression.HuberFit:
    """Return RLR's regression, on unit-norm rows."""
    return truing.huber_regression.huber_rows(Rows.unit(pair[0]), pair[1], PENALTY)


def by_continuation(pair: Pair) -> truing.huber_regression.HuberFit:
    """Return the same regression as it is done where unknowns are few."""
    many, solver.MANY_UNKNOWNS = solver.MANY_UNKNOWNS, inf
    try:
        return regression(pair)
    finally:
        solver.MANY_UNKNOWNS = many


def spread(outputs: truing.Outputs, n: int) -> Pair:
    """Return n of the rows, evenly spread, and their MSP."""
    rows = np.linspace(0, len(outputs) - 1, n).astype(int)
    return outputs.features[rows].astype(np.float32), truing.msp(outputs.logits[rows])


def measure(slow: bool) -> Iterator[Row]:
    truing.threads(1)
    for n, real in ((3000, imagenet), (7700, imagenet), (20_000, twenty_thousand_wide)):
        work = f"RLR's regression, {n:,} × 1,280 real features"
        try:
            pair = spread(real(), n)
        except FileNotFoundError as absent:
            yield skipped(work, absent)
            continue
        yield compared(work, pair, run_rival=slow or n == 3000)


def compared(work: str, pair: Pair, *, run_rival: bool) -> Row:
    fits: list[truing.huber_regression.HuberFit] = []
    if not run_rival:
        (mine,) = race(lambda: fits.append(regression(pair)), repeats=3)
        return Row(work, mine, RIVAL, note=f"gap {fits[0].gap:.0e}; --slow runs the rival")
    repeats = 2 if len(pair[1]) <= 3000 else 1
    ours, continuation = (lambda: fits.append(regression(pair))), (lambda: fits.append(by_continuation(pair)))
    mine, theirs = race(ours, continuation, repeats=repeats)
    gap = max(fit.gap for fit in fits)
    note = f"gap {gap:.0e}; residuals differ by at most {difference(fits[0].residual, fits[-1].residual):.0e}"
    return faster(work, mine, RIVAL, theirs, 10, also="gap ≤ 1e-8", ok=gap <= 1e-8, note=note)


if __name__ == "__main__":
    report(measure, slow="run the rival on 7,700 and 20,000 rows too (minutes)")
