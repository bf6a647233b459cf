"""How well scores tell in from out. Every function takes (scores_in, scores_out): no labels to flip.

All values are shares in [0, 1] and exact under ties.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import Floats, as_choice, as_share, as_vector, check_same_rows
from .threshold import is_out, rows_for, threshold_at

Counts = NDArray[np.int64]


def auroc(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Return the chance that a random in-distribution row outscores a random other one, a tie counting half.

    >>> auroc([2.0, 3.0], [1.0, 2.0])
    0.875
    """
    return _auroc(_curve(scores_in, scores_out))


def aupr(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Return the average precision, in-distribution rows being the positives.

    >>> aupr([3.0, 1.0], [2.0])
    0.8333333333333333
    """
    return _aupr(_curve(scores_in, scores_out))


def aupr_out(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    """Return the average precision, out-of-distribution rows being the positives.

    >>> aupr_out([3.0, 1.0], [2.0])
    0.5
    """
    return _aupr(_curve(scores_in, scores_out).seen_from_out())


def fpr_at_tpr(scores_in: ArrayLike, scores_out: ArrayLike, tpr: float = 0.95, convention: str = "at-least") -> float:
    """Return the false-positive rate where the true-positive rate is `tpr`, under a named convention.

    `at-least`: in-distribution positive, at the largest threshold with a recall of at least `tpr`.
    `paper`: in-distribution positive, at the recall nearest `tpr`, ties to the higher recall, and among
    thresholds of the same recall the lowest, as the code shared by the paper's field does.
    `ood-positive`: out-of-distribution positive: the share of in-distribution rows refused when at least
    `tpr` of the others are. Another quantity, points apart.

    >>> fpr_at_tpr([4.0, 3.0, 2.0, 1.0], [2.5, 0.0], tpr=0.75)
    0.5
    """
    rule = as_choice(convention, "convention", CONVENTIONS)
    return rule(_curve(scores_in, scores_out), as_share(tpr, "tpr"))


@dataclass(frozen=True)
class Report:
    """What `evaluate` found, as shares in [0, 1]; `str` and `json` render it.

    `refused_right` and `refused_wrong` are the shares refused, at the threshold that keeps 95 % of the
    in-distribution rows, of those that the network classifies rightly and wrongly.
    """

    auroc: float
    aupr: float
    aupr_out: float
    fpr95: float
    convention: str
    rows_in: int
    rows_out: int
    refused_right: float | None = None
    refused_wrong: float | None = None

    def __str__(self) -> str:
        lines = [
            f"AUROC      {self.auroc:7.2%}",
            f"AUPR       {self.aupr:7.2%}   (out-of-distribution positive: {self.aupr_out:.2%})",
            f"FPR95      {self.fpr95:7.2%}   (convention: {self.convention})",
            f"rows       {self.rows_in} in, {self.rows_out} out",
        ]
        if self.refused_right is not None or self.refused_wrong is not None:
            right, wrong = (
                "none" if share is None else f"{share:.2%}" for share in (self.refused_right, self.refused_wrong)
            )
            lines.append(f"refused    {right} of the rightly and {wrong} of the wrongly classified in rows")
        return "\n".join(lines)

    def json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps(asdict(self), indent=2)


def evaluate(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    convention: str = "at-least",
    correct: ArrayLike | None = None,
) -> Report:
    """Return every metric of two sets of scores.

    Parameters
    ----------
    correct
        Whether the network classifies each in-distribution row rightly, as `Outputs.correct()` tells.
    """
    rule = as_choice(convention, "convention", CONVENTIONS)
    curve = _curve(scores_in, scores_out)
    right = wrong = None
    if correct is not None:
        right, wrong = _refusals(as_vector(scores_in, "scores_in"), np.asarray(correct))
    return Report(
        auroc=_auroc(curve),
        aupr=_aupr(curve),
        aupr_out=_aupr(curve.seen_from_out()),
        fpr95=rule(curve, 0.95),
        convention=convention,
        rows_in=len(curve.scores_in),
        rows_out=len(curve.scores_out),
        refused_right=right,
        refused_wrong=wrong,
    )


@dataclass(frozen=True, eq=False)
class _Curve:
    """Both sets sorted, and how many of each are accepted at every distinct threshold, highest first."""

    scores_in: Floats
    scores_out: Floats
    accepted_in: Counts
    accepted_out: Counts

    def seen_from_out(self) -> "_Curve":
        """Return the curve with the scores negated and the sets exchanged."""

        def refused(accepted: Counts) -> Counts:
            above = np.concatenate(([0], accepted[:-1]))[::-1]
            return np.asarray(accepted[-1] - above)

        accepted = refused(self.accepted_out), refused(self.accepted_in)
        return _Curve(-self.scores_out[::-1], -self.scores_in[::-1], *accepted)


def _curve(scores_in: ArrayLike, scores_out: ArrayLike) -> _Curve:
    inside = np.sort(as_vector(scores_in, "scores_in"))
    outside = np.sort(as_vector(scores_out, "scores_out"))
    thresholds = np.unique(np.concatenate((inside, outside)))[::-1]
    return _Curve(
        inside,
        outside,
        len(inside) - np.searchsorted(inside, thresholds),
        len(outside) - np.searchsorted(outside, thresholds),
    )


def _auroc(curve: _Curve) -> float:
    # Twice the area, in whole numbers: each group of equal scores adds a trapezoid.
    earlier = np.concatenate(([0], curve.accepted_in[:-1]))
    twice = np.diff(curve.accepted_out, prepend=0) @ (earlier + curve.accepted_in)
    return float(twice / (2 * len(curve.scores_in) * len(curve.scores_out)))


def _aupr(curve: _Curve) -> float:
    precision = curve.accepted_in / (curve.accepted_in + curve.accepted_out)
    return float(np.diff(curve.accepted_in, prepend=0) @ precision / len(curve.scores_in))


def _fpr_at_least(curve: _Curve, tpr: float) -> float:
    first = np.searchsorted(curve.accepted_in, rows_for(tpr, len(curve.scores_in)))
    return float(curve.accepted_out[first] / len(curve.scores_out))


def _fpr_nearest(curve: _Curve, tpr: float) -> float:
    # Read from full recall downwards, as the authors do, so that the first of equals has the higher recall.
    full = np.searchsorted(curve.accepted_in, len(curve.scores_in))
    recall = curve.accepted_in[full::-1] / len(curve.scores_in)
    nearest = np.argmin(np.round(np.abs(recall - tpr), 12))
    return float(curve.accepted_out[full::-1][nearest] / len(curve.scores_out))


def _fpr_out_positive(curve: _Curve, tpr: float) -> float:
    return _fpr_at_least(curve.seen_from_out(), tpr)


CONVENTIONS: dict[str, Callable[[_Curve, float], float]] = {
    "at-least": _fpr_at_least,
    "paper": _fpr_nearest,
    "ood-positive": _fpr_out_positive,
}


def _refusals(scores_in: Floats, correct: NDArray[np.bool_]) -> tuple[float | None, float | None]:
    if correct.dtype != np.bool_ or correct.ndim != 1:
        raise TypeError(f"correct must be 1-D true or false, got {correct.ndim}-D {correct.dtype}")
    check_same_rows(scores_in=scores_in, correct=correct)
    refused = is_out(scores_in, threshold_at(scores_in, 0.95))
    shares = [float(refused[rows].mean()) if rows.any() else None for rows in (correct, ~correct)]
    return shares[0], shares[1]
