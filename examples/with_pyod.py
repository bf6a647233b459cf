"""truing as a PyOD detector: a `BaseDetector` (higher = out), combined with other detectors by PyOD's tools.

Run it with `python examples/with_pyod.py`, after `pip install pyod combo`.
"""

from typing import Any

import numpy as np
from combo.models.score_comb import average, maximization
from pyod.models.base import BaseDetector
from pyod.models.iforest import IForest
from pyod.models.knn import KNN
from pyod.utils.utility import standardizer
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import truing
from truing.sklearn import TruedDetector


class Trued(BaseDetector):  # type: ignore[misc]
    """A `TruedDetector` with PyOD's attributes `decision_scores_`, `threshold_` and `labels_`; higher = out."""

    def __init__(self, detector: TruedDetector, reference: Any, contamination: float = 0.1) -> None:
        BaseDetector.__init__(self, contamination=contamination)
        self.detector = detector
        self.reference = reference

    def fit(self, X: Any, y: Any = None) -> "Trued":
        """Fit the rows to decide, in- and out-of-distribution rows mixed."""
        self._set_n_classes(y)
        self.detector.fit(X, reference=self.reference)
        self.decision_scores_ = self.decision_function(X)
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> Any:
        """Return the out-of-distribution score of every row."""
        return -self.detector.score_samples(X)


def measure() -> dict[str, float]:
    """Return the AUROC of two PyOD detectors, of truing, and of their combinations. The digits 8 and 9 are out."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(np.flatnonzero(labels < 8))
    train, held_out, test = np.array_split(order, 3)
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(pixels[train], labels[train])
    mix = np.concatenate((pixels[test], pixels[labels > 7]))
    is_in = np.arange(len(mix)) < len(test)

    trued = Trued(TruedDetector(classifier=classifier), pixels[held_out], contamination=0.4)
    detectors = {"KNN": KNN(), "IForest": IForest(random_state=0), "truing": trued}
    columns = np.column_stack([detector.fit(mix).decision_scores_ for detector in detectors.values()])
    standardised = standardizer(columns)
    scores = dict(zip(detectors, columns.T, strict=True))
    scores |= {"average": average(standardised), "maximum": maximization(standardised)}
    return {name: truing.auroc(-score[is_in], -score[~is_in]) for name, score in scores.items()}


if __name__ == "__main__":
    for name, auroc in measure().items():
        print(f"{name:10}{100 * auroc:6.1f}")
