"""`truing.detect` as a whole, compared with the scikit-learn pipeline that a user would write for the same job.

The pipeline is StandardScaler and LinearRegression of MSP on the features, with a quantile of the reference scores as
the threshold. It returns scores and decisions; `detect` also returns p-values and notes. The rows are synthetic.
Both sides use one thread, unless a row says otherwise.
"""

from collections.abc import Iterator
from functools import partial

import numpy as np
from scipy.special import softmax
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import truing

from ._features import synthetic_outputs
from ._rows import Row, costs, faster, report, value
from ._timing import alone, race

SIZES = ((10_000, 64, 5_000), (1_000_000, 128, 20_000))  # Rows, features, reference rows.
ACCEPT = 0.95
SMALL = 1_000
SPARE_BYTES = 300e6

FIXED = "The work per call: p-values, distances to the reference and notes take longer than the sums."
MEMORY = "The sums ZᵀZ in float64, then the distances to the reference."
ITERATIONS = "The search for near duplicates, and the fit."
SAMPLE = "Several passes that compute and standardise columns, and the fit to a sample."


def ours(rows: truing.Outputs, reference: truing.Outputs, method: str, threads: int | None = 1) -> truing.Detection:
    truing.threads(threads)
    try:
        return truing.detect(rows, reference, method=method, accept=ACCEPT)
    finally:
        truing.threads(None)


def pipeline(rows: truing.Outputs, reference: truing.Outputs) -> np.ndarray:
    """Return which rows are out, by DLR in scikit-learn."""
    features = np.concatenate((reference.features, rows.features))
    base = softmax(np.concatenate((reference.logits, rows.logits)), axis=1).max(axis=1)
    scores = make_pipeline(StandardScaler(), LinearRegression()).fit(features, base).predict(features)
    threshold = np.quantile(scores[: len(reference)], 1 - ACCEPT)
    return scores[len(reference) :] < threshold


def measure() -> Iterator[Row]:
    for n, d, reference_rows in SIZES:
        every = synthetic_outputs(reference_rows + n, d)
        reference, rows = every[:reference_rows], every[reference_rows:]
        dlr, contrast = partial(ours, rows, reference, "dlr"), partial(ours, rows, reference, "contrast")
        size = f"{n:,} × {d}"
        is_small = n < 100_000
        repeats = 5 if is_small else 3
        same = float(np.mean(dlr().is_out == pipeline(rows, reference)))
        mine, theirs = race(dlr, partial(pipeline, rows, reference), repeats=repeats)
        work, note = f"detect by DLR, {size}", f"{same:.2%} decided alike"
        yield faster(work, mine, "scikit-learn pipeline", theirs, note=note, limit=FIXED if is_small else MEMORY)
        mine, theirs = race(contrast, dlr, repeats=repeats)
        limit = ITERATIONS if is_small else SAMPLE
        yield costs(f"detect by contrast, {size}", mine, "detect by DLR", theirs, limit=limit)
    two, one = race(partial(ours, rows, reference, "dlr", 2), dlr)
    limit = "Some steps run on one thread, and both cores share the memory."
    yield faster(f"detect by DLR, {size}, two threads", two, "one thread", one, limit=limit)
    small = every[: 2 * SMALL]
    _, memory = alone(ours, (rows, reference, "dlr"), (small[:SMALL], small[SMALL:], "dlr"))
    limit = "Scores, p-values and decisions of all rows, and the blocks of one pass."
    yield value(f"memory beyond the rows, detect by DLR, {size}", memory, SPARE_BYTES, limit=limit)


if __name__ == "__main__":
    report(measure, "scikit-learn")
