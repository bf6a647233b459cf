import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import truing.onnx  # noqa: E402
from truing.torch import extract  # noqa: E402

FEATURES = "/4/Flatten_output_0"
FOUR = torch.zeros(4, 3, 10, 10)


@pytest.fixture(scope="module")
def network():
    """Return a small torch network with unusual BatchNorm statistics."""
    torch.manual_seed(0)
    nn = torch.nn
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    network = nn.Sequential(*body, nn.Dropout(), nn.Linear(8, 4))
    network(1 + 2 * torch.randn(64, 3, 10, 10))
    return network.eval()


@pytest.fixture(scope="module")
def file(network, tmp_path_factory):
    return exported(network, tmp_path_factory.mktemp("onnx") / "network.onnx", dynamic_axes={"images": {0: "n"}})


def exported(network, path, images=FOUR, **settings):
    with warnings.catch_warnings():
        # The older exporter needs no additional package.
        for message in ("You are using the legacy TorchScript-based ONNX export", "The feature will be removed"):
            warnings.filterwarnings("ignore", message, DeprecationWarning)
        torch.onnx.export(
            network,
            (images,),
            str(path),
            input_names=["images"],
            output_names=["logits"],
            dynamo=False,
            **settings,
        )
    return path


@pytest.fixture
def images(rng):
    return rng.normal(size=(20, 3, 10, 10)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 7, 256])
def test_an_exported_network_gives_the_outputs_of_torch(network, file, images, batch):
    apart = file.with_name("apart.onnx")
    onnx.save(onnx.load(file), apart, save_as_external_data=True, location=f"weights{batch}", size_threshold=0)
    expected = extract(network, [torch.tensor(images)])
    of_output = truing.onnx.extract(apart, images, features="logits", logits="logits")
    np.testing.assert_allclose(of_output.features, expected.logits, atol=1e-4)
    for path, arrays in (
        (file, images),
        (apart, images),
        (file, (part.astype(np.float64) for part in np.split(images, [3, 11]))),
    ):
        outputs = truing.onnx.extract(path, arrays, features=FEATURES, logits="logits", batch=batch)
        np.testing.assert_allclose(outputs.features, expected.features, atol=1e-4)
        np.testing.assert_allclose(outputs.logits, expected.logits, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 4, 18, 20])
def test_a_network_with_batch_size_four_takes_any_number_of_rows(network, images, tmp_path, rows):
    path, images = exported(network, tmp_path / "four.onnx"), images[:rows]
    expected = extract(network, [torch.tensor(images)])
    for arrays in (images, np.array_split(images, 3)):
        outputs = truing.onnx.extract(path, arrays, features=FEATURES, logits="logits")
        np.testing.assert_allclose(outputs.features, expected.features, atol=1e-4)
        np.testing.assert_allclose(outputs.logits, expected.logits, atol=1e-4)


WEIGHT = np.arange(12.0).reshape(4, 3) / 8


def linear(path, names=("x",), kind=onnx.TensorProto.FLOAT, classes=3, ending=None):
    """Write a network logits = x W, with unused additional inputs and perhaps one more node."""
    helper = onnx.helper
    nodes = [helper.make_node("MatMul", ["x", "W"], ["logits"])]
    if ending is not None:
        nodes.append(helper.make_node(ending, ["logits"], ["ended"]))
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info(name, kind, ["n", 4]) for name in names],
        [helper.make_tensor_value_info(nodes[-1].output[0], kind, ["n", classes])],
        [helper.make_tensor("W", kind, [4, classes], WEIGHT[:, :classes].ravel())],
    )
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [(onnx.TensorProto.FLOAT16, np.float16, 0.02), (onnx.TensorProto.DOUBLE, np.float64, 1e-12)],
)
def test_a_network_may_have_any_precision_and_its_input_may_be_the_features(tmp_path, rng, kind, dtype, tolerance):
    rows = rng.normal(size=(9, 4)).astype(dtype)
    path = linear(tmp_path / "linear.onnx", kind=kind)
    outputs = truing.onnx.extract(path, np.float64(rows), features="x", logits="logits")
    assert outputs.features.dtype == outputs.logits.dtype == dtype
    np.testing.assert_array_equal(outputs.features, rows)
    np.testing.assert_allclose(outputs.logits, rows @ WEIGHT, atol=tolerance)
    if dtype == np.float16:
        with pytest.raises(ValueError, match="must fit the float16 of input 'x', at most 65504, got 70000 in batch 1"):
            truing.onnx.extract(path, [rows, np.full((2, 4), 7e4)], features="x", logits="logits")


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16])
def test_probabilities_are_rejected_as_logits(tmp_path, rng, kind):
    rows = rng.normal(size=(50, 4))
    path = linear(tmp_path / "softmax.onnx", kind=kind, ending="Softmax")
    with pytest.raises(ValueError, match="before the softmax, but every row of tensor 'ended' sums to 1"):
        truing.onnx.extract(path, rows, features="x", logits="ended")
    outputs = truing.onnx.extract(path, rows, features="x", logits="logits")
    np.testing.assert_allclose(outputs.logits, rows @ WEIGHT, atol=0.02)
    ending = linear(tmp_path / "log.onnx", kind=kind, ending="LogSoftmax")  # Log-probabilities are logits.
    outputs = truing.onnx.extract(ending, rows, features="x", logits="ended")
    np.testing.assert_allclose(truing.msp(outputs.logits), truing.msp(rows @ WEIGHT), atol=0.02)


