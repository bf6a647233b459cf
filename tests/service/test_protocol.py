"""The Open Inference Protocol: a decoded request is what the client encoded, and everything else is rejected."""

import json
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truing import Outputs
from truing.service.engine import Answer
from truing.service.models import settings_of
from truing.service.protocol import (
    DATATYPES,
    OUTPUTS,
    Inference,
    RequestedOutput,
    check_json_answer,
    decode_request,
    decode_tensor,
    encode_response,
    inputs_of,
    model_metadata,
)

INPUTS = inputs_of(settings_of(3, 2, base="given"))
SHAPES = {"features": 3, "logits": 2}

# The `struct` code of each datatype, and integers that it represents exactly. BF16 is the upper half of an FP32.
CODES = {"FP16": "e", "FP32": "f", "FP64": "d"} | {
    f"{sign}INT{bits}": code.upper() if sign else code
    for sign in ("", "U")
    for bits, code in zip((8, 16, 32, 64), "bhiq", strict=True)
}
LIMITS = {"BF16": 2**8, "FP16": 2**11, "FP32": 2**24, "FP64": 2**53}


def numbers_of(datatype: str) -> st.SearchStrategy[int]:
    if datatype in LIMITS:
        return st.integers(-LIMITS[datatype], LIMITS[datatype])
    bits = int(datatype.partition("INT")[2])
    return st.integers(0, 2**bits - 1) if datatype[0] == "U" else st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def packed(numbers, datatype: str) -> bytes:
    if datatype == "BF16":
        return b"".join(struct.pack(">f", number)[1::-1] for number in numbers)
    return struct.pack(f"<{len(numbers)}{CODES[datatype]}", *numbers)


@st.composite
def tensors(draw):
    """Return inputs by name, in any order: each a datatype, a shape and a flat list of numbers."""
    rows = draw(st.integers(1, 5))
    names = ["features", *draw(st.lists(st.sampled_from(["logits", "scores"]), unique=True))]
    drawn = {}
    for name in draw(st.permutations(names)):
        datatype = draw(st.sampled_from(sorted(DATATYPES)))
        shape = [rows, SHAPES[name]] if name in SHAPES else [rows]
        size = int(np.prod(shape))
        drawn[name] = datatype, shape, draw(st.lists(numbers_of(datatype), min_size=size, max_size=size))
    return drawn


def request_of(given_tensors, binary=(), nested=False, **more) -> tuple[bytes, int | None]:
    """Return a body and the length of its JSON. The `binary` inputs follow the JSON."""
    inputs, following = [], []
    for name, (datatype, shape, numbers) in given_tensors.items():
        tensor = {"name": name, "shape": shape, "datatype": datatype}
        if name in binary:
            following.append(packed(numbers, datatype))
            tensor["parameters"] = {"binary_data_size": len(following[-1])}
        else:
            tensor["data"] = np.array(numbers, object).reshape(shape).tolist() if nested else numbers
        inputs.append(tensor)
    text = json.dumps({"inputs": inputs, **more}).encode()
    return b"".join([text, *following]), len(text) if following else None


def decoded(body: bytes, length: int | None = None) -> Inference:
    return decode_request(body, length, "m", INPUTS)


@given(tensors(), st.sets(st.sampled_from(sorted(INPUTS))), st.booleans(), st.booleans())
def test_json_and_bytes_decode_to_the_numbers_that_were_encoded(given_tensors, binary, nested, learn):
    body, length = request_of(given_tensors, binary, nested, id="x", parameters={"learn": learn})
    inference = decoded(body, length)
    for name, (_, shape, numbers) in given_tensors.items():
        np.testing.assert_array_equal(getattr(inference.outputs, name), np.array(numbers, np.float64).reshape(shape))
    assert (inference.learn, inference.request_id) == (learn, "x")


def test_bf16_is_the_upper_half_of_a_float32_for_all_65536_values():
    data = np.arange(2**16, dtype="<u2").tobytes()
    expected = [struct.unpack("<f", b"\0\0" + data[at : at + 2])[0] for at in range(0, len(data), 2)]
    np.testing.assert_array_equal(decode_tensor(data, "features", "BF16", (2**16,)), np.array(expected, np.float32))


def answer_of(rows: int, **arrays_by_name) -> Answer:
    zeros = {name: np.zeros(rows) for name in ("scores", "base_scores")}
    return Answer(**(zeros | arrays_by_name), learned=True)


