r"""Fits as arithmetic on float32 tensors that can be appended to a network.

The arithmetic is written once, in the operations of `Maths`, which every network format supports. Adapters implement
`Maths` for torch and for ONNX.

Two measures limit float32 rounding errors. Features are centred before they are scaled, multiplied or squared; the
origin is stored as the sum of two float32 numbers. Scores are computed from differences to the largest logit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ._check import Floats, as_number
from .contrast import HIGHEST_SCORE, ContrastFit, Standard
from .decisions.ranks import Ranks
from .decisions.thresholds import Rate, decide_at
from .detection import Detection
from .detector import Detector
from .regression.least_squares import LinearFit
from .scores import NEEDS, base_name, gen
from .states import LinearState

OUTPUTS = ("trued_score", "is_out")
"""The outputs added to a network. `is_out` is added only if there is a threshold."""

Float32s = NDArray[np.float32]

# A float32 tensor (n, k) that supports + - * / with tensors and with numbers.
Tensor = Any

# Scaled features are clipped here, so that their squares stay within the range of float32.
_SQUARABLE = 1e15

# The largest float32 rounding error, as a share of the base score's standard deviation in the reference.
_MOST_ROUNDING = 0.01


class Maths(Protocol):
    """The tensor operations that a network format must support besides + - * /."""

    def constant(self, name: str) -> Tensor:
        """Return the array with this name in `Folding.arrays`."""

    def minimum(self, x: Tensor, bound: float) -> Tensor:
        """Return the elementwise minimum of `x` and a bound."""

    def maximum(self, x: Tensor, bound: float) -> Tensor:
        """Return the elementwise maximum of `x` and a bound."""

    def exp(self, x: Tensor) -> Tensor:
        """Return the exponential of each number."""

    def log(self, x: Tensor) -> Tensor:
        """Return the natural logarithm of each number."""

    def sqrt(self, x: Tensor) -> Tensor:
        """Return the square root of each number."""

    def absolute(self, x: Tensor) -> Tensor:
        """Return the absolute value of each number."""

    def row_sums(self, x: Tensor) -> Tensor:
        """Return the sum of each row (n, 1)."""

    def descending(self, x: Tensor, number: int) -> Tensor:
        """Return the `number` largest values of each row in descending order (n, number)."""

    def columns(self, x: Tensor, first: int, end: int) -> Tensor:
        """Return the columns from `first` up to `end`."""


# A score (n, 1) of features and of logits in descending order; no score depends on the order of the classes.
Score = Callable[[Maths, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Folding:
    """A fit to fold into a network: named constants, a `score` of features and logits, and a float32 threshold.

    `dimensions` is the number of features. `classes` is the number of logits, or None if the score uses no logits.
    `made_of` are the arguments of `_folding`, from which a pickled folding is restored.
    """

    dimensions: int
    classes: int | None
    arrays: dict[str, Float32s]
    score: Callable[[Maths, Tensor, Tensor | None], Tensor]
    threshold: float | None
    made_of: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return `_folding` and its arguments, which restore a pickled folding: `score` cannot be pickled."""
        return _folding, self.made_of


def folding_of(
    fit: LinearFit | ContrastFit | Detection | Detector,
    *,
    threshold: float | None = None,
    accept: float | None = None,
    false_alarm: float | None = None,
) -> Folding:
    """Return the arithmetic of a fit, with a decision if a threshold or a rate is given.

    A `Detection` is folded with its fit and, by default, its threshold. A `Detector` is folded with the score of
    `Detector.score` or, if a rate is given, of `Detector.decide`. A rate needs the scores of reference rows: only a
    contrast and a calibrated detector have them.
    """
    options = {"threshold": threshold, "accept": accept, "false_alarm": false_alarm}
    named = [name for name, value in options.items() if value is not None]
    if len(named) > 1:
        raise ValueError(f"at most one of threshold, accept and false_alarm may be given, got {' and '.join(named)}")
    rate = Rate.of(accept=accept, false_alarm=false_alarm) if accept is not None or false_alarm is not None else None
    if threshold is not None:
        as_number(threshold, "threshold")
    if isinstance(fit, Detection):
        threshold = fit.threshold if not named else threshold
        fit = _fit_of(fit)
    scores_in: Floats | None = None
    origin: Floats | None = None
    if isinstance(fit, Detector):
        fit, scores_in, origin = _parts_of(fit, at_a_rate=rate is not None)
    elif isinstance(fit, ContrastFit):
        scores_in = fit.scores_in
    if not isinstance(fit, LinearFit | ContrastFit):
        wanted = "a LinearFit, a ContrastFit, a Detection or a Detector"
        raise TypeError(f"fit must be {wanted}, got {type(fit).__name__}")
    if rate is not None:
        threshold = _threshold_at(rate, scores_in, fit.size if isinstance(fit, ContrastFit) else 0.0)
    return _folding(fit, origin, None if threshold is None else _rounded_down(threshold))


