"""Robust regression (RLR), compared with the authors' method, and measured in passes over a million rows.

The authors' method is implemented from its description: rows of unit norm, the n × n projector I - Z(ZᵀZ)⁺Zᵀ,
StandardScaler over its columns, scikit-learn's ElasticNet with l1_ratio 1, and the 80 % of the rows with the smallest
|γ|. It takes a minute and 4 GB at 12,000 rows and runs once, in a process of its own. The time of truing includes the
final fit, and the time of the authors' method does not.

The authors' method has no intercept. Its penalty of 1e-5 corresponds to λ = √n · 1e-5, because its columns are divided
by about 1/√n. The kept rows are compared without an intercept.
"""

import tempfile
import warnings
from collections.abc import Iterator

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet
from sklearn.preprocessing import StandardScaler, normalize

import truing

from ._features import CIFAR_SVHN, Pair, cifar_and_svhn, like_a_network
from ._rows import Row, costs, faster, report, value
from ._timing import alone, race

PENALTY, KEEP = 1e-5, 0.8
AUTHORS = "the authors' n × n lasso"
MOST_PASSES = 25
BLOCK_NUMBERS = 2**18
PASSES = "The Hessian of each Newton step, which is a weighted ZᵀZ in float64."


def measure() -> Iterator[Row]:
    truing.threads(1)
    yield from beside_the_authors(cifar_and_svhn())
    features, scores = like_a_network(1_000_000, 128)
    yield from in_passes("huber, 1,000,000 × 128 synthetic rows", normalize(features), scores)
    (taken,) = race(lambda: truing.fit_robust(features, scores), repeats=1)
    limit = "The Huber regression of a sample of 200,000 rows."
    yield value("fit_robust, 1,000,000 × 128 synthetic rows", taken, limit=limit)


def beside_the_authors(rows: Pair) -> Iterator[Row]:
    work = f"fit_robust, {len(rows[0]):,} × {rows[0].shape[1]} real rows"
    small = [array[:400] for array in rows]
    (mine,) = race(lambda: ours(*rows))
    _, memory = alone(ours, rows, small)
    with tempfile.TemporaryDirectory() as folder:
        file = f"{folder}/kept.npy"
        theirs, their_memory = alone(save_authors_kept, (*rows, file), (*small, file))
        kept = np.load(file)
    common = np.count_nonzero(our_kept(*rows) & kept) / np.count_nonzero(kept)
    note = f"{common:.1%} of the rows that the authors keep are kept"
    yield faster(work, mine, AUTHORS, theirs, 500, note=note, limit=PASSES, data=CIFAR_SVHN)
    limit = "A float64 copy of the rows."
    yield costs(f"{work}: peak memory", memory, AUTHORS, their_memory, 1 / 20, limit=limit, data=CIFAR_SVHN)


def in_passes(work: str, features: np.ndarray, scores: np.ndarray) -> Iterator[Row]:
    """Yield the cost of Huber regressions in units of one float64 ZᵀZ pass over the same rows."""
    for penalty in (PENALTY, 1e-2):
        fits: list[truing.HuberFit] = []
        mine, one = race(
            lambda penalty=penalty, fits=fits: fits.append(truing.huber(features, scores, penalty)),
            lambda: gram_pass(features),
            repeats=2 if penalty == PENALTY else 1,
        )
        fit = fits[0]
        yield costs(
            f"{work}, λ = {penalty:g}",
            mine,
            "one ZᵀZ pass",
            one,
            MOST_PASSES,
            also=f"≤ {MOST_PASSES} passes",
            ok=fit.passes <= MOST_PASSES,
            note=f"{fit.passes} passes, gap {fit.gap:.0e}",
            limit=PASSES,
        )


def ours(features: np.ndarray, scores: np.ndarray) -> truing.LinearFit:
    return truing.fit_robust(features, scores, keep=KEEP, penalty=PENALTY)


def authors_kept(features: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that the authors' method keeps."""
    unit = normalize(features.astype(np.float64))
    projector = np.eye(len(unit)) - unit @ np.linalg.pinv(unit.T @ unit) @ unit.T
    target = projector @ scores
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # The authors' settings may stop early.
        lasso = ElasticNet(alpha=PENALTY, l1_ratio=1).fit(StandardScaler().fit_transform(projector), target)
    return smallest(lasso.coef_)


def save_authors_kept(features: np.ndarray, scores: np.ndarray, file: str) -> None:
    np.save(file, authors_kept(features, scores))


def our_kept(features: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return a mask of the rows that RLR without an intercept keeps."""
    return smallest(truing.huber(normalize(features.astype(np.float64)), scores, PENALTY, intercept=False).residual)


def smallest(values: np.ndarray) -> np.ndarray:
    """Return a mask of the values with the smallest magnitudes, a share `KEEP` of all."""
    kept = np.zeros(len(values), dtype=bool)
    kept[np.argsort(np.abs(values), kind="stable")[: int(KEEP * len(values) + 1e-9)]] = True
    return kept


def gram_pass(features: np.ndarray) -> np.ndarray:
    """Return ZᵀZ in float64, computed one block of rows at a time."""
    d = features.shape[1]
    gram, step = np.zeros((d, d)), BLOCK_NUMBERS // d
    for start in range(0, len(features), step):
        block = features[start : start + step].astype(np.float64)
        gram += block.T @ block
    return gram


if __name__ == "__main__":
    report(measure, "scikit-learn")
