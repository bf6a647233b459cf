"""`truing.detect` as a whole, beside the scikit-learn pipeline that a user would write for the same job.

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
from _features import synthetic_outputs
from _rows import Row, costs, faster, report, value
from _timing import peak, race

SIZES = ((10_000, 64, 5_000), (1_000_000, 128, 20_000))  # Rows, features, reference rows.
ACCEPT = 0.95
SMALL = 1_000
SPARE_BYTES = 300e6


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
        same = float(np.mean(dlr().is_out == pipeline(rows, reference)))
        mine, theirs = race(dlr, partial(pipeline, rows, reference))
        yield faster(f"detect by DLR, {size}", mine, "scikit-learn pipeline", theirs, note=f"{same:.2%} decided alike")
        mine, theirs = race(contrast, dlr)
        yield costs(f"detect by contrast, {size}", mine, "detect by DLR", theirs)
        two, one = race(partial(ours, rows, reference, "dlr", 2), dlr)
        yield faster(f"detect by DLR, {size}, two threads", two, "one thread", one)
    small = every[: 2 * SMALL]
    arguments = rows, reference, "dlr"
    memory = peak(ours, arguments, (small[:SMALL], small[SMALL:], "dlr"))
    yield value(f"memory beyond the rows: detect by DLR, {size}", memory, SPARE_BYTES)


if __name__ == "__main__":
    report(measure, "scikit-learn")