@given(st.data())
def test_a_client_reads_the_numbers_of_an_answer(data):
    rows = data.draw(st.integers(0, 4))
    floats = arrays(np.float64, rows, elements=st.floats(allow_nan=False, allow_infinity=False))
    values = {name: data.draw(floats) for name in ("scores", "base_scores", "p_values")}
    values["is_out"] = data.draw(arrays(np.bool_, rows))
    requested = tuple(RequestedOutput(name, data.draw(st.booleans())) for name in data.draw(st.permutations([*values])))
    inference = Inference(outputs=None, request_id="id", requested=requested)
    body, length = encode_response("m", inference, answer_of(rows, **values))
    response = json.loads(body if length is None else body[:length])
    start = length or len(body)
    for about, output in zip(response.pop("outputs"), requested, strict=True):
        assert (about["name"], about["datatype"], about["shape"]) == (output.name, OUTPUTS[output.name], [rows])
        expected = values[output.name]
        if output.is_binary:
            size = about["parameters"]["binary_data_size"]
            array = np.frombuffer(body[start : start + size], "?" if about["datatype"] == "BOOL" else "<f8")
            start += size
        else:
            array = np.array(about["data"], expected.dtype)
        np.testing.assert_array_equal(array, expected, strict=True)
    assert start == len(body)
    parameters = {"learned": True, "repeated": False}
    assert response == {"model_name": "m", "model_version": "1", "id": "id", "parameters": parameters}


def test_all_outputs_of_the_answer_are_returned_unless_some_are_requested():
    body, _ = request_of({"features": ("FP32", [1, 3], [1, 2, 3])})
    response = json.loads(encode_response("m", decoded(body), answer_of(1))[0])
    assert [output["name"] for output in response["outputs"]] == ["scores", "base_scores"]
    wanted = [{"name": "is_out", "parameters": {"binary_data": False}}, {"name": "scores"}]
    more = {"outputs": wanted, "parameters": {"binary_data_output": True}}
    inference = decoded(request_of({"features": ("FP32", [1, 3], [1, 2, 3])}, **more)[0])
    assert inference.requested == (RequestedOutput("is_out", False), RequestedOutput("scores", True))
    assert inference.needs_reference == "is_out"


def test_a_score_that_json_cannot_hold_is_refused_in_json_and_sent_as_bytes():
    answer = answer_of(2, scores=np.array([np.nan, np.inf]))
    with pytest.raises(ValueError, match="output scores must be finite in JSON"):
        encode_response("m", Inference(outputs=None), answer)
    body, length = encode_response("m", Inference(outputs=None, is_binary=True), answer)
    np.testing.assert_array_equal(np.frombuffer(body[length:], "<f8")[:2], answer.scores)


FEATURES = {"name": "features", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}


def changed(**changes) -> dict:
    """Return a request whose only input has some fields replaced. A field that is `...` is omitted."""
    return {"inputs": [{key: value for key, value in (FEATURES | changes).items() if value is not ...}]}


WRONG = {
    "no object": ([], "the request must be a JSON object, got []"),
    "no inputs": ({}, "inputs must be a list of tensors, got None"),
    "unknown key": ({"input": []}, "got 'input': did you mean inputs?"),
    "empty": ({"inputs": []}, "inputs must include features, got none"),
    "unknown name": (changed(name="X"), "inputs must be named features, logits, scores, got 'X'"),
    "twice": ({"inputs": [FEATURES, FEATURES]}, "input features must be given once, got it twice"),
    "datatype": (changed(datatype="float32"), "UINT64, got 'float32'"),
    "columns": (changed(shape=[3, 2]), "the shape of features must be [n, 3] with n from 1 to 1,000,000, got [3, 2]"),
    "huge": (changed(shape=[2**62, 3]), "got [4611686018427387904, 3]"),
    "booleans as sizes": (changed(shape=[True, 3]), "the shape of features must be [n, 3], got [True, 3]"),
    "too few numbers": (changed(data=[1, 2, 3]), "the data of features must be 6 numbers for [2, 3], got 3"),
    "ragged": (changed(data=[[1, 2, 3], [4, 5]]), "the data of features must be 2 lists of 3 numbers, got a list of 2"),
    "strings": (changed(data=["1"] * 6), "the data of features must be numbers, got a string among them"),
    "booleans": (changed(data=[True] * 6), "the data of features must be numbers, got true or false among them"),
    "too large": (changed(data=[10**400] * 6), "the data of features must be finite, got a number too large"),
    "too large for FP32": (changed(data=[1e300] * 6), "features must be finite"),
    "both": (changed(parameters={"binary_data_size": 24}), "features must come as data or as bytes, got both"),
    "no bytes": (changed(data=..., parameters={"binary_data_size": 24}), "must have 24 bytes after the JSON, got 0"),
    "other rows": (
        {"inputs": [FEATURES, {"name": "scores", "shape": [1], "datatype": "FP64", "data": [1]}]},
        "features and scores must have the same number of rows, got features 2, scores 1",
    ),
    "learn": (changed() | {"parameters": {"learn": "yes"}}, "learn must be true or false, got 'yes'"),
    "misspelt": (changed() | {"parameters": {"lern": False}}, "got 'lern': did you mean learn?"),
    "long id": (changed() | {"id": "x" * 129}, "id must be a string of 1 to 128 characters"),
    "surrogate": (changed() | {"id": "\ud800"}, "id must be valid Unicode"),
    "NUL": (changed() | {"id": "a\0b"}, "id must not contain a NUL character"),
    "output": (changed() | {"outputs": [{"name": "logits"}]}, "outputs must be named scores, base_scores, p_values"),
    "model name": (changed() | {"model_name": "other"}, "model_name must be m, as in the path, got 'other'"),
    "model version": (changed() | {"model_version": "2"}, "model_version must be 1, got '2'"),
}


