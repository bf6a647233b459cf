"""One row in, one score out, at 64 features and 10 classes: `Outputs` and the call, in the processor's time.

Without and with known rows; they stand in the fit when a row is learned, and are scored anew when it is decided too.
"""

from collections.abc import Callable, Iterator
from statistics import median
from time import process_time

import numpy as np
from threadpoolctl import threadpool_limits

from _features import like_a_network
from _rows import Row, report, value
from truing import Detector, Outputs

FEATURES, CLASSES, LEARNED, ROWS, KNOWN = 64, 10, 1000, 1000, 1000
MICROSECONDS = 150.0

CALLS: dict[str, Callable[[Detector, Outputs], object]] = {
    "learn_and_score": lambda detector, row: detector.learn_and_score(row),
    "score": lambda detector, row: detector.score(row),
    "decide": lambda detector, row: detector.decide(row, false_alarm=0.05),
    "learn_and_decide": lambda detector, row: detector.learn_and_decide(row, false_alarm=0.05),
}


def measure() -> Iterator[Row]:
    features, _ = like_a_network(KNOWN + LEARNED + ROWS, FEATURES)
    logits = np.random.default_rng(0).standard_normal((len(features), CLASSES))
    known, learned = slice(0, KNOWN), slice(KNOWN, KNOWN + LEARNED)
    with threadpool_limits(1):
        for calibrated in (False, True):
            for name, call in CALLS.items():
                if not calibrated and "decide" in name:
                    continue
                detector = Detector()
                if calibrated:
                    detector.calibrate(Outputs(features[known], logits[known]))
                detector.learn(Outputs(features[learned], logits[learned]))
                times = []
                for number in range(KNOWN + LEARNED, len(features)):
                    start = process_time()
                    call(detector, Outputs(features[number : number + 1], logits[number : number + 1]))
                    times.append(process_time() - start)
                words = f"{name}, {KNOWN:,} known rows" if calibrated else name
                yield value(f"microseconds for one row, {words}", 1e6 * median(times), MICROSECONDS)


if __name__ == "__main__":
    report(measure)
