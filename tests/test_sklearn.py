"""The detector of scikit-learn: its contract, and the same numbers as the library's own."""

import subprocess
import sys

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import truing
from truing.bench.bank import bank
from truing.sklearn import TruedDetector


@pytest.fixture(scope="module")
def network():
    """Features of real images, in and out, and the head that their logits say."""
    inside, outside = bank().inside, bank().outside["svhn"]
    line = LinearRegression().fit(np.float64(inside.features), inside.logits)
    return np.float64(inside.features), np.float64(outside.features), (line.coef_, line.intercept_)


@pytest.fixture(scope="module")
def digits():
    """Pixels and labels of digits, and a pipeline that knows 0 to 7 by every other row."""
    pixels, labels = load_digits(return_X_y=True)
    known = labels < 8
    pipeline = make_pipeline(StandardScaler(), PCA(32, random_state=0), LogisticRegression(max_iter=1000))
    return pixels, labels, pipeline.fit(pixels[known][::2], labels[known][::2])


ESTIMATORS = [TruedDetector(), TruedDetector(method="dlr"), TruedDetector(method="rlr", keep=0.5)]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_finds_nothing_against_it(estimator):
    check_estimator(estimator)


@pytest.mark.parametrize("base", ["msp", "energy", "gradnorm", "scale"])
def test_by_a_head_it_is_the_least_squares_fit_of_a_base_score_on_the_features(network, base):
    inside, outside, (weight, bias) = network
    mix = np.concatenate((inside[:1000], outside[:300]))
    logits = mix @ weight.T + bias
    scores = truing.SCORES[base](truing.Outputs(mix, logits), head=(weight, bias))
    expected = LinearRegression().fit(mix, scores)
    detector = TruedDetector((weight, bias), base=base).fit(mix)
    np.testing.assert_allclose(detector.score_samples(mix), expected.predict(mix), rtol=0, atol=1e-8 * np.ptp(scores))
    np.testing.assert_allclose(
        detector.score_samples(inside[1000:2000]), expected.predict(inside[1000:2000]), atol=1e-8 * np.ptp(scores)
    )


def test_robust_and_confined_fits_are_the_librarys(network):
    inside, outside, head = network
    mix = np.concatenate((inside[:1000], outside[:300]))
    scores = truing.msp(mix @ head[0].T + head[1])
    robust = truing.fit_robust(mix, scores, keep=0.7, components=16)
    detector = TruedDetector(head, method="rlr", keep=0.7, components=16).fit(mix)
    np.testing.assert_allclose(detector.score_samples(mix), robust.predict(mix), atol=1e-9)
    np.testing.assert_allclose(TruedDetector(head, method="none").fit(mix).score_samples(mix), scores, atol=1e-12)


@pytest.mark.parametrize("method", ["none", "dlr"])
def test_by_features_alone_the_base_score_is_the_distance_to_neighbours_among_the_fitted_rows(rng, method):
    fitted, others = rng.normal(size=(450, 5)), rng.normal(size=(60, 5))
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (fitted, others)]
    neighbours = NearestNeighbors(n_neighbors=4 + 1).fit(unit[0])
    base = -neighbours.kneighbors(unit[0])[0][:, 4]  # The fourth but for the row itself.
    expected = -neighbours.kneighbors(unit[1])[0][:, 4]
    if method == "dlr":
        expected = LinearRegression().fit(fitted, base).predict(others)
    detector = TruedDetector(method=method).fit(fitted)
    np.testing.assert_allclose(detector.score_samples(others), expected, atol=1e-7)
    np.testing.assert_allclose(detector.detection_.base_scores, base, atol=1e-7)


@pytest.mark.parametrize("with_reference", [True, False])
@pytest.mark.parametrize("method", ["none", "dlr", "auto"])
def test_nobody_else_can_change_what_was_fitted(rng, method, with_reference):
    fitted, known, others = rng.normal(size=(450, 5)), rng.normal(size=(200, 5)), rng.normal(size=(60, 5))
    detector = TruedDetector(method=method).fit(fitted, reference=known if with_reference else None)
    before = detector.decision_function(others)
    fitted[:], known[:] = 1.0, 2.0
    np.testing.assert_array_equal(detector.decision_function(others), before)


