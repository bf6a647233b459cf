"""`truing.sklearn.TruedDetector` on tables: a classifier that was never taught one of the classes.

Digits, wines and tumours, all shipped with scikit-learn, each with one class held out. A logistic regression, and
LightGBM's trees by their margins, learn the other classes from a third of the rows. Another third is known to be
in-distribution, the reference. The last third comes mixed with the class held out. All numbers are means over ten
draws of the thirds: with so few rows one draw says little.

Run it with `python examples/with_sklearn.py`; LightGBM is left out where it is not installed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
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

    class Trees(LGBMClassifier):  # type: ignore[misc]
        """LightGBM's trees, with their margins as the decision function."""

        def decision_function(self, X: Any) -> Any:
            """Return the sum of the trees' leaves, of each class."""
            return self.predict_proba(X, raw_score=True)

    CLASSIFIERS["boosted trees"] = Trees(n_estimators=40, min_child_samples=5, n_jobs=1, random_state=0, verbose=-1)


def thirds(name: str, seed: int) -> tuple[list[NDArray[Any]], list[NDArray[Any]], NDArray[Any]]:
    """Return rows and labels, in three parts, of the classes that are known, and the rows of the one held out."""
    load, held_out = DATA[name]
    rows, labels = load(return_X_y=True)
    inside = np.random.default_rng(seed).permutation(np.flatnonzero(labels != held_out))
    parts = np.array_split(inside, 3)
    return [rows[part] for part in parts], [labels[part] for part in parts], rows[labels == held_out]


def detectors(learn: NDArray[Any], labels: NDArray[Any]) -> dict[str, tuple[TruedDetector, bool]]:
    """Return the detectors to compare, and whether each is given the reference."""
    found: dict[str, tuple[TruedDetector, bool]] = {"features alone": (TruedDetector(), True)}
    if len(set(labels)) > 1:  # Of one class there is no classifier.
        for title, last in CLASSIFIERS.items():
            classifier = make_pipeline(StandardScaler(), last).fit(learn, labels)
            found[f"{title}, msp"] = (TruedDetector(classifier=classifier, method="none"), False)
            found[f"{title}, msp + DLR"] = (TruedDetector(classifier=classifier), False)
            found[f"{title}, contrast"] = (TruedDetector(classifier=classifier), True)
    return found


def measure(name: str, seed: int) -> dict[str, list[float]]:
    """Return the AUROC of each detector and, with a reference, the share of in-distribution rows called out."""
    (learn, reference, test), (labels, _, _), outside = thirds(name, seed)
    mix = np.concatenate((test, outside))
    scaler = StandardScaler().fit(learn)
    results = {}
    for title, (detector, with_reference) in detectors(learn, labels).items():
        rows, known = mix, reference
        if detector.classifier is None:
            rows, known = scaler.transform(mix), scaler.transform(reference)
        decided = detector.fit_predict(rows, reference=known if with_reference else None)
        scores = detector.detection_.scores
        results[title] = [truing.auroc(scores[: len(test)], scores[len(test) :])]
        if with_reference:
            results[title].append(float(np.mean(decided[: len(test)] == -1)))
    return results


def main() -> None:
    """Print mean AUROC and false alarms, in per cent."""
    print(f"{'':40}{'AUROC':>6}{'false alarms':>14}")
    for name in DATA:
        draws = [measure(name, seed) for seed in range(10)]
        for title in draws[0]:
            auroc, *alarms = 100 * np.mean([draw[title] for draw in draws], axis=0)
            print(f"{name + ', ' + title:40}{auroc:6.1f}{''.join(f'{share:14.1f}' for share in alarms)}")


if __name__ == "__main__":
    main()
