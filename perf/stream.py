"""Online DLR, a batch at a time, against Algorithm 3 read literally: `np.linalg.pinv` of the sums, each batch.

Algorithm 3 is given a column of ones, so that both fit an intercept. `learn_and_score` is timed with its checks, over a
stream's first 100 batches, its start included, and once it has seen 3 d rows: the median of five whole streams, with
those of the rival between them. Times are the processor's.

As long as there are fewer rows than columns `pinv` of a sum of squares has no digits to go by, and finds another fit of
those that interpolate; from there on scores are compared. At 2,048 columns its time is that of two batches.
"""

from collections.abc import Iterator
from statistics import mean, median
from time import process_time

import numpy as np
from threadpoolctl import threadpool_limits

from _features import Pair, like_a_network
from _rows import Row, faster, report
from _timing import Measure, difference
from truing import Detector, Outputs

BATCHES = 100
TARGETS = {128: 10, 512: 22, 2048: 60}
# Whole streams by us and by the rival, and its batches that are timed: each takes seconds at 2,048 columns.
TURNS = 5
RIVAL_TURNS = {128: 5, 512: 1, 2048: 1}
RIVAL_BATCHES = {128: 100, 512: 20, 2048: 2}


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


def rows_of(d: int, rows: int, dead: float) -> Pair:
    """Return rows of which a share of the units is zero throughout."""
    features, scores = like_a_network(rows, d)
    features[:, np.random.default_rng(1).random(d) < dead] = 0
    return features, scores


def by_detector(before: Outputs | None, batches: list[Outputs]) -> tuple[list[np.ndarray], list[float]]:
    """Return what a new detector, told of the rows before, scores each batch, and how long that takes it."""
    detector, found, times = Detector("given"), [], []
    if before is not None:
        detector.learn_and_score(before)
    for batch in batches:
        start = process_time()
        found.append(detector.learn_and_score(batch))
        times.append(process_time() - start)
    return found, times


def by_rival(
    d: int, before: Outputs | None, batches: list[Outputs], timed: list[int]
) -> tuple[dict[int, np.ndarray], list[float]]:
    """Return the same of Algorithm 3, for the batches that it is timed on; it learns all."""
    rival, found, times = Algorithm3(d), {}, []
    if before is not None:
        rival.learn(before.features, before.scores)
    for number, batch in enumerate(batches):
        start = process_time()
        rival.learn(batch.features, batch.scores)
        if number in timed:
            found[number] = rival.score(batch.features)
            times.append(process_time() - start)
    return found, times


def measure() -> Iterator[Row]:
    with threadpool_limits(1):
        for d, target in TARGETS.items():
            for dead, words in ((0.0, "full rank"), (0.1, "10 % dead units")):
                for size in (32, 1):
                    yield one_stream(d, dead, size, 0, target, f"batch {size}, d = {d}, {words}, from its start")
                yield one_stream(d, dead, 32, 3 * d, target, f"batch 32, d = {d}, {words}")


def one_stream(d: int, dead: float, size: int, seen: int, target: float, words: str) -> Row:
    """Return the row of a stream's batches after so many rows: the whole stream by each side, in turns."""
    features, scores = rows_of(d, seen + size * BATCHES, dead)
    parts = [slice(start, start + size) for start in range(seen, len(scores), size)]
    batches = [Outputs(features[part], scores=scores[part]) for part in parts]
    before = Outputs(features[:seen], scores=scores[:seen]) if seen else None
    timed = sorted({round(number) for number in np.linspace(0, BATCHES - 1, RIVAL_BATCHES[d])})
    mine, theirs = [], []
    for turn in range(TURNS):
        found, times = by_detector(before, batches)
        mine.append(times)
        if turn < RIVAL_TURNS[d]:
            others, times = by_rival(d, before, batches, timed)
            theirs.append(times)
    # With its start a stream takes what all batches take; later, what one takes.
    middle = mean if seen == 0 else median
    ours, rivals = (Measure(median(map(middle, turns)), runs=len(turns)) for turns in (mine, theirs))
    settled = [number for number in timed if seen + size * (number + 1) > 1.5 * d]
    apart = [0.0, *(difference(found[number], others[number]) for number in settled)]
    worst = max(apart)
    note = (
        f"they differ by {worst:.0e}" if len(apart) > 1 else "fewer rows than columns throughout: scores not compared"
    )
    return faster(
        f"Online DLR, {words}",
        ours,
        "Algorithm 3 with pinv",
        rivals,
        target,
        also="scores equal to 1e-8" if len(apart) > 1 else "",
        ok=worst <= 1e-8,
        note=note,
    )


if __name__ == "__main__":
    report(measure)
