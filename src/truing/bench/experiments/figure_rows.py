"""The rows behind figures of features and scores: points, planes, densities and ROC curves."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..._check import Floats, Matrix
from ...data.extras import install
from ...decisions.thresholds import threshold_at
from ...regression.fits import SharedFeatures, fit_direct
from ...report.shapes import GRID, kernel_density, principal_axes
from .cases import CONTRAST, REFERENCE_SHARE, SEED
from .methods import metrics, principal_coordinates
from .mixes import Mix
from .protocols import Job
from .records import Row
from .reference import BASE, Reference, contrast

PROTOCOL = "draw points and densities"
POINTS = 150  # Number of points drawn from each set.
CURVE = 80  # Number of quantiles of each set that are thresholds of a ROC curve.
DRAWN = "energy"  # The score in the paper's first figure.


def figure_rows(job: Job) -> Iterator[Row]:
    """Yield the points of one mix, and densities and ROC curves of its scores before and after truing.

    Contrast is included if the mix has logits. The ROC curve of contrast is in the figure of every base score.
    """
    components = job.setting.components
    yield _points(job.mix, components)
    methods = job.methods()
    features = SharedFeatures(job.mix.features, components)
    by_contrast = None if job.mix.logits is None else _contrast(job)
    for base, scores in job.mix.scores.items():
        trued = {"none": scores}
        trued |= {name: fit(features, scores)(job.mix.features) for name, fit in methods.items()}
        parts = {method: job.mix.split(values) for method, values in trued.items()}
        for method, (scores_in, scores_out) in parts.items():
            yield {"picture": "densities", "base": base, "method": method, **_densities(scores_in, scores_out)}
        parts |= {} if by_contrast is None else {CONTRAST: by_contrast}
        curves = {method: _rounded(np.array(roc_points(*pair)), 4) for method, pair in parts.items()}
        yield {"picture": "roc", "base": base, "curves": curves}
    if by_contrast is not None:
        yield {"picture": "densities", "base": BASE, "method": CONTRAST, **_densities(*by_contrast)}


def _contrast(job: Job) -> tuple[Floats, Floats]:
    """Return contrast's (scores_in, scores_out) on the test rows of the first repeat of the contrast case."""
    mix, rng, _ = next(job.repeats())
    learning, calibration, rest = mix.with_reference(rng, REFERENCE_SHARE)
    return rest.split(contrast(rest, Reference(learning, calibration))[1])


def roc_points(scores_in: Floats, scores_out: Floats) -> tuple[Floats, Floats]:
    """Return the accepted shares of (out, in) rows at thresholds that are evenly spaced quantiles of both sets."""
    shares = np.linspace(0, 1, CURVE)
    spread = [np.quantile(scores, shares, method="nearest") for scores in (scores_in, scores_out)]
    thresholds = np.unique(np.concatenate([*spread, [np.inf]]))
    accepted = [1 - np.searchsorted(np.sort(scores), thresholds) / len(scores) for scores in (scores_out, scores_in)]
    return accepted[0], accepted[1]


def _points(mix: Mix, components: int | None) -> Row:
    place = principal_coordinates(mix.features, components)
    features, scores = np.asarray(place(mix.features), dtype=np.float64), mix.scores[DRAWN]
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
    """Return the plane w·x + b = 0 of a linear SVM trained on the labels, and its balanced accuracy."""
    try:
        from sklearn.svm import LinearSVC
    except ImportError:
        raise ImportError(f"the pictures need scikit-learn: {install('bench')}") from None
    spread = places.std(axis=0)
    svm = LinearSVC(class_weight="balanced", random_state=SEED, max_iter=20_000).fit(places / spread, is_out)
    right = np.mean(
        [(svm.predict(places[side] / spread) == label).mean() for side, label in ((~is_out, 0), (is_out, 1))]
    )
    return {"svm": [*(svm.coef_[0] / spread).tolist(), float(svm.intercept_[0])], "svm_right": round(float(right), 4)}


def _discriminant(features: Matrix, is_out: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    """Return Fisher's discriminant direction as a unit vector that points towards the in-distribution rows."""
    parts = [features[~is_out], features[is_out]]
    within = sum(np.cov(part.T) for part in parts)
    direction = np.linalg.lstsq(within, parts[0].mean(axis=0) - parts[1].mean(axis=0), rcond=None)[0]
    unit: Floats = direction / np.linalg.norm(direction)
    return unit


def _densities(scores_in: Floats, scores_out: Floats) -> dict[str, Any]:
    """Return the densities of in- and out-of-distribution scores, the threshold at 95 % recall, and the metrics.

    The densities cover the range from the 0.1 % quantile to the 99.9 % quantile of all scores.
    """
    low, high = np.quantile(np.concatenate([scores_in, scores_out]), [0.001, 0.999])
    grid = np.linspace(low, high, GRID)
    measured = metrics(scores_in, scores_out)
    return {
        "ends": [float(f"{low:.6g}"), float(f"{high:.6g}")],
        "density_in": _significant(kernel_density(scores_in, grid)),
        "density_out": _significant(kernel_density(scores_out, grid)),
        "threshold": float(f"{threshold_at(scores_in, accept=0.95):.6g}"),
        "fpr95": round(measured["fpr95"], 6),
        "auroc": round(measured["auroc"], 6),
    }


def _significant(values: Floats) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _rounded(values: Floats, digits: int) -> list[list[float]]:
    rounded: list[list[float]] = values.round(digits).tolist()
    return rounded