def test_by_features_alone_and_without_a_reference_the_distance_is_not_trued(rng):
    """A linear fit does not follow a distance: rows of shuffled pixels are found by the one, and not by the other."""
    pixels, _ = load_digits(return_X_y=True)
    shuffled = np.column_stack([rng.permutation(column) for column in pixels.T])[:180]
    mix = StandardScaler().fit_transform(np.concatenate((pixels, shuffled)))
    is_out = np.arange(len(mix)) >= len(pixels)
    found = {method: TruedDetector(method=method).fit(mix).score_samples(mix) for method in ("auto", "dlr")}
    reports = {method: truing.auroc(scores[~is_out], scores[is_out]) for method, scores in found.items()}
    assert reports["auto"] > 0.98
    assert reports["dlr"] < 0.7


@pytest.mark.parametrize("contamination", [0.05, 0.3, 0.5])
def test_a_share_of_the_fitted_rows_is_out_and_signs_agree(network, contamination):
    inside, outside, head = network
    mix = np.concatenate((inside[:700], outside[:300]))
    detector = TruedDetector(head, contamination=contamination)
    labels = detector.fit_predict(mix)
    assert np.mean(labels == -1) == pytest.approx(contamination)
    np.testing.assert_array_equal(detector.predict(mix), labels)
    np.testing.assert_array_equal(detector.decision_function(mix) >= 0, labels == 1)
    np.testing.assert_allclose(detector.decision_function(mix), detector.score_samples(mix) - detector.offset_)


@pytest.mark.parametrize("reference", [False, True])
def test_rows_that_tie_with_the_threshold_are_accepted_in_float32_as_well(network, reference):
    inside, outside, head = network
    blank = np.zeros((400, inside.shape[1]))
    mix, known = np.concatenate((inside[:1000], outside[:200], blank)), np.concatenate((inside[1000:1600], blank))
    detector = TruedDetector(head, method="dlr").fit(mix, reference=known if reference else None)
    scores = detector.score_samples(blank)
    np.testing.assert_allclose(scores, detector.offset_, atol=1e-5)  # Blank rows score lowest.
    assert (detector.predict(blank) == 1).all()
    assert (scores.astype(np.float32) > np.float32(detector.offset_)).all()


@pytest.mark.parametrize("method", ["auto", "none", "dlr", "rlr"])
def test_with_a_reference_fitted_rows_are_decided_as_by_detect_and_others_as_by_a_detector(network, method):
    inside, outside, head = network
    reference, mix = inside[:600], np.concatenate((inside[600:1600], outside[:300]))
    others = np.concatenate((inside[1600:2600], outside[300:600]))
    outputs = [truing.Outputs(rows, rows @ head[0].T + head[1]) for rows in (reference, mix, others)]
    detector = TruedDetector(head, method=method, false_alarm=0.1)
    labels = detector.fit_predict(mix, reference=reference)
    found = truing.detect(outputs[1], outputs[0], method=method, head=head, false_alarm=0.1)
    np.testing.assert_array_equal(labels == -1, found.is_out)
    if method == "none":
        scores = truing.msp(outputs[2].logits)
        expected = truing.p_values(truing.msp(outputs[0].logits), scores) <= 0.1
    elif method == "rlr":
        fit = truing.fit_robust(mix, truing.msp(outputs[1].logits))
        scores = fit.predict(others)
        expected = truing.p_values(fit.predict(reference), scores) <= 0.1
    else:
        own = truing.Detector(found.base, method=found.method, head=head)
        own.calibrate(outputs[0])
        own.learn(outputs[1])
        decision = own.decide(outputs[2], false_alarm=0.1)
        scores, expected = decision.scores, decision.is_out
    np.testing.assert_allclose(detector.score_samples(others), scores, atol=1e-9 * np.ptp(scores))
    np.testing.assert_array_equal(detector.predict(others) == -1, expected)


