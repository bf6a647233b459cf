"""A scikit-learn outlier detector. Higher scores are more in-distribution; `predict` returns 1 for in, -1 for out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse

from ._check import LARGEST, Bools, Floats, Matrix, as_choice, as_matrix, as_number, as_share, check_same_rows
from ._warnings import Alert, warn
from .contrast import ContrastFit, SplitReference
from .data.extras import install
from .decisions.memorised import is_memorised
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

__all__ = ["TruedDetector"]

METHODS = ("auto", "none", "dlr", "rlr", "contrast")

# The default false-alarm rate and, without a reference, the default share of fitted rows that are out.
FALSE_ALARM = 0.05

# A random forest predicts probability 0 for a class without votes, and log(0) is not a valid logit.
LEAST_PROBABILITY = 1e-3

# Thresholds from which X and reference are taken to be preprocessed differently: the median shift of the columns, in
# standard deviations, and the median ratio of the columns' standard deviations.
_SHIFT, _RATIO = 1.0, 3.0
_NEARLY_ALL = 0.9  # the share of refused rows
_LARGE_RATIO = 10.0  # the median ratio of standard deviations that out-of-distribution rows alone do not explain
_ENOUGH_ROWS = 20  # `predict` compares scales only if there are at least this many rows

NO_REFERENCE = (
    "no reference, so scores are the base score, not trued, and predict has no false-alarm rate: call "
    "fit(X, reference=rows), where X has the rows to decide and rows are in-distribution, held out from training"
)
FEW_REFERENCE_ROWS = (
    "the reference has too few rows for a contrast, so scores are the base score, not trued: pass at least 200 rows"
)
MEMORISED_REFERENCE = (
    "the classifier seems to have been trained on the reference, so too many in-distribution rows are refused: pass a "
    "reference that was held out from training"
)
MEMORISED_ROWS = (
    "the classifier seems to have been trained on X, so predict refuses more new rows than the share contamination: "
    "fit rows that were held out from training"
)
MEMORISED_FIT = (
    "the classifier seems to have been trained on X, so the fit learns nothing about out-of-distribution rows: pass "
    "the rows to decide as X, not the training rows"
)
OTHER_STEPS = (
    "most columns of the reference have another mean or spread than in X: were both scaled in the same way? A pipeline "
    "transforms the reference only with set_fit_request(reference=True) and transform_input=['reference']"
)

OTHER_ROWS = (
    "most columns of X have another mean or spread than in fit: were both preprocessed in the same way? If not, the "
    "decisions are wrong"
)

FITTED_ROWS = (
    "X has the rows of fit, so more in-distribution rows than stated may be refused: use the result of "
    "fit_predict(X, reference=rows) for these rows, and predict for other rows"
)

# The start of a note that needs no action: a contrast that learned little ranks rows by the base score, as intended.
_NO_ACTION = "contrast learned little"

# Dtypes that are kept without conversion.
_FLOATS = [np.float64, np.float32, np.float16]


class TruedDetector(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types.
    """A scikit-learn outlier detector that trues the base score of a classifier, or of the rows alone.

    Pass the rows to decide as X and in-distribution rows as reference: `fit(X, reference=reference)`. The reference
    must be held out from the training of the classifier. `predict` then has a stated false-alarm rate.

    The rows are features. Logits come from `classifier` or `head`. Without both, the base score is `knn`: the distance
    of a row to its nearest reference rows, after scaling each row to unit norm. Scale the columns first
    (`StandardScaler`).

    Parameters
    ----------
    head
        The (weight (c, d), bias (c,)) of the last layer of the network that computed the features.
    classifier
        A fitted classifier, instead of a head. The logits are its decision function, or the logarithms of its
        probabilities, which are clipped to at least 0.001. For a pipeline, the features are the output of all steps but
        the last. The classifier is never refitted, and clones of the detector share it.
    base, temperature
        The base score, as a name in `truing.SCORES` or a function of `Outputs`, and the temperature of its softmax.
        The default is knn without logits, gen for a contrast, and msp otherwise.
    method
        none (the base score unchanged), dlr, rlr or contrast. auto chooses contrast if there is a reference of enough
        rows for the false-alarm rate (38 rows for 5 %), and none otherwise. dlr and rlr fit X, so X must contain the
        rows to decide; on training rows they are worse than the base score.
    components
        The number of leading principal components that the fit uses (None: all).
    keep
        For rlr: the share of rows to trust.
    same_mix
        Whether the in-distribution rows of X have the class frequencies of the reference. If so, there is no warning
        about different class frequencies.
    contamination
        Without a reference: the share of the fitted rows to refuse. auto is 0.05. If all fitted rows are
        in-distribution and the classifier was not trained on them, this is the false-alarm rate on new rows.
    false_alarm
        With a reference: the probability that an in-distribution row is refused (default 0.05).

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
    `fit` issues a `truing.TruingWarning` if there is no reference, if the classifier seems to have been trained on the
    reference or on X, if the reference seems to be preprocessed differently from X, and for each note in
    `detection_.notes` that calls for action. `predict` issues one if at least 20 rows seem to be preprocessed
    differently from the fitted rows.

    With a reference, `fit_predict` and `predict` use different fits and may disagree on a row. `fit_predict` uses a fit
    that treats the fitted rows and the reference rows symmetrically. `predict` is meant for rows that were not fitted
    and uses a fit without the reference rows that set the threshold. Both have the requested false-alarm rate. Without
    a reference, both methods return the same decisions.

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
        contamination: float | str = "auto",
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
        """Fit the rows X (n, d) and return the detector.

        Parameters
        ----------
        X
            The rows to decide, in- and out-of-distribution rows mixed. Without a reference, in-distribution rows that
            the classifier was not trained on work equally well.
        y
            Ignored; present for compatibility with scikit-learn.
        reference
            In-distribution rows (m, d), held out from the training of the classifier: at least 200, preferably 1,000.
        """
        self._check_arguments(with_reference=reference is not None)
        if getattr(y, "ndim", 1) == 2:
            warn("y is ignored, got a table: to pass reference rows, call fit(X, reference=rows)")
        outputs = self._outputs(X, first=True)
        held_out = None if reference is None else self._outputs(reference, "reference")
        base = self._base_of(outputs, held_out)
        self.detection_: Detection = detect(
            outputs,
            held_out,
            method=self._method_of(held_out),
            base=base,
            keep=self.keep,
            false_alarm=None if held_out is None else self._false_alarm(),
            **self._options(),
        )
        self._base: Base = self.detection_.base if base is None else base
        self._learning_half, calibration = halves_of(held_out, self.detection_.method, self._base)
        self.fit_ = self._fit_of_rows(outputs, calibration)
        self.offset_ = self._offset(calibration)
        self._scales = _scales(outputs.features if held_out is None else held_out.features)
        self._fitted_rows = None if held_out is None or self.fit_ is None else _digest(outputs.features)
        for message in self._warnings(outputs, held_out):
            warn(message)
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
        check_is_fitted(self)
        outputs = self._outputs(X)
        is_out = self._scores(outputs) < self.offset_
        if self._fitted_rows is not None and self._fitted_rows == _digest(outputs.features):
            warn(FITTED_ROWS)
        elif self._has_other_scales(outputs.features, is_out):
            warn(OTHER_ROWS)
        return _labels(is_out)

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
            raise ValueError("head and classifier must not both be given: each defines the logits")
        if hasattr(self.head, "predict"):
            raise TypeError(
                f"head must be a pair (weight, bias), got {type(self.head).__name__}: pass a classifier as classifier="
            )
        if self.contamination != "auto":
            if isinstance(self.contamination, str):
                raise TypeError(f"contamination must be 'auto' or a number, got {self.contamination!r}")
            as_number(self.contamination, "contamination", above=0.0, at_most=0.5)
            if with_reference:
                raise ValueError(
                    f"contamination is for a fit without a reference, got {self.contamination} and a reference: "
                    "pass false_alarm instead"
                )
        if self.false_alarm is not None:
            as_share(self.false_alarm, "false_alarm")
            if not with_reference:
                raise ValueError(
                    "false_alarm needs a reference, got none: call fit(X, reference=rows) with in-distribution rows "
                    "held out from training"
                )

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

    def _contamination(self) -> float:
        return FALSE_ALARM if self.contamination == "auto" else float(self.contamination)

    def _outputs(self, X: ArrayLike, name: str = "X", *, first: bool = False) -> Outputs:
        """Return the features of the rows, with logits if there is a head or a classifier."""
        if isinstance(X, Outputs):
            raise TypeError(
                f"{name} must be an array of rows (n, d), got Outputs: pass features, and a head or classifier"
            )
        if isinstance(X, tuple) and getattr(X[0] if X else None, "ndim", 1) == 2:
            raise TypeError(f"{name} must be an array of rows (n, d), got a tuple: pass the rows without labels")
        if self.classifier is not None:
            with _rename_argument(name):
                return self._outputs_of_classifier(validate_data(self, X, reset=first, skip_check_array=True), name)
        if np.ma.is_masked(X):  # scikit-learn would ignore the mask.
            raise ValueError(f"{name} must have no masked entries")
        _reject_sparse(X, name)
        with _rename_argument(name):
            features = validate_data(self, X, reset=first, dtype=_FLOATS, ensure_min_samples=2 if first else 1)
        if self.head is None:
            return Outputs(features)
        return _computed(features, self._logits_of(features))

    def _outputs_of_classifier(self, X: Any, name: str) -> Outputs:
        """Return features and logits from the classifier, or from a pipeline that ends in a classifier."""
        try:
            check_is_fitted(self.classifier)
        except TypeError as error:
            received = self.classifier if isinstance(self.classifier, type) else type(self.classifier)
            what = "the class" if received is self.classifier else "an object of type"
            raise TypeError(
                "classifier must be a fitted classifier with scikit-learn's interface, such as LGBMClassifier or "
                f"XGBClassifier, got {what} {received.__name__}"
            ) from error
        if isinstance(self.classifier, Pipeline) and len(self.classifier) > 1:
            X = self.classifier[:-1].transform(X)
            name = f"the input of {type(self.classifier[-1]).__name__}"
        _reject_sparse(X, name)
        logits = self._logits_of(X)
        try:
            return _computed(X, logits)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"{error}: impute missing values and encode words in a pipeline before the classifier, or pass numeric "
                "features and the logits of the classifier to truing.detect"
            ) from None

    def _logits_of(self, features: Any) -> NDArray[Any]:
        """Return the logits (n, c) of features (n, d)."""
        if self.head is not None:
            weight, bias = as_pair(self.head)
            return react(features, weight, bias, clip=LARGEST)  # No feature is larger, so nothing is clipped.
        return logits_of(self.classifier[-1] if isinstance(self.classifier, Pipeline) else self.classifier, features)

    def _base_of(self, outputs: Outputs, reference: Outputs | None) -> Base | None:
        """Return the base score to use, or None to let `detect` choose."""
        base = "knn" if self.base is None and outputs.logits is None else self.base
        if base == "knn" and reference is None:
            return KnnOfFittedRows(outputs._copied().features)
        return base

    def _method_of(self, reference: Outputs | None) -> str:
        """Return the method to use. On tables, contrast beats DLR even with 40 rows (docs/results/mistakes.md)."""
        if self.method != "auto":
            return self.method
        fewest = 2 * Rate("false_alarm", self._false_alarm()).fewest_rows()
        return "none" if reference is None or len(reference) < fewest else "contrast"

    def _warnings(self, outputs: Outputs, reference: Outputs | None) -> Iterator[str]:
        """Yield the messages of the warnings that `fit` itself issues."""
        if reference is None:
            if self.method == "auto":
                yield NO_REFERENCE
            if self._is_memorised(outputs):
                yield MEMORISED_ROWS if self.fit_ is None else MEMORISED_FIT
            return
        if self.method == "auto" and self.detection_.method == "none":
            yield FEW_REFERENCE_ROWS
        if self._is_memorised(reference):
            yield MEMORISED_REFERENCE
        elif self._is_memorised(outputs):
            yield MEMORISED_FIT
        if self._has_other_steps(outputs.features, reference.features):
            yield OTHER_STEPS
        for note in self.detection_.notes:
            if not isinstance(note, Alert) and not note.startswith(_NO_ACTION):  # `detect` issued the alerts.
                yield note

    def _is_memorised(self, outputs: Outputs) -> bool:
        if self.classifier is None or outputs.logits is None:
            return False
        with warnings.catch_warnings():  # The classifier may expect a data frame, and midpoints are an array.
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            try:
                return is_memorised(outputs.features, outputs.logits, self._logits_of)
            except Exception:  # Midpoints are an array with unseen categories, which a step may reject.
                return False

    def _has_other_steps(self, features: Matrix, reference: Matrix) -> bool:
        """Return whether the reference seems to be preprocessed differently from X.

        Out rows can also have other scales, so nearly all rows must be refused, or X must be exactly standardised.
        """
        is_out = self.detection_.is_out
        is_suspicious = (is_out is not None and is_out.mean() > _NEARLY_ALL) or _is_standardised(features)
        return is_suspicious and _have_other_scales(_scales(features), _scales(reference))

    def _has_other_scales(self, features: Matrix, is_out: Bools) -> bool:
        """Return whether rows to predict seem to be preprocessed differently from the reference or the fitted rows.

        Tree classifiers may accept differently preprocessed rows, so a very different spread suffices by itself.
        """
        if len(features) < _ENOUGH_ROWS:
            return False
        scales = _scales(features)
        if is_out.mean() > _NEARLY_ALL or _is_standardised(features):
            return _have_other_scales(scales, self._scales)
        return _have_other_scales(scales, self._scales, shift=np.inf, ratio=_LARGE_RATIO)

    def _fit_of_rows(self, outputs: Outputs, calibration: Outputs | None) -> LinearFit | ContrastFit | None:
        """Return a fit that was learned without the reference rows that set the threshold."""
        method = self.detection_.method
        if calibration is None or method == "none":
            return self.detection_.fit
        if method == "contrast":
            assert self._learning_half is not None
            options = (self._base, self.temperature, self.head, self.components)
            halves = SplitReference.of(self._learning_half, calibration, *options)
            rows = len(outputs)
            sample = sampled(halves.standard.scored(outputs), halves.share_of(rows), np.arange(rows))
            return halves.applied(halves.learn(sample, with_calibration=False), rows=rows)
        scores = self._base_scores(outputs)
        if method == "rlr":
            return fit_robust(outputs.features, scores, keep=self.keep, components=self.components)
        return fit_direct(outputs.features, scores, components=self.components)

    def _offset(self, calibration: Outputs | None) -> float:
        """Return the threshold, from reference rows or, without a reference, from the fitted rows."""
        if calibration is None:
            rate, scores_in = Rate("accept", 1 - self._contamination()), self.detection_.scores
        else:
            rate, scores_in = Rate("false_alarm", self._false_alarm()), self._scores(calibration)
        threshold = decide_at(rate, Ranks(scores_in, scores_in)).threshold
        assert threshold is not None
        return threshold

    def _base_scores(self, outputs: Outputs) -> Floats:
        return base_scores(outputs, self._base, self.temperature, head=self.head, reference=self._learning_half)

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


