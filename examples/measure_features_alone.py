"""What `truing.sklearn.TruedDetector` finds by features alone, where there is no classifier and no network.

Digits, wines and tumours, all shipped with scikit-learn. First a tenth of rows is added whose columns were shuffled,
each by itself: rare, and apart from the others. Then each class in turn is out, at 10 and at 30 % of the rows: half of
the other classes is the reference, the other half is in. All numbers are AUROC in per cent, means over five draws, and
over classes and shares.

Run it with `python examples/measure_features_alone.py`.
"""

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
    """Return a base score for rows that differ in size."""
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
    """Yield the AUROC where a tenth of rows with shuffled columns is added."""
    rng = np.random.default_rng(seed)
    rows, _ = DATA[data](return_X_y=True)
    others = np.column_stack([rng.permutation(column) for column in rows.T])[: len(rows) // 10]
    yield auroc(make(), rows, others)


def classes(data: str, make: Callable[[], TruedDetector], seed: int) -> Iterator[float]:
    """Yield the AUROC of each class among the others, at each share."""
    for _, inside, outside in mixes(data, seed):
        yield auroc(make(), inside, outside)


def classes_with_reference(data: str, make: Callable[[], TruedDetector], seed: int) -> Iterator[float]:
    """Yield the same where known rows of the other classes are given."""
    for known, inside, outside in mixes(data, seed):
        yield auroc(make(), inside, outside, known)


def mixes(data: str, seed: int) -> Iterator[tuple[Rows, Rows, Rows]]:
    """Yield known rows, others of the same classes, and rows of one class, as many of both as make up each share."""
    rng = np.random.default_rng(seed)
    rows, labels = DATA[data](return_X_y=True)
    for label in np.unique(labels):
        known, inside = np.array_split(rng.permutation(rows[labels != label]), 2)
        outside = rng.permutation(rows[labels == label])
        for share in SHARES:
            rows_out = min(len(outside), round(share / (1 - share) * len(inside)))
            yield known, inside[: round((1 - share) / share * rows_out)], outside[:rows_out]


def auroc(detector: TruedDetector, inside: Rows, outside: Rows, known: Rows | None = None) -> float:
    """Return the AUROC of a detector that is fitted to the mix, its columns scaled by the known rows or by the mix."""
    mix = np.concatenate((inside, outside))
    scaler = StandardScaler().fit(mix if known is None else known)
    detector.fit(scaler.transform(mix), reference=None if known is None else scaler.transform(known))
    scores = detector.detection_.scores
    return truing.auroc(scores[: len(inside)], scores[len(inside) :])


if __name__ == "__main__":
    main()
