"""`truing.sklearn.TruedDetector`: scikit-learn's contract, the library's numbers, and warnings on natural mistakes."""

import subprocess
import sys
import warnings
from functools import partial

import numpy as np
import pytest
import sklearn
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import truing
from truing.bench.bank import bank
from truing.sklearn import TruedDetector

quiet = pytest.mark.filterwarnings("ignore::truing.TruingWarning")


@pytest.fixture(scope="module")
def network():
    """Features of real images, in- and out-of-distribution, and the head that computed their logits."""
    inside, outside = bank().inside, bank().outside["svhn"]
    line = LinearRegression().fit(np.float64(inside.features), inside.logits)
    return np.float64(inside.features), np.float64(outside.features), (line.coef_, line.intercept_)


@pytest.fixture(scope="module")
def digits():
    """Pixels and labels of digits, and a pipeline that was trained on every other row of the digits 0 to 7."""
    pixels, labels = load_digits(return_X_y=True)
    is_in = labels < 8
    pipeline = make_pipeline(StandardScaler(), PCA(32, random_state=0), LogisticRegression(max_iter=1000))
    return pixels, labels, pipeline.fit(pixels[is_in][::2], labels[is_in][::2])


@pytest.fixture(scope="module")
def thirds():
    """Training rows with labels, held-out rows, test rows of the digits 0 to 7, and all rows of 8 and 9."""
    pixels, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(np.flatnonzero(labels < 8))
    train, held_out, test = np.array_split(order, 3)
    return (pixels[train], labels[train]), pixels[held_out], pixels[test], pixels[labels > 7]


@pytest.fixture(scope="module")
def boosting(thirds):
    return HistGradientBoostingClassifier(max_iter=30, random_state=0).fit(*thirds[0])