def test_a_damaged_network_is_an_error_and_prints_nothing(file, images, tmp_path, capfd):
    contents, rng, refused = file.read_bytes(), np.random.default_rng(3), []
    for _ in range(150):
        damaged = bytearray(contents)
        for place in rng.integers(0, len(contents), 3):
            damaged[place] = rng.integers(0, 256)
        (tmp_path / "damaged.onnx").write_bytes(damaged)
        try:
            truing.onnx.extract(tmp_path / "damaged.onnx", images[:2], features=FEATURES, logits="logits")
        except (ValueError, TypeError, MemoryError) as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert not any("\n" in message for message in refused)
    assert capfd.readouterr() == ("", "")


def test_an_error_of_onnxruntime_is_reported_in_one_line_that_names_the_file(tmp_path, capfd):
    path = linear(tmp_path / "linear.onnx")
    model = onnx.load(path)
    model.graph.node[0].op_type = "Nonsense"
    onnx.save(model, tmp_path / "unknown.onnx")
    (tmp_path / "cut.onnx").write_bytes(path.read_bytes()[:60])
    (tmp_path / "empty.onnx").write_bytes(b"")
    narrow, deep, right = np.ones((2, 3)), np.ones((2, 4, 1)), np.ones((2, 4))
    for name, rows in (("linear", narrow), ("linear", deep), ("unknown", right), ("cut", right), ("empty", right)):
        with pytest.raises(ValueError, match=rf"{name}\.onnx") as failure:
            truing.onnx.extract(tmp_path / f"{name}.onnx", rows, features="x", logits="logits")
        assert "\n" not in str(failure.value)
        assert "[ONNXRuntimeError]" not in str(failure.value)
    assert capfd.readouterr() == ("", "")


ROWS = np.ones((4, 3, 10, 10), np.float32)
INNER = "/3/GlobalAveragePool_output_0"
REFUSED = {
    f"no tensor 'fc' in .*; there are images, .*{FEATURES}, logits": {"features": "fc"},
    "one of the inputs images, got 'x'": {"input": "x"},
    r"features must be 2-D .* got shape \(4, 8, 1, 1\) of tensor '/3/Glob": {"features": INNER},
    "must be float32 like input 'images', got uint8": {"arrays": ROWS.astype(np.uint8)},
    r"network\.onnx refused batch 0: INVALID_ARG.*invalid dim": {"arrays": ROWS[:, :2]},
    "features must be the name of a tensor, got list": {"features": ["z"]},
    r"got one that gives tuple: for a DataLoader, pass \(batch": {"arrays": [(ROWS, 1)]},
    "got one that gives float": {"arrays": [1.0]},
    "features of batch 1 must be finite": {"arrays": [ROWS, ROWS * np.nan]},
    "CPUExecutionProvider, got Abacus": {"providers": ["Abacus"]},
    "must be a list of names, got the string 'Abacus'": {"providers": "Abacus"},
}


@pytest.mark.parametrize("message", REFUSED)
def test_invalid_arguments_are_rejected(file, message):
    with pytest.raises((TypeError, ValueError), match=message):
        truing.onnx.extract(file, **{"arrays": ROWS, "features": FEATURES, "logits": "logits", **REFUSED[message]})


def test_invalid_files_and_masked_arrays_are_rejected(tmp_path):
    (tmp_path / "text.onnx").write_text("not a network")
    linear(tmp_path / "two.onnx", names=("x", "mask"))
    linear(tmp_path / "one.onnx", classes=1)
    rows = np.ones((2, 4))
    masked = np.ma.masked_array(rows, mask=np.eye(2, 4))
    for name, arrays, message in (
        ("none", rows, r"no file .*none\.onnx"),
        ("text", rows, r"text\.onnx must be a network that onnxruntime can run"),
        ("two", rows, "one of the inputs x, mask, got None"),
        ("one", rows, "one column per class, at least 2, got 1 in tensor 'logits'"),
        ("one", masked, "arrays must have no masked entries"),
        ("one", [rows, masked], "arrays must have no masked entries"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            truing.onnx.extract(tmp_path / f"{name}.onnx", arrays, features="x", logits="logits")


def test_pixels_up_to_255_cause_a_warning(file, images):
    with pytest.warns(truing.TruingWarning, match="the pixels may not be normalised"):
        truing.onnx.extract(file, 100 + 50 * np.abs(images), features=FEATURES, logits="logits")


@pytest.mark.parametrize("missing", ["onnxruntime", "onnx"])
def test_without_onnx_the_error_says_what_to_install(file, missing):
    code = (
        f"import sys; sys.modules['{missing}'] = None; import numpy, truing.onnx; "
        f"truing.onnx.extract({str(file)!r}, numpy.ones((1, 3, 10, 10)), features={FEATURES!r}, logits='logits')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"needs {missing}: pip install 'truing[onnx]'" in done.stderr
