"""Decisions on 7,000 real rows of 64 features with a reference of 5,000, compared with detectors of PyOD.

The rows are the outputs of a CIFAR-10 network on CIFAR-10 and SVHN that come with truing. A detector of PyOD is fitted
to the features of the reference; its threshold refuses 5 % of the reference. truing decides at 5 % false alarms and
also returns p-values and notes. KNN of PyOD gets rows of unit norm, which `truing.knn` computes itself. A note gives
the AUROC of both sides. Both sides use one thread.
"""

from collections.abc import Callable, Iterator

import numpy as np
from pyod.models.ecod import ECOD
from pyod.models.hbos import HBOS
from pyod.models.iforest import IForest
from pyod.models.knn import KNN
from sklearn.preprocessing import normalize

import truing

from ._features import CIFAR_SVHN
from ._rows import Row, faster, report
from ._timing import race

REFERENCE, FALSE_ALARM, NEIGHBOURS = 5_000, 0.05, 50
Decided = tuple[np.ndarray, np.ndarray]
"""Scores, higher = more in-distribution, and which rows are out."""


def by_truing(method: str, rows: truing.Outputs, reference: truing.Outputs) -> Decided:
    detection = truing.detect(rows, reference, method=method, false_alarm=FALSE_ALARM)
    return detection.scores, detection.is_out


def by_knn(rows: truing.Outputs, reference: truing.Outputs) -> Decided:
    scores = truing.knn(rows.features, reference.features, neighbours=NEIGHBOURS)
    scores_in = truing.knn(reference.features, reference.features, neighbours=NEIGHBOURS, leave_out=True)
    return scores, scores < truing.threshold_at(scores_in, accept=1 - FALSE_ALARM)


def by_pyod(make: Callable[[], object], rows: truing.Outputs, reference: truing.Outputs) -> Decided:
    detector = make()
    some, inside = (one.features.astype(np.float64) for one in (rows, reference))
    if isinstance(detector, KNN):
        some, inside = normalize(some), normalize(inside)
    scores = detector.fit(inside).decision_function(some)
    return -scores, scores > detector.threshold_


RIVALS = {
    "KNN": lambda: KNN(contamination=FALSE_ALARM, n_neighbors=NEIGHBOURS, n_jobs=1),
    "IForest": lambda: IForest(contamination=FALSE_ALARM, random_state=0, n_jobs=1),
    "ECOD": lambda: ECOD(contamination=FALSE_ALARM, n_jobs=1),
    "HBOS": lambda: HBOS(contamination=FALSE_ALARM),
}
PAIRS = (("knn", "KNN"), ("contrast", "IForest"), ("contrast", "ECOD"), ("dlr", "HBOS"))
LIMITS = {
    "knn": "The product of all rows with all reference rows, twice.",
    "contrast": "The search for near duplicates, and the fit.",
    "dlr": "The work per call: p-values, distances to the reference and notes.",
}


def measure() -> Iterator[Row]:
    truing.threads(1)
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    reference = inside[REFERENCE:]
    rows = truing.Outputs.concatenate(
        [truing.Outputs(one.features, one.logits) for one in (inside[:REFERENCE], outside)]
    )
    size = f"{len(rows):,} × {rows.features.shape[1]} real rows"
    for name, rival in PAIRS:
        ours = (
            (lambda: by_knn(rows, reference)) if name == "knn" else lambda name=name: by_truing(name, rows, reference)
        )
        theirs = lambda rival=rival: by_pyod(RIVALS[rival], rows, reference)  # noqa: E731
        aurocs = [100 * truing.evaluate(one[:REFERENCE], one[REFERENCE:]).auroc for one in (ours()[0], theirs()[0])]
        note = f"AUROC {aurocs[0]:.1f}, PyOD {aurocs[1]:.1f}"
        mine, other = race(ours, theirs)
        work = f"decide by {name}, {size}"
        yield faster(work, mine, f"PyOD {rival}", other, note=note, limit=LIMITS[name], data=CIFAR_SVHN)


if __name__ == "__main__":
    report(measure, "pyod", "scikit-learn")
