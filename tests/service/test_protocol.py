"""The codec: what a client writes is what is read, and nothing else is ever read."""

import json
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from truing.service import protocol
from truing.service.protocol import (
    ANSWERED,
    DATATYPES,
    Inference,
    RequestedOutput,
    Widths,
    decode_request,
    encode_response,
    model_metadata,
    shown,
)

WIDTHS = Widths(3, 2)


@st.composite
def tensors(draw):
    """Named arrays of one number of rows, as a client may have them."""
    rows = draw(st.integers(1, 5))
    shapes = {"features": (rows, 3), "logits": (rows, 2), "scores": (rows,)}
    names = ["features", *draw(st.lists(st.sampled_from(["logits", "scores"]), unique=True))]
    kinds = {name: draw(st.sampled_from(sorted(DATATYPES))) for name in draw(st.permutations(names))}
    # Logits that are probabilities are refused by other rules: these add up to something else.
    return {
        name: (kind, draw(arrays(DATATYPES[kind], shapes[name], elements=st.integers(-2048, 2048).map(float))))
        for name, kind in kinds.items()
    }


def request_of(given_tensors, binary, nested=(), **more) -> tuple[bytes, int | None]:
    inputs, behind = [], []
    for name, (kind, array) in given_tensors.items():
        about = {"name": name, "shape": list(array.shape), "datatype": kind}
        if name in binary:
            about["parameters"] = {"binary_data_size": array.nbytes}
            behind.append(array.tobytes())
        else:
            about["data"] = array.tolist() if name in nested else array.ravel().tolist()
        inputs.append(about)
    text = json.dumps({"inputs": inputs, **more}).encode()
    return b"".join([text, *behind]), len(text) if behind else None


@given(tensors(), st.sets(st.sampled_from(["features", "logits", "scores"])), st.booleans(), st.booleans())
def test_what_a_client_writes_is_what_is_read_in_either_encoding(given_tensors, binary, nested, learn):
    body, length = request_of(
        given_tensors, binary, list(given_tensors) if nested else (), id="x", parameters={"learn": learn}
    )
    found = decode_request(body, length, WIDTHS)
    for name, (kind, array) in given_tensors.items():
        np.testing.assert_array_equal(getattr(found.outputs, name), array)
        if name != "scores":  # Which are wide everywhere.
            assert getattr(found.outputs, name).dtype == DATATYPES[kind]
    assert (found.learn, found.request_id) == (learn, "x")


@given(st.data())
def test_what_is_answered_is_what_a_client_reads(data):
    rows = data.draw(st.integers(0, 4))
    floats = st.floats(allow_nan=False, allow_infinity=False)
    held = {name: data.draw(arrays(np.float64, rows, elements=floats)) for name in ("scores", "base_scores")}
    held["is_out"] = data.draw(arrays(np.bool_, rows))
    returned = [RequestedOutput(name, data.draw(st.booleans())) for name in data.draw(st.permutations(list(held)))]
    body, length = encode_response(held, returned, "id", {"learned": True})
    response = json.loads(body if length is None else body[:length])
    start = length or len(body)
    for about, output in zip(response["outputs"], returned, strict=True):
        assert (about["name"], about["datatype"]) == (output.name, ANSWERED[output.name])
        if output.is_binary:
            size = about["parameters"]["binary_data_size"]
            array = np.frombuffer(body[start : start + size], held[output.name].dtype)
            start += size
        else:
            array = np.array(about["data"], held[output.name].dtype)
        np.testing.assert_array_equal(array.reshape(about["shape"]), held[output.name], strict=True)
    assert start == len(body)
    assert (response["id"], response["parameters"]) == ("id", {"learned": True})


@pytest.mark.parametrize("binary", [(), ("scores",), ("scores", "is_out")])
@pytest.mark.parametrize("most", [1, 99, 100])
def test_very_many_rows_are_answered_by_the_same_bytes_in_turns(rng, monkeypatch, binary, most):
    held = {"scores": rng.normal(size=100) * 10.0 ** rng.integers(-300, 300, 100), "is_out": rng.random(100) < 0.5}
    returned = [RequestedOutput(name, name in binary) for name in held]
    at_once = encode_response(held, returned, "a\n", {"learned": True, "notes": "one\ntwo"})
    monkeypatch.setattr(protocol, "MANY_ROWS", most)
    assert encode_response(held, returned, "a\n", {"learned": True, "notes": "one\ntwo"}) == at_once


def test_binary_rows_are_not_copied_where_they_lie_well():
    array = np.arange(6, dtype="<f4").reshape(2, 3)
    for padding in range(4):
        body, length = request_of({"features": ("FP32", array)}, {"features"}, id="x" * (padding + 1))
        features = decode_request(body, length, WIDTHS).outputs.features
        assert features.flags.aligned
        shares = np.shares_memory(features, np.frombuffer(body, np.uint8))
        assert shares == (np.frombuffer(body, np.uint8)[length:].ctypes.data % 4 == 0)


FEATURES = {"name": "features", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}


def changed(**changes) -> dict:
    return {"inputs": [{key: value for key, value in (FEATURES | changes).items() if value is not ...}]}