@pytest.mark.parametrize("with_head", [True, False], ids=["head", "features alone"])
@pytest.mark.parametrize("method", ["auto", "none", "dlr"])
def test_no_more_in_rows_are_called_out_than_asked_for(network, method, with_head):
    """Fitted rows and others alike: over splits of real rows, within three standard errors."""
    inside, outside, head = network
    fitted, later = [], []
    for seed in range(20):
        order = np.random.default_rng(seed).permutation(len(inside))
        reference, mixed, others = (inside[order[cut]] for cut in (slice(200), slice(200, 500), slice(500, 800)))
        detector = TruedDetector(head if with_head else None, method=method, false_alarm=0.1)
        labels = detector.fit_predict(np.concatenate((mixed, outside[:100])), reference=reference)
        fitted.append(np.mean(labels[:300] == -1))
        later.append(np.mean(detector.predict(others) == -1))
    for shares in (fitted, later):
        assert np.mean(shares) <= 0.1 + 3 * np.std(shares) / np.sqrt(len(shares))


def test_a_score_that_looks_at_known_rows_takes_half_of_the_reference(network):
    inside, outside, _ = network
    reference, mix = inside[:600], np.concatenate((inside[600:1600], outside[:300]))
    detector = TruedDetector(method="none").fit(mix, reference=reference)
    learned, held = truing.contrast.split(truing.Outputs(reference))
    expected = truing.knn(mix, learned.features)
    np.testing.assert_allclose(detector.score_samples(mix), expected, atol=1e-12)
    p = truing.p_values(truing.knn(held.features, learned.features), expected)
    np.testing.assert_array_equal(detector.predict(mix) == -1, p <= 0.05)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_few_known_rows_refuse_nothing_and_say_so(network):
    inside, outside, head = network
    detector = TruedDetector(head, false_alarm=0.01, method="dlr").fit(outside[:200], reference=inside[:20])
    assert (detector.predict(outside) == 1).all()
    assert "no row can be refused at this rate" in " ".join(detector.detection_.notes)


def test_a_pipelines_steps_are_the_features_and_its_last_step_says_the_logits(digits):
    pixels, labels, pipeline = digits
    mix = pixels[1::2]
    features = pipeline[:-1].transform(mix)
    base = truing.msp(pipeline[-1].decision_function(features))
    expected = truing.fit_direct(features, base).predict(features)
    scores = TruedDetector(classifier=pipeline).fit(mix).score_samples(mix)
    np.testing.assert_allclose(scores, expected, atol=1e-9)
    is_in = labels[1::2] < 8
    assert truing.auroc(scores[is_in], scores[~is_in]) > truing.auroc(base[is_in], base[~is_in])


def test_a_classifier_without_steps_takes_the_rows_as_features():
    rows, labels = load_breast_cancer(return_X_y=True)
    rows = StandardScaler().fit_transform(rows)
    machine = LinearSVC().fit(rows[::2], labels[::2])
    margin = machine.decision_function(rows)
    sure = 1 / (1 + np.exp(-np.abs(margin)))  # Of two classes there is one margin.
    detector = TruedDetector(classifier=machine, method="none").fit(rows)
    np.testing.assert_allclose(detector.score_samples(rows), sure, atol=1e-12)
    forest = RandomForestClassifier(50, random_state=0).fit(rows[::2], labels[::2])
    detector = TruedDetector(classifier=forest, method="none").fit(rows)
    np.testing.assert_allclose(detector.score_samples(rows), forest.predict_proba(rows).max(axis=1), atol=1e-3)


def test_a_classifier_may_take_a_table_with_words(rng):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"size": rng.normal(size=300), "kind": rng.choice(["a", "b", "c"], size=300)})
    columns = ColumnTransformer([("size", StandardScaler(), ["size"]), ("kind", OneHotEncoder(), ["kind"])])
    pipeline = make_pipeline(columns, LogisticRegression()).fit(table, table["kind"])
    detector = TruedDetector(classifier=pipeline, contamination=0.2).fit(table)
    np.testing.assert_array_equal(detector.feature_names_in_, ["size", "kind"])
    assert np.mean(detector.predict(table) == -1) == pytest.approx(0.2, abs=0.02)


def test_a_clone_is_not_fitted_and_its_classifier_is(digits):
    pixels, _, pipeline = digits
    detector = TruedDetector(classifier=pipeline, base="energy", components=8).fit(pixels)
    copy = clone(detector)
    assert copy.get_params(deep=False) == detector.get_params(deep=False)
    with pytest.raises(NotFittedError):
        copy.predict(pixels)
    np.testing.assert_array_equal(copy.fit(pixels).score_samples(pixels), detector.score_samples(pixels))
    assert clone(make_pipeline(StandardScaler(), detector))[-1].classifier is pipeline


