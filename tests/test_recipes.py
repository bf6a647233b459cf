"""The recipes for other libraries run with these, and say what truing says.

OpenOOD is not on PyPI, and pytorch-ood asks for torchvision for its datasets alone: their recipes run where someone
has put them, and OpenOOD's is tried with its protocol written out below as well.
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
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import truing

EXAMPLES = Path(__file__).parent.parent / "examples"


def recipe(name):
    return runpy.run_path(str(EXAMPLES / f"with_{name}.py"))


@pytest.fixture(scope="module")
def tables():
    return recipe("sklearn")


@pytest.mark.parametrize("name", ["digits", "wine", "breast cancer"])
def test_the_recipe_for_scikit_learn_agrees_with_an_independent_computation(tables, name):
    parts, (labels, _, _), outside = tables["thirds"](name, 1)
    learn, reference, test = parts
    assert sum(map(len, parts)) + len(outside) == len(tables["DATA"][name][0](return_X_y=True)[0])
    found, mix = tables["measure"](name, 1), np.concatenate((test, outside))
    is_in = np.arange(len(mix)) < len(test)
    scaler = StandardScaler().fit(learn)
    known, rows = (truing.Outputs(scaler.transform(part)) for part in (reference, mix))
    alone = truing.detect(rows, known, method="contrast", base="knn", false_alarm=0.05)
    expected = [roc_auc_score(is_in, alone.scores), np.mean(alone.is_out[is_in])]
    assert found["features alone"] == pytest.approx(expected, abs=1e-9)
    if len(set(labels)) > 1:
        line = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(learn, labels)
        msp = line.predict_proba(mix).max(axis=1) if len(set(labels)) > 2 else truing.msp(_two(line, mix))
        assert found["logistic regression, msp"][0] == pytest.approx(roc_auc_score(is_in, msp), abs=1e-6)


def _two(line, rows):
    margin = line.decision_function(rows)
    return np.column_stack((-margin / 2, margin / 2))


def check_page_shows(printed, width):
    """Check that docs/sklearn.md has these lines: names of so many letters, and numbers."""
    page = (EXAMPLES.parent / "docs" / "sklearn.md").read_text()
    first, *lines = printed.splitlines()
    shown = page.partition(first)[2].splitlines()[1:]
    for line, known in zip(lines, map(str.lstrip, shown), strict=False):
        assert line[:width] == known[:width]
        # Another version may solve or grow trees otherwise.
        np.testing.assert_allclose(
            np.array(line[width:].split(), float), np.array(known[width:].split(), float), atol=2
        )


@pytest.mark.slow
def test_the_page_shows_what_the_recipe_for_scikit_learn_prints(tables, capsys):
    pytest.importorskip("lightgbm")
    tables["main"]()
    check_page_shows(capsys.readouterr().out, 40)


@pytest.mark.slow
def test_the_page_shows_what_features_alone_find(capsys):
    runpy.run_path(str(EXAMPLES / "measure_features_alone.py"))["main"]()
    check_page_shows(capsys.readouterr().out, 44)


def test_a_mix_of_features_alone_has_the_share_asked_for_and_no_row_twice():
    example = runpy.run_path(str(EXAMPLES / "measure_features_alone.py"))
    for known, inside, outside in example["mixes"]("digits", 0):
        rows = np.concatenate((known, inside, outside))
        assert len(np.unique(rows, axis=0)) == len(rows)
        share = len(outside) / (len(inside) + len(outside))
        assert min(abs(share - wanted) for wanted in example["SHARES"]) < 0.005


def test_the_margins_of_lightgbm_are_its_logits(tables):
    lightgbm = pytest.importorskip("lightgbm")
    (learn, _, test), (labels, _, _), _ = tables["thirds"]("digits", 0)
    trees = tables["CLASSIFIERS"]["boosted trees"].fit(learn, labels)
    assert isinstance(trees, lightgbm.LGBMClassifier)
    detector = truing.sklearn.TruedDetector(classifier=trees, method="none", base="energy").fit(test)
    margins = trees.booster_.predict(test, raw_score=True)
    np.testing.assert_allclose(detector.score_samples(test), np.log(np.exp(margins).sum(axis=1)), atol=1e-9)


def test_the_margins_of_xgboost_are_logits_too(tables):
    xgboost = pytest.importorskip("xgboost")

    class Trees(xgboost.XGBClassifier):
        def decision_function(self, rows):
            return self.predict(rows, output_margin=True)

    (learn, _, test), (labels, _, _), _ = tables["thirds"]("digits", 0)
    trees = Trees(n_estimators=10, n_jobs=1).fit(learn, labels)
    detector = truing.sklearn.TruedDetector(classifier=trees, method="none").fit(test)
    np.testing.assert_allclose(detector.score_samples(test), trees.predict_proba(test).max(axis=1), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # PyOD's own.
def test_the_recipe_for_pyod_keeps_its_conventions_and_combines():
    pytest.importorskip("pyod")
    pytest.importorskip("combo")
    example = recipe("pyod")
    rng = np.random.default_rng(0)
    rows = np.concatenate((rng.normal(size=(180, 4)) + 3, rng.normal(size=(20, 4)) * [1, 1, 1, -9]))
    detector = example["Trued"](truing.sklearn.TruedDetector(), contamination=0.1).fit(rows)
    np.testing.assert_array_equal(detector.labels_, detector.decision_scores_ > detector.threshold_)
    assert detector.labels_.sum() == 20
    np.testing.assert_array_equal(detector.predict(rows), detector.labels_)
    np.testing.assert_array_equal(detector.decision_scores_, -detector.detector.detection_.scores)
    assert detector.predict_proba(rows).shape == (200, 2)
    aurocs = example["measure"]()
    assert set(aurocs) == {"KNN", "IForest", "truing", "average", "maximum"}
    assert aurocs["truing"] == max(aurocs.values())


@pytest.mark.slow
def test_the_recipe_for_nonconform_gives_truings_own_p_values():
    pytest.importorskip("nonconform")
    found = recipe("nonconform")["decide"]()
    expected = truing.p_values(found["scores_in"], found["scores"])
    np.testing.assert_allclose(found["p_values"], expected, atol=1e-12)
    np.testing.assert_array_equal(found["selected"], truing.benjamini_hochberg(expected, fdr=0.1))
    assert np.mean(found["is_in"][found["selected"]]) <= 0.2
    assert np.mean(found["selected"][~found["is_in"]]) > 0.5


@pytest.fixture
def pytorch_ood(monkeypatch):
    """The package without the parts that need torchvision: a bare one in its place lets its modules be imported."""
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
    """What OpenOOD's own has, of version 1.5."""

    def __init__(self, config):
        self.config = config

    def setup(self, net, id_loader_dict, ood_loader_dict):
        pass