WRONG = {
    "no object": ([], "the request must be a JSON object, got []"),
    "no inputs": ({}, "inputs must be a list of tensors, got None"),
    "unknown key": ({"inputs": [], "input": 1}, "got 'input'"),
    "no tensor": ({"inputs": [3]}, "every one of the inputs must be a JSON object, got 3"),
    "none at all": ({"inputs": []}, "inputs must have features, got none"),
    "unknown name": (changed(name="X"), "inputs must be of features, logits, scores, got one named 'X'"),
    "name of another type": (changed(name=["features"]), "got one named ['features']"),
    "twice": ({"inputs": [FEATURES, FEATURES]}, "features must be given once"),
    "datatype": (changed(datatype="INT8"), "the datatype of features must be one of FP16, FP32, FP64, got 'INT8'"),
    "no datatype": (changed(datatype=...), "the datatype of features must be one of FP16, FP32, FP64, got None"),
    "columns": (changed(shape=[3, 2]), "the shape of features must be [n, 3] with n at least 1, got [3, 2]"),
    "dimensions": (changed(shape=[6]), "the shape of features must be [n, 3]"),
    "no rows": (changed(shape=[0, 3], data=[]), "the shape of features must be [n, 3] with n at least 1, got [0, 3]"),
    "negative": (changed(shape=[-2, 3]), "got [-2, 3]"),
    "huge": (changed(shape=[2**62, 3]), "got [4611686018427387904, 3]"),
    "truths as sizes": (changed(shape=[True, 3]), "the shape of features must be [n, 3], got [True, 3]"),
    "no shape": (changed(shape=...), "the shape of features must be [n, 3], got None"),
    "too few": (changed(data=[1, 2, 3]), "the data of features must be 6 numbers for [2, 3], got 3"),
    "ragged": (changed(data=[[1, 2, 3], [4, 5]]), "the data of features must be 2 lists of 3 numbers"),
    "deeper": (changed(data=[[[1, 2, 3]], [[4, 5, 6]]]), "the data of features must be 2 lists of 3 numbers"),
    "half nested": (changed(data=[[1, 2, 3], 4]), "the data of features must be 2 lists of 3 numbers"),
    "strings": (changed(data=["1"] * 6), "the data of features must be numbers alone, got a string among them"),
    "nulls": (changed(data=[None, 1, 2, 3, 4, 5]), "got null among them"),
    "truths": (changed(data=[True, 1, 2, 3, 4, 5]), "got true or false among them"),
    "no data": (changed(data=...), "the data of features must be a list of numbers, got None"),
    "beyond FP16": (changed(datatype="FP16", data=[1e6] * 6), "features must be finite"),
    "beyond all": (changed(data=[10**400] * 6), "the data of features must be finite"),
    "both": (changed(parameters={"binary_data_size": 24}), "features must come as data or as bytes, got both"),
    "no bytes": (
        changed(data=..., parameters={"binary_data_size": 24}),
        "features must have 24 bytes behind the JSON, got 0",
    ),
    "size": (
        changed(data=..., parameters={"binary_data_size": 20}),
        "binary_data_size of features must be 24 for [2, 3] FP32, got 20",
    ),
    "other rows": (
        {"inputs": [FEATURES, {"name": "scores", "shape": [1], "datatype": "FP64", "data": [1]}]},
        "features and scores must have the same number of rows, got features 2, scores 1",
    ),
    "learn": (changed() | {"parameters": {"learn": "yes"}}, "learn must be true or false, got 'yes'"),
    "misspelt": (changed() | {"parameters": {"lern": False}}, "got 'lern'"),
    "parameters": (changed() | {"parameters": [1]}, "parameters of the request must be a JSON object, got [1]"),
    "long id": (changed() | {"id": "x" * 129}, "id must be a string of at most 128 characters"),
    "id of a number": (changed() | {"id": 5}, "id must be a string of at most 128 characters, got 5"),
    "half a character": (changed() | {"id": "\ud800"}, "id must be text, got half of a character"),
    "outputs": (changed() | {"outputs": "scores"}, "outputs must be a list, got 'scores'"),
    "output": (changed() | {"outputs": [{"name": "logits"}]}, "got one named 'logits'"),
    "output twice": (changed() | {"outputs": [{"name": "scores"}] * 2}, "output scores must be asked for once"),
}


