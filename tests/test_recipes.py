"""The recipes for other libraries run, and agree with truing.

pytorch-ood needs torchvision only for its datasets, so an empty package takes its place. OpenOOD is not on PyPI, so its
recipe runs with a stand-in for its base class.
"""

import runpy
import sys
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler

import truing
from truing.sklearn import TruedDetector

EXAMPLES = Path(__file__).parent.parent / "examples"


def recipe(name):
    return runpy.run_path(str(EXAMPLES / f"with_{name}.py"))


@pytest.fixture(scope="module")
def tables():
    return recipe("sklearn")


@pytest.mark.parametrize("name", ["digits", "breast cancer"])
def test_the_recipe_for_scikit_learn_agrees_with_an_independent_computation(tables, name):
    (train, reference, test), (labels, _, _), outside = tables["thirds"](name, 1)
    measured, mix = tables["measure"](name, 1), np.concatenate((test, outside))
    is_in = np.arange(len(mix)) < len(test)
    scaler = StandardScaler().fit(train)
    reference, rows = (truing.Outputs(scaler.transform(part)) for part in (reference, mix))
    result = truing.detect(rows, reference, method="contrast", base="knn", false_alarm=0.05)
    expected = [roc_auc_score(is_in, result.scores), *(np.mean(result.is_out[part]) for part in (~is_in, is_in))]
    assert measured["no classifier"] == pytest.approx(expected, abs=1e-9)
    if name == "digits":
        line = LogisticRegression(max_iter=1000).fit(scaler.transform(train), labels)
        msp = line.predict_proba(scaler.transform(mix)).max(axis=1)
        assert measured["logistic regression, msp"][0] == pytest.approx(roc_auc_score(is_in, msp), abs=1e-6)


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_boosted_trees_of_other_libraries_need_no_wrapper(tables, library):
    pytest.importorskip(library)
    (train, held_out, test), (labels, _, _), outside = tables["thirds"]("digits", 0)
    name = {"lightgbm": "LightGBM", "xgboost": "XGBoost"}[library]
    trees = tables["CLASSIFIERS"][name].fit(train, labels)
    detector = TruedDetector(classifier=trees, method="none", base="msp").fit(test)
    np.testing.assert_allclose(detector.score_samples(test), trees.predict_proba(test).max(axis=1), atol=0.01)
    detector = TruedDetector(classifier=trees).fit(np.concatenate((test, outside)), reference=held_out)
    assert np.mean(detector.predict(test) == -1) < 0.1
    assert np.mean(detector.predict(outside) == -1) > 0.25


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyOD's own warnings.
def test_the_recipe_for_pyod_keeps_the_conventions_of_pyod(rng):
    pytest.importorskip("pyod")
    pytest.importorskip("combo")
    example = recipe("pyod")
    rows = np.concatenate((rng.normal(size=(180, 4)) + 3, rng.normal(size=(20, 4)) * [1, 1, 1, -9]))
    detector = example["Trued"](TruedDetector(), rng.normal(size=(200, 4)) + 3, contamination=0.1).fit(rows)
    np.testing.assert_array_equal(detector.labels_, detector.decision_scores_ > detector.threshold_)
    assert detector.labels_.sum() == 20
    np.testing.assert_array_equal(detector.predict(rows), detector.labels_)
    assert detector.predict_proba(rows).shape == (200, 2)
    aurocs = example["measure"]()
    assert set(aurocs) == {"KNN", "IForest", "truing", "average", "maximum"}
    assert aurocs["truing"] == max(aurocs.values())


@pytest.mark.slow
def test_the_recipe_for_nonconform_gives_the_p_values_of_truing():
    pytest.importorskip("nonconform")
    result = recipe("nonconform")["decide"]()
    expected = truing.p_values(result["scores_in"], result["scores"])
    np.testing.assert_allclose(result["p_values"], expected, atol=1e-12)
    np.testing.assert_array_equal(result["selected"], truing.benjamini_hochberg(expected, fdr=0.1))
    assert np.mean(result["is_in"][result["selected"]]) <= 0.2
    assert np.mean(result["selected"][~result["is_in"]]) > 0.5