def protocol():
    module = ModuleType("openood.postprocessors")
    module.BasePostprocessor = BasePostprocessor
    return {"openood": ModuleType("openood"), "openood.postprocessors": module}


@pytest.mark.parametrize("installed", [False, True], ids=["protocol", "installed"])
def test_the_recipe_for_openood_scores_a_loader_by_one_contrast(monkeypatch, installed):
    torch = pytest.importorskip("torch")
    if installed:
        pytest.importorskip("openood.postprocessors", reason="OpenOOD is not on PyPI", exc_type=ImportError)
    else:
        for name, module in protocol().items():
            monkeypatch.setitem(sys.modules, name, module)

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
    known = inside[:1000]
    mix = truing.Outputs(np.concatenate((inside[1000:2000].features, outside[:300].features)))
    postprocessor = recipe("openood")["TruingPostprocessor"](None)
    postprocessor.setup(net, {"val": loader(known)}, {})
    predicted, scores, labels = postprocessor.inference(net, loader(mix))
    with torch.no_grad():
        outputs = [
            truing.Outputs(part.features.astype(np.float32), net.fc(torch.tensor(np.float32(part.features))))
            for part in (mix, known)
        ]
    np.testing.assert_allclose(scores, truing.detect(*outputs).scores, atol=1e-4 * np.ptp(scores))
    np.testing.assert_array_equal(predicted, outputs[0].logits.argmax(axis=1))
    assert labels.shape == scores.shape
    classes, confidence = postprocessor.postprocess(net, torch.tensor(np.float32(mix.features)))
    np.testing.assert_array_equal(classes, predicted)
    np.testing.assert_allclose(confidence, scores, atol=1e-4 * np.ptp(scores))
