"""RLR against the authors' way: an n × n lasso.

Theirs is written here from its description, as a baseline only: unit-norm rows, the projector I − Z(ZᵀZ)⁺Zᵀ (n × n),
StandardScaler over its columns, scikit-learn's ElasticNet with l1_ratio 1 and otherwise its defaults, the 80 % of rows
with the smallest |γ|. It takes minutes and gigabytes at 12,000 rows: --authors runs it there, once. Without the flag
it runs at 1,500 and 3,000 rows, and the last stored run stands in at 12,000. Ours is timed with the final fit, theirs
without, and each on one thread. The solver's constants were chosen on the CIFAR-10 bank of ResNet-56, and a later one
on that of ResNet-14; the rows "not tuned on" are of ResNet-20, which `truing bench extract` made of images at hand.

Their problem is the Huber regression of `fit_robust(intercept=False)`. Their columns are divided by about 1/√n, so that
their 1e-5 weighs like a λ of √n · 1e-5, and they stop at a loose tolerance; the rows kept are nearly the same.
"""

import warnings
from collections.abc import Iterator
from math import log2

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet
from sklearn.preprocessing import StandardScaler, normalize

from _features import Pair, cifar_and_svhn, untouched
from _rows import Row, costs, faster, read, report, skipped, value
from _timing import Measure, peak, race
from truing import fit_robust, huber, threads

PENALTY, KEEP = 1e-5, 0.8
RIVAL = "the authors' n×n lasso"
WORK = "RLR, 12,000 × 64 real features, λ = 1e-5"
WORK_ELSEWHERE = "RLR, 12,000 × 64 of a network not tuned on, λ = 1e-5"
WORK_MEMORY = "RLR, 12,000 × 64: peak memory beside the input"


def authors_kept(features: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return which rows the authors' way keeps, as a mask."""
    unit = normalize(features.astype(np.float64))
    projector = np.eye(len(unit)) - unit @ np.linalg.pinv(unit.T @ unit) @ unit.T
    target = projector @ scores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # Their settings may stop before it converges.
        lasso = ElasticNet(alpha=PENALTY, l1_ratio=1).fit(StandardScaler().fit_transform(projector), target)
    return smallest(lasso.coef_)


def our_kept(features: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return which rows RLR without an intercept keeps, theirs having none, as a mask."""
    return smallest(huber(normalize(features.astype(np.float64)), scores, PENALTY, intercept=False).residual)


def smallest(gamma: np.ndarray) -> np.ndarray:
    """Return a mask of the kept share of the rows, those with the smallest |γ|; γ grows with the residual."""
    kept = np.zeros(len(gamma), dtype=bool)
    kept[np.argsort(np.abs(gamma), kind="stable")[: int(KEEP * len(gamma) + 1e-9)]] = True
    return kept


def ours(features: np.ndarray, scores: np.ndarray) -> object:
    return fit_robust(features, scores, keep=KEEP, penalty=PENALTY)


def thinned(pair: Pair, n: int) -> Pair:
    """Return n of the rows, evenly spread, so that both sets are in."""
    rows = np.linspace(0, len(pair[0]) - 1, n).astype(int)
    return pair[0][rows], pair[1][rows]


def measure(authors: bool) -> Iterator[Row]:
    threads(1)
    pair = cifar_and_svhn()
    small = [thinned(pair, n) for n in (1500, 3000)]
    yield from growth(small)
    yield agreement(small[-1], authors_kept(*small[-1]))
    yield from (at_full_size(pair) if authors else beside_the_stored_run(pair))
    try:
        yield elsewhere(untouched(), authors)
    except FileNotFoundError as absent:
        yield skipped(WORK_ELSEWHERE, absent)


def growth(pairs: list[Pair]) -> Iterator[Row]:
    seconds, memory = [], []
    for pair in pairs:
        mine, theirs = race(lambda pair=pair: ours(*pair), lambda pair=pair: authors_kept(*pair))
        seconds.append(theirs.value)
        memory.append(peak(authors_kept, *pair).value)
        yield faster(f"RLR, {len(pair[0]):,} of those rows", mine, RIVAL, theirs)
    power = [log2(values[1] / values[0]) for values in (seconds, memory)]
    bytes_each = memory[1] / len(pairs[1][0]) ** 2
    note = f"time ∝ n^{power[0]:.1f}, memory ∝ n^{power[1]:.1f}, {bytes_each:.0f} bytes for each pair of rows"
    yield Row("growth of the authors' way, 1,500 → 3,000 rows", None, RIVAL, note=note)


def agreement(pair: Pair, theirs: np.ndarray) -> Row:
    mine = our_kept(*pair)
    share = np.count_nonzero(mine & theirs) / np.count_nonzero(theirs)
    note = "both without an intercept; theirs at scikit-learn's default tolerance"
    return value(f"share of their kept rows that ours keeps, of {len(mine):,}", share, note=note)


def at_full_size(pair: Pair) -> Iterator[Row]:
    (mine,) = race(lambda: ours(*pair))
    kept: list[np.ndarray] = []
    (theirs,) = race(lambda: kept.append(authors_kept(*pair)), repeats=1)
    yield faster(WORK, mine, RIVAL, theirs, 2000)
    yield costs(WORK_MEMORY, peak(ours, *pair), RIVAL, peak(authors_kept, *pair), 1 / 20)
    yield agreement(pair, kept[0])


def beside_the_stored_run(pair: Pair) -> Iterator[Row]:
    (mine,) = race(lambda: ours(*pair))
    mine_memory = peak(ours, *pair)
    # Rows with a note are copies of an earlier run, not runs.
    known = {row["work"]: row for row in read() if row["script"] == "rlr" and row["theirs"] and not row["note"]}
    if WORK not in known or WORK_MEMORY not in known:
        yield Row(WORK, mine, RIVAL, note="no stored run of theirs: --authors makes one")
        return
    then = f"theirs stored on {known[WORK]['date']}; --authors runs it again"
    theirs, theirs_memory = (Measure(**known[work]["theirs"]) for work in (WORK, WORK_MEMORY))
    yield faster(WORK, mine, RIVAL, theirs, 2000, note=then)
    yield costs(WORK_MEMORY, mine_memory, RIVAL, theirs_memory, 1 / 20, note=then)


def elsewhere(pair: Pair, authors: bool) -> Row:
    (mine,) = race(lambda: ours(*pair))
    if not authors:
        return Row(WORK_ELSEWHERE, mine, RIVAL, note="--authors runs theirs")
    (theirs,) = race(lambda: authors_kept(*pair), repeats=1)
    return faster(WORK_ELSEWHERE, mine, RIVAL, theirs, 2000)


if __name__ == "__main__":
    report(measure, "scikit-learn", authors="run the authors' way at 12,000 rows too (minutes, 4 GB)")
