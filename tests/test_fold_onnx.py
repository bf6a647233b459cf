"""A folded ONNX network gives the scores and decisions of its fit, and passes ONNX's checker."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import truing.onnx  # noqa: E402
from truing.cli.command import run as main  # noqa: E402

from .foldable import METHODS_OF_TIES, check_decisions, features_with_ties, fits_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::truing.TruingWarning")  # Notes on made rows.

KINDS = {np.float16: onnx.TensorProto.FLOAT16, np.float32: onnx.TensorProto.FLOAT, np.float64: onnx.TensorProto.DOUBLE}
FEATURES, CLASSES = 6, 4


@pytest.fixture(scope="module")
def weight():
    return np.random.default_rng(3).normal(size=(FEATURES, CLASSES))


@pytest.fixture(scope="module")
def rows(weight):
    rng = np.random.default_rng(4)
    features = rng.normal(size=(500, FEATURES)).astype(np.float32)
    features[300:] += 2
    return truing.Outputs(features, (np.maximum(features, 0) @ weight).astype(np.float32))


@pytest.fixture(scope="module")
def fits(weight):
    """Return fits of every kind by name, for the features max(x, 0)."""
    rng = np.random.default_rng(5)
    plain = np.maximum(rng.normal(size=(900, FEATURES)), 0)
    shifted = np.maximum(rng.normal(2, 1, size=(300, FEATURES)), 0)
    reference = truing.Outputs(plain[:500], plain[:500] @ weight)
    mixed = np.concatenate((plain[500:], shifted))
    return fits_of(truing.Outputs(mixed, mixed @ weight), reference, base="gen")


def network(weight, path=None, *, opset=17, dtype=np.float32, head="Gemm", ending=None, rows="n", bias=0.0):
    """Return, or write, logits = max(x, 0) W + b by hand: x -> features -> logits -> ended."""
    helper, (width, classes) = onnx.helper, weight.shape
    product, *add = head.split(", then ")
    if product == "MatMul":
        heads = [
            helper.make_node("Transpose", ["W"], ["V"]),
            helper.make_node("MatMul", ["features", "V"], ["product"]),
        ]
    else:
        inputs, output = (["features", "W"], "product") if add else (["features", "W", "b"], "logits")
        heads = [helper.make_node("Gemm", inputs, [output], transB=1)]
    if heads[-1].output[0] == "product":
        heads.append(helper.make_node("Add", ["b", "product"], ["logits"]))
    endings = [] if ending is None else [helper.make_node(ending, ["logits"], ["ended"])]
    nodes = [helper.make_node("Relu", ["x"], ["features"]), *heads, *endings]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", KINDS[dtype], [rows, width])],
        [helper.make_tensor_value_info(nodes[-1].output[0], KINDS[dtype], [rows, classes])],
        [
            onnx.numpy_helper.from_array(np.ascontiguousarray(weight.T).astype(dtype), "W"),
            onnx.numpy_helper.from_array(np.full(classes, bias, dtype), "b"),
        ],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", opset)])
    if path is not None:
        onnx.save(model, path)
    return model if path is None else path


def run(model, images):
    """Return every output by name, from onnxruntime, and check the network by ONNX's own checker."""
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, {"x": images}), strict=True))


def check_scores(results, fit, features, tolerance=2e-5):
    """Check that the network and the fit give the same scores for the same features and the network's logits."""
    outputs = truing.Outputs(np.maximum(features, 0), results["logits"])
    if isinstance(fit, truing.LinearFit):
        scores = fit.predict(outputs.features)
    else:
        scores = fit.score(outputs) if isinstance(fit, truing.Detector) else fit.predict(outputs)
    assert results["trued_score"].dtype == np.float32
    np.testing.assert_allclose(results["trued_score"], scores, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *(
            (name, {"opset": opset})
            for name in ("dlr", "rlr", "contrast", "gradnorm", "detector")
            for opset in (11, 21)
        ),
        ("contrast", {"dtype": np.float16}),
        ("contrast", {"dtype": np.float64}),
    ],
    ids=str,
)
def test_the_network_gives_the_scores_of_the_fit_in_float32(weight, rows, fits, name, options):
    images = rows.features.astype(options.get("dtype", np.float32))
    model = network(weight, **options)
    # Tensors that the network stores already have names that a folded fit would use.
    taken = [f"truing/{operator}_{place}" for operator in ("Cast", "Constant", "Mul") for place in range(9)]
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.zeros(1), name) for name in taken)
    results = run(truing.onnx.folded(model, fits[name]), images)
    assert list(results) == ["logits", "trued_score"]
    # What onnxruntime rounds to float16 for an output it may hand on to the score unrounded.
    check_scores(results, fits[name], images, tolerance=3e-3 if images.dtype == np.float16 else 2e-5)


