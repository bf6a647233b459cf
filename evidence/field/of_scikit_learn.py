"""Classifiers of A against the other rows (AdaDetect), and outlier detectors."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import truing
from truing import Outputs

from .protocol import COMPONENTS, MORE_COMPONENTS, SEED, Rival, Split, components_of, unlabelled

FEATURES, WITH_SCORES, DIRECTION = "features", "features + scores", "direction + distance + scores"
FORESTS = ("cifar10-wrn40-2",)  # Forests take a minute per split, and were ahead of logistic regression only here.

# The defaults that scikit-learn's warnings announce. The present default, accuracy, does not separate A from the rest.
COMING = {"scoring": "neg_log_loss", "l1_ratios": (0.0,), "use_legacy_attributes": False, "max_iter": 1000}


def rivals(split: Split) -> Iterator[Rival]:
    """Yield the classifiers and the outlier detectors."""
    logistic = partial(LogisticRegression, max_iter=1000)
    for columns in (FEATURES, WITH_SCORES, DIRECTION):
        yield classifier(split, "LogisticRegression", standardised(logistic), columns)
    searched = partial(LogisticRegressionCV, **COMING)
    yield classifier(split, "LogisticRegressionCV", standardised(searched), DIRECTION, is_slow=True)
    boosting = partial(HistGradientBoostingClassifier, random_state=SEED)
    yield classifier(split, "HistGradientBoosting", boosting, DIRECTION, is_slow=True)
    if split.network in FORESTS:
        # Trees of unlimited depth reproduce the labels of their training rows and do not rank them.
        forest = partial(RandomForestClassifier, max_depth=10, random_state=SEED)
        yield classifier(split, "RandomForest, depth 10", forest, DIRECTION, is_slow=True)
    yield from outliers(split, IsolationForest(random_state=SEED), "score_samples")


def standardised(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a classifier that standardises its columns first."""
    return lambda: make_pipeline(StandardScaler(), make())


def classifier(split: Split, name: str, make: Callable[[], Any], columns: str, *, is_slow: bool = False) -> Rival:
    """Return a classifier of A against B and the mix, which ranks rows by their similarity to A."""
    tag, k = components_of(split, MORE_COMPONENTS)
    return Rival(f"{name}, {columns}{tag}", "A, B, mix", partial(similarity, make, columns, k), is_slow=is_slow)


def similarity(make: Callable[[], Any], kind: str, k: int | None, split: Split, mix: Outputs) -> tuple[Any, Any]:
    """Return how much the rows of B and of the mix resemble the rows of A."""
    rows = unlabelled((split.a, split.b, mix))
    table, d = columns_of(kind, split.a, rows), rows.features.shape[1]
    if k is not None:
        table = np.column_stack((PCA(k, random_state=SEED).fit_transform(table[:, :d]), table[:, d:]))
    m, n = len(split.a), len(split.a) + len(split.b)
    resembles = make().fit(table, np.int64(np.arange(len(rows)) < m)).predict_proba(table)
    resembles = resembles[:, 1] if resembles.ndim == 2 else resembles
    return resembles[m:n], resembles[n:]


def columns_of(kind: str, reference: Outputs, rows: Outputs) -> Any:
    """Return the columns (n, p) that a classifier learns from."""
    features = np.float64(rows.features)
    if kind == FEATURES:
        return features
    scores = [truing.SCORES[base](rows) for base in ("gen", "energy", "msp")]
    if kind == DIRECTION:
        known = np.float64(reference.features)
        deviation = known.std(axis=0)
        features = (features - known.mean(axis=0)) / np.where(deviation > 0, deviation, np.inf)
        distance = np.linalg.norm(features, axis=1)
        return np.column_stack((features / np.where(distance > 0, distance, 1)[:, None], distance, *scores))
    return np.column_stack((features, *scores))


def outliers(split: Split, detector: Any, other: str, own: str = "", sign: int = 1) -> Iterator[Rival]:
    """Yield an outlier detector of features, fitted on the mix and on A. `other` and `own` name its scores."""
    tag, k = components_of(split, COMPONENTS)
    name = type(detector).__name__

    def fitted(learn: Any, rows: Any) -> tuple[Any, Any]:
        learn, rows = np.float64(learn), np.float64(rows)
        if k is not None:
            learn, rows = map(PCA(k, random_state=SEED).fit(learn).transform, (learn, rows))
        # Clone the detector, because ECOD and COPOD keep the rows of earlier fits.
        return clone(detector).fit(learn), rows

    def of_reference(split: Split, rows: Outputs) -> Any:
        fit, columns = fitted(split.a.features, rows.features)
        return sign * getattr(fit, other)(columns)

    def of_mix(split: Split, mix: Outputs) -> tuple[None, Any]:
        fit, columns = fitted(mix.features, mix.features)
        return None, sign * (getattr(fit, own) if own else getattr(fit, other)(columns))

    # In ECOD, the score of a row depends on the other rows that are scored with it.
    yield Rival(name + tag, "A", of_reference, by_mix=name == "ECOD")
    yield Rival(name + tag, "mix", of_mix)
