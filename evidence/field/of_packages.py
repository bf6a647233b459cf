"""The detectors of pulearn, fcnd and PyOD."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from fcnd import FCND, IsoForestLearner
from pulearn import ElkanotoPuClassifier
from pyod.models.ecod import ECOD
from pyod.models.knn import KNN
from pyod.models.pca import PCA
from sklearn.linear_model import LogisticRegression

from truing import Outputs

from .of_scikit_learn import DIRECTION, classifier, outliers, standardised
from .protocol import SEED, Rival, Split


def of_pulearn(split: Split) -> Iterator[Rival]:
    """Yield a classifier for positive (A) and unlabelled rows."""
    logistic = standardised(partial(LogisticRegression, max_iter=1000))
    yield classifier(
        split, "ElkanotoPu, logistic", lambda: ElkanotoPuClassifier(logistic(), random_state=SEED), DIRECTION
    )


def of_fcnd(split: Split) -> Iterator[Rival]:
    """Yield a full conformal outlier detector, which learns from the reference rows and the mix."""

    def scores(split: Split, mix: Outputs) -> tuple[Any, Any]:
        detector = FCND(IsoForestLearner(random_state=SEED))
        detector.load_dataset(np.concatenate((split.a.features, split.b.features)), mix.features)
        found = -detector.score_units()
        return found[: detector.n], found[detector.n :]

    yield Rival("FCND, IsoForest", "A, B, mix", scores)


def of_pyod(split: Split) -> Iterator[Rival]:
    """Yield outlier detectors that scikit-learn does not have."""
    for detector in (ECOD(), KNN(), PCA()):
        yield from outliers(split, detector, "decision_function", own="decision_scores_", sign=-1)