@pytest.mark.parametrize("ending", [None, "Softmax", "LogSoftmax", "Sigmoid", "Identity"])
@pytest.mark.parametrize("head", ["Gemm", "MatMul", "Gemm, then Add"])
def test_the_head_is_found_before_any_ending(weight, rows, fits, head, ending):
    bias = np.array([3.0, -1.0, 0.0, 1.0], np.float32)
    model = truing.onnx.folded(network(weight, head=head, ending=ending, bias=bias), fits["contrast"])
    check_scores(run(model, rows.features) | {"logits": rows.logits + bias}, fits["contrast"], rows.features)


@pytest.mark.parametrize(("declared", "shown"), [("n", "n"), (3, 3)])
def test_the_outputs_declare_the_number_of_rows_of_the_network(weight, rows, fits, declared, shown):
    model = truing.onnx.folded(network(weight, rows=declared), fits["dlr"], threshold=0.5)
    for output in model.graph.output[1:]:
        (dimension,) = output.type.tensor_type.shape.dim
        assert (dimension.dim_value or dimension.dim_param) == shown
    results = run(model, rows.features[:3])
    assert list(results) == ["logits", "trued_score", "is_out"]
    np.testing.assert_array_equal(results["is_out"], results["trued_score"] < 0.5)


@pytest.mark.parametrize("method", METHODS_OF_TIES)
@settings(max_examples=25)
@given(seed=st.integers(0, 999), ties=st.integers(0, 150), accept=st.floats(0.05, 1.0))
def test_rows_with_ties_are_decided_as_python_decides_them(method, seed, ties, accept):
    weight = np.random.default_rng(seed).normal(size=(FEATURES, CLASSES))
    features, features_in = features_with_ties(seed, FEATURES, ties)
    rows, reference = (truing.Outputs(each, run(network(weight), each)["logits"]) for each in (features, features_in))
    results = truing.detect(rows, reference, method=method, accept=accept)
    check_decisions(results, features, run(truing.onnx.folded(network(weight), results), features)["is_out"])


def test_other_outputs_and_the_original_network_do_not_change(weight, rows, fits, tmp_path):
    path, apart = network(weight, tmp_path / "network.onnx"), tmp_path / "apart.onnx"
    onnx.save(onnx.load(path), apart, save_as_external_data=True, location="weights", size_threshold=0)
    model = onnx.load(path)
    before = path.read_bytes(), model.SerializeToString()
    of_model, of_file, of_apart = (truing.onnx.folded(each, fits["contrast"]) for each in (model, path, apart))
    assert (path.read_bytes(), model.SerializeToString()) == before
    assert of_file == of_model
    results = run(of_model, rows.features)
    np.testing.assert_array_equal(results["logits"], run(model, rows.features)["logits"])
    np.testing.assert_array_equal(results["trued_score"], run(of_apart, rows.features)["trued_score"])


def test_tensors_may_be_named(weight, rows, fits):
    named = truing.onnx.folded(network(weight), fits["contrast"], features="features", logits="logits")
    assert named == truing.onnx.folded(network(weight), fits["contrast"])
    of_input = run(truing.onnx.folded(network(weight), fits["dlr"], features="x"), rows.features)
    np.testing.assert_allclose(of_input["trued_score"], fits["dlr"].predict(rows.features), rtol=1e-5, atol=2e-5)
    with pytest.raises(
        ValueError,
        match=r"several matrix products of the fit's size, 6 → 4: pass features= and logits=, from "
        r"features → logits \(6 → 4\), features → others \(6 → 4\)",
    ):
        truing.onnx.folded(with_second_head(weight), fits["contrast"])
    chosen = truing.onnx.folded(with_second_head(weight), fits["contrast"], logits="others")
    check_scores(run(chosen, rows.features), fits["contrast"], rows.features)