@pytest.fixture
def pytorch_ood(monkeypatch):
    """Replace the package by an empty one, so that its modules can be imported without torchvision."""
    pytest.importorskip("torch")
    spec = find_spec("pytorch_ood")
    if spec is None:
        pytest.skip("pytorch-ood is not installed: pip install --no-deps pytorch-ood")
    monkeypatch.setitem(sys.modules, "pytorch_ood", module_from_spec(spec))


@pytest.mark.slow
def test_the_recipe_for_pytorch_ood_scores_by_a_detector_and_its_metrics_agree(pytorch_ood):
    example = recipe("pytorch_ood")
    torch, metrics = sys.modules["torch"], example["measure"]()
    assert metrics["AUROC"] > 0.95
    inside, outside = truing.sample("cifar10-test")[:1500], truing.sample("svhn")[:300]
    head = torch.nn.Linear(64, 10).double()
    detector = example["Trued"](torch.nn.Identity(), head)
    with pytest.raises(sys.modules["pytorch_ood.api"].RequiresFittingException):
        detector.predict(torch.ones(3, 64).double())
    features = [torch.tensor(np.float64(part.features)) for part in (inside[:1000], inside[1000:], outside)]
    detector.fit([(features[0], torch.zeros(1000))])
    scores = detector.predict(torch.cat(features[1:]))
    with torch.no_grad():
        own = truing.Detector(method="contrast")
        own.calibrate(truing.Outputs(features[0], head(features[0])))
        expected = own.learn_and_score(truing.Outputs(torch.cat(features[1:]), head(torch.cat(features[1:]))))
    np.testing.assert_allclose(scores, -expected)
    labels = torch.cat((torch.zeros(500), -torch.ones(300)))
    update = sys.modules["pytorch_ood.metrics"].OODMetrics().update(scores, labels)
    assert float(update.compute()["AUROC"]) == pytest.approx(truing.auroc(expected[:500], expected[500:]), abs=1e-5)


class BasePostprocessor:
    """A stand-in for the class of OpenOOD 1.5."""

    def __init__(self, config):
        self.config = config

    def setup(self, net, id_loader_dict, ood_loader_dict):
        pass


def test_the_recipe_for_openood_scores_a_loader_by_one_fit(monkeypatch):
    torch = pytest.importorskip("torch")
    module = ModuleType("openood.postprocessors")
    module.BasePostprocessor = BasePostprocessor
    monkeypatch.setitem(sys.modules, "openood", ModuleType("openood"))
    monkeypatch.setitem(sys.modules, "openood.postprocessors", module)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(64, 10)

        def forward(self, data, return_feature=False):
            return (self.fc(data), data) if return_feature else self.fc(data)

    def loader(outputs):
        parts = (outputs[start : start + 400] for start in range(0, len(outputs), 400))
        for part in parts:
            labels = torch.zeros(len(part)) if part.labels is None else torch.tensor(part.labels)
            yield {"data": torch.tensor(np.float32(part.features)), "label": labels}

    torch.manual_seed(0)
    net = Net()
    inside, outside = truing.sample("cifar10-test"), truing.sample("svhn")
    reference = inside[:1000]
    mix = truing.Outputs(np.concatenate((inside[1000:2000].features, outside[:300].features)))
    postprocessor = recipe("openood")["TruingPostprocessor"](None)
    postprocessor.setup(net, {"val": loader(reference)}, {})
    predicted, scores, labels = postprocessor.inference(net, loader(mix))
    with torch.no_grad():
        outputs = [
            truing.Outputs(part.features.astype(np.float32), net.fc(torch.tensor(np.float32(part.features))))
            for part in (mix, reference)
        ]
    np.testing.assert_allclose(scores, truing.detect(*outputs).scores, atol=1e-4 * np.ptp(scores))
    np.testing.assert_array_equal(predicted, outputs[0].logits.argmax(axis=1))
    assert labels.shape == scores.shape
    classes, confidence = postprocessor.postprocess(net, torch.tensor(np.float32(mix.features)))
    np.testing.assert_array_equal(classes, predicted)
    np.testing.assert_allclose(confidence, scores, atol=1e-4 * np.ptp(scores))
