"""A scikit-learn outlier detector. Higher scores are more in-distribution; `predict` returns 1 for in, -1 for out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import LARGEST, Bools, Floats, Matrix, as_choice, as_number, as_share
from .contrast import ContrastFit, SplitReference
from .data.extras import install
from .decisions.ranks import Ranks
from .decisions.thresholds import Rate, decide_at
from .detection import Detection, detect
from .outputs import Outputs
from .plan import halves_of
from .regression.fits import fit_direct
from .regression.least_squares import LinearFit
from .regression.robust import fit_robust
from .scores import Base, Head, as_pair, base_scores, knn
from .scores.neighbours import default_neighbours
from .scores.rows import sampled
from .scores.shaping import react

try:
    from sklearn.base import BaseEstimator, OutlierMixin
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(f"truing.sklearn needs scikit-learn 1.6 or newer: {install('sklearn')}") from error

METHODS = ("auto", "none", "dlr", "rlr", "contrast")

# Defaults: the share of fitted rows that are out, and, with a reference, the false-alarm rate.
CONTAMINATION = 0.1
FALSE_ALARM = 0.05

# A random forest predicts probability 0 for a class without votes, and log(0) is not a valid logit.
LEAST_PROBABILITY = 1e-3

# Dtypes that are kept without conversion.
_FLOATS = [np.float64, np.float32, np.float16]


class TruedDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types.
    """A scikit-learn outlier detector that trues a base score on the rows it is fitted to.

    The rows X are features. Logits come from the optional `head` or `classifier`. Without both, the base score is
    `knn`, the only score that needs features alone: after scaling rows to unit norm, the distance of a row to its
    nearest reference rows or, without a reference, to its nearest fitted rows. Scale the features first
    (`StandardScaler`).

    Known in-distribution rows, passed as `fit(X, reference=…)`, improve detection most: a contrast learns how the
    other rows differ from them, and `predict` has a stated false-alarm rate.

    Parameters
    ----------
    head
        The (weight (c, d), bias (c,)) of the last layer of the network whose features X are.
    classifier
        A fitted classifier, instead of a head. The logits are its decision function, or the logarithms of its
        probabilities, which are clipped to at least 0.001. For a pipeline, the features are X transformed by all steps
        but the last. The classifier is never refitted, and clones of the detector share it.
    base, temperature
        The base score, as a name in `truing.SCORES` or a function of `Outputs`, and the temperature of its softmax.
        The default is knn without logits, gen for a contrast, and msp otherwise.
    method
        none (the base score unchanged), dlr, rlr or contrast. auto chooses as in `truing.detect`: contrast with a
        reference of at least 200 rows, else dlr. Without logits, auto chooses contrast with any reference and none
        without one, because a linear fit cannot follow a distance that grows in all directions.
    components
        The number of leading principal components that the fit uses (None: all).
    keep
        For rlr: the share of rows to trust.
    same_mix
        Whether the in-distribution rows of X are known to have the class frequencies of the reference. There is then
        no note on different class frequencies.
    contamination
        Without a reference: the share of fitted rows that are out (default 0.1).
    false_alarm
        With a reference: the probability that an in-distribution row is called out (default 0.05).

    Attributes
    ----------
    detection_
        The result of `truing.detect` for the fitted rows: scores, p-values, decisions and notes.
    fit_
        The `LinearFit` or `ContrastFit` that scores other rows; None if the base score is used unchanged.
    offset_
        The threshold: `predict` returns 1 for scores of at least `offset_`, and `decision_function` subtracts it.

    Notes
    -----
    With a reference, `fit_predict` and `predict` use different fits and may disagree on a row. `fit_predict` uses a fit
    that treats the fitted rows and the reference rows symmetrically. `predict` is meant for rows that were not fitted
    and uses a fit without the reference rows it decides against. Both have the requested false-alarm rate. Without a
    reference, both methods return the same decisions.

    >>> from sklearn.datasets import load_iris
    >>> flowers, species = load_iris(return_X_y=True)
    >>> detector = TruedDetector(false_alarm=0.1).fit(flowers[30:], reference=flowers[:30])
    >>> detector.predict(flowers[-3:])
    array([-1, -1, -1])
    """

    def __init__(
        self,
        head: Head | None = None,
        *,
        classifier: Any = None,
        base: Base | None = None,
        method: str = "auto",
        temperature: float = 1.0,
        components: int | None = None,
        keep: float = 0.8,
        same_mix: bool = False,
        contamination: float | None = None,
        false_alarm: float | None = None,
    ) -> None:
        self.head = head
        self.classifier = classifier
        self.base = base
        self.method = method
        self.temperature = temperature
        self.components = components
        self.keep = keep
        self.same_mix = same_mix
        self.contamination = contamination
        self.false_alarm = false_alarm

    def fit(self, X: ArrayLike, y: object = None, *, reference: ArrayLike | None = None) -> TruedDetector:
        """Fit a mixture of in- and out-of-distribution rows (n, d) and return the detector.

        Parameters
        ----------
        X
            The rows to fit.
        y
            Ignored; present for compatibility with scikit-learn.
        reference
            Known in-distribution rows (m, d) that the classifier was not trained on.
        """
        self._check_arguments(with_reference=reference is not None)
        rows = self._outputs(X, first=True)
        known = None if reference is None else self._outputs(reference, "reference")
        base = self._base_of(rows, known)
        self.detection_: Detection = detect(
            rows,
            known,
            method=self._method_of(rows, known),
            base=base,
            keep=self.keep,
            false_alarm=None if known is None else self._false_alarm(),
            **self._options(),
        )
        self._base: Base = self.detection_.base if base is None else base
        self._bank, held = halves_of(known, self.detection_.method, self._base)
        self.fit_ = self._fit_of_rows(rows, held)
        self.offset_ = self._offset(held)
        return self

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the score of every row (n,); higher is more in-distribution."""
        check_is_fitted(self)
        return self._scores(self._outputs(X))

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score minus `offset_` of every row (n,). Rows with negative values are out."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """Return 1 for in-distribution rows and -1 for out-of-distribution rows (n,)."""
        return _labels(self.score_samples(X) < self.offset_)

    def fit_predict(self, X: ArrayLike, y: object = None, *, reference: ArrayLike | None = None) -> NDArray[np.intp]:
        """Fit the rows and return 1 for in-distribution rows and -1 for out-of-distribution rows (n,).

        The parameters are the same as in `fit`.
        """
        detection = self.fit(X, y, reference=reference).detection_
        return _labels(detection.scores < self.offset_ if detection.is_out is None else detection.is_out)

    def __sklearn_clone__(self) -> TruedDetector:
        """Return an unfitted copy that shares the fitted classifier."""
        copy: TruedDetector = BaseEstimator.__sklearn_clone__(self)
        copy.classifier = self.classifier
        return copy

    def _check_arguments(self, *, with_reference: bool) -> None:
        """Reject invalid arguments that `detect` does not receive, or receives under other names."""
        as_choice(self.method, "method", dict.fromkeys(METHODS))
        if self.head is not None and self.classifier is not None:
            raise ValueError("head and classifier must not both be given: each says what the logits are")
        if self.contamination is not None:
            as_number(self.contamination, "contamination", above=0.0, at_most=0.5)
            if with_reference:
                raise ValueError("contamination is for a fit without a reference: with one, give false_alarm")
        if self.false_alarm is not None:
            as_share(self.false_alarm, "false_alarm")
            if not with_reference:
                raise ValueError("false_alarm needs known in-distribution rows: fit(X, reference=…)")

    def _options(self) -> dict[str, Any]:
        """Return the options that scores and fits share."""
        return {
            "temperature": self.temperature,
            "components": self.components,
            "head": self.head,
            "same_mix": self.same_mix,
        }

    def _false_alarm(self) -> float:
        return FALSE_ALARM if self.false_alarm is None else self.false_alarm

    def _outputs(self, X: ArrayLike, name: str = "X", *, first: bool = False) -> Outputs:
        """Return the features of the rows, with logits if there is a head or a classifier."""
        if isinstance(X, Outputs):
            raise TypeError(
                f"{name} must be an array of rows (n, d), got Outputs: give features, and a head or classifier"
            )
        if self.classifier is not None:
            with _rename_argument(name):
                return _outputs_of(self.classifier, validate_data(self, X, reset=first, skip_check_array=True))
        if np.ma.is_masked(X):  # scikit-learn would ignore the mask.
            raise ValueError(f"{name} must have no masked entries")
        with _rename_argument(name):
            features = validate_data(self, X, reset=first, dtype=_FLOATS, ensure_min_samples=2 if first else 1)
        if self.head is None:
            return Outputs(features)
        weight, bias = as_pair(self.head)
        return Outputs(
            features, react(features, weight, bias, clip=LARGEST)
        )  # No feature is larger, so nothing is clipped.

    def _base_of(self, rows: Outputs, known: Outputs | None) -> Base | None:
        """Return the base score to use, or None to let `detect` choose."""
        base = "knn" if self.base is None and rows.logits is None else self.base
        if base == "knn" and known is None:
            return KnnOfFittedRows(rows._copied().features)
        return base

    def _method_of(self, rows: Outputs, known: Outputs | None) -> str:
        """Return the method to use, or auto to let `detect` choose."""
        if self.method != "auto" or rows.logits is not None:
            return self.method
        return "none" if known is None else "contrast"

    def _fit_of_rows(self, rows: Outputs, held: Outputs | None) -> LinearFit | ContrastFit | None:
        """Return the fit to the rows, without the reference rows (m, d) that are decided against."""
        method = self.detection_.method
        if held is None or method == "none":
            return self.detection_.fit
        if method == "contrast":
            assert self._bank is not None
            assert held is not None
            parts = SplitReference.of(self._bank, held, self._base, self.temperature, self.head, self.components)
            some = sampled(parts.standard.scored(rows), parts.share_of(len(rows)), np.arange(len(rows)))
            return parts.applied(parts.learn(some, with_decided=False), rows=len(rows))
        scores = self._base_scores(rows)
        if method == "rlr":
            return fit_robust(rows.features, scores, keep=self.keep, components=self.components)
        return fit_direct(rows.features, scores, components=self.components)

    def _offset(self, held: Outputs | None) -> float:
        """Return the threshold, from the held-out reference rows or, without a reference, from the fitted rows."""
        if held is None:
            contamination = CONTAMINATION if self.contamination is None else self.contamination
            rate, scores_in = Rate("accept", 1 - contamination), self.detection_.scores
        else:
            rate, scores_in = Rate("false_alarm", self._false_alarm()), self._scores(held)
        threshold = decide_at(rate, Ranks(scores_in, scores_in)).threshold
        assert threshold is not None
        return threshold

    def _base_scores(self, outputs: Outputs) -> Floats:
        return base_scores(outputs, self._base, self.temperature, head=self.head, reference=self._bank)

    def _scores(self, outputs: Outputs) -> Floats:
        if self.fit_ is None:
            return self._base_scores(outputs)
        if isinstance(self.fit_, LinearFit):
            return self.fit_.predict(outputs.features)
        return self.fit_.predict(outputs)


@dataclass(frozen=True, eq=False)
class KnnOfFittedRows:
    """The base score `knn` with the fitted rows (m, d) as neighbours.

    A fitted row is its own nearest neighbour, so the score uses one more neighbour than `knn`, for every row.
    """

    features: Matrix

    def __call__(self, outputs: Outputs) -> Floats:
        """Return the score of every row (n,)."""
        fitted = len(self.features)
        return knn(outputs.features, self.features, neighbours=min(default_neighbours(fitted) + 1, fitted))


@contextmanager
def _rename_argument(name: str) -> Iterator[None]:
    """Name the argument in error messages of scikit-learn, which calls every argument X."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if name == "X":
            raise
        raise type(error)(f"{name}, as X: {error}") from None


