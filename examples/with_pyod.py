"""truing among PyOD's detectors: a `BaseDetector` (higher = out), combined with others by PyOD's own tools.

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
    """A detector of truing's under PyOD's names: `decision_scores_`, `threshold_`, `labels_`, higher = out."""

    def __init__(self, detector: TruedDetector, contamination: float = 0.1) -> None:
        BaseDetector.__init__(self, contamination=contamination)
        self.detector = detector

    def fit(self, X: Any, y: Any = None) -> "Trued":
        """Fit the rows at hand, in- and out-of-distribution ones mixed."""
        self._set_n_classes(y)
        self.detector.fit(X)
        self.decision_scores_ = self.decision_function(X)
        self._process_decision_scores()
        return self

    def decision_function(self, X: Any) -> Any:
        """Return how far out every row is."""
        return -self.detector.score_samples(X)


def measure() -> dict[str, float]:
    """Return the AUROC of PyOD's detectors, of truing's, and of all combined: digits 8 and 9 are out."""
    pixels, labels = load_digits(return_X_y=True)
    known = labels < 8
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    classifier.fit(pixels[known][::2], labels[known][::2])
    mix, is_in = pixels[1::2], known[1::2]

    detectors = {
        "KNN": KNN(),
        "IForest": IForest(random_state=0),
        "truing": Trued(TruedDetector(classifier=classifier), contamination=0.2),
    }
    columns = np.column_stack([detector.fit(mix).decision_scores_ for detector in detectors.values()])
    alike = standardizer(columns)
    scores = dict(zip(detectors, columns.T, strict=True))
    scores |= {"average": average(alike), "maximum": maximization(alike)}
    return {name: truing.auroc(-score[is_in], -score[~is_in]) for name, score in scores.items()}


if __name__ == "__main__":
    for name, auroc in measure().items():
        print(f"{name:10}{100 * auroc:6.1f}")