def test_base_and_components_are_chosen_by_a_search(digits):
    pixels, labels, pipeline = digits
    rows, is_in = pixels[1::2], np.where(labels[1::2] < 8, 1, -1)
    choices, folds = {"base": ["msp", "energy", "max_logit"], "components": [4, None]}, StratifiedKFold(3)
    search = GridSearchCV(TruedDetector(classifier=pipeline), choices, scoring="roc_auc", cv=folds).fit(rows, is_in)
    expected = {}
    for base in choices["base"]:
        for components in choices["components"]:
            aurocs = []
            for train, test in folds.split(rows, is_in):
                outputs = truing.Outputs(pipeline[:-1].transform(rows), pipeline.decision_function(rows))
                scores = truing.SCORES[base](outputs)
                fit = truing.fit_direct(outputs.features[train], scores[train], components=components)
                found, inside = fit.predict(outputs.features[test]), is_in[test] == 1
                aurocs.append(truing.auroc(found[inside], found[~inside]))
            expected[base, components] = np.mean(aurocs)
    best = max(expected, key=expected.get)
    assert search.best_params_ == {"base": best[0], "components": best[1]}
    assert search.best_score_ == pytest.approx(expected[best], abs=1e-9)


def test_in_a_pipeline_it_takes_what_the_steps_before_it_make(digits):
    pixels, _, _ = digits
    steps = make_pipeline(StandardScaler(), TruedDetector(contamination=0.2))
    labels = steps.fit_predict(pixels)
    scaled = StandardScaler().fit_transform(pixels)
    np.testing.assert_array_equal(labels, TruedDetector(contamination=0.2).fit_predict(scaled))
    np.testing.assert_array_equal(steps.predict(pixels), labels)
    assert steps.set_params(trueddetector__base="knn")[-1].base == "knn"


def test_a_pipeline_transforms_the_reference_where_it_is_told_to(digits):
    pixels, labels, _ = digits
    known, mix = pixels[labels < 8][:700], np.concatenate((pixels[labels < 8][700:], pixels[labels >= 8][:100]))
    with sklearn.config_context(enable_metadata_routing=True):
        detector = TruedDetector(false_alarm=0.05).set_fit_request(reference=True)
        steps = make_pipeline(StandardScaler(), detector, transform_input=["reference"]).fit(mix, reference=known)
    scaler = StandardScaler().fit(mix)
    expected = TruedDetector(false_alarm=0.05).fit(scaler.transform(mix), reference=scaler.transform(known))
    np.testing.assert_allclose(steps.score_samples(mix), expected.score_samples(scaler.transform(mix)))


def test_before_fit_nothing_is_said(digits):
    pixels, _, pipeline = digits
    for ask in ("score_samples", "decision_function", "predict"):
        with pytest.raises(NotFittedError, match="TruedDetector"):
            getattr(TruedDetector(classifier=pipeline), ask)(pixels)
    with pytest.raises(NotFittedError, match="LogisticRegression"):
        TruedDetector(classifier=LogisticRegression()).fit(pixels)


WRONG = {
    "method must be one of auto, none, dlr, rlr, contrast, got 'online'": {"method": "online"},
    "method must be a name, got int": {"method": 3},
    "method contrast needs a reference": {"method": "contrast"},
    "base must be one of msp, .* got 'soft'": {"base": "soft"},
    "base vim needs a reference, got none": {"base": "vim"},
    r"the score energy needs logits, got Outputs\(.* rows: features 4\)": {"base": "energy"},
    "contamination must be above 0 and at most 0.5, got 0.7": {"contamination": 0.7},
    "contamination must be a number, got str": {"contamination": "auto"},
    "false_alarm needs known in-distribution rows": {"false_alarm": 0.05},
    "false_alarm must be above 0 and at most 1, got 2": {"false_alarm": 2},
    "head must be a pair": {"head": np.eye(4)},
    r"weight must have shape .* \(2, 4\) .*, got \(2, 2\)": {"head": (np.eye(2), np.zeros(2))},
    "components must be at least 1 and at most 4": {"components": 5, "method": "dlr"},
    "keep must be above 0 and at most 1, got 3": {"keep": 3},
    "temperature must be": {"temperature": 0.0, "head": (np.eye(4), np.zeros(4))},
    "head and classifier must not both be given": {"head": (np.eye(4), np.zeros(4)), "classifier": Perceptron()},
}