@pytest.mark.parametrize("opset", [11, 21])
@pytest.mark.parametrize("base", ["gen", "energy", "msp", "kl_uniform", "max_logit", "gradnorm"])
def test_extreme_logits_get_the_scores_of_the_fit(rng, base, opset):
    def tied(rows):
        return truing.Outputs(rng.normal(size=(rows, 3)).astype(np.float32), rng.integers(0, 3, (rows, 4)))

    fit = truing.fit_contrast(tied(300), tied(300), base=base)
    sizes = {"z": 3, "y": 4, "same": 4}
    z, y, same = (onnx.helper.make_tensor_value_info(name, 1, ["n", size]) for name, size in sizes.items())
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["y"], ["same"])], "network", [z, y], [same])
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", opset)])
    model = truing.onnx.folded(model, fit, features="z", logits="y")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rows, saturated = tied(200), np.array([100, 0, 0, 0])
    tied_logits = rows.logits
    for logits in (tied_logits, tied_logits * 1e4, tied_logits + saturated, tied_logits * 0, tied_logits + 2.0**20):
        scores = fit.predict(truing.Outputs(rows.features, logits))
        results = session.run(["trued_score"], {"z": rows.features, "y": logits.astype(np.float32)})[0]
        np.testing.assert_allclose(results, scores, atol=3e-6 * max(1, np.abs(scores).max()))


def broken(weight, operator, inputs=("features", "W", "b"), outputs=("other",)):
    model = network(weight)
    model.graph.node.append(onnx.helper.make_node(operator, inputs, outputs))
    return model


def with_turned_rows(weight):
    model = network(weight)
    model.graph.node[1].attribute.append(onnx.helper.make_attribute("transA", 1))
    model.graph.input[0].type.tensor_type.shape.CopyFrom(
        onnx.helper.make_tensor_value_info("x", 1, [FEATURES, "n"]).type.tensor_type.shape
    )
    return model


def with_second_head(weight):
    """Return a network with two heads of the same size, both of which are outputs."""
    model = network(weight)
    model.graph.node.append(onnx.helper.make_node("Gemm", ["features", "W", "b"], ["others"], transB=1))
    model.graph.output.append(onnx.helper.make_tensor_value_info("others", onnx.TensorProto.FLOAT, ["n", CLASSES]))
    return model


@pytest.mark.parametrize(
    ("make", "name", "options", "message"),
    [
        (lambda w: network(w, opset=10), "dlr", {}, "operators of version 11 or later, got 10: use onnx.version_conv"),
        (network, "dlr", {"features": "z"}, "no tensor 'z' in the network; there are x, features"),
        (network, "dlr", {"features": "logits"}, r"features must have the fit's shape \(n, 6\), got \(n, 4\) of"),
        (network, "contrast", {"features": "x", "logits": "x"}, r"logits must have the fit's shape \(n, 4\), got"),
        (network, "contrast", {"features": "x"}, "no matrix product of the fit's size, 6 → 4"),
        (lambda w: network(w[:5]), "dlr", {}, r"no matrix product of .*, 6 features: .* \(5 → 4\)"),
        (lambda w: network(w[:, :3]), "contrast", {}, r"no matrix .*, 6 → 4: .* features → logits \(6 → 3\)"),
        (lambda w: broken(w, "Relu", ["logits"], ["trued_score"]), "dlr", {}, "already has a tensor 'trued_score'"),
        (lambda w: broken(w, "Relu", ["logits"], ["is_out"]), "dlr", {"threshold": 0}, "already has .* 'is_out'"),
        (network, "dlr", {"accept": 0.9}, "accept needs the scores of reference rows"),
        (network, "dlr", {"threshold": 1e50}, r"threshold must be in float32's range to be exported, got 1e\+50"),
        (with_turned_rows, "dlr", {}, "no matrix product of the fit's size, 6 features"),
        (lambda w: broken(w, "Gemm", inputs=["features"]), "dlr", {}, "the network must pass ONNX's checker"),
        (lambda w: broken(w, "Gemm", outputs=[]), "dlr", {}, "the network must pass ONNX's checker"),
        (lambda w: broken(w, "Identity", inputs=["logits"], outputs=["x"]), "dlr", {}, "must pass ONNX's checker"),
    ],
)
def test_networks_that_cannot_be_folded_are_rejected(weight, fits, make, name, options, message):
    with pytest.raises(ValueError, match=message):
        truing.onnx.folded(make(weight), fits[name], **options)