def _computed(features: Any, logits: Any) -> Outputs:
    """Return `Outputs` of features and the logits computed from these features. No check for swapping is needed."""
    columns = {"features": as_matrix(features, "features"), "logits": as_matrix(logits, "logits")}
    check_same_rows(**columns)
    return Outputs._of_checked(columns, None)


@contextmanager
def _rename_argument(name: str) -> Iterator[None]:
    """Name the argument in error messages of scikit-learn, which calls every argument X."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if name == "X":
            raise
        # Not type(error): a UnicodeDecodeError, raised for text in bytes, cannot be created from a message.
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name} (called X here): {error}") from None


def _reject_sparse(X: Any, name: str) -> None:
    if issparse(X):
        raise TypeError(
            f"{name} must be dense, got a sparse matrix: reduce it with TruncatedSVD, as in "
            "make_pipeline(TfidfVectorizer(), TruncatedSVD(100), LogisticRegression())"
        )


def logits_of(classifier: Any, features: Any) -> NDArray[Any]:
    """Return the logits (n, c) of a fitted classifier: its decision function, or logarithms of its probabilities."""
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
        expected = f"one column for each of its {classes} classes"
        raise ValueError(f"classifier must have a decision function with {expected}, got {logits.shape[1]}")
    return logits


def _is_standardised(features: Matrix) -> bool:
    """Return whether all columns that vary have mean 0 and standard deviation 1, as after a `StandardScaler`."""
    spreads = features.std(axis=0)
    varies = spreads > 0
    return bool(np.allclose(features.mean(axis=0), 0, atol=1e-3) and np.allclose(spreads[varies], 1, atol=1e-3))


def _digest(features: Matrix) -> str:
    """Return a digest for recognising the same features later."""
    return sha256(np.ascontiguousarray(features).data).hexdigest()


def _scales(features: Matrix) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of every column."""
    return features.mean(axis=0, dtype=np.float64), features.std(axis=0, dtype=np.float64)


def _have_other_scales(
    first: tuple[Floats, Floats], second: tuple[Floats, Floats], *, shift: float = _SHIFT, ratio: float = _RATIO
) -> bool:
    """Return whether most columns differ clearly in location or spread between two sets of rows."""
    means, spreads = zip(first, second, strict=True)
    varies = (spreads[0] > 0) & (spreads[1] > 0)
    if not varies.any():
        return False
    own, other = spreads[0][varies], spreads[1][varies]
    shifts = np.abs(means[0] - means[1])[varies] / np.maximum(own, other)
    return bool(np.median(shifts) > shift or np.median(np.abs(np.log(own / other))) > np.log(ratio))


def _labels(is_out: Bools) -> NDArray[np.intp]:
    return np.where(is_out, -1, 1)
