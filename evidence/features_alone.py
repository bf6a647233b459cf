"""Measure `truing.sklearn.TruedDetector` without a classifier, on digits, wines and tumours of scikit-learn.

First, the out-of-distribution rows are a tenth of the rows, with each column shuffled. Then each class in turn is
out-of-distribution, at 10 and 30 % of the rows; half of the other rows is the reference. All numbers are AUROC in per
cent, means over random splits, all classes and both shares.

    python -m evidence.features_alone
"""

import warnings
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.preprocessing import StandardScaler

import truing
from truing.sklearn import TruedDetector

from .experiment import Experiment, table
from .rows import Row

DATA = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}
SHARES = (0.1, 0.3)
SEED, SPLITS = 0, 5


def minus_norm(outputs: truing.Outputs) -> Any:
    """Return minus the norm of each row: a base score for sets that differ in norm."""
    return -np.linalg.norm(outputs.features, axis=1)


ALONE: dict[str, Callable[[], TruedDetector]] = {
    "knn": lambda: TruedDetector(base="knn", method="none"),
    "knn + DLR": lambda: TruedDetector(base="knn", method="dlr"),
}
WITH_REFERENCE = ALONE | {
    "contrast": lambda: TruedDetector(method="contrast"),
    "minus the norm": lambda: TruedDetector(base=minus_norm, method="none"),
}


def measure() -> Iterator[Row]:
    """Yield one row for each data set, kind of out rows and detector."""
    warnings.simplefilter("ignore", truing.TruingWarning)  # Wine has few rows.
    for out_rows, (mixes, detectors) in OUT_ROWS.items():
        for data, (name, make) in product(DATA, detectors.items()):
            splits = [mix for split in range(SPLITS) for mix in mixes(data, np.random.default_rng(SEED + split))]
            mean = np.mean([auroc(make(), *mix) for mix in splits])
            about = {"data": data, "seed": SEED, "splits": SPLITS, "out_rows": out_rows, "detector": name}
            yield about | {"auroc": round(100 * float(mean), 4)}


def shuffled(data: str, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Yield all rows, and a tenth of the rows with shuffled columns."""
    rows, _ = DATA[data](return_X_y=True)
    yield rows, np.column_stack([rng.permutation(column) for column in rows.T])[: len(rows) // 10]


def classes(data: str, rng: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Yield in-distribution rows and rows of one other class, for each class and share."""
    for inside, outside, _ in classes_with_reference(data, rng):
        yield inside, outside


def classes_with_reference(data: str, rng: np.random.Generator) -> Iterator[tuple[Any, Any, Any]]:
    """Yield in-distribution rows, rows of one other class, and reference rows, for each class and share."""
    rows, labels = DATA[data](return_X_y=True)
    for label in np.unique(labels):
        reference, inside = np.array_split(rng.permutation(rows[labels != label]), 2)
        outside = rng.permutation(rows[labels == label])
        for share in SHARES:
            rows_out = min(len(outside), round(share / (1 - share) * len(inside)))
            yield inside[: round((1 - share) / share * rows_out)], outside[:rows_out], reference


def auroc(detector: TruedDetector, inside: Any, outside: Any, reference: Any = None) -> float:
    """Return the AUROC of a detector. The scaler is fitted to the reference or, without one, to the mix."""
    mix = np.concatenate((inside, outside))
    scaler = StandardScaler().fit(mix if reference is None else reference)
    detector.fit(scaler.transform(mix), reference=None if reference is None else scaler.transform(reference))
    scores = detector.detection_.scores
    return truing.auroc(scores[: len(inside)], scores[len(inside) :])


OUT_ROWS = {
    "shuffled rows": (shuffled, ALONE),
    "a class": (classes, ALONE),
    "a class, with a reference": (classes_with_reference, WITH_REFERENCE),
}


def sections(rows: list[Row]) -> dict[str, str]:
    """Return the table of docs/sklearn.md."""
    cells = {(row["out_rows"], row["detector"], row["data"]): f"{row['auroc']:.1f}" for row in rows}
    lines = [
        (out_rows, name, *(cells[out_rows, name, data] for data in DATA))
        for out_rows, (_, detectors) in OUT_ROWS.items()
        for name in detectors
    ]
    return {"auroc": table(("out-of-distribution rows", "detector", *DATA), lines, right=len(DATA))}


EXPERIMENT = Experiment("features_alone", measure, sections, pages=("docs/sklearn.md",), packages=("scikit-learn",))

if __name__ == "__main__":
    EXPERIMENT.main()