def _outputs_of(classifier: Any, X: Any) -> Outputs:
    """Return features and logits from a fitted classifier, or from a pipeline that ends in a classifier."""
    try:
        check_is_fitted(classifier)
    except TypeError as error:
        raise TypeError(f"classifier must be a fitted classifier, got {classifier!r}: {error}") from None
    features, last = X, classifier
    if isinstance(classifier, Pipeline):
        last = classifier[-1]
        if len(classifier) > 1:
            features = classifier[:-1].transform(X)
    return Outputs(features, _logits_of(last, features))


def _logits_of(classifier: Any, features: Any) -> NDArray[Any]:
    if hasattr(classifier, "decision_function"):
        logits = np.asarray(classifier.decision_function(features))
    elif hasattr(classifier, "predict_proba"):
        logits = np.log(np.asarray(classifier.predict_proba(features)).clip(min=LEAST_PROBABILITY))
    else:
        raise TypeError(
            f"classifier must have decision_function or predict_proba, got {type(classifier).__name__} with neither"
        )
    if logits.ndim == 1:  # Two classes: the softmax of these logits equals the sigmoid of the decision function.
        return np.column_stack((-logits / 2, logits / 2))
    classes = len(classifier.classes_)
    if logits.shape[1] != classes:
        wanted = f"one column for each of its {classes} classes"
        raise ValueError(f"classifier must have a decision function of {wanted}, got {logits.shape[1]}")
    return logits


def _labels(is_out: Bools) -> NDArray[np.intp]:
    return np.where(is_out, -1, 1)
