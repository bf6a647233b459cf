"""What figures of features and scores are drawn from: a few hundred points and planes, as rows like any other."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._check import Floats, Matrix
from ...fits import fit_direct
from ...threshold import threshold_at
from .cases import SEED
from .mixes import Frame, Mix, direct, robust
from .protocols import Job
from .records import Row

POINTS = 150  # Of each set.
BINS = 40
DRAWN = "energy"  # The score of the paper's first figure.


def pictures(job: Job) -> Iterator[Row]:
    """Yield the points of one mix, and densities of its scores before and after truing."""
    frame = Frame(job.mix.features, job.setting.components)
    yield _points(job.mix, frame)
    for base, scores in job.mix.scores.items():
        trued = {"none": scores}
        trued |= {name: fit(frame, scores)(job.mix.features) for name, fit in (("DLR", direct), ("RLR", robust))}
        for method, values in trued.items():
            yield {"picture": "densities", "base": base, "method": method, **_densities(*job.mix.split(values))}


def principal_axes(features: Floats, count: int) -> tuple[Floats, Floats]:
    """Return the leading principal coordinates, and each one's share of the variance."""
    centred = features - features.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    leading = slice(-1, -1 - count, -1)
    return centred @ vectors[:, leading], values[leading] / values.sum()


def binned(scores_in: Floats, scores_out: Floats, bins: int) -> tuple[tuple[float, float], list[Floats]]:
    """Return the ends of equal bins and the shares of each set in them; what lies beyond is in the outermost."""
    low, high = np.quantile(np.concatenate([scores_in, scores_out]), [0.001, 0.999])
    edges = np.linspace(low, high, bins + 1)
    shares = [np.histogram(np.clip(part, low, high), edges)[0] / len(part) for part in (scores_in, scores_out)]
    return (float(low), float(high)), shares


def _points(mix: Mix, frame: Frame) -> Row:
    features, scores = np.asarray(frame.coordinates, dtype=np.float64), mix.scores[DRAWN]
    is_out = np.arange(len(scores)) >= mix.rows_in
    axes, shares = principal_axes(features, 2)
    plane = fit_direct(axes, scores)
    direction = _discriminant(features, is_out)
    along = features @ direction
    rest = principal_axes(features - np.outer(along, direction), 1)[0]
    rng = np.random.default_rng(SEED)
    chosen = [rng.permutation(np.flatnonzero(side))[:POINTS] for side in (~is_out, is_out)]
    some = rng.permutation(np.concatenate(chosen))
    table = np.column_stack([axes, scores, along - along.mean(), rest])[some]
    return {
        "picture": "points",
        "base": DRAWN,
        "variance": [round(float(share), 4) for share in shares],
        "columns": ["component 1", "component 2", DRAWN, "discriminant", "component of the rest"],
        "points": [[float(f"{value:.4g}") for value in line] for line in table],
        "is_out": is_out[some].astype(int).tolist(),
        "plane": [*plane.coef.tolist(), plane.intercept],
        "explained": round(plane.explained, 4),
        **_separating(np.column_stack([axes, scores]), is_out),
    }


def _separating(places: Floats, is_out: np.ndarray[Any, np.dtype[np.bool_]]) -> dict[str, Any]:
    """Return the plane w·x + b = 0 of a linear SVM that knows which rows are out, and the share that it gets right."""
    try:
        from sklearn.svm import LinearSVC
    except ImportError:
        raise ImportError("the pictures need scikit-learn: pip install 'truing[bench]'") from None
    spread = places.std(axis=0)
    svm = LinearSVC(class_weight="balanced", random_state=SEED, max_iter=20_000).fit(places / spread, is_out)
    right = np.mean(
        [(svm.predict(places[side] / spread) == label).mean() for side, label in ((~is_out, 0), (is_out, 1))]
    )
    return {"svm": [*(svm.coef_[0] / spread).tolist(), float(svm.intercept_[0])], "svm_right": round(float(right), 4)}


def _discriminant(features: Matrix, is_out: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    """Return Fisher's direction, of unit length; higher = in-distribution."""
    parts = [features[~is_out], features[is_out]]
    within = sum(np.cov(part.T) for part in parts)
    direction = np.linalg.lstsq(within, parts[0].mean(axis=0) - parts[1].mean(axis=0), rcond=None)[0]
    unit: Floats = direction / np.linalg.norm(direction)
    return unit


def _densities(scores_in: Floats, scores_out: Floats) -> dict[str, Any]:
    (low, high), shares = binned(scores_in, scores_out, BINS)
    return {
        "edges": [float(f"{low:.6g}"), float(f"{high:.6g}")],
        "inside": shares[0].round(5).tolist(),
        "outside_shares": shares[1].round(5).tolist(),
        "threshold": float(f"{threshold_at(scores_in, keep=0.95):.6g}"),
    }
