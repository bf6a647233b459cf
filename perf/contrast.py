"""What a contrast costs beside a direct fit of the same columns, and a batch of its stream beside Online DLR.

The limit of the whole job is one pass to make the columns and sum their products, and one to score; of a batch, the
eigenvectors of d + 4 columns.
"""

from collections.abc import Iterator

import numpy as np

import truing
from _rows import Row, costs, report, value
from _timing import race
from truing.contrast import Columns

BATCH, BATCHES = 32, 100


def measure() -> Iterator[Row]:
    inside, outside = (truing.sample(name) for name in ("cifar10-test", "svhn"))
    inside = truing.Outputs(inside.features, inside.logits)
    mix = truing.Outputs.concatenate([inside[5000:], truing.Outputs(outside.features, outside.logits)])
    every = truing.Outputs.concatenate([inside[:5000], mix])
    columns, _ = Columns.of(inside[:2500], "gen")
    matrix = columns.matrix(columns.scored(every))

    def contrast() -> None:
        truing.detect(mix, inside[:5000], method="contrast", false_alarm=0.05)

    def direct() -> None:
        scores = columns.scored(every).scores  # The same three base scores.
        truing.fit_direct(matrix, scores[:, 0]).predict(matrix)

    ours, theirs = race(contrast, direct, repeats=9)
    yield costs("detect by contrast, 7,000 rows × 64", ours, "DLR of the same columns, made before", theirs, 2)

    def dlr() -> None:
        truing.detect(mix, inside[:5000], method="dlr", false_alarm=0.05)

    ours, theirs = race(contrast, dlr, repeats=9)
    yield costs("detect by contrast, 7,000 rows × 64", ours, "detect by DLR", theirs)

    order = np.random.default_rng(0).permutation(len(mix))
    batches = [mix[order[start : start + BATCH]] for start in range(0, BATCH * BATCHES, BATCH)]

    def stream(method: str) -> None:
        detector = truing.Detector(method=method)
        detector.calibrate(inside[:5000])
        for batch in batches:
            detector.learn_and_decide(batch, false_alarm=0.05)

    ours, theirs = race(lambda: stream("contrast"), lambda: stream("dlr"))
    yield costs("100 batches of 32, d = 64, learned and decided", ours, "Online DLR", theirs)
    yield value("milliseconds for each batch of the contrast", 1000 * ours.value / BATCHES, 1.0)


if __name__ == "__main__":
    report(measure)