@pytest.mark.parametrize(("request_json", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named_with_what_came_and_what_was_wanted(request_json, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        decode_request(json.dumps(request_json).encode(), None, WIDTHS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"inputs": [NaN]}', "NaN is not JSON"),
        (b'{"inputs": [-Infinity]}', "-Infinity is not JSON"),
        (b"\xff", "must be JSON in UTF-8"),
        (b"", "the request must be JSON: Expecting value"),
        (b"[" * 100_000, "lists in lists beyond any tensor"),
        (b'{"inputs": [' + b"1" * 5000 + b"]}", "the request must be JSON"),
    ],
)
def test_what_is_no_json_is_refused(text, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        decode_request(text, None, WIDTHS)


@pytest.mark.parametrize(("more", "length"), [(b"\0", None), (b"", 1000), (b"\0" * 7, None)])
def test_every_byte_of_a_body_is_of_a_tensor(more, length):
    array = np.ones((2, 3), "<f4")
    body, own = request_of({"features": ("FP32", array)}, {"features"})
    with pytest.raises(ValueError, match=r"Inference-Header-Content-Length must|must add up to"):
        decode_request(body + more, length or own, WIDTHS)


def test_outputs_are_those_asked_for_and_else_all_that_there_are():
    body, _ = request_of({"features": ("FP32", np.ones((2, 3)))}, ())
    found = decode_request(body, None, WIDTHS)
    assert found.returned(["scores", "is_out"]) == (RequestedOutput("scores", False), RequestedOutput("is_out", False))
    asked = [{"name": "is_out", "parameters": {"binary_data": False}}, {"name": "scores"}]
    body, _ = request_of(
        {"features": ("FP32", np.ones((2, 3)))}, (), outputs=asked, parameters={"binary_data_output": True}
    )
    found = decode_request(body, None, WIDTHS)
    assert found.returned(["scores"]) == (RequestedOutput("is_out", False), RequestedOutput("scores", True))
    assert found.asks_for("p_values", "is_out") == ["is_out"]


def test_a_model_without_logits_says_so_and_takes_none():
    names = [about["name"] for about in model_metadata(Widths(3, None))["inputs"]]
    assert names == ["features", "scores"]
    body, _ = request_of({"features": ("FP32", np.ones((1, 3))), "logits": ("FP32", np.ones((1, 2)))}, ())
    with pytest.raises(ValueError, match="inputs must be of features, scores, got one named 'logits'"):
        decode_request(body, None, Widths(3, None))


def test_a_model_with_a_base_score_of_its_own_takes_no_other():
    own = Widths(3, 2, takes_scores=False)
    assert [about["name"] for about in model_metadata(own)["inputs"]] == ["features", "logits"]
    body, _ = request_of({"features": ("FP32", np.ones((1, 3))), "scores": ("FP32", np.ones(1))}, ())
    with pytest.raises(ValueError, match="inputs must be of features, logits, got one named 'scores'"):
        decode_request(body, None, own)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=60))
def test_what_came_is_shown_short_and_in_plain_characters(value):
    text = shown(value)
    assert len(text) <= 60
    assert text.isprintable()
    assert text[:-1].isascii()


def test_what_lies_within_lists_and_objects_is_not_written_out_to_be_shown():
    class Costly:
        def __repr__(self):
            raise AssertionError("written out")

    assert shown([[Costly()] * 1000]) == "a list of 1"
    assert shown({"a": {"b": Costly()}}) == "an object of 1"
    assert shown([Costly()] * 61) == "a list of 61"
    assert shown(["x" * 61]) == "a list of 1"


def mutated(draw_bytes, body: bytes, at: int, kind: str) -> bytes:
    at %= max(1, len(body))
    if kind == "cut":
        return body[:at]
    if kind == "flip":
        return body[:at] + bytes([body[at] ^ 1 << (draw_bytes[0] % 8)]) + body[at + 1 :] if body else draw_bytes
    if kind == "insert":
        return body[:at] + draw_bytes + body[at:]
    return draw_bytes


def never_more_than_refused(body: bytes, length: int | None) -> None:
    """Decode whatever came: rows of the right shape, or a ValueError with a short message in one line."""
    found = said = None
    try:
        found = decode_request(body, length, WIDTHS)
    except ValueError as error:
        said = str(error)
    if found is None:
        assert 0 < len(said) < 400
        return
    assert isinstance(found, Inference)
    assert found.outputs.features.shape[1] == 3
    assert found.outputs.features.nbytes <= max(8 * len(body), 64)


fuzzed = given(
    tensors(),
    st.sets(st.sampled_from(["features", "logits", "scores"])),
    st.integers(0, 2**16),
    st.sampled_from(["cut", "flip", "insert", "other"]),
    st.binary(min_size=1, max_size=12),
    st.none() | st.integers(0, 400),
)


def fuzz(given_tensors, binary, at, kind, noise, other_length):
    body, length = request_of(given_tensors, binary)
    never_more_than_refused(mutated(noise, body, at, kind), length if other_length is None else other_length)


test_damaged_requests_are_rows_or_refused = fuzzed(fuzz)


@pytest.mark.slow
@settings(max_examples=10_000, derandomize=False)
@fuzzed
def test_ten_thousand_damaged_requests_are_rows_or_refused(given_tensors, binary, at, kind, noise, other_length):
    fuzz(given_tensors, binary, at, kind, noise, other_length)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["inputs", "name", "shape", "datatype", "data", "parameters", "outputs", "id", "learn"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_is_rows_or_refused(value):
    never_more_than_refused(json.dumps(value).encode("utf-8", "surrogatepass"), None)


@given(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), json_values)
def test_any_json_in_place_of_a_part_of_a_tensor_is_rows_or_refused(key, value):
    never_more_than_refused(json.dumps(changed(**{key: value})).encode(), None)
