"""Wide rows: fewer rows than columns, streams of wide rows from the first batch on, and fits on principal components.

Each result is compared with dense algebra on the same rows: `np.linalg.lstsq` on the centred rows, after an SVD if
there are components. Differences are shares of the scores' spread. BLAS runs on one thread. The rows are
synthetic, or have 1,280 real features of ImageNet images.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from statistics import mean
from time import process_time

import numpy as np
from threadpoolctl import threadpool_limits

import truing
from evidence.rows import BANKS
from truing.regression.fits import KEEP, kept_rows
from truing.regression.robust import trust_order

from ._features import IMAGENET, IMAGENET_SETS, imagenet, synthetic_outputs
from ._rows import Row, report, value
from ._timing import Measure, difference, race

AGREEMENT = 1e-8
COMPONENTS, REFERENCE = 64, 500
BATCH, BATCHES = 32, 64
FIT_SECONDS = 0.05  # Allowed on top of twice the time of lstsq.
COMPONENT_SECONDS, ROBUST_SECONDS, DETECT_SECONDS, BATCH_SECONDS = 0.3, 0.5, 0.5, 0.15
LIMITS = {
    "fit_direct with": "The eigenvectors of the smaller Gram matrix.",
    "fit_direct": "The smaller Gram matrix, which is n × n or d × d, in float64.",
    "fit_robust": "A singular value decomposition of the n × d rows.",
    "detect by DLR": "The n × n Gram matrix of rows and reference.",
    "learn_and_decide": "The Gram matrix of all rows so far, until there are more rows than columns; then the sums.",
}

Function = Callable[[], np.ndarray]


def measure() -> Iterator[Row]:
    with threadpool_limits(1):
        for row in synthetic_rows():
            yield replace(row, limit=limit_of(row))
        if (BANKS / IMAGENET).exists():
            for row in real_rows(imagenet()):
                yield replace(row, limit=limit_of(row), data=f"{IMAGENET}: {', '.join(IMAGENET_SETS)}")
        else:
            print(f"there is no folder {BANKS / IMAGENET}, so there are only synthetic rows: set TRUING_DATA")


def limit_of(row: Row) -> str:
    return next(limit for start, limit in LIMITS.items() if row.work.startswith(start))


def synthetic_rows() -> Iterator[Row]:
    for n, d in ((1000, 4096), (60, 6000)):
        yield direct("synthetic", synthetic_outputs(n, d))
    yield with_components("synthetic", synthetic_outputs(120, 4096), COMPONENT_SECONDS)
    yield robust("synthetic", synthetic_outputs(120, 2048))
    yield whole_job("synthetic", synthetic_outputs(REFERENCE + 120, 4096))
    yield stream("synthetic", synthetic_outputs(REFERENCE + BATCH * BATCHES, 2048))


def real_rows(outputs: truing.Outputs) -> Iterator[Row]:
    for n in (60, 1281, 3000):
        yield direct("real", spread(outputs, n))
    yield with_components("real", outputs)
    yield robust("real", spread(outputs, 120))
    yield whole_job("real", spread(outputs, REFERENCE + 120))
    yield stream("real", spread(outputs, REFERENCE + BATCH * BATCHES))


def spread(outputs: truing.Outputs, n: int) -> truing.Outputs:
    """Return n evenly spaced rows in random order, so that every part has rows of all sets."""
    rows = np.linspace(0, len(outputs) - 1, n).astype(int)
    return outputs[np.random.default_rng(0).permutation(rows)]


def direct(kind: str, rows: truing.Outputs) -> Row:
    """Return the table row of `fit_direct` compared with `lstsq`."""
    features, scores = rows.features.astype(np.float64), truing.msp(rows.logits)
    work = f"fit_direct, {_size(features)} {kind} rows"
    ours, theirs, apart = compared(
        lambda: truing.fit_direct(features, scores).predict(features), lambda: fitted(features, scores), scores
    )
    row = Row(work, ours, "np.linalg.lstsq", theirs, ours.value / theirs.value, note=f"scores differ by {apart:.0e}")
    is_fast = ours.value <= 2 * theirs.value + FIT_SECONDS
    return row.aiming("≤ 2 × the cost + 50 ms", is_fast, f"scores equal to {AGREEMENT:g}", apart <= AGREEMENT)


def with_components(kind: str, rows: truing.Outputs, seconds: float | None = None) -> Row:
    """Return the table row of `fit_direct` with components compared with `lstsq` after an SVD."""
    features, scores = rows.features.astype(np.float64), truing.msp(rows.logits)

    def dense() -> np.ndarray:
        centred = features - features.mean(axis=0)
        directions = np.linalg.svd(centred, full_matrices=False)[2][:COMPONENTS]
        return fitted(centred @ directions.T, scores)

    work = f"fit_direct with {COMPONENTS} components, {_size(features)} {kind} rows"
    fit = lambda: truing.fit_direct(features, scores, components=COMPONENTS).predict(features)  # noqa: E731
    return bounded(work, "SVD and lstsq", *compared(fit, dense, scores), seconds)


def robust(kind: str, rows: truing.Outputs) -> Row:
    """Return the table row of `fit_robust` compared with `lstsq` of the rows that `fit_robust` keeps."""
    features, scores = rows.features.astype(np.float64), truing.msp(rows.logits)
    kept = trust_order(features, scores)[: kept_rows(KEEP, len(scores))]
    ours, theirs, apart = compared(
        lambda: truing.fit_robust(features, scores).predict(features),
        lambda: fitted(features[kept], scores[kept], features),
        scores,
    )
    work = f"fit_robust, {_size(features)} {kind} rows"
    return bounded(work, "lstsq of the kept rows", ours, theirs, apart, ROBUST_SECONDS)


def whole_job(kind: str, rows: truing.Outputs) -> Row:
    """Return the table row of `detect` with a reference compared with `lstsq` of all rows."""
    reference, some = rows[:REFERENCE], rows[REFERENCE:]
    scores = truing.msp(rows.logits)
    ours, theirs, apart = compared(
        lambda: truing.detect(some, reference, method="dlr").scores,
        lambda: fitted(rows.features.astype(np.float64), scores)[REFERENCE:],
        scores,
    )
    work = f"detect by DLR, {_size(some.features)} {kind} rows, {REFERENCE} reference rows"
    return bounded(work, "np.linalg.lstsq", ours, theirs, apart, DETECT_SECONDS)


def stream(kind: str, rows: truing.Outputs) -> Row:
    """Return the table row of a stream that starts with fewer rows than columns and ends with more."""
    detector, times = truing.Detector(method="dlr"), []
    detector.calibrate(rows[:REFERENCE])
    for first in range(REFERENCE, len(rows), BATCH):
        batch = rows[first : first + BATCH]
        start = process_time()
        decision = detector.learn_and_decide(batch, false_alarm=0.05)
        times.append(process_time() - start)
    scores = truing.msp(rows.logits)
    expected = fitted(rows.features.astype(np.float64), scores)[-BATCH:]
    apart = difference(decision.scores, expected) / scores.std()
    d = rows.features.shape[1]
    work = f"learn_and_decide, batch {BATCH}, d = {d:,} {kind}, {REFERENCE} reference rows"
    note = f"mean of the first {BATCHES} batches, slowest {max(times):.2f} s; last scores differ by {apart:.0e}"
    row = value(work, Measure(mean(times), runs=len(times)), note=note)
    return row.aiming(
        f"≤ {1000 * BATCH_SECONDS:g} ms",
        mean(times) <= BATCH_SECONDS,
        f"scores equal to {AGREEMENT:g}",
        apart <= AGREEMENT,
    )


def fitted(features: np.ndarray, scores: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
    """Return the scores that `lstsq` of the centred rows predicts for these rows, or for `others`."""
    centre = features.mean(axis=0)
    coef = np.linalg.lstsq(features - centre, scores - scores.mean(), rcond=None)[0]
    return ((features if others is None else others) - centre) @ coef + scores.mean()


def compared(ours: Function, theirs: Function, scores: np.ndarray) -> tuple[Measure, Measure, float]:
    """Return the time of each function, and the largest difference of the results as a share of the scores' spread."""
    apart = difference(ours(), theirs()) / scores.std()
    mine, rival = race(ours, theirs)
    return mine, rival, float(apart)


def bounded(work: str, rival: str, ours: Measure, theirs: Measure, apart: float, seconds: float | None) -> Row:
    """Return a table row with a bound on its time and on the difference from dense algebra."""
    row = Row(work, ours, rival, theirs, ours.value / theirs.value, note=f"scores differ by {apart:.0e}")
    bound = "" if seconds is None else f"≤ {seconds:g} s"
    is_fast = seconds is None or ours.value <= seconds
    return row.aiming(bound, is_fast, f"scores equal to {AGREEMENT:g}", apart <= AGREEMENT)


def _size(features: np.ndarray) -> str:
    return " × ".join(f"{side:,}" for side in features.shape)


if __name__ == "__main__":
    report(measure)