NO_JSON = {
    "NaN": (b'{"inputs": [NaN]}', "numbers must be finite, got NaN"),
    "minus infinity": (b'{"inputs": [-Infinity]}', "numbers must be finite, got -Infinity"),
    "infinite number": (json.dumps(changed()).replace("6]", "1e999]").encode(), "features must be finite"),
    "no text": (b"\xff", "the request must be JSON in UTF-8, got other bytes"),
    "no body": (b"", "the request must be JSON, got an empty body"),
    "deep lists": (b"[" * 100_000, "the request must be JSON, got too deeply nested lists"),
    "many digits": (b'{"inputs": [' + b"1" * 5000 + b"]}", "the request must be JSON"),
}


@pytest.mark.parametrize(("request_body", "message"), [*WRONG.values(), *NO_JSON.values()], ids=[*WRONG, *NO_JSON])
def test_an_error_names_the_input_what_was_received_and_what_was_expected(request_body, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        decoded(request_body if isinstance(request_body, bytes) else json.dumps(request_body).encode())


@pytest.mark.parametrize(("more", "length"), [(b"\0", None), (b"\0" * 24, None), (b"", 1000)])
def test_every_byte_of_a_body_belongs_to_the_json_or_to_a_tensor(more, length):
    body, own = request_of({"features": ("FP32", [2, 3], [1] * 6)}, {"features"})
    with pytest.raises(ValueError, match=r"Inference-Header-Content-Length must|of all inputs must add up"):
        decoded(body + more, length or own)


@pytest.mark.parametrize("datatype", ["BF16", "FP64"])
def test_a_tensor_with_a_wrong_number_of_bytes_is_rejected(datatype):
    size = DATATYPES[datatype].itemsize
    with pytest.raises(ValueError, match=rf"must have {6 * size} bytes for \[2, 3\] {datatype}, got {5 * size}"):
        decode_tensor(bytes(5 * size), "features", datatype, (2, 3))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"classes": 2}, ["features", "logits"]),
        ({"classes": 2, "base": "given"}, ["features", "logits", "scores"]),
        ({"base": "given"}, ["features", "scores"]),
    ],
)
def test_a_model_takes_the_inputs_that_its_metadata_lists_and_no_others(options, names):
    own = settings_of(3, **options)
    assert [one["name"] for one in model_metadata("m", own)["inputs"]] == names
    for name in ("logits", "scores"):
        shape = [1, 2] if name == "logits" else [1]
        body, _ = request_of({"features": ("FP32", [1, 3], [1, 2, 3]), name: ("FP32", shape, [1] * shape[-1])})
        if name in names:
            received = decode_request(body, None, "m", inputs_of(own)).outputs
            np.testing.assert_array_equal(getattr(received, name), np.ones(shape))
        else:
            with pytest.raises(ValueError, match=f"inputs must be named {', '.join(names)}, got '{name}'"):
                decode_request(body, None, "m", inputs_of(own))


KEYS = ["inputs", "name", "shape", "datatype", "data", "parameters", "outputs", "id", "learn"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.sampled_from([None, "name", "shape", "datatype", "data", "parameters"]))
def test_any_json_as_the_request_or_as_a_field_of_a_tensor_is_decoded_or_rejected(value, key):
    request = value if key is None else changed(**{key: value})
    message, features = "decoded", None
    try:
        features = decoded(json.dumps(request).encode("utf-8", "surrogatepass")).outputs.features
    except ValueError as error:
        message = str(error)
    assert 0 < len(message) < 400
    assert features is None or features.shape[1] == 3


def test_only_json_answers_are_limited():
    rows = Outputs(np.zeros((300_000, 1), np.float32), np.zeros((300_000, 2), np.float32))
    with pytest.raises(ValueError, match="a JSON answer may have at most 1,000,000 numbers, got 1,200,000"):
        check_json_answer(Inference(rows))
    check_json_answer(Inference(rows, is_binary=True))
    check_json_answer(Inference(rows, requested=(RequestedOutput("is_out"),)))
