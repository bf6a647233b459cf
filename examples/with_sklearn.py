"""`truing.sklearn.TruedDetector` on tables, with scikit-learn, LightGBM and XGBoost.

Digits, wines and tumours ship with scikit-learn. One class of each is out-of-distribution. Of the other rows, a third
trains the classifiers, a third is the reference, and a third is decided together with the out-of-distribution class.
All numbers are means over ten random splits, because one split of so few rows says little.

Run it with `python examples/with_sklearn.py`. LightGBM and XGBoost are left out if they are not installed.
"""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import truing
from truing.sklearn import TruedDetector

DATA = {"digits": (load_digits, 9), "wine": (load_wine, 2), "breast cancer": (load_breast_cancer, 0)}

CLASSIFIERS: dict[str, Any] = {"logistic regression": LogisticRegression(max_iter=1000)}
try:
    from lightgbm import LGBMClassifier
except ImportError:
    pass
else:
    CLASSIFIERS["LightGBM"] = LGBMClassifier(n_estimators=40, min_child_samples=5, n_jobs=1, random_state=0, verbose=-1)
try:
    from xgboost import XGBClassifier
except ImportError:
    pass
else:
    CLASSIFIERS["XGBoost"] = XGBClassifier(n_estimators=40, n_jobs=1)


def main() -> None:
    """Print AUROC, detected share and false-alarm rate, in per cent."""
    print(f"{'':36}{'AUROC':>7}{'detected':>10}{'false alarms':>14}")
    for name in DATA:
        splits = [measure(name, seed) for seed in range(10)]
        for title in splits[0]:
            auroc, detected, alarms = 100 * np.mean([split[title] for split in splits], axis=0)
            print(f"{name + ', ' + title:36}{auroc:7.1f}{detected:10.1f}{alarms:14.1f}")


def measure(name: str, seed: int) -> dict[str, list[float]]:
    """Return the AUROC, the detected share and the false-alarm rate of each detector."""
    (train, reference, test), (labels, _, _), outside = thirds(name, seed)
    mix = np.concatenate((test, outside))
    scaler = StandardScaler().fit(train)
    results = {}
    for title, detector in detectors(scaler.transform(train), labels).items():
        with warnings.catch_warnings():  # Wine has too few reference rows.
            warnings.simplefilter("ignore", truing.TruingWarning)
            decisions = detector.fit_predict(scaler.transform(mix), reference=scaler.transform(reference))
        scores, is_out = detector.detection_.scores, decisions == -1
        rows_in = len(test)
        auroc = truing.auroc(scores[:rows_in], scores[rows_in:])
        results[title] = [auroc, float(is_out[rows_in:].mean()), float(is_out[:rows_in].mean())]
    return results


def detectors(train: NDArray[Any], labels: NDArray[Any]) -> dict[str, TruedDetector]:
    """Return the detectors to compare."""
    compared = {"no classifier": TruedDetector()}
    if len(set(labels)) > 1:  # Without the out class, the tumours have one class, and no classifier can be trained.
        for title, model in CLASSIFIERS.items():
            classifier = clone(model).fit(train, labels)
            compared[f"{title}, msp"] = TruedDetector(classifier=classifier, base="msp", method="none")
            compared[title] = TruedDetector(classifier=classifier)
    return compared


def thirds(name: str, seed: int) -> tuple[list[NDArray[Any]], list[NDArray[Any]], NDArray[Any]]:
    """Return rows and labels of the in-distribution classes in three parts, and the rows of the other class."""
    load, left_out = DATA[name]
    rows, labels = load(return_X_y=True)
    inside = np.random.default_rng(seed).permutation(np.flatnonzero(labels != left_out))
    parts = np.array_split(inside, 3)
    return [rows[part] for part in parts], [labels[part] for part in parts], rows[labels == left_out]


if __name__ == "__main__":
    main()