def _folding(fit: LinearFit | ContrastFit, origin: Floats | None, threshold: float | None) -> Folding:
    made = _linear(fit, origin, threshold) if isinstance(fit, LinearFit) else _contrast(fit, threshold)
    return replace(made, made_of=(fit, origin, threshold))


def _fit_of(detection: Detection) -> LinearFit | ContrastFit:
    if detection.fit is None:
        raise ValueError(f"fit must be a Detection that has a fit, got one by the method {detection.method}")
    return detection.fit


def _parts_of(detector: Detector, *, at_a_rate: bool) -> tuple[LinearFit | ContrastFit, Floats | None, Floats | None]:
    """Return the fit of a detector, the scores of its reference rows, and the mean of the learned features."""
    fit = detector.fit_of_learned() if at_a_rate else detector.current_fit
    if isinstance(fit, ContrastFit):
        return fit, fit.scores_in, None
    reference: Any = detector.reference
    scores_in = None if reference is None else fit.predict(reference.features)
    assert isinstance(detector.state, LinearState)
    return fit, scores_in, detector.state.feature_mean


def _threshold_at(rate: Rate, scores_in: Floats | None, size: float) -> float | None:
    if scores_in is None:
        raise ValueError(
            f"{rate.name} needs the scores of reference rows, which this fit does not have: pass threshold= instead, "
            "or a ContrastFit or a calibrated Detector as fit"
        )
    return decide_at(rate, Ranks(scores_in, scores_in, size=size)).threshold


def _linear(fit: LinearFit, origin: Floats | None, threshold: float | None) -> Folding:
    r"""Return $(z - o)^\top$ coef + intercept + $o^\top$ coef, where the origin o is the feature mean, if given."""
    arrays = {"coef": _float32(fit.coef[None], "coef")}
    constant = fit.intercept
    if origin is not None:
        arrays |= _in_two_parts(origin)
        constant += float(origin @ fit.coef)
    arrays["intercept"] = _float32(np.array([[constant]]), "intercept")

    def score(maths: Maths, features: Tensor, logits: Tensor | None) -> Tensor:
        centred = features if origin is None else _centred(maths, features)
        return maths.row_sums(centred * maths.constant("coef")) + maths.constant("intercept")

    return Folding(len(fit.coef), None, arrays, score, threshold)


def _contrast(fit: ContrastFit, threshold: float | None) -> Folding:
    """Return the score of a contrast: base score plus learned part, minus a penalty for rows that are far away."""
    standard = fit.standard
    arrays = {
        **_in_two_parts(standard.scale.mean),
        "inverse_scale": _float32(1 / standard.scale.deviation[None], "scale"),
        "coef": _float32(fit.coef[None], "coef"),
        "score_origin": _float32(np.array([[standard.score_origin]]), "score_origin"),
        "score_scale": _float32(np.array([[standard.score_scale]]), "score_scale"),
        "steepness": _float32(np.array([[fit.steepness]]), "steepness"),
        "limit": _float32(np.array([[1 / (standard.limit * math.sqrt(standard.dimensions))]]), "limit"),
    }
    base = _base_score_of(standard)

    def score(maths: Maths, features: Tensor, logits: Tensor | None) -> Tensor:
        ordered = maths.descending(logits, standard.classes) if standard.classes else None
        of_base = (base(maths, features, ordered) - maths.constant("score_origin")) / maths.constant("score_scale")
        scaled = _within(maths, _centred(maths, features) * maths.constant("inverse_scale"), _SQUARABLE)
        along = maths.row_sums(scaled * maths.constant("coef"))
        distance = maths.sqrt(maths.row_sums(scaled * scaled)) * maths.constant("limit")
        penalty = maths.maximum(distance - 1.0, 0.0) * maths.constant("steepness")
        return maths.minimum(of_base, HIGHEST_SCORE) + along - penalty

    return Folding(standard.dimensions, standard.classes or None, arrays, score, threshold)


def _base_score_of(standard: Standard) -> Score:
    """Return the base score of a contrast, at its temperature."""
    base = base_name(standard.base)
    if not isinstance(standard.base, str) or base not in FOLDED:
        needed = NEEDS.get(base, ()) if isinstance(standard.base, str) else ()
        why = f"needs a {' and a '.join(needed)}" if needed else "is not computed from features and logits alone"
        raise ValueError(
            f"the base score of a contrast must be one of {', '.join(FOLDED)} to be exported, got {base}, which {why}"
        )
    temperature = _in_range(standard.temperature, "temperature")
    if np.float32(temperature) == 0:
        raise ValueError(f"temperature must be in float32's range to be exported, got {temperature:g}")
    _check_varies(standard, base)
    return FOLDED[base](temperature, standard.classes)


