"""The percentile ablation: RLR at 11 kept shares, against RLR at one."""

from collections.abc import Iterator

import numpy as np

from _features import sixty_thousand
from _rows import Row, costs, report, skipped
from _timing import race
from truing import LinearFit, fit_robust
from truing.fits import fit_robust_sweep

SHARES = tuple(np.linspace(0.5, 1.0, 11).round(2).tolist())
WORK = "RLR at 11 kept shares, 60,000 × 64 real features"


def sweep(features: np.ndarray, scores: np.ndarray) -> list[LinearFit]:
    """Return the fit at each kept share."""
    return fit_robust_sweep(features, scores, SHARES)


def measure() -> Iterator[Row]:
    try:
        features, scores = sixty_thousand()
    except FileNotFoundError as absent:
        yield skipped(WORK, absent)
        return
    mine, one = race(lambda: sweep(features, scores), lambda: fit_robust(features, scores))
    yield costs(WORK, mine, "one fit_robust", one, 2)


if __name__ == "__main__":
    report(measure)