@pytest.mark.parametrize(("message", "arguments"), WRONG.items(), ids=WRONG)
def test_a_wrong_argument_is_named(rng, message, arguments):
    with pytest.raises((TypeError, ValueError), match=message) as raised:
        TruedDetector(**arguments).fit(rng.normal(size=(50, 4)))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (truing.Outputs(np.ones((9, 4))), r"^reference must be an array of rows \(n, d\), got Outputs: give features"),
        (np.ones((9, 5)), "^reference, as X: X has 5 features, but TruedDetector is expecting 4 features"),
        (np.ones(9), "^reference, as X: (Expected 2D array, got 1D array|X does not contain any features)"),
        (np.full((9, 4), np.nan), "^reference, as X: Input X contains NaN"),
    ],
)
@pytest.mark.parametrize("with_classifier", [False, True])
def test_a_wrong_reference_is_named(rng, reference, message, with_classifier):
    rows = rng.normal(size=(50, 4))
    classifier = LogisticRegression().fit(rows, rows[:, 0] > 0) if with_classifier else None
    with pytest.raises((TypeError, ValueError), match=message):
        TruedDetector(classifier=classifier).fit(rows, reference=reference)


def test_what_is_masked_is_not_looked_at_but_refused(rng):
    rows = rng.normal(size=(40, 3))
    masked = np.ma.masked_array(rows, mask=rows > 1)
    for name, arguments in (("X", {"X": masked}), ("reference", {"X": rows, "reference": masked})):
        with pytest.raises(ValueError, match=f"^{name} must have no masked entries"):
            TruedDetector().fit(**arguments)
    with pytest.raises(ValueError, match="X must have no masked entries"):
        TruedDetector().fit(rows).predict(masked)


@pytest.mark.parametrize("method", ["auto", "none", "dlr", "rlr"])
@pytest.mark.parametrize("components", [0, 1.5])
def test_components_are_a_count_whatever_the_method(rng, method, components):
    with pytest.raises((TypeError, ValueError), match="components must be"):
        TruedDetector(method=method, components=components).fit(rng.normal(size=(40, 3)))


def test_a_classifier_that_cannot_serve_is_refused(digits):
    pixels, labels, _ = digits
    pairs = SVC(decision_function_shape="ovo").fit(pixels[labels < 5], labels[labels < 5])
    with pytest.raises(ValueError, match=r"one column for each of its 5 classes, got 10"):
        TruedDetector(classifier=pairs).fit(pixels)
    with pytest.raises(
        TypeError, match="classifier must have decision_function or predict_proba, got LinearRegression"
    ):
        TruedDetector(classifier=LinearRegression().fit(pixels, labels)).fit(pixels)
    for wrong, got in ((3, "3"), (Perceptron, "<class .*Perceptron'>")):
        with pytest.raises(TypeError, match=f"classifier must be a fitted classifier, got {got}"):
            TruedDetector(classifier=wrong).fit(pixels)
    with pytest.raises(ValueError, match="contamination is for a fit without a reference"):
        TruedDetector(contamination=0.1).fit(pixels, reference=pixels[:100])


def test_the_margins_of_boosted_trees_are_logits(digits):
    pixels, labels, _ = digits
    known = labels < 8
    trees = GradientBoostingClassifier(n_estimators=10, random_state=0).fit(pixels[known][::2], labels[known][::2])
    detector = TruedDetector(classifier=trees, base="energy", method="none").fit(pixels)
    expected = truing.energy(trees.decision_function(pixels))
    np.testing.assert_allclose(detector.score_samples(pixels), expected, atol=1e-12)


def test_without_scikit_learn_the_error_says_what_to_install():
    code = "import sys; sys.modules['sklearn'] = None; import truing.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "truing.sklearn needs scikit-learn 1.6 or newer: pip install 'truing[sklearn]'" in done.stderr