def warned(call):
    """Return the messages of truing's warnings during a call, one per line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert {(warning.category, warning.filename) for warning in caught} <= {(truing.TruingWarning, __file__)}
    return "\n".join(str(warning.message) for warning in caught)


# The contract of scikit-learn


@quiet
@pytest.mark.parametrize("method", ["auto", "dlr", "rlr"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_the_checks_of_scikit_learn_pass(method):
    check_estimator(TruedDetector(method=method))


def test_a_clone_is_unfitted_and_shares_the_fitted_classifier(digits):
    pixels, _, pipeline = digits
    detector = TruedDetector(classifier=pipeline, base="energy", method="dlr", components=8).fit(pixels)
    copy = clone(detector)
    assert copy.get_params(deep=False) == detector.get_params(deep=False)
    with pytest.raises(NotFittedError):
        copy.predict(pixels)
    np.testing.assert_array_equal(copy.fit(pixels).score_samples(pixels), detector.score_samples(pixels))
    assert clone(make_pipeline(StandardScaler(), detector))[-1].classifier is pipeline


def test_a_pipeline_transforms_the_reference_if_it_is_requested(digits):
    pixels, labels, _ = digits
    reference, mix = pixels[labels < 8][:700], np.concatenate((pixels[labels < 8][700:], pixels[labels >= 8][:100]))
    with sklearn.config_context(enable_metadata_routing=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", truing.TruingWarning)
        detector = TruedDetector().set_fit_request(reference=True)
        steps = make_pipeline(StandardScaler(), detector, transform_input=["reference"]).fit(mix, reference=reference)
        scaler = StandardScaler().fit(mix)
        expected = TruedDetector().fit(scaler.transform(mix), reference=scaler.transform(reference))
    np.testing.assert_allclose(steps.score_samples(mix), expected.score_samples(scaler.transform(mix)))


# The numbers


@pytest.mark.parametrize("method", ["dlr", "rlr", "none"])
def test_with_a_head_scores_are_the_fit_of_the_base_score_on_the_features(network, method):
    inside, outside, (weight, bias) = network
    mix = np.concatenate((inside[:1000], outside[:300]))
    scores = truing.energy(mix @ weight.T + bias)
    expected = {
        "none": scores,
        "dlr": LinearRegression().fit(mix, scores).predict(mix),
        "rlr": truing.fit_robust(mix, scores, keep=0.7, components=16).predict(mix),
    }[method]
    options = {"keep": 0.7, "components": 16} if method == "rlr" else {}
    detector = TruedDetector((weight, bias), base="energy", method=method, **options).fit(mix)
    np.testing.assert_allclose(detector.score_samples(mix), expected, rtol=0, atol=1e-8 * np.ptp(scores))


@pytest.mark.parametrize("method", ["none", "dlr"])
def test_without_logits_the_base_score_is_the_distance_to_fitted_rows(rng, method):
    fitted, others = rng.normal(size=(450, 5)), rng.normal(size=(60, 5))
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (fitted, others)]
    neighbours = NearestNeighbors(n_neighbors=4 + 1).fit(unit[0])  # A fitted row is its own nearest neighbour.
    base, expected = (-neighbours.kneighbors(rows)[0][:, 4] for rows in unit)
    if method == "dlr":
        expected = LinearRegression().fit(fitted, base).predict(others)
    detector = TruedDetector(method=method).fit(fitted)
    np.testing.assert_allclose(detector.score_samples(others), expected, atol=1e-7)
    np.testing.assert_allclose(detector.detection_.base_scores, base, atol=1e-7)


@quiet
@pytest.mark.parametrize("with_reference", [True, False])
@pytest.mark.parametrize("method", ["auto", "dlr"])
def test_later_changes_to_the_fitted_arrays_have_no_effect(rng, method, with_reference):
    fitted, reference, others = rng.normal(size=(450, 5)), rng.normal(size=(200, 5)), rng.normal(size=(60, 5))
    detector = TruedDetector(method=method).fit(fitted, reference=reference if with_reference else None)
    before = detector.decision_function(others)
    fitted[:], reference[:] = 1.0, 2.0
    np.testing.assert_array_equal(detector.decision_function(others), before)


@quiet
@pytest.mark.parametrize(("contamination", "share"), [("auto", 0.05), (0.3, 0.3), (0.5, 0.5)])
def test_contamination_is_the_share_of_fitted_rows_refused(network, contamination, share):
    inside, outside, head = network
    mix = np.concatenate((inside[:700], outside[:300]))
    detector = TruedDetector(head, contamination=contamination)
    labels = detector.fit_predict(mix)
    assert np.mean(labels == -1) == pytest.approx(share)
    np.testing.assert_array_equal(detector.predict(mix), labels)
    np.testing.assert_array_equal(detector.decision_function(mix) >= 0, labels == 1)
    np.testing.assert_allclose(detector.decision_function(mix), detector.score_samples(mix) - detector.offset_)


@quiet
@pytest.mark.parametrize("with_reference", [False, True])
def test_rows_that_tie_with_the_threshold_are_accepted(network, with_reference):
    inside, outside, head = network
    blank = np.zeros((400, inside.shape[1]))
    mix, reference = np.concatenate((inside[:1000], outside[:200], blank)), np.concatenate((inside[1000:1600], blank))
    detector = TruedDetector(head, method="dlr").fit(mix, reference=reference if with_reference else None)
    scores = detector.score_samples(blank)
    np.testing.assert_allclose(scores, detector.offset_, atol=1e-5)  # Blank rows score lowest.
    assert (detector.predict(blank) == 1).all()
    assert (scores.astype(np.float32) > np.float32(detector.offset_)).all()


@quiet
@pytest.mark.parametrize("method", ["auto", "none", "dlr", "rlr"])
def test_fitted_rows_are_decided_as_by_detect_and_other_rows_as_by_a_detector(network, method):
    inside, outside, head = network
    reference, mix = inside[:600], np.concatenate((inside[600:1600], outside[:300]))
    others = np.concatenate((inside[1600:2600], outside[300:600]))
    outputs = [truing.Outputs(rows, rows @ head[0].T + head[1]) for rows in (reference, mix, others)]
    detector = TruedDetector(head, method=method, false_alarm=0.1)
    labels = detector.fit_predict(mix, reference=reference)
    result = truing.detect(outputs[1], outputs[0], method=method, head=head, false_alarm=0.1)
    np.testing.assert_array_equal(labels == -1, result.is_out)
    if method in ("none", "rlr"):
        fit = truing.fit_robust(mix, truing.msp(outputs[1].logits)).predict if method == "rlr" else None
        scores_in, scores = (truing.msp(part.logits) if fit is None else fit(part.features) for part in outputs[::2])
        expected = truing.p_values(scores_in, scores) <= 0.1
    else:
        own = truing.Detector(result.base, method=result.method, head=head)
        own.calibrate(outputs[0])
        own.learn(outputs[1])
        decision = own.decide(outputs[2], false_alarm=0.1)
        scores, expected = decision.scores, decision.is_out
    np.testing.assert_allclose(detector.score_samples(others), scores, atol=1e-9 * np.ptp(scores))
    np.testing.assert_array_equal(detector.predict(others) == -1, expected)


# Classifiers


def test_the_steps_of_a_pipeline_give_the_features_and_its_last_step_the_logits(digits):
    pixels, labels, pipeline = digits
    mix = pixels[1::2]
    features = pipeline[:-1].transform(mix)
    base = truing.msp(pipeline[-1].decision_function(features))
    scores = TruedDetector(classifier=pipeline, method="dlr").fit(mix).score_samples(mix)
    np.testing.assert_allclose(scores, truing.fit_direct(features, base).predict(features), atol=1e-9)
    is_in = labels[1::2] < 8
    assert truing.auroc(scores[is_in], scores[~is_in]) > truing.auroc(base[is_in], base[~is_in])


def test_logits_are_margins_or_logarithms_of_probabilities(digits):
    rows, labels = load_breast_cancer(return_X_y=True)
    rows = StandardScaler().fit_transform(rows)
    pixels, digit, _ = digits
    machine = LinearSVC().fit(rows[::2], labels[::2])
    forest = RandomForestClassifier(50, random_state=0).fit(rows[::2], labels[::2])
    trees = GradientBoostingClassifier(n_estimators=5, random_state=0).fit(pixels[::4], digit[::4])
    confidence = 1 / (1 + np.exp(-np.abs(machine.decision_function(rows))))
    for classifier, X, base, expected, tolerance in (
        (machine, rows, "msp", confidence, 1e-12),
        (forest, rows, "msp", forest.predict_proba(rows).max(axis=1), 1e-3),
        (trees, pixels, "energy", truing.energy(trees.decision_function(pixels)), 1e-12),
    ):
        detector = TruedDetector(classifier=classifier, base=base, method="none").fit(X)
        np.testing.assert_allclose(detector.score_samples(X), expected, atol=tolerance)


@quiet
def test_a_classifier_may_take_tables_with_words_and_raw_strings(rng):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"size": rng.normal(size=300), "kind": rng.choice(["a", "b", "c"], size=300)})
    columns = ColumnTransformer([("size", StandardScaler(), ["size"]), ("kind", OneHotEncoder(), ["kind"])])
    pipeline = make_pipeline(columns, LogisticRegression()).fit(table, table["kind"])
    detector = TruedDetector(classifier=pipeline, contamination=0.2).fit(table)
    np.testing.assert_array_equal(detector.feature_names_in_, ["size", "kind"])
    assert np.mean(detector.predict(table) == -1) == pytest.approx(0.2, abs=0.02)

    words = {"weather": ["rain", "sun", "wind", "snow"], "music": ["song", "band", "play", "album"]}
    texts = [" ".join(rng.choice(words[kind], 4)) for kind in words for _ in range(150)]
    kinds = np.repeat(list(words), 150)
    order = rng.permutation(len(texts))
    train, held_out, test = (np.array(texts)[part] for part in np.array_split(order, 3))
    steps = make_pipeline(TfidfVectorizer(), TruncatedSVD(4, random_state=0), LogisticRegression())
    detector = TruedDetector(classifier=steps.fit(train, kinds[order[: len(train)]]))
    others = ["a loan for my house", "cancel my bank card"] * 20
    detector.fit(np.concatenate((test, others)), reference=held_out)
    assert np.mean(detector.predict(test) == -1) <= 0.1
    assert np.mean(detector.predict(others) == -1) == 1


def test_a_classifier_of_data_frames_rejects_gaps_and_words(rng):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"size": rng.normal(size=300), "weight": rng.normal(size=300)})
    gaps = table["weight"].where(table["weight"] > 0)
    words = pandas.Categorical(np.where(table["weight"] > 0, "light", "heavy"))

    def detector_of(rows):
        model = HistGradientBoostingClassifier(max_iter=5, categorical_features="from_dtype")
        return TruedDetector(classifier=model.fit(rows, table["size"] > 0))

    assert "feature names" not in warned(partial(detector_of(table).fit, table))
    for rows in (table.assign(weight=gaps), table.assign(weight=words)):
        with pytest.raises((TypeError, ValueError), match="impute missing values and encode words in a pipeline"):
            detector_of(rows).fit(rows)


# Natural first lines: each decides correctly or warns.

NO_REFERENCE = "no reference, so scores are the base score"
TRAINED_ON_REFERENCE = "the classifier seems to have been trained on the reference"
TRAINED_ON_X = "the classifier seems to have been trained on X"
NOT_TRANSFORMED = "most columns of the reference have another mean or spread than in X"


def test_a_fit_without_a_reference_or_to_training_rows_is_noticed(boosting, thirds):
    (train, _), held_out, test, outside = thirds
    detector = TruedDetector(classifier=boosting)
    message = warned(lambda: detector.fit(held_out))
    assert message.startswith(NO_REFERENCE)
    assert "\n" not in message
    mix = np.concatenate((test, outside))
    np.testing.assert_allclose(detector.score_samples(mix), truing.msp(boosting.decision_function(mix)), atol=1e-12)
    assert np.mean(detector.predict(test) == -1) == pytest.approx(0.05, abs=0.04)
    message = warned(lambda: TruedDetector(classifier=boosting).fit(train))
    assert NO_REFERENCE in message
    assert f"{TRAINED_ON_X}, so predict refuses more new rows" in message
    not_to_decide = f"{TRAINED_ON_X}, so the fit learns nothing"
    assert not_to_decide in warned(lambda: TruedDetector(classifier=boosting, method="dlr").fit(train))
    assert not_to_decide in warned(lambda: TruedDetector(classifier=boosting).fit(train, reference=held_out))
    assert "trained on" not in warned(lambda: TruedDetector(classifier=boosting, method="dlr").fit(test))


@pytest.mark.parametrize("make", [RandomForestClassifier, HistGradientBoostingClassifier])
def test_a_reference_of_training_rows_is_noticed_and_a_held_out_reference_is_not(thirds, make):
    (train, labels), held_out, test, outside = thirds
    detector = TruedDetector(classifier=make(random_state=0).fit(train, labels))
    mix = np.concatenate((test, outside))
    assert TRAINED_ON_REFERENCE in warned(lambda: detector.fit(mix, reference=train))
    assert np.mean(detector.predict(test) == -1) > 0.2
    assert "trained on" not in warned(lambda: detector.fit(mix, reference=held_out))
    assert np.mean(detector.predict(test) == -1) < 0.1


def test_predict_notices_the_fitted_rows_and_rows_that_were_scaled_differently(boosting, thirds):
    _, held_out, test, outside = thirds
    fitted = np.concatenate((test, outside))
    detector = TruedDetector(classifier=boosting).fit(fitted, reference=held_out)
    for scaled in (test / 100, StandardScaler().fit_transform(test)):
        assert "most columns of X have another mean or spread than in fit" in warned(partial(detector.predict, scaled))
    for rows in (fitted[:-1], test, outside, test[:20], test[:1] / 100):
        assert warned(partial(detector.predict, rows)) == ""
    assert "X has the rows of fit" in warned(partial(detector.predict, fitted))


@pytest.mark.parametrize("with_classifier", [False, True])
def test_a_pipeline_that_scales_only_x_is_noticed(thirds, with_classifier):
    (train, labels), held_out, test, outside = thirds
    mix, scaler = np.concatenate((test, outside)), StandardScaler().fit(train)
    line = LogisticRegression(max_iter=1000).fit(scaler.transform(train), labels) if with_classifier else None
    detector = TruedDetector(classifier=line)
    steps = make_pipeline(StandardScaler(), detector)
    with pytest.warns(truing.TruingWarning) as caught:
        steps.fit(mix, trueddetector__reference=held_out)
    assert any(NOT_TRANSFORMED in str(warning.message) for warning in caught)
    rows, reference = scaler.transform(mix), scaler.transform(held_out)
    assert warned(lambda: detector.fit(rows, reference=reference)) == ""


def test_a_small_reference_and_a_reference_given_as_y_are_noticed(network):
    inside, outside, head = network
    detector = TruedDetector(head, false_alarm=0.01)
    messages = warned(lambda: detector.fit(outside[:200], reference=inside[:20]))
    assert "no row can be refused at this rate" in messages
    assert set(detector.detection_.notes) <= set(messages.splitlines())  # Notes of `detect` are warnings.
    assert (detector.predict(outside) == 1).all()
    assert "y is ignored, got a table" in warned(lambda: TruedDetector(head).fit(outside, inside[:500]))


# Errors

TABLE = np.random.default_rng(0).normal(size=(50, 4))
WRONG = {
    "method must be one of auto, none, dlr, rlr, contrast, got 'online'": ({"method": "online"}, None),
    "base vim needs a reference, got None": ({"base": "vim"}, None),
    r"the score energy needs logits, got Outputs\(.* rows: features 4\)": ({"base": "energy"}, None),
    "contamination must be above 0 and at most 0.5, got 0.7": ({"contamination": 0.7}, None),
    "contamination must be 'auto' or a number, got 'all'": ({"contamination": "all"}, None),
    "contamination is for a fit without a reference": ({"contamination": 0.1}, TABLE[:20]),
    r"false_alarm needs a reference, got none: call fit\(X, reference=rows\)": ({"false_alarm": 0.05}, None),
    "false_alarm must be above 0 and at most 1, got 2": ({"false_alarm": 2}, None),
    "keep must be above 0 and at most 1, got 3": ({"keep": 3, "method": "rlr"}, None),
    "head must be a pair": ({"head": np.eye(4)}, None),
    r"head must be a pair \(weight, bias\), got Perceptron: pass a classifier as": ({"head": Perceptron()}, None),
    "head and classifier must not both": ({"head": (np.eye(4), np.zeros(4)), "classifier": Perceptron()}, None),
    "classifier must be a fitted classifier with .* got an object of type int": ({"classifier": 3}, None),
    r"^reference must be an array of rows \(n, d\), got Outputs: pass features": ({}, truing.Outputs(TABLE)),
    "^reference must be an array of rows .* got a tuple: pass the rows without labels": ({}, (TABLE, np.ones(50))),
    r"^reference \(called X here\): X has 5 features, but TruedDetector is expecting 4": ({}, np.ones((9, 5))),
    r"^reference \(called X here\): Input X contains NaN": ({}, np.full((9, 4), np.nan)),
    "^reference must have no masked entries": ({}, np.ma.masked_array(np.ones((9, 4)), mask=np.eye(9, 4))),
    "^reference must be dense, got a sparse matrix: reduce it with TruncatedSVD": ({}, csr_array(np.eye(9, 4))),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_argument_is_named(message):
    arguments, reference = WRONG[message]
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        TruedDetector(**arguments).fit(TABLE, reference=reference)
    assert "\n" not in str(raised.value) or reference is not None


def test_an_unsuitable_classifier_is_rejected(digits):
    pixels, labels, _ = digits
    texts, bad = ["good day", "bad night", "good night", "bad day"] * 10, [b"\xff"] * 40
    pairs = SVC(decision_function_shape="ovo").fit(pixels[labels < 5], labels[labels < 5])
    sparse = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [0, 1] * 20)
    words = make_pipeline(TfidfVectorizer(), TruncatedSVD(2), LogisticRegression()).fit(texts, [0, 1] * 20)
    for classifier, rows, reference, message in (
        (pairs, pixels, None, "one column for each of its 5 classes, got 10"),
        (LinearRegression().fit(pixels, labels), pixels, None, "must have decision_function or predict_proba, got Lin"),
        (LogisticRegression(), pixels, None, "This LogisticRegression instance is not fitted yet"),
        (sparse, texts, None, "the input of LogisticRegression must be dense, got a sparse .* with TruncatedSVD"),
        (words, texts, bad, r"reference \(called X here\): 'utf-8' codec can't decode byte 0xff"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            TruedDetector(classifier=classifier).fit(rows, reference=reference)


def test_unusual_classifiers_cause_no_warning_and_no_error(rng):
    """The quadratic logits of ten classes determine two features, which looks like swapped arguments elsewhere.

    The rows between the given rows, by which training rows are noticed, may have categories that no row has.
    """
    places, shapes = rng.normal(size=(10, 2)) * 3, rng.normal(size=(10, 2, 2))
    labels = rng.integers(0, 10, 1500)
    rows = np.einsum("ni,nij->nj", rng.normal(size=(1500, 2)), shapes[labels]) + places[labels]
    quadratic = QuadraticDiscriminantAnalysis().fit(rows[:500], labels[:500])
    TruedDetector(classifier=quadratic).fit(rows[500:1000], reference=rows[1000:])
    kinds = rng.integers(0, 4, (900, 5)).astype(float)
    pipeline = make_pipeline(OneHotEncoder(), LogisticRegression())
    search = GridSearchCV(pipeline, {"logisticregression__C": [1.0]}, cv=2).fit(kinds[:300], kinds[:300, 0] > 1)
    detector = TruedDetector(classifier=search).fit(kinds[300:600], reference=kinds[600:])
    assert set(detector.predict(kinds[400:600])) <= {-1, 1}


def test_without_scikit_learn_the_error_says_what_to_install():
    code = "import sys; sys.modules['sklearn'] = None; import truing.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "truing.sklearn needs scikit-learn 1.6 or newer: pip install 'truing[sklearn]'" in done.stderr
