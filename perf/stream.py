"""A stream: Online DLR compared with Algorithm 3 as printed, and the cost of one row and of one batch.

Algorithm 3 computes `np.linalg.pinv` of the sums at every batch. It gets a column of ones here, so that both sides fit
an intercept. A stream has 100 batches of 32 rows, each learned and scored, from its first batch on. Times are processor
times on one thread: the mean over the batches. With many columns, Algorithm 3 is timed on a few batches only,
including the first and the last. Its sums do not determine a unique fit until there are as many rows as columns, so
scores are compared from 1.5 d rows on.
"""

from collections.abc import Callable, Iterator
from statistics import mean, median
from time import process_time

import numpy as np
from threadpoolctl import threadpool_limits

from truing import Detector, Outputs

from ._features import Pair, like_a_network, synthetic_outputs
from ._rows import Row, faster, report, value
from ._timing import Measure, difference

BATCH, BATCHES = 32, 100
TARGETS = {128: 8, 512: 15, 2048: 25}
OUR_STREAMS = 3
RIVAL_BATCHES = {128: 100, 512: 20, 2048: 2}
FACTORISATION = "A Cholesky factorisation of the d × d correlations per batch, and the estimate of its condition."
LIMITS = {
    128: "Hundreds of Python calls per batch take longer than the algebra.",
    512: FACTORISATION,
    2048: FACTORISATION,
    "one row": "Hundreds of Python calls per row.",
    "dlr": "Hundreds of Python calls per batch.",
    "rlr": "Many Newton steps: the robust fit starts over with every batch.",
    "contrast": "Hundreds of Python calls per batch, and the tail weights of the sample.",
}
ONE_ROW_SECONDS = 250e-6
LEARNED, REFERENCE = 1_000, 1_000


class Algorithm3:
    """The sums A = ZᵀZ and b = Zᵀs, and the fit A⁺b."""

    def __init__(self, d: int) -> None:
        self.A, self.b = np.zeros((d + 1, d + 1)), np.zeros(d + 1)

    def learn(self, features: np.ndarray, scores: np.ndarray) -> None:
        """Add the rows to the sums."""
        Z = _with_ones(features)
        self.A += Z.T @ Z
        self.b += Z.T @ scores

    def score(self, features: np.ndarray) -> np.ndarray:
        """Return the trued scores of the rows."""
        return _with_ones(features) @ (np.linalg.pinv(self.A) @ self.b)


def _with_ones(features: np.ndarray) -> np.ndarray:
    return np.column_stack([features, np.ones(len(features))]).astype(np.float64)


def measure() -> Iterator[Row]:
    with threadpool_limits(1):
        for d, target in TARGETS.items():
            for dead, words in ((0.0, "full rank"), (0.1, "10 % dead units")):
                yield one_stream(d, dead, target, f"Online DLR, d = {d}, {words}")
        yield one_row(
            "learn_and_score", lambda detector, row: detector.learn_and_score(row), LIMITS["one row"], ONE_ROW_SECONDS
        )
        yield one_row("score", lambda detector, row: detector.score(row), "The checks of `Outputs`.")
        for method in ("dlr", "rlr", "contrast"):
            yield one_batch(method)


def one_stream(d: int, dead: float, target: float, work: str) -> Row:
    """Return the table row of a stream by both sides. A share of the units is dead: zero in all rows."""
    features, scores = with_dead_units(like_a_network(BATCH * BATCHES, d), dead)
    parts = [slice(start, start + BATCH) for start in range(0, len(scores), BATCH)]
    batches = [Outputs(features[part], scores=scores[part]) for part in parts]
    timed = sorted({round(number) for number in np.linspace(0, BATCHES - 1, RIVAL_BATCHES[d])})
    streams = [by_detector(batches) for _ in range(OUR_STREAMS)]
    trued = streams[0][0]
    expected, times = by_algorithm_3(d, batches, timed)
    ours = Measure(median(mean(times) for _, times in streams), runs=BATCHES)
    settled = [number for number in timed if BATCH * (number + 1) > 1.5 * d]
    apart = max(difference(trued[number], expected[number]) for number in settled)
    return faster(
        work,
        ours,
        "Algorithm 3 with pinv",
        Measure(mean(times), runs=len(times)),
        target,
        also="scores equal to 1e-8",
        ok=apart <= 1e-8,
        note=f"scores differ by {apart:.0e}",
        limit=LIMITS[d],
    )


def with_dead_units(rows: Pair, share: float) -> Pair:
    features, scores = rows
    features[:, np.random.default_rng(1).random(features.shape[1]) < share] = 0
    return features, scores


def by_detector(batches: list[Outputs]) -> tuple[list[np.ndarray], list[float]]:
    """Return the scores of every batch by a new detector, and the time of each batch."""
    detector, trued, times = Detector("given"), [], []
    for batch in batches:
        start = process_time()
        trued.append(detector.learn_and_score(batch))
        times.append(process_time() - start)
    return trued, times


def by_algorithm_3(d: int, batches: list[Outputs], timed: list[int]) -> tuple[dict[int, np.ndarray], list[float]]:
    """Return the scores of the timed batches by Algorithm 3, and the time of each."""
    rival, trued, times = Algorithm3(d), {}, []
    for number, batch in enumerate(batches):
        start = process_time()
        rival.learn(batch.features, batch.scores)
        if number in timed:
            trued[number] = rival.score(batch.features)
            times.append(process_time() - start)
    return trued, times


def one_row(name: str, call: Callable[[Detector, Outputs], object], limit: str, at_most: float | None = None) -> Row:
    """Return the table row of a call with one row of 64 features and 10 logits, `Outputs` included."""
    rows = synthetic_outputs(LEARNED + 1_000, 64)
    detector, times = Detector(), []
    detector.learn(rows[:LEARNED])
    for number in range(LEARNED, len(rows)):
        start = process_time()
        call(detector, Outputs(rows.features[number : number + 1], rows.logits[number : number + 1]))
        times.append(process_time() - start)
    return value(f"{name}, one row, d = 64", Measure(median(times), runs=len(times)), at_most, limit=limit)


def one_batch(method: str) -> Row:
    """Return the table row of a batch that is learned and decided."""
    rows = synthetic_outputs(REFERENCE + BATCH * BATCHES, 64)
    detector, times = Detector(method=method), []
    detector.calibrate(rows[:REFERENCE])
    for first in range(REFERENCE, len(rows), BATCH):
        start = process_time()
        detector.learn_and_decide(rows[first : first + BATCH], false_alarm=0.05)
        times.append(process_time() - start)
    work = f"learn_and_decide by {method}, batch {BATCH}, d = 64, {REFERENCE:,} reference rows"
    return value(work, Measure(mean(times), runs=len(times)), limit=LIMITS[method])


if __name__ == "__main__":
    report(measure)