def _check_varies(standard: Standard, base: str) -> None:
    """Reject a base score that varies less than float32 rounding errors, for example at a very high temperature."""
    middle, deviation = standard.score_origin, standard.score_scale
    # msp and kl_uniform are computed from numbers near 1, even if the scores themselves are small.
    size = max(abs(middle), 1.0) if base in ("msp", "kl_uniform") else abs(middle)
    if float(np.finfo(np.float32).eps) / 2 * size > _MOST_ROUNDING * deviation:
        raise ValueError(
            f"the base score {base} at temperature {standard.temperature:g} must vary by more than float32's rounding "
            f"to be exported, got a deviation of {deviation:.2g} around {middle:.2g}: fit at a lower temperature"
        )


def _msp(temperature: float, classes: int) -> Score:
    return lambda maths, features, ordered: 1 / maths.row_sums(_terms(maths, ordered, temperature))


def _energy(temperature: float, classes: int) -> Score:
    def score(maths: Maths, features: Tensor, ordered: Tensor) -> Tensor:
        log_total = maths.log(maths.row_sums(_terms(maths, ordered, temperature)))
        return log_total * temperature + maths.columns(ordered, 0, 1)

    return score


def _kl_uniform(temperature: float, classes: int) -> Score:
    def score(maths: Maths, features: Tensor, ordered: Tensor) -> Tensor:
        mean_logit = maths.row_sums(_below_largest(maths, ordered, temperature)) / classes
        log_total = maths.log(maths.row_sums(_terms(maths, ordered, temperature)))
        return log_total - mean_logit - math.log(classes)

    return score


def _max_logit(temperature: float, classes: int) -> Score:
    return lambda maths, features, ordered: maths.columns(ordered, 0, 1)


def _gen(temperature: float, classes: int) -> Score:
    gamma, top = (signature(gen).parameters[name].default for name in ("gamma", "top"))

    def score(maths: Maths, features: Tensor, ordered: Tensor) -> Tensor:
        scaled = _below_largest(maths, ordered, temperature)
        others, second = maths.columns(scaled, 1, classes), maths.columns(scaled, 1, 2)
        log_total = maths.log(maths.row_sums(maths.exp(scaled)))
        # For the largest probability p, 1 − p is the sum of the other probabilities.
        log_rest = maths.log(maths.row_sums(maths.exp(others - second))) + second - log_total
        of_largest = maths.exp((log_rest - log_total) * gamma)
        log_p = maths.columns(scaled, 1, min(top, classes)) - log_total
        of_others = maths.exp((log_p + maths.log(1 - maths.exp(log_p))) * gamma)
        return 0.0 - (of_largest + maths.row_sums(of_others))

    return score


def _gradnorm(temperature: float, classes: int) -> Score:
    def score(maths: Maths, features: Tensor, ordered: Tensor) -> Tensor:
        terms = _terms(maths, ordered, temperature)
        p = terms / maths.row_sums(terms)
        away = maths.row_sums(maths.absolute(p - 1 / classes))
        return maths.row_sums(maths.absolute(features)) * away / temperature

    return score


FOLDED: dict[str, Callable[[float, int], Score]] = {
    "msp": _msp,
    "energy": _energy,
    "kl_uniform": _kl_uniform,
    "max_logit": _max_logit,
    "gen": _gen,
    "gradnorm": _gradnorm,
}


def _below_largest(maths: Maths, ordered: Tensor, temperature: float) -> Tensor:
    """Return the logits minus the largest logit of each row, divided by the temperature (n, c)."""
    return (ordered - maths.columns(ordered, 0, 1)) / temperature


def _terms(maths: Maths, ordered: Tensor, temperature: float) -> Tensor:
    """Return the numerators of the softmax, scaled to 1 for the largest logit (n, c)."""
    return maths.exp(_below_largest(maths, ordered, temperature))


def _centred(maths: Maths, features: Tensor) -> Tensor:
    """Return the features minus the origin.

    The origin is stored as a float32 number and its rounding error. Subtracting the large number first loses little
    precision, because it is close to the features.
    """
    return features - maths.constant("origin") - maths.constant("origin_low")


def _within(maths: Maths, x: Tensor, bound: float) -> Tensor:
    """Clip each number to [-bound, bound]."""
    return maths.maximum(maths.minimum(x, bound), -bound)


def _in_two_parts(origin: Floats) -> dict[str, Float32s]:
    high = _float32(origin[None], "origin")
    return {"origin": high, "origin_low": (origin[None] - high).astype(np.float32)}


def _float32(values: Floats, name: str) -> Float32s:
    with np.errstate(over="ignore"):
        array = values.astype(np.float32)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be in float32's range to be exported, got {np.abs(values).max():g}")
    return array


def _in_range(value: float, name: str) -> float:
    return float(_float32(np.array(value), name))


def _rounded_down(threshold: float) -> float:
    """Return the largest float32 number that is at most the threshold, so that accepted scores stay accepted."""
    if math.isinf(threshold):  # The threshold accepts every row, or refuses every row.
        return threshold
    nearest = _in_range(threshold, "threshold")
    return nearest if nearest <= threshold else float(np.nextafter(np.float32(nearest), np.float32(-np.inf)))
