"""Measure `truing.sklearn.TruedDetector` without a classifier, on digits, wines and tumours of scikit-learn.

First, the out-of-distribution rows are a tenth of the rows, with each column shuffled. Then each class in turn is
out-of-distribution, at 10 and 30 % of the rows; half of the other rows is the reference. All numbers are AUROC in per
cent, means over five random splits, all classes and both shares.

Run it with `python -m evidence.features_alone`.
"""

import warnings
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.preprocessing import StandardScaler

import truing
from truing.sklearn import TruedDetector

Rows = NDArray[np.float64]

DATA = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}
SHARES = (0.1, 0.3)
DRAWS = 5


def minus_norm(outputs: truing.Outputs) -> Rows:
    """Return minus the norm of each row: a base score for sets that differ in norm."""
    norms: Rows = -np.linalg.norm(outputs.features, axis=1)
    return norms


ALONE: dict[str, Callable[[], TruedDetector]] = {
    "knn": lambda: TruedDetector(base="knn", method="none"),
    "knn + DLR": lambda: TruedDetector(base="knn", method="dlr"),
}
WITH_REFERENCE = ALONE | {
    "contrast": lambda: TruedDetector(method="contrast"),
    "minus the norm": lambda: TruedDetector(base=minus_norm, method="none"),
}


def main() -> None:
    """Print a line for each detector."""
    warnings.simplefilter("ignore", truing.TruingWarning)  # Wine has few rows.
    print(f"{'':44}{''.join(f'{name:>15}' for name in DATA)}")
    for title, measure, detectors in (
        ("shuffled rows", shuffled, ALONE),
        ("a class", classes, ALONE),
        ("a class, with a reference", classes_with_reference, WITH_REFERENCE),
    ):
        for name, make in detectors.items():
            means = [np.mean([auroc for seed in range(DRAWS) for auroc in measure(data, make, seed)]) for data in DATA]
            print(f"{title + ', ' + name:44}{''.join(f'{100 * mean:15.1f}' for mean in means)}")


def shuffled(data: str, make: Callable[[], TruedDetector], seed: int) -> Iterator[float]:
    """Yield the AUROC for a tenth of rows with shuffled columns."""
    rng = np.random.default_rng(seed)
    rows, _ = DATA[data](return_X_y=True)
    others = np.column_stack([rng.permutation(column) for column in rows.T])[: len(rows) // 10]
    yield auroc(make(), rows, others)


def classes(data: str, make: Callable[[], TruedDetector], seed: int) -> Iterator[float]:
    """Yield the AUROC of each class among the others, at each share."""
    for _, inside, outside in mixes(data, seed):
        yield auroc(make(), inside, outside)


def classes_with_reference(data: str, make: Callable[[], TruedDetector], seed: int) -> Iterator[float]:
    """Yield the AUROC of each class among the others, at each share, with a reference."""
    for reference, inside, outside in mixes(data, seed):
        yield auroc(make(), inside, outside, reference)


def mixes(data: str, seed: int) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Yield reference rows, in-distribution rows and rows of one other class, for each class and share."""
    rng = np.random.default_rng(seed)
    rows, labels = DATA[data](return_X_y=True)
    for label in np.unique(labels):
        reference, inside = np.array_split(rng.permutation(rows[labels != label]), 2)
        outside = rng.permutation(rows[labels == label])
        for share in SHARES:
            rows_out = min(len(outside), round(share / (1 - share) * len(inside)))
            yield reference, inside[: round((1 - share) / share * rows_out)], outside[:rows_out]


def auroc(detector: TruedDetector, inside: Rows, outside: Rows, reference: Rows | None = None) -> float:
    """Return the AUROC of a detector. The scaler is fitted to the reference or, without one, to the mix."""
    mix = np.concatenate((inside, outside))
    scaler = StandardScaler().fit(mix if reference is None else reference)
    detector.fit(scaler.transform(mix), reference=None if reference is None else scaler.transform(reference))
    scores = detector.detection_.scores
    return truing.auroc(scores[: len(inside)], scores[len(inside) :])


if __name__ == "__main__":
    main()
