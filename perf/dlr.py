"""DLR, fit and score, against the two passes that nobody can do without, and against two least-squares solvers."""

from collections.abc import Iterator

import numpy as np
from sklearn.linear_model import LinearRegression

import truing
from _features import like_a_network
from _rows import Row, costs, faster, report, value
from _timing import difference, race
from rlr_passes import gram_pass

WORK = "DLR fit + score, 1,000,000 × 128 float32"


def ours(features: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return truing.fit_direct(features, scores).predict(features)


def two_passes(features: np.ndarray, coef: np.ndarray) -> np.ndarray:
    """Return Z coef, after one ZᵀZ: both in float64, a block of rows at a time."""
    gram_pass(features)
    step = 2**18 // features.shape[1]
    blocks = (features[start : start + step] for start in range(0, len(features), step))
    return np.concatenate([block.astype(np.float64) @ coef for block in blocks])


def sklearn(features: np.ndarray, scores: np.ndarray) -> np.ndarray:
    return LinearRegression().fit(features, scores).predict(features)


def lstsq(features: np.ndarray, scores: np.ndarray) -> np.ndarray:
    design = np.ones((len(features), features.shape[1] + 1))
    design[:, :-1] = features
    return design @ np.linalg.lstsq(design, scores, rcond=None)[0]


def measure() -> Iterator[Row]:
    features, scores = like_a_network(1_000_000, 128)
    coef = np.ones(features.shape[1])
    found = {}
    mine, passes, learn, numpy = race(
        lambda: found.update(ours=ours(features, scores)),
        lambda: two_passes(features, coef),
        lambda: found.update(sklearn=sklearn(features, scores)),
        lambda: found.update(lstsq=lstsq(features, scores)),
    )
    yield costs(WORK, mine, "one ZᵀZ and one Zβ pass", passes, 1.3)
    yield faster(WORK, mine, "scikit-learn LinearRegression", learn, 5)
    yield faster(WORK, mine, "np.linalg.lstsq", numpy, 10)
    yield value("difference of DLR's scores from lstsq's", difference(found["ours"], found["lstsq"]), 1e-8)
    note = "it computes in the features' own float32"
    yield value(
        "difference of scikit-learn's scores from lstsq's", difference(found["sklearn"], found["lstsq"]), note=note
    )


if __name__ == "__main__":
    report(measure, "scikit-learn")
