"""A fit as arithmetic, done here by NumPy: the formulas in float64, and what float32 leaves of them."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing.folding import FOLDED, folding_of

from .foldable import METHODS_OF_TIES, check_decisions, features_with_ties


class NumPyMaths:
    """The operations of a folding, by NumPy, in one precision."""

    def __init__(self, arrays, dtype):
        self.arrays, self.dtype = arrays, dtype

    def constant(self, name):
        return self.arrays[name].astype(self.dtype)

    minimum = staticmethod(lambda x, bound: np.minimum(x, x.dtype.type(bound)))
    maximum = staticmethod(lambda x, bound: np.maximum(x, x.dtype.type(bound)))
    exp, log, sqrt, absolute = np.exp, np.log, np.sqrt, np.abs

    def row_sums(self, x):
        return x.sum(axis=1, keepdims=True)

    def descending(self, x, number):
        return -np.sort(-x, axis=1)[:, :number]

    def columns(self, x, first, end):
        return x[:, first:end]


def folded_scores(folding, outputs, dtype=np.float32):
    maths = NumPyMaths(folding.arrays, dtype)
    scores = folding.score(maths, outputs.features.astype(dtype), outputs.logits.astype(dtype))
    assert scores.dtype == dtype
    return scores[:, 0]


@pytest.fixture(scope="module")
def rows():
    return truing.Outputs.concatenate([truing.sample("cifar10-test")[:2000], truing.sample("svhn")])


@pytest.fixture(scope="module")
def reference():
    return truing.sample("cifar10-test")[5000:]


def logits_to_try(rng, classes):
    """Return ordinary logits, sure and unsure ones, ties, and some far apart."""
    ordinary = rng.normal(size=(40, classes))
    tied = np.round(ordinary)
    return np.concatenate((ordinary, 30 * ordinary, 1e-3 * ordinary, tied, 200 + ordinary, np.zeros((1, classes))))


@pytest.mark.parametrize("temperature", [1.0, 0.3, 1000.0])
@pytest.mark.parametrize("classes", [2, 150])
@pytest.mark.parametrize("name", FOLDED)
def test_an_exported_base_score_equals_the_base_score(rng, name, classes, temperature):
    temperature = 1.0 if name == "max_logit" else temperature
    logits = logits_to_try(rng, classes)
    outputs = truing.Outputs(rng.normal(size=(len(logits), 6)), logits)
    expected = truing.SCORES[name](outputs, temperature=temperature)
    maths = NumPyMaths({}, np.float64)
    result = FOLDED[name](temperature, classes)(maths, outputs.features, maths.descending(logits, classes))[:, 0]
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)
    maths = NumPyMaths({}, np.float32)
    narrow = outputs.features.astype(np.float32), maths.descending(logits.astype(np.float32), classes)
    result = FOLDED[name](temperature, classes)(maths, *narrow)[:, 0]
    expected = truing.SCORES[name](truing.Outputs(narrow[0], narrow[1]), temperature=temperature)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        *((truing.fit_contrast, {"base": base}) for base in FOLDED),
        (truing.fit_contrast, {"components": 8}),
        (truing.fit_contrast, {"base": "energy", "temperature": 2.5}),
        (truing.fit_direct, {"components": 8}),
        (truing.fit_direct, {"intercept": False}),
        (truing.fit_robust, {}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_in_float32_a_folded_fit_scores_as_the_fit_does(rows, reference, method, options):
    if method is truing.fit_contrast:
        fit = method(rows, reference, **options)
        expected = fit.predict(rows)
    else:
        fit = method(rows.features, truing.msp(rows.logits), **options)
        expected = fit.predict(rows.features)
    tolerance = 1e-5 if method is truing.fit_contrast else 1e-6
    np.testing.assert_allclose(folded_scores(folding_of(fit), rows), expected, rtol=tolerance, atol=tolerance)


def test_the_mean_row_and_rows_far_from_everything_are_scored_as_the_fit_does(rows, reference):
    fit = truing.fit_contrast(rows, reference)
    features, logits = rows.features.astype(np.float32), rows.logits.astype(np.float32)
    mean = truing.Outputs(fit.standard.scale.mean[None], logits[:1])
    sizes = (0.0, 1e3, 1e6, 1e12)
    far = [truing.Outputs(features * np.float32(size), logits * np.float32(min(size, 1e3))) for size in sizes]
    for outputs in (mean, *far):
        np.testing.assert_allclose(folded_scores(folding_of(fit), outputs), fit.predict(outputs), rtol=1e-5, atol=3e-6)


@pytest.mark.parametrize("offset", [0.0, 4096.0])
def test_a_large_mean_of_the_features_does_not_cancel(rows, reference, offset):
    """Rows that float32 holds, 4096 apart from where they were: each is about 5e-4 wide there."""

    def moved(outputs):
        features = (outputs.features.astype(np.float32) + np.float32(offset)).astype(np.float64)
        return truing.Outputs(features, outputs.logits)

    outputs, reference = moved(rows), moved(reference)
    fit = truing.fit_contrast(outputs, reference)
    np.testing.assert_allclose(folded_scores(folding_of(fit), outputs), fit.predict(outputs), atol=1e-6)
    detector = truing.Detector("energy")  # A detector stores the mean, but a linear fit does not.
    detector.learn(outputs)
    np.testing.assert_allclose(folded_scores(folding_of(detector), outputs), detector.score(outputs), rtol=2e-6)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_the_threshold_of_a_detection_decides_as_the_detection_did(rows, reference):
    for level in (0.05, 1e-9, 1.0):  # The last two refuse no row and every row.
        result = truing.detect(rows, reference, false_alarm=level)
        folding = folding_of(result)
        assert folding.threshold == result.threshold
        np.testing.assert_array_equal(folded_scores(folding, rows) < folding.threshold, result.is_out)
    assert folding_of(result, threshold=0.25).threshold == 0.25
    assert folding_of(truing.detect(rows)).threshold is None


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("method", METHODS_OF_TIES)
@settings(max_examples=40)
@given(seed=st.integers(0, 999), ties=st.integers(0, 150), accept=st.floats(0.05, 1.0))
def test_in_float32_rows_with_ties_are_decided_alike(method, seed, ties, accept):
    weight = np.random.default_rng(seed).normal(size=(5, 4)).astype(np.float32)
    features, features_in = features_with_ties(seed, 5, ties)
    rows, reference = (truing.Outputs(each, each @ weight) for each in (features, features_in))
    result = truing.detect(rows, reference, method=method, accept=accept)
    folding = folding_of(result)
    check_decisions(result, features, folded_scores(folding, rows) < np.float32(folding.threshold))


@given(threshold=st.floats(-1e38, 1e38))
def test_an_exported_threshold_is_rounded_down_to_float32(threshold):
    result = folding_of(LINEAR, threshold=threshold).threshold
    assert np.float32(result) == result
    assert result <= threshold < float(np.nextafter(np.float32(result), np.float32(np.inf)))


@pytest.mark.parametrize("rate", [{"accept": 0.9}, {"false_alarm": 0.1}])
@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_a_folded_detector_scores_and_decides_as_the_detector_does(rows, reference, method, rate):
    detector = truing.Detector(method=method)
    detector.calibrate(reference)
    detector.learn(rows[::2])
    new = rows[1::2]
    np.testing.assert_allclose(folded_scores(folding_of(detector), new), detector.score(new), atol=1e-6)
    decision, folding = detector.decide(new, **rate), folding_of(detector, **rate)
    np.testing.assert_allclose(folded_scores(folding, new), decision.scores, atol=1e-6)
    assert folding.threshold == decision.threshold
    clear = np.abs(decision.scores - decision.threshold) > 1e-6
    np.testing.assert_array_equal((folded_scores(folding, new) < folding.threshold)[clear], decision.is_out[clear])


@pytest.mark.parametrize(
    ("base", "why"),
    [
        ("knn", "knn, which needs a reference"),
        ("vim", "vim, which needs a head and a reference"),
        ("scale", "scale, which needs a head"),
        (lambda outputs: outputs.logits[:, 0], "<lambda>, which is not computed from features and logits alone"),
    ],
)
def test_a_base_score_that_needs_more_than_features_and_logits_is_rejected(rows, reference, base, why):
    fit = truing.fit_contrast(rows, reference, base=base, head=(np.ones((10, 64)), np.zeros(10)))
    choices = "msp, energy, kl_uniform, max_logit, gen, gradnorm"
    with pytest.raises(ValueError, match=f"must be one of {choices} to be exported, got {why}"):
        folding_of(fit)


LINEAR = truing.LinearFit(coef=np.ones(3), intercept=0.0, rows=9, rank=3, explained=1.0)


@pytest.mark.parametrize(
    ("fit", "options", "error", "message"),
    [
        (LINEAR, {"accept": 0.9}, ValueError, "accept needs the scores of reference rows, which this fit does not"),
        (LINEAR, {"accept": 0.9, "threshold": 1.0}, ValueError, "at most one of .*, got threshold and accept"),
        (LINEAR, {"threshold": np.nan}, ValueError, "threshold must be"),
        (LINEAR, {"accept": 95.0}, ValueError, "accept must be above 0"),
        (replace(LINEAR, coef=np.full(3, 1e60)), {}, ValueError, "coef must be in float32's range to be exported"),
        (truing.Moments.of(np.ones((2, 1)), np.ones(2)), {}, TypeError, "fit must be a LinearFit, .* got Moments"),
        (truing.Detector(), {}, ValueError, "nothing learned yet"),
        (truing.detect(truing.sample()[:50], method="none"), {}, ValueError, "must be a Detection that has a fit"),
    ],
)
def test_an_error_says_why_a_fit_cannot_be_folded(fit, options, error, message):
    with pytest.raises(error, match=message):
        folding_of(fit, **options)


@pytest.mark.parametrize("base", ["gen", "kl_uniform"])
def test_a_base_score_that_varies_less_than_float32_rounding_is_rejected(rng, base):
    rows, reference = (truing.Outputs(rng.normal(size=(300, 6)), rng.normal(size=(300, 5))) for _ in range(2))
    with pytest.raises(ValueError, match=f"the base score {base} at temperature 1000 must vary by more than float32's"):
        folding_of(truing.fit_contrast(rows, reference, base=base, temperature=1000.0))
    for other in ("msp", "energy", "gradnorm"):  # These scores vary enough.
        fit = truing.fit_contrast(rows, reference, base=other, temperature=1000.0)
        folding_of(fit)
    fit = replace(fit, standard=replace(fit.standard, temperature=1e-60))
    with pytest.raises(ValueError, match="temperature must be in float32's range"):
        folding_of(fit)
