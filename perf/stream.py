"""Online DLR, a batch of 32 at a time, against Algorithm 3 read literally: `np.linalg.pinv` of the sums, each batch.

Algorithm 3 is given a column of ones, so that both fit an intercept. `learn` and `score` are timed with their checks,
on a detector that has seen 3 d rows before.
"""

from collections.abc import Iterator

import numpy as np

from _features import Pair, like_a_network
from _rows import Row, faster, report
from _timing import difference, race
from truing import Detector, Outputs

BATCH = 32
TARGETS = {128: 8, 512: 20, 2048: 50}
BATCHES = {128: 50, 512: 15, 2048: 5}


class Algorithm3:
    """The sums A = ZᵀZ and b = Zᵀs, and A⁺b of them for every batch."""

    def __init__(self, d: int) -> None:
        self.A, self.b = np.zeros((d + 1, d + 1)), np.zeros(d + 1)

    def learn(self, features: np.ndarray, scores: np.ndarray) -> None:
        """Add the rows to the sums."""
        Z = _with_ones(features)
        self.A += Z.T @ Z
        self.b += Z.T @ scores

    def score(self, features: np.ndarray) -> np.ndarray:
        """Return the rows' scores, by a fit made for them."""
        return _with_ones(features) @ (np.linalg.pinv(self.A) @ self.b)


def _with_ones(features: np.ndarray) -> np.ndarray:
    return np.column_stack([features, np.ones(len(features))]).astype(np.float64)


def rows_of(d: int, dead: float) -> Pair:
    """Return 3 d rows and the batches that follow, a share of the units being zero throughout."""
    features, scores = like_a_network(3 * d + BATCH * BATCHES[d], d)
    features[:, np.random.default_rng(1).random(d) < dead] = 0
    return features, scores


def measure() -> Iterator[Row]:
    for d, target in TARGETS.items():
        for dead, words in ((0.0, "full rank"), (0.1, "10 % dead units")):
            yield one_stream(f"Online DLR, batch 32, d = {d}, {words}", *rows_of(d, dead), target)


def one_stream(work: str, features: np.ndarray, scores: np.ndarray, target: float) -> Row:
    d = features.shape[1]
    seen = 3 * d
    detector, rival = Detector("given"), Algorithm3(d)
    detector.learn(Outputs(features[:seen], scores=scores[:seen]))
    rival.learn(features[:seen], scores[:seen])
    parts = [slice(start, start + BATCH) for start in range(seen, len(scores), BATCH)]
    batches = [Outputs(features[part], scores=scores[part]) for part in parts]
    detector.score(batches[0])  # Whatever is done once for a stream is done before.
    mine: list[np.ndarray] = []
    theirs: list[np.ndarray] = []

    def ours() -> None:
        batch = batches[len(mine)]
        detector.learn(batch)
        mine.append(detector.score(batch))

    def literal() -> None:
        batch = batches[len(theirs)]
        rival.learn(batch.features, batch.scores)
        theirs.append(rival.score(batch.features))

    times = race(ours, literal, repeats=len(batches))
    # A rival that takes its seconds is run twice only.
    worst = max(difference(one, other) for one, other in zip(mine, theirs, strict=False))
    equal, note = "scores equal to 1e-8", f"they differ by {worst:.0e}"
    return faster(work, times[0], "Algorithm 3 with pinv", times[1], target, also=equal, ok=worst <= 1e-8, note=note)


if __name__ == "__main__":
    report(measure)