@pytest.fixture
def here(tmp_path, monkeypatch, weight, fits):
    """A folder with a network and saved fits of it."""
    monkeypatch.chdir(tmp_path)
    network(weight, tmp_path / "model.onnx")
    for name in ("dlr", "contrast", "detector"):
        truing.save(fits[name], f"{name}.npz")
    truing.save(truing.Moments.of(np.ones((3, 2)), np.ones(3)), "moments.npz")
    network(weight[:5], tmp_path / "narrow.onnx")
    apart = {"save_as_external_data": True, "location": "weights.onnx", "size_threshold": 0}
    onnx.save(network(weight), tmp_path / "apart.onnx", **apart)
    (tmp_path / "garbage.onnx").write_bytes(b"garbage")
    onnx.save(broken(weight, "Gemm", inputs=["features"]), tmp_path / "broken.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "folder.onnx").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("fit", "options", "number"),
    [
        ("dlr", [], 2),
        ("dlr", ["--threshold", "0.5"], 3),
        ("contrast", ["--false-alarm", "0.05", "--features", "features", "--logits", "logits"], 3),
        ("detector", ["--accept", "0.95"], 3),
    ],
)
def test_the_command_writes_the_network(here, capsys, fits, rows, fit, options, number):
    assert main(["export", f"{fit}.npz", "model.onnx", "-o", "trued.onnx", *options]) == 0
    assert capsys.readouterr().out == ""
    results = run(onnx.load("trued.onnx"), rows.features)
    assert len(results) == number
    if fit == "detector":  # At a rate it is what the detector decides by.
        outputs = truing.Outputs(np.maximum(rows.features, 0), results["logits"])
        scores = fits[fit].decide(outputs, accept=0.95).scores
        np.testing.assert_allclose(results["trued_score"], scores, rtol=1e-5, atol=2e-5)
    else:
        check_scores(results, fits[fit], rows.features)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone.npz", "model.onnx"], "there is no file gone.npz"),
        (["dlr.npz", "gone.onnx"], "there is no file gone.onnx"),
        (["dlr.npz", "folder.onnx"], "cannot read folder.onnx: it is a folder"),
        (["dlr.npz", "garbage.onnx"], "garbage.onnx must be an ONNX network"),
        (["dlr.npz", "empty.onnx"], "empty.onnx must be an ONNX network"),
        (["dlr.npz", "broken.onnx"], "broken.onnx must pass ONNX's checker"),
        (["moments.npz", "model.onnx"], "moments.npz must contain a fit or a detector, got Moments"),
        (["dlr.npz", "narrow.onnx"], "no matrix product of the fit's size, 6 features"),
        (["dlr.npz", "model.onnx", "--threshold", "nan"], "threshold must be"),
        (["dlr.npz", "model.onnx", "--threshold", "1", "--accept", "0.9"], "not allowed with"),
        (["dlr.npz", "model.onnx", "-o", "folder.onnx"], "cannot write folder.onnx: it is a folder"),
        (["dlr.npz", "model.onnx", "-o", "gone/trued.onnx"], "there is no folder gone"),
        (["dlr.npz", "model.onnx", "-o", "trued.npz"], "trued.npz must end in .onnx, got .npz"),
        (["dlr.npz", "model.onnx", "-o", "trued"], "trued must end in .onnx, got no ending"),
        (["dlr.npz", "model.onnx", "-o", "model.onnx"], "-o and MODEL must be different files, got model.onnx"),
        (["dlr.npz", "model.onnx", "-o", "dlr.npz"], "-o and FIT must be different files, got dlr.npz"),
        (["dlr.npz", "apart.onnx", "-o", "weights.onnx"], "-o and MODEL must be different files, got weights.onnx"),
        (["dlr.npz"], "required: MODEL"),
    ],
)
def test_wrong_input_gives_one_line_and_writes_nothing(here, capsys, arguments, message):
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    output = [] if "-o" in arguments else ["-o", "trued.onnx"]
    try:
        code = main(["export", *arguments, *output])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert message in err
    assert {path: path.read_bytes() for path in here.iterdir() if path.is_file()} == before
