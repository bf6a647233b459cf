"""How often the robust fit reads the rows: its cost in units of one float64 ZᵀZ pass over them.

`huber` is the regression alone, on unit-norm rows as RLR gives them; `fit_robust` is all of RLR: norms, regression, the
choice of rows and the fit of those. Peak memory counts the input too. The case of a million rows is made, not real:
`like_a_network` says how.
"""

from collections.abc import Callable, Iterator

import numpy as np

import truing
from _features import Pair, like_a_network, sixty_thousand
from _rows import Row, costs, report, skipped
from _timing import Measure, peak, race
from truing.huber_regression import HuberFit

PASS = "one ZᵀZ pass"
BLOCK_NUMBERS = 2**18  # Among the fastest blocks for this pass, for 64 and for 128 columns.


def gram_pass(features: np.ndarray) -> np.ndarray:
    """Return ZᵀZ in float64, a block of rows at a time."""
    d = features.shape[1]
    gram, step = np.zeros((d, d)), BLOCK_NUMBERS // d
    for start in range(0, len(features), step):
        block = features[start : start + step].astype(np.float64)
        gram += block.T @ block
    return gram


def unit(features: np.ndarray) -> np.ndarray:
    """Return the rows divided by their norms, in their own type."""
    norm = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(norm > 0, norm, 1)


def regression(features: np.ndarray, scores: np.ndarray) -> object:
    return truing.huber(features, scores, 1e-5)


def whole(features: np.ndarray, scores: np.ndarray) -> object:
    return truing.fit_robust(features, scores)


def measure() -> Iterator[Row]:
    try:
        yield from large("60,000 × 64 real", sixty_thousand())
    except FileNotFoundError as absent:
        yield skipped("60,000 × 64 real", absent)
    yield from large("1,000,000 × 128 made", like_a_network(1_000_000, 128))
    for name, (make, penalty) in HARD.items():
        features, scores = make(np.random.default_rng(7))
        yield certified(f"20,000 × {features.shape[1]}, {name}", features, scores, penalty)


def large(name: str, pair: Pair) -> Iterator[Row]:
    features, scores = pair
    normed = unit(features)
    for penalty in (1e-5, 1e-2):
        yield certified(f"huber, {name}, λ = {penalty:g}", normed, scores, penalty, at_most=15)
    yield certified(f"huber, {name}, λ = 1e-05, rows not normed", features, scores, 1e-5, at_most=15)
    mine, one = race(lambda: whole(features, scores), lambda: gram_pass(features))
    yield costs(f"fit_robust, {name}, λ = 1e-05", mine, PASS, one, 15)
    for words, work, rows in (
        ("huber", regression, normed),
        ("huber, rows not normed", regression, features),
        ("fit_robust", whole, features),
    ):
        held = Measure(float(rows.nbytes + scores.nbytes), "B")
        used = Measure(held.value + peak(work, rows, scores).value, "B")
        yield costs(f"memory, {name}: {words}", used, "the input", held, 2.5)


def certified(work: str, features: np.ndarray, scores: np.ndarray, penalty: float, at_most: float | None = None) -> Row:
    """Return the cost of one regression; it counts only with its certificate."""
    fits: list[HuberFit] = []
    try:
        mine, one = race(
            lambda: fits.append(truing.huber(features, scores, penalty)),
            lambda: gram_pass(features),
        )
    except ArithmeticError as failure:
        return Row(work, None, PASS, target="gap ≤ 1e-8", met=False, note=str(failure))
    gap = max(fit.gap for fit in fits)
    note = f"{fits[0].passes} passes, gap {gap:.0e}"
    return costs(work, mine, PASS, one, at_most, also="gap ≤ 1e-8", ok=gap <= 1e-8, note=note)


def plain(rng: np.random.Generator) -> Pair:
    features = rng.standard_normal((20_000, 32))
    return features, features @ rng.standard_normal(32) + 0.3 * rng.standard_t(3, 20_000)


def outliers(rng: np.random.Generator) -> Pair:
    features, scores = plain(rng)
    return features, scores + 1e3 * rng.standard_normal(20_000) * (rng.random(20_000) < 0.3)


def repeated(rng: np.random.Generator) -> Pair:
    features, scores = plain(rng)
    index = rng.integers(0, 2000, 20_000)
    return features[index], scores[index]


def dead(rng: np.random.Generator) -> Pair:
    features, scores = plain(rng)
    return features * (np.arange(32) % 3 > 0), scores


def collinear(rng: np.random.Generator) -> Pair:
    features, scores = plain(rng)
    features[:, 24:] = features[:, :8] - 2 * features[:, 8:16]
    return features, scores


def far_from_zero(rng: np.random.Generator) -> Pair:
    features, scores = plain(rng)
    return features + 1e6, scores


def tied(rng: np.random.Generator) -> Pair:
    return rng.integers(0, 3, (20_000, 32)).astype(np.float64), rng.integers(0, 3, 20_000).astype(np.float64)


def constant(rng: np.random.Generator) -> Pair:
    return rng.standard_normal((20_000, 32)), np.full(20_000, 0.3)


HARD: dict[str, tuple[Callable[[np.random.Generator], Pair], float]] = {
    "nothing hard": (plain, 1e-5),
    "λ = 1e-7": (plain, 1e-7),
    "heavy ties": (tied, 1e-5),
    "30 % gross outliers": (outliers, 1e-5),
    "rows repeated ten times": (repeated, 1e-5),
    "a third dead units": (dead, 1e-5),
    "collinear columns": (collinear, 1e-5),
    "feature means of 1e6": (far_from_zero, 1e-5),
    "constant scores": (constant, 1e-5),
}

if __name__ == "__main__":
    report(measure)
