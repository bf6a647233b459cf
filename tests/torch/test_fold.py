"""A folded torch model gives the scores and decisions of its fit, also traced, compiled and exported."""

import copy
import io
import subprocess
import sys
import warnings
from shutil import which

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import truing  # noqa: E402
from truing.torch import extract, folded  # noqa: E402

from ..foldable import METHODS_OF_TIES, check_decisions, features_with_ties, fits_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::truing.TruingWarning")  # Notes on made rows.


def small():
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4))


@pytest.fixture(scope="module")
def model():
    return small()


@pytest.fixture(scope="module")
def images():
    return torch.randn(300, 3, 2, 2, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def fits(model, images):
    shifted, known = images + 3, torch.randn(400, 3, 2, 2, generator=torch.Generator().manual_seed(3))
    outputs = extract(model, [torch.cat((images[:150], shifted))], progress=False)
    reference = extract(model, [known], progress=False)
    detection = truing.detect(outputs, reference, method="contrast", base="msp")
    return fits_of(outputs, reference, base="energy") | {"detection": detection}


def expected(fit, outputs):
    fit = fit.fit if isinstance(fit, truing.Detection) else fit
    if isinstance(fit, truing.Detector):
        return fit.score(outputs)
    return fit.predict(outputs.features) if isinstance(fit, truing.LinearFit) else fit.predict(outputs)


@pytest.mark.parametrize("name", ["dlr", "rlr", "contrast", "gradnorm", "detection", "detector"])
def test_the_model_gives_the_scores_of_the_fit(model, images, fits, name):
    with torch.no_grad():
        returned, scores = folded(model, fits[name])(images)[:2]
        assert torch.equal(returned, model(images))
    np.testing.assert_allclose(scores, expected(fits[name], extract(model, [images], progress=False)), atol=1e-5)


@pytest.mark.parametrize("method", METHODS_OF_TIES)
@settings(max_examples=40)
@given(seed=st.integers(0, 999), ties=st.integers(0, 150), accept=st.floats(0.05, 1.0))
def test_rows_with_ties_are_decided_as_python_decides_them(method, seed, ties, accept):
    torch.manual_seed(seed)
    head = nn.Linear(6, 4)
    features, features_in = (torch.from_numpy(each) for each in features_with_ties(seed, 6, ties))
    rows, reference = (extract(head, [each], progress=False) for each in (features, features_in))
    found = truing.detect(rows, reference, method=method, accept=accept)
    with torch.no_grad():
        trued = folded(head, found)
        check_decisions(found, features.numpy(), trued(features)[2].numpy())
        parts = torch.cat([trued(part)[2] for part in features.split(7)])  # Other batch sizes use other kernels.
        check_decisions(found, features.numpy(), parts.numpy())


def test_saved_models_and_states_contain_the_threshold(model, images, fits, tmp_path):
    trued, other = folded(model, fits["dlr"], threshold=0.5), folded(small(), fits["dlr"], threshold=-7.0)
    torch.save(trued.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    torch.save(trued, tmp_path / "model.pt")
    whole = torch.load(tmp_path / "model.pt", weights_only=False)
    with torch.no_grad():
        _, scores, is_out = trued(images)
        np.testing.assert_array_equal(is_out, truing.is_out(scores.numpy(), 0.5))
        for again in (other, whole):
            assert again.threshold == 0.5
            assert all(torch.equal(*both) for both in zip(again(images), trued(images), strict=True))


def test_a_traced_model_runs_without_truing(model, images, fits, tmp_path):
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        plain = folded(model, fits["contrast"])
        torch.jit.trace(plain, (images[:2],)).save(str(tmp_path / "trued.pt"))
        torch.save({"images": images, "scores": plain(images)[1]}, tmp_path / "expected.pt")
    code = (
        "import sys, torch; expected = torch.load('expected.pt');"
        "found = torch.jit.load('trued.pt')(expected['images']);"
        "print(torch.equal(found[1], expected['scores']), 'truing' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


@pytest.mark.slow
@pytest.mark.skipif(which("g++") is None and which("clang++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_a_compiled_model_gives_the_same_scores(model, images, fits):
    plain = folded(model, fits["contrast"], threshold=0.1)
    with torch.no_grad():
        compiled = torch.compile(plain, fullgraph=True)
        for rows in (images, images[:7]):
            for one, other in zip(compiled(rows), plain(rows), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_original_model_does_not_change_and_is_not_needed(model, images, fits):
    before = copy.deepcopy(model.state_dict())
    own = small().train()
    trued = folded(own, fits["dlr"])
    assert own.training
    assert not trued.training
    assert not any(part._forward_hooks for part in own.modules())
    with torch.no_grad():
        scores = trued(images)[1]
        for parameter in own.parameters():
            parameter.zero_()
        assert torch.equal(trued(images)[1], scores)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_score_and_the_threshold_stay_in_float32(model, images, fits, dtype):
    threshold = float(np.float32(0.1))
    trued = folded(model, fits["contrast"], threshold=threshold).to(dtype)
    rows = images.to(dtype)
    with torch.no_grad():
        scores = trued(rows)[1]
    assert (scores.dtype, trued.threshold) == (torch.float32, threshold)
    own = extract(copy.deepcopy(model).to(dtype), [rows], progress=False)
    np.testing.assert_allclose(scores, fits["contrast"].predict(own), atol=1e-5)


@pytest.mark.parametrize("name", ["dlr", "contrast"])
def test_a_model_may_change_features_and_logits_in_place(model, images, fits, name):
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = model[:3], model[3]

        def forward(self, x):
            features = self.body(x)
            logits = self.head(features)
            features.zero_()
            return logits.mul_(0.1)

    with torch.no_grad():
        assert torch.equal(folded(InPlace(), fits[name])(images)[1], folded(model, fits[name])(images)[1])


def test_a_convolution_may_be_the_head(images, rng):
    torch.manual_seed(4)
    network = nn.Sequential(nn.Conv2d(3, 5, 1), nn.ReLU(), nn.Conv2d(5, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    outputs = extract(network, [images], head="2", progress=False)
    fit = truing.fit_direct(outputs.features, truing.msp(outputs.logits))
    with torch.no_grad():
        scores = folded(network, fit, head="2")(images)[1]
    np.testing.assert_allclose(scores, fit.predict(outputs.features), atol=1e-5)


class Calling(nn.Module):
    """A model that calls its head several times, or not at all."""

    def __init__(self, times):
        super().__init__()
        self.head, self.times = nn.Linear(6, 4), times

    def forward(self, x):
        return sum((self.head(x) for _ in range(self.times)), torch.zeros(len(x), 4))


def test_the_head_is_the_one_layer_of_the_fits_size_called_once(model, fits):
    twice, row = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)), torch.ones(2, 6)
    assert folded(twice, fits["contrast"])(row)[1].shape == (2,)  # The contrast needs 4 logits.
    assert folded(twice, fits["dlr"], head="0")(row)[1].shape == (2,)
    dlr, contrast = fits["dlr"], fits["contrast"]
    for message, call in (
        (r"several nn.Linear .*, 6 features: .* one of 0 \(6 → 6\), 2 \(6 → 4\)", lambda: folded(twice, dlr)),
        (r"no nn.Linear .*, 6 features: .* one of 0 \(5 → 4\)", lambda: folded(nn.Sequential(nn.Linear(5, 4)), dlr)),
        (r"must have the fit's size, 6 → 4, got 0 \(6 → 6\)", lambda: folded(twice, contrast, head=twice[0])),
        ("head must be called once in a forward pass, got 0 calls", lambda: folded(Calling(0), dlr)(row)),
        ("head must be called once in a forward pass, got 2 calls", lambda: folded(Calling(2), dlr)(row)),
        (r"head must map \(n, d\) to \(n, c\), got", lambda: folded(model[3:], dlr)(torch.ones(5, 6, 6))),
        (r"head must map \(n, d\) to \(n, c\), got", lambda: folded(model[3:], dlr)(torch.ones(6))),
        ("accept needs the scores of reference rows", lambda: folded(model, dlr, accept=0.9)),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_folded_model_can_be_written_as_onnx(model, images, fits):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    file = io.BytesIO()
    trued = folded(model, fits["contrast"], threshold=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            trued, (images[:2],), file, input_names=["x"], dynamic_axes={"x": {0: "n"}}, dynamo=False, opset_version=17
        )
    session = onnxruntime.InferenceSession(file.getvalue(), providers=["CPUExecutionProvider"])
    with torch.no_grad():
        for found, said in zip(session.run(None, {"x": images.numpy()}), trued(images), strict=True):
            np.testing.assert_allclose(found, said, atol=1e-5)
