"""AUROC, AUPR and FPR95 from one `evaluate`, compared with three calls of scikit-learn.

scikit-learn gets labels and joined scores that were prepared in advance. `evaluate` also returns the AUPR with
out-of-distribution rows as the positives.
"""

from collections.abc import Iterator

import numpy as np
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

import truing

from ._rows import Row, faster, report
from ._timing import difference, race


def ours(scores_in: np.ndarray, scores_out: np.ndarray) -> tuple[float, float, float]:
    report = truing.evaluate(scores_in, scores_out)
    return report.auroc, report.aupr, report.fpr95


def sklearn(labels: np.ndarray, scores: np.ndarray) -> tuple[float, float, float]:
    fpr, tpr, _ = roc_curve(labels, scores, drop_intermediate=False)
    return roc_auc_score(labels, scores), average_precision_score(labels, scores), fpr[np.argmax(tpr >= 0.95)]


def measure() -> Iterator[Row]:
    rng = np.random.default_rng(0)
    scores_in, scores_out = rng.normal(2.0, 1.0, 1_000_000), rng.normal(0.0, 1.0, 1_000_000)
    yield one_case("evaluate, 1,000,000 + 1,000,000 scores", scores_in, scores_out, 3)
    yield one_case("the same with ties, rounded to two decimals", scores_in.round(2), scores_out.round(2))


def one_case(work: str, scores_in: np.ndarray, scores_out: np.ndarray, target: float | None = None) -> Row:
    """Return the table row of one set of scores."""
    labels = np.repeat([1, 0], [len(scores_in), len(scores_out)])
    scores = np.concatenate((scores_in, scores_out))
    note = f"they differ by {difference(ours(scores_in, scores_out), sklearn(labels, scores)):.0e}"
    mine, theirs = race(lambda: ours(scores_in, scores_out), lambda: sklearn(labels, scores), repeats=3)
    return faster(
        work,
        mine,
        "three scikit-learn calls",
        theirs,
        target,
        note=note,
        limit="The sums over all thresholds, and the sort of the scores.",
    )


if __name__ == "__main__":
    report(measure, "scikit-learn")
