"""AUROC, AUPR and FPR95 from one sort, against the three calls of scikit-learn that give them.

The rival gets its labels and joined scores ready made. Ours returns the AUPR of the other side as well.
"""

from collections.abc import Iterator

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

import truing
from _rows import Row, faster, report
from _timing import difference, race


def ours(scores_in: np.ndarray, scores_out: np.ndarray) -> tuple[float, float, float]:
    found = truing.evaluate(scores_in, scores_out)
    return found.auroc, found.aupr, found.fpr95


def sklearn(labels: np.ndarray, scores: np.ndarray) -> tuple[float, float, float]:
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    return roc_auc_score(labels, scores), average_precision_score(labels, scores), fpr[np.argmax(tpr >= 0.95)]


def measure() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    scores_in, scores_out = rng.normal(2.0, 1.0, 1_000_000), rng.normal(0.0, 1.0, 1_000_000)
    yield one_case("AUROC + AUPR + FPR95, 1,000,000 + 1,000,000 scores", scores_in, scores_out, 3)
    yield one_case("the same, rounded to two decimals: ties", scores_in.round(2), scores_out.round(2))
    short = scores_in.astype(np.float32), scores_out.astype(np.float32)
    yield one_case("the same, float32", *short)


def one_case(work: str, scores_in: np.ndarray, scores_out: np.ndarray, target: float | None = None) -> Row:
    labels = np.repeat([1, 0], [len(scores_in), len(scores_out)])
    scores = np.concatenate((scores_in, scores_out))
    found = {}
    mine, theirs = race(
        lambda: found.update(ours=ours(scores_in, scores_out)),
        lambda: found.update(theirs=sklearn(labels, scores)),
    )
    note = f"the three differ by at most {difference(found['ours'], found['theirs']):.0e}"
    return faster(work, mine, "three scikit-learn calls", theirs, target, note=note)


if __name__ == "__main__":
    report(measure, "scikit-learn")
