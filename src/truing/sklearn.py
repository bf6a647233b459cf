"""truing as a scikit-learn outlier detector: higher scores are in, `predict` says 1 for in and -1 for out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._check import LARGEST, Bools, Floats, Matrix, as_choice, as_number, as_share
from .contrast import ContrastFit
from .data.extras import install
from .decisions.ranks import Ranks
from .decisions.thresholds import Rate, decide_at, threshold_at
from .detection import Detection, detect, halves
from .detector import Detector
from .outputs import Outputs
from .regression.fits import fit_direct
from .regression.least_squares import LinearFit
from .regression.robust import fit_robust
from .scores import Base, Head, as_pair, base_scores, knn
from .scores.neighbours import default_neighbours
from .scores.shaping import react

try:
    from sklearn.base import BaseEstimator, OutlierMixin
    from sklearn.pipeline import Pipeline
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(f"truing.sklearn needs scikit-learn 1.6 or newer: {install('sklearn')}") from error

METHODS = ("auto", "none", "dlr", "rlr", "contrast")

# What decides where nothing is given: the share of the fitted rows that are out, or, with a reference, false alarms.
CONTAMINATION = 0.1
FALSE_ALARM = 0.05

# A forest gives exactly 0 to a class that no tree votes for, and the logarithm of 0 is no logit.
LEAST_PROBABILITY = 1e-3

# Types of numbers that are taken as they are.
_FLOATS = [np.float64, np.float32, np.float16]


class TruedDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types.
    """An outlier detector of scikit-learn: any base score, trued on the rows that it is fitted to.

    The rows X are features. Logits come from a `head` or a `classifier`, if there is one. Without either a row's base
    score is `knn`, the one score that needs features alone: the distance, between rows scaled to unit norm, to its
    nearest known rows, or, without a reference, to its nearest fitted rows. Scale features first (`StandardScaler`).

    Known in-distribution rows, `fit(X, reference=…)`, do most: a contrast learns what sets the others apart, and
    `predict` has a stated rate of false alarms.

    Parameters
    ----------
    head
        The (weight (c, d), bias (c,)) of the last layer of the network whose features X are.
    classifier
        A fitted classifier, in place of a head. The features are what a pipeline's steps but the last make of X, or X
        itself, and the logits are the decision function or the logarithms of probabilities, these raised to 0.001. It
        is never fitted again, and a clone of the detector has the same one.
    base, temperature
        The base score, a name in `truing.SCORES` or a function of `Outputs`, and the temperature of its softmax. By
        default gen for a contrast, else msp; knn where there are no logits.
    method
        none (the base score as it is), dlr, rlr or contrast. auto is contrast with a reference and dlr without, as
        `truing.detect` has it, but none where there are neither logits nor a reference: no linear fit follows a
        distance all around the rows.
    components
        How many leading principal components the fit is confined to.
    keep
        The share of rows that rlr trusts.
    same_mix
        For a contrast: whether classes are known to be as frequent among the in-distribution rows as in the reference.
    contamination
        Without a reference: the share of the fitted rows that are out, by default 0.1.
    false_alarm
        With a reference: the chance that an in-distribution row is called out, by default 0.05.

    Attributes
    ----------
    detection_
        What `truing.detect` says of the fitted rows: scores, p-values, in or out, notes.
    fit_
        What other rows are scored by, a `LinearFit` or `ContrastFit`; None for the base score as it is.
    offset_
        The score from which `predict` says in; `decision_function` is the score less that.

    Notes
    -----
    With a reference, `fit_predict` decides the fitted rows by a fit in which they and the reference stand alike, and
    `predict` decides rows that were not fitted by a fit in which neither they nor the reference are: both have the
    false-alarm rate asked for, and they may differ on a row. Without one they are the same.

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
        """Fit the rows at hand (n, d), in- and out-of-distribution ones mixed, and return the detector.

        Parameters
        ----------
        X
            The rows at hand.
        y
            Not looked at; scikit-learn passes it.
        reference
            Known in-distribution rows (m, d), held out from the classifier's training.
        """
        self._check_arguments(with_reference=reference is not None)
        rows = self._outputs(X, first=True)
        known = None if reference is None else self._outputs(reference, "reference")
        alone = rows.logits is None and known is None
        base = self._base_of(rows, known)
        self.detection_: Detection = detect(
            rows,
            known,
            method="none" if self.method == "auto" and alone else self.method,
            base=base,
            keep=self.keep,
            false_alarm=None if known is None else self._false_alarm(),
            **self._options(),
        )
        self._base: Base = self.detection_.base if base is None else base
        self._bank, held = halves(known, self.detection_.method, self._base, rng=None)
        self.fit_ = self._fit_of_rows(rows, known)
        self.offset_ = self._offset(held)
        return self

    def score_samples(self, X: ArrayLike) -> Floats:
        """Return the score of every row (n,); higher is more in-distribution."""
        check_is_fitted(self)
        return self._scores(self._outputs(X))

    def decision_function(self, X: ArrayLike) -> Floats:
        """Return the score of every row (n,) less `offset_`: negative is out."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """Return 1 for every row (n,) that is in, and -1 for every row that is out."""
        return _labels(self.score_samples(X) < self.offset_)

    def fit_predict(self, X: ArrayLike, y: object = None, *, reference: ArrayLike | None = None) -> NDArray[np.intp]:
        """Fit the rows and return 1 for every one of them that is in, and -1 for every one that is out.

        Parameters are those of `fit`.
        """
        found = self.fit(X, y, reference=reference).detection_
        return _labels(found.scores < self.offset_ if found.is_out is None else found.is_out)

    def __sklearn_clone__(self) -> TruedDetector:
        """Return an unfitted copy whose classifier is the same, and fitted: it is no part of what is fitted here."""
        copy: TruedDetector = BaseEstimator.__sklearn_clone__(self)
        copy.classifier = self.classifier
        return copy

    def _check_arguments(self, *, with_reference: bool) -> None:
        """Refuse arguments that `detect` does not see, or would speak of by other names."""
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
        """Return what scores and fits are made with."""
        return {
            "temperature": self.temperature,
            "components": self.components,
            "head": self.head,
            "same_mix": self.same_mix,
        }

    def _false_alarm(self) -> float:
        return FALSE_ALARM if self.false_alarm is None else self.false_alarm

    def _outputs(self, X: ArrayLike, name: str = "X", *, first: bool = False) -> Outputs:
        """Return the features of the rows, and their logits where a head or a classifier says them."""
        if isinstance(X, Outputs):
            raise TypeError(
                f"{name} must be an array of rows (n, d), got Outputs: give features, and a head or classifier"
            )
        if self.classifier is not None:
            with _naming(name):
                return _outputs_of(self.classifier, validate_data(self, X, reset=first, skip_check_array=True))
        if np.ma.is_masked(X):  # scikit-learn would take what is under the mask.
            raise ValueError(f"{name} must have no masked entries")
        with _naming(name):
            features = validate_data(self, X, reset=first, dtype=_FLOATS, ensure_min_samples=2 if first else 1)
        if self.head is None:
            return Outputs(features)
        weight, bias = as_pair(self.head)
        return Outputs(features, react(features, weight, bias, clip=LARGEST))  # No feature is larger.

    def _base_of(self, rows: Outputs, known: Outputs | None) -> Base | None:
        """Return the base score to use, or None for that of `detect`."""
        base = "knn" if self.base is None and rows.logits is None else self.base
        if base == "knn" and known is None:
            return KnnOfFittedRows(rows._copied().features)
        return base

    def _fit_of_rows(self, rows: Outputs, known: Outputs | None) -> LinearFit | ContrastFit | None:
        """Return the fit of the rows, in which the known ones that are decided against are not."""
        method = self.detection_.method
        if known is None or method == "none":
            return self.detection_.fit
        if method == "contrast":
            detector = Detector(self._base, method="contrast", **self._options())
            detector.calibrate(known)
            detector.learn(rows)
            return detector.fit_of_learned()
        scores = self._base_scores(rows)
        if method == "rlr":
            return fit_robust(rows.features, scores, keep=self.keep, components=self.components)
        return fit_direct(rows.features, scores, components=self.components)

    def _offset(self, held: Outputs | None) -> float:
        """Return the score from which rows are in, by the known rows held back, or by the fitted rows."""
        if held is None:
            contamination = CONTAMINATION if self.contamination is None else self.contamination
            return threshold_at(self.detection_.scores, accept=1 - contamination)
        scores_in = self._scores(held)
        threshold = decide_at(Rate("false_alarm", self._false_alarm()), Ranks(scores_in, scores_in)).threshold
        assert threshold is not None
        return threshold

    def _base_scores(self, outputs: Outputs) -> Floats:
        return base_scores(outputs, self._base, self.temperature, head=self.head, bank=self._bank)

    def _scores(self, outputs: Outputs) -> Floats:
        if self.fit_ is None:
            return self._base_scores(outputs)
        if isinstance(self.fit_, LinearFit):
            return self.fit_.predict(outputs.features)
        return self.fit_.predict(outputs)


@dataclass(frozen=True, eq=False)
class KnnOfFittedRows:
    """The base score `knn` of rows among the fitted rows (m, d) themselves.

    A fitted row is its own nearest neighbour, and so one more neighbour is looked at, of any row.
    """

    features: Matrix

    def __call__(self, outputs: Outputs) -> Floats:
        """Return the score of every row (n,)."""
        fitted = len(self.features)
        return knn(outputs.features, self.features, neighbours=min(default_neighbours(fitted) + 1, fitted))


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Name the argument in what scikit-learn says of rows, which it calls X."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if name == "X":
            raise
        raise type(error)(f"{name}, as X: {error}") from None


def _outputs_of(classifier: Any, X: Any) -> Outputs:
    """Return features and logits by a fitted classifier, or a pipeline that ends in one."""
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
    if logits.ndim == 1:  # Of two classes: the softmax of these is the sigmoid of that.
        return np.column_stack((-logits / 2, logits / 2))
    classes = len(classifier.classes_)
    if logits.shape[1] != classes:
        wanted = f"one column for each of its {classes} classes"
        raise ValueError(f"classifier must have a decision function of {wanted}, got {logits.shape[1]}")
    return logits


def _labels(is_out: Bools) -> NDArray[np.intp]:
    return np.where(is_out, -1, 1)
