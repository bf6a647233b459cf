"""Online DLR within 64 principal components of 1,280 real features, against a full eigen-decomposition each batch.

The rival keeps the same moments and differs in one thing: all eigenvectors, by `scipy.linalg.eigh`, for every batch.
The last rows tell what a basis kept for several batches would cost in scores: the regression stays exact within it.
"""

from collections.abc import Iterator

import numpy as np
from scipy.linalg import eigh

from _features import imagenet
from _rows import Row, faster, report, skipped, value
from _timing import difference, race
from truing import Detector, Moments, Outputs, energy

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
    detector = Detector("given", components=COMPONENTS)
    detector.learn(known[:seen])
    moments = [Moments.of(known.features[:seen], known.scores[:seen])]
    batches = [known[start : start + BATCH] for start in range(seen, len(known), BATCH)]
    detector.score(batches[0])  # Whatever is done once for a stream is done before.
    mine: list[np.ndarray] = []
    theirs: list[np.ndarray] = []

    def ours() -> None:
        batch = batches[len(mine)]
        detector.learn(batch)
        mine.append(detector.score(batch))

    def full() -> None:
        batch = batches[len(theirs)]
        moments[0] = moments[0] + Moments.of(batch.features, batch.scores)
        theirs.append(full_scores(moments[0], batch.features.astype(np.float64), COMPONENTS))

    times = race(ours, full, repeats=BATCHES)
    worst = max(difference(one, other) for one, other in zip(mine, theirs, strict=True))
    equal, note = "scores equal to 1e-6", f"they differ by {worst:.0e}; {seen:,} rows learned before"
    yield faster(WORK, times[0], "scipy eigh, all vectors", times[1], 5, also=equal, ok=worst <= 1e-6, note=note)
    for batches_kept in (2, 5, 10):
        kept = kept_basis(known, seen, batches_kept)
        worst = max(difference(one, other) for one, other in zip(kept, theirs, strict=True))
        yield value(f"difference of scores, a basis kept for {batches_kept} batches", worst)


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
