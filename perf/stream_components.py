"""Online DLR within 64 principal components of 1,280 real features, against a full eigen-decomposition each batch.

The rival keeps the same moments and differs in one thing: all eigenvectors, by `scipy.linalg.eigh`, for every batch.
Ours are followed within the default tolerance; the next row is that of a tolerance of 0, the leading eigenvectors of
each batch. Differences are shares of the base scores' spread: what the fits say of their error, what it is in root mean
square over the rows behind them, and the largest of a row that was scored. The last rows tell what a basis kept for
several batches would cost in scores: the regression stays exact within it.
"""

from collections.abc import Iterator

import numpy as np
from scipy.linalg import eigh

from _features import imagenet
from _rows import Row, faster, report, skipped, value
from _timing import difference, race
from truing import Detector, LinearFit, Moments, Outputs, energy

BATCH, BATCHES, COMPONENTS = 32, 10, 64
WORK = "Online DLR, components=64, d = 1280 real"


def full_scores(moments: Moments, features: np.ndarray, components: int) -> np.ndarray:
    """Return scores within the leading principal components, from the whole decomposition."""
    d = moments.dimensions
    values, vectors = eigh(moments.comoment[:d, :d])
    leading, basis = values[-components:], vectors[:, -components:]
    coef = basis @ (basis.T @ moments.comoment[:d, d] / leading)
    return (features - moments.mean[:d]) @ coef + moments.mean[d]


def measure() -> Iterator[Row]:
    try:
        known = imagenet()
    except FileNotFoundError as absent:
        yield skipped(WORK, absent)
        return
    order = np.random.default_rng(3).permutation(len(known))
    known = Outputs(known.features[order], scores=energy(known.logits)[order])
    seen = len(known) - BATCH * BATCHES
    detector, exact = Detector("given", components=COMPONENTS), Detector("given", components=COMPONENTS, tolerance=0.0)
    detector.learn(known[:seen])
    exact.learn(known[:seen])
    moments = [Moments.of(known.features[:seen], known.scores[:seen])]
    batches = [known[start : start + BATCH] for start in range(seen, len(known), BATCH)]
    detector.score(batches[0])  # Whatever is done once for a stream is done before.
    mine: list[np.ndarray] = []
    exactly: list[np.ndarray] = []
    theirs: list[np.ndarray] = []
    fits: list[LinearFit] = []

    def ours() -> None:
        mine.append(detector.learn_and_score(batches[len(mine)]))

    def ours_exact() -> None:
        exactly.append(exact.learn_and_score(batches[len(exactly)]))
        fits.append(detector.current_fit)

    def full() -> None:
        batch = batches[len(theirs)]
        moments[0] = moments[0] + Moments.of(batch.features, batch.scores)
        theirs.append(full_scores(moments[0], batch.features.astype(np.float64), COMPONENTS))

    differences: list[float] = []

    def compare() -> None:
        differences.append(root_mean_square(moments[0], fits[-1], exact.current_fit))

    times = race(ours, ours_exact, full, compare, repeats=BATCHES)
    spread = float(np.std(known.scores))
    worst = max(difference(one, other) for one, other in zip(mine, theirs, strict=True)) / spread
    bound = max(fit.approximation for fit in fits)
    equal, note = "error within 1e-3", f"{seen:,} rows learned before"
    ok = max(differences) <= bound <= detector.settings.tolerance
    yield faster(WORK, times[0], "scipy eigh, all vectors", times[2], 5, also=equal, ok=ok, note=note)
    yield faster(f"{WORK}, tolerance=0", times[1], "scipy eigh, all vectors", times[2])
    yield faster(WORK, times[0], "the same with tolerance=0", times[1], 5)
    yield value("bound on the error of the scores, largest of 10 batches", bound, detector.settings.tolerance)
    yield value("their error in root mean square over the rows behind", max(differences), bound)
    yield value("largest error of a row that was scored", worst)
    for batches_kept in (2, 5, 10):
        kept = kept_basis(known, seen, batches_kept)
        worst = max(difference(one, other) for one, other in zip(kept, theirs, strict=True))
        yield value(f"difference of scores, a basis kept for {batches_kept} batches", worst)


def root_mean_square(moments: Moments, one: LinearFit, other: LinearFit) -> float:
    """Return how far two fits' scores are apart over the rows behind them, as a share of the scores' spread."""
    apart = one.coef - other.coef
    return float(np.sqrt(apart @ moments.comoment[:-1, :-1] @ apart / moments.comoment[-1, -1]))


def kept_basis(known: Outputs, seen: int, batches_kept: int) -> Iterator[np.ndarray]:
    """Yield each batch's scores when the basis is found anew only every so many batches."""
    moments = Moments.of(known.features[:seen], known.scores[:seen])
    for number, start in enumerate(range(seen, len(known), BATCH)):
        batch = known[start : start + BATCH]
        moments = moments + Moments.of(batch.features, batch.scores)
        if number % batches_kept == 0:
            principal = moments._principal_components(COMPONENTS)
        yield moments._solve_within(principal, intercept=True).predict(batch.features)


if __name__ == "__main__":
    report(measure)
