"""gRPC has the same answers, errors and limits as HTTP."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st

import truing
from truing.service import protocol
from truing.service.app import Watch, create_app
from truing.service.changes import calibration
from truing.service.grpc import SERVICE, message, serving
from truing.service.history import History
from truing.service.metrics import Metrics
from truing.service.models import Models
from truing.service.security import Access, Limits, Tokens

from .batches import CLASSES, FEATURES, batch

SECONDS = 30
TOKEN, CATS_TOKEN = "0123456789abcdef-all", "0123456789abcdef-cats"
FIELDS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


class Client:
    """A gRPC client made of truing's own messages."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)])

    def start(self, call: str, /, *, token: str = "", **fields: Any) -> grpc.Future:
        return self.send(call, message(f"{call}Request", **fields).SerializeToString(), token=token)

    def send(self, call: str, data: bytes, *, token: str = "", **options: Any) -> grpc.Future:
        """Send any bytes as the message of a call."""
        method = self.channel.unary_unary(
            f"/{SERVICE}/{call}", response_deserializer=type(message(f"{call}Response")).FromString
        )
        metadata = [("authorization", f"Bearer {token}")] if token else []
        return method.future(data, metadata=metadata, timeout=SECONDS, **options)

    def call(self, call: str, /, **fields: Any) -> Any:
        return self.start(call, **fields).result()

    def error(self, call: str, /, **fields: Any) -> tuple[grpc.StatusCode, str]:
        return failure(self.start(call, **fields))

    def infer(self, rows: truing.Outputs, model: str = "cats", **fields: Any) -> Any:
        return self.call("ModelInfer", model_name=model, **raw(rows), **fields)

    def close(self) -> None:
        self.channel.close()


class Service:
    """The models `cats` and `dogs` over gRPC and HTTP in this process."""

    def __init__(self, port: int, models: Models, metrics: Metrics, history: History, app: Any) -> None:
        self.port = port
        self.models = models
        self.metrics = metrics
        self.history = history
        self.client = Client(port)
        self._app = app

    def http(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def rows(self, model: str = "cats") -> float:
        return self.models.find(model).running().contents.rows


@contextmanager
def running(
    folder: Path, *, listeners=(), tokens: str = "", seconds_to_finish: float = 5, **limits
) -> Iterator[Service]:
    access = Access(is_local=True)
    if tokens:
        (folder / "tokens").write_text(tokens)
        access = Access(Tokens(folder / "tokens"))
    metrics, histories, limits = Metrics(), {"cats": History()}, Limits(**limits)
    models = Models(folder / "state", listeners=lambda name: [metrics.listener(name), *listeners])
    with closing(models):
        for name in {"cats", "dogs"} - {model.name for model in models}:
            model, _ = models.create(name, {"features": FEATURES, "classes": CLASSES, "method": "dlr"})
            model.running().submit(calibration(batch("reference", 40))).result(SECONDS)
        app = create_app(models, metrics, access=access, limits=limits, histories=histories)
        watch = Watch(models, metrics, histories)
        with serving(models, "127.0.0.1", 0, access, limits, watch, seconds_to_finish=seconds_to_finish) as port:
            service = Service(port, models, metrics, histories["cats"], app)
            with closing(service.client):
                yield service


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service for tests that learn the same rows in both models."""
    with running(tmp_path_factory.mktemp("grpc")) as service:
        for model in ("cats", "dogs"):
            service.client.infer(batch("first", 30), model)
        yield service


def failure(future: grpc.Future) -> tuple[grpc.StatusCode, str]:
    """Return the status and the text of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        future.result()
    return caught.value.code(), caught.value.details()


def tensor(name: str, datatype: str, array: np.ndarray, **more: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": array.shape, **more}


def raw(rows: truing.Outputs) -> dict[str, Any]:
    """Return the fields of a request with rows as bytes."""
    columns = {"features": rows.features, "logits": rows.logits}
    return {
        "inputs": [tensor(name, "FP32", array) for name, array in columns.items()],
        "raw_input_contents": [array.tobytes() for array in columns.values()],
    }


def typed(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a request with raw tensors as a request with typed contents. FP16 becomes FP32."""
    inputs = []
    for one, data in zip(fields["inputs"], fields["raw_input_contents"], strict=True):
        datatype = one["datatype"] if one["datatype"] in FIELDS else "FP32"
        numbers = np.frombuffer(data, protocol.DATATYPES[one["datatype"]]).tolist()
        inputs.append({**one, "datatype": datatype, "contents": {FIELDS[datatype]: numbers}})
    return {**fields, "inputs": inputs, "raw_input_contents": []}


def as_http(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the request of a message with raw tensors for an HTTP client, which asks for bytes."""
    contents = fields["raw_input_contents"]
    sizes = [{"parameters": {"binary_data_size": len(data)}} for data in contents]
    header = {
        "inputs": [one | size for one, size in zip(fields["inputs"], sizes, strict=True)],
        "outputs": [{**one, "parameters": {"binary_data": True}} for one in fields.get("outputs", ())],
        "parameters": {"binary_data_output": True, **values(fields.get("parameters", {}))},
    }
    text = json.dumps({**header, "id": fields.get("id")}).encode()
    headers = {"Inference-Header-Content-Length": str(len(text)), "Content-Type": "application/octet-stream"}
    return {"content": b"".join([text, *contents]), "headers": headers}


def values(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in parameters.items()}


def learn_is(learn: bool) -> dict[str, Any]:
    return {"parameters": {"learn": message("InferParameter", bool_param=learn)}}


def outputs_of_http(response: Any) -> tuple[list[str], bytes]:
    """Return the names of the outputs in a response, and their bytes."""
    assert response.status_code == 200, response.text
    length = int(response.headers["Inference-Header-Content-Length"])
    return [one["name"] for one in json.loads(response.content[:length])["outputs"]], response.content[length:]


def outputs_of(response: Any) -> tuple[list[str], bytes]:
    """Return the names of the outputs in a message, and their bytes."""
    tensors = response.raw_output_contents or [
        np.array(one.contents.bool_contents if one.datatype == "BOOL" else one.contents.fp64_contents).tobytes()
        for one in response.outputs
    ]
    return [output.name for output in response.outputs], b"".join(tensors)


@st.composite
def inferences(draw) -> dict[str, Any]:
    """Return the fields of a request with small numbers of any datatype, as raw tensors."""
    rows = draw(st.integers(1, 4))
    inputs, contents = [], []
    for name, columns in draw(st.permutations([("features", FEATURES), ("logits", CLASSES)])):
        datatype = draw(st.sampled_from(["FP16", *FIELDS]))
        numbers = draw(st.lists(st.integers(1, 100), min_size=rows * columns, max_size=rows * columns))
        array = np.array(numbers, protocol.DATATYPES[datatype]).reshape(rows, columns)
        inputs.append(tensor(name, datatype, array))
        contents.append(array.tobytes())
    outputs = [{"name": name} for name in draw(st.lists(st.sampled_from(sorted(protocol.OUTPUTS)), unique=True))]
    return {"inputs": inputs, "raw_input_contents": contents, "outputs": outputs, **learn_is(draw(st.booleans()))}


@given(inferences(), st.booleans())
@settings(max_examples=30)
def test_an_answer_to_raw_or_typed_tensors_equals_the_answer_over_http_bit_by_bit(service, fields, is_typed):
    over_http = service.http("POST", "/v2/models/cats/infer", **as_http(fields))
    over_grpc = service.client.call("ModelInfer", model_name="dogs", **(typed(fields) if is_typed else fields))
    assert outputs_of(over_grpc) == outputs_of_http(over_http)
    assert service.rows("cats") == service.rows("dogs")


def test_metadata_and_index_equal_those_of_http(service):
    def fields(call: str, **request: Any) -> dict[str, Any]:
        response = service.client.call(call, **request)
        return MessageToDict(response, always_print_fields_with_no_presence=True)

    def as_text(described: Any) -> Any:  # In JSON, the 64-bit integers of protobuf are strings.
        return json.loads(re.sub(r"-?\d+(?=[,\]])", r'"\g<0>"', json.dumps(described)))

    assert fields("ServerMetadata") == service.http("GET", "/v2").json()
    assert fields("ModelMetadata", name="cats") == as_text(service.http("GET", "/v2/models/cats").json())
    assert fields("RepositoryIndex")["models"] == service.http("GET", "/v2/repository/index").json()


def test_a_model_is_ready_if_it_exists_and_can_be_used(tmp_path):
    with running(tmp_path):
        pass
    (tmp_path / "state" / "dogs.sqlite3").write_bytes(b"no database" * 1000)
    with running(tmp_path) as service:
        client = service.client
        assert client.call("ServerReady").ready
        ready = {name: client.call("ModelReady", name=name).ready for name in ("cats", "dogs", "birds")}
        assert ready == {"cats": True, "dogs": False, "birds": False}
        assert not client.call("ModelReady", name="cats", version="2").ready
        assert [one.name for one in client.call("RepositoryIndex", ready=True).models] == ["cats"]
        status, text = client.error("ModelInfer", model_name="dogs", **raw(batch("a")))
        assert (status, "model dogs cannot be used" in text) == (grpc.StatusCode.UNAVAILABLE, True)
        client.infer(batch("a"), "cats")


ROWS = raw(batch("a"))
PARAMETER = message("InferParameter", string_param="no")


def with_features(**fields: Any) -> dict[str, Any]:
    """Return a request with some fields of the features replaced."""
    return {**ROWS, "inputs": [{**ROWS["inputs"][0], **fields}, ROWS["inputs"][1]]}


@pytest.mark.parametrize(
    "fields",
    [
        {**ROWS, "parameters": {"lern": PARAMETER}},
        {**ROWS, "parameters": {"learn": PARAMETER}},
        {name: part[:1] for name, part in ROWS.items()},
        with_features(datatype="BYTES"),
        with_features(shape=[2**40, FEATURES]),
        {**ROWS, "raw_input_contents": [b"1234", ROWS["raw_input_contents"][1]]},
        {**ROWS, "raw_input_contents": [b"\xff" * 120, ROWS["raw_input_contents"][1]]},
    ],
)
def test_an_invalid_request_is_rejected_with_the_text_of_http(service, fields):
    before = service.rows()
    over_http = service.http("POST", "/v2/models/cats/infer", **as_http(fields))
    error = service.client.error("ModelInfer", model_name="cats", **fields)
    assert error == (grpc.StatusCode.INVALID_ARGUMENT, over_http.json()["error"])
    assert service.rows() == before


@pytest.mark.parametrize(
    ("path", "call", "fields"),
    [
        ("/v2/models/cat", "ModelMetadata", {"name": "cat"}),
        ("/v2/models/cats/versions/2", "ModelInfer", {"model_name": "cats", "model_version": "2"}),
    ],
)
def test_an_unknown_model_or_version_is_not_found(service, path, call, fields):
    over_http = service.http("GET", path)
    assert service.client.error(call, **fields) == (grpc.StatusCode.NOT_FOUND, over_http.json()["error"])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({**ROWS, "raw_input_contents": ROWS["raw_input_contents"][:1]}, "one entry per input, 2, got 1"),
        (with_features(contents={"fp32_contents": [1.0]}), "raw_input_contents or in contents, got both"),
        (
            {"inputs": with_features(contents={"fp64_contents": [1.0] * 30})["inputs"]},
            "'features' of datatype FP32 must come in fp32_contents, got fp64_contents",
        ),
        ({"inputs": ROWS["inputs"]}, f"the data of features must be 30 numbers for [6, {FEATURES}], got 0"),
    ],
)
def test_tensors_in_the_wrong_place_are_rejected_with_the_right_place(service, fields, expected):
    status, text = service.client.error("ModelInfer", model_name="cats", **fields)
    assert (status, expected in text) == (grpc.StatusCode.INVALID_ARGUMENT, True), text


@given(st.data())
@settings(max_examples=60)
def test_any_bytes_are_answered_or_rejected_as_the_fault_of_the_client(service, data):
    valid = message("ModelInferRequest", model_name="cats", **ROWS, **learn_is(False)).SerializeToString()
    start = data.draw(st.integers(0, len(valid)))
    end = data.draw(st.integers(start, min(start + 8, len(valid))))
    damaged = valid[:start] + data.draw(st.binary(max_size=8)) + valid[end:]
    error = service.client.send("ModelInfer", damaged).exception()
    assert error is None or error.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND), error


def test_a_token_opens_its_model_and_nothing_else(tmp_path):
    calls = {
        "ServerLive": {},
        "ServerMetadata": {},
        "RepositoryIndex": {},
        "ModelReady": {"name": "cats"},
        "ModelInfer": {"model_name": "cats", **ROWS},
    }
    with running(tmp_path, tokens=f"{TOKEN}\ncats: {CATS_TOKEN}\n") as service:

        def rejected(token: str, calls: dict[str, Any]) -> dict[str, grpc.StatusCode]:
            futures = {call: service.client.start(call, token=token, **fields) for call, fields in calls.items()}
            return {call: error.code() for call, one in futures.items() if (error := one.exception()) is not None}

        denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
        assert rejected(TOKEN, calls) == {}
        assert rejected(CATS_TOKEN, calls) == {"ServerMetadata": denied, "RepositoryIndex": denied}
        assert rejected(CATS_TOKEN, {"ModelInfer": {"model_name": "dogs", **ROWS}}) == {"ModelInfer": denied}
        everything = dict.fromkeys([*calls][1:], unknown)
        assert rejected("", calls) == rejected("wrong-token-0123456789", calls) == everything
        assert service.rows("dogs") == 0
        future, done = stalled(service.client)  # The token is checked before the message arrives.
        assert failure(future)[0] == unknown
        done.set()


def stalled(client: Client, call: str = "ModelInfer") -> tuple[grpc.Future, threading.Event]:
    """Begin a call whose message is never sent. Setting the event lets the client give up."""
    done = threading.Event()

    def nothing() -> Iterator[bytes]:
        done.wait(SECONDS)
        yield from ()

    return client.channel.stream_unary(f"/{SERVICE}/{call}").future(nothing(), timeout=SECONDS), done


def test_a_message_must_arrive_in_time_and_health_calls_need_none(tmp_path):
    with running(tmp_path, body_seconds=0.2) as service:
        future, done = stalled(service.client)
        text = "the message must arrive within 0.2 seconds"
        assert failure(future) == (grpc.StatusCode.DEADLINE_EXCEEDED, text)
        done.set()
        future, done = stalled(service.client, "ServerLive")
        assert future.result() == message("ServerLiveResponse", live=True).SerializeToString()
        done.set()
        service.client.infer(batch("a"))


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_above_the_limit_is_rejected_before_and_after_decompression(tmp_path, compression):
    with running(tmp_path, body_bytes=100_000) as service:
        data = message("ModelInferRequest", raw_input_contents=[bytes(1_000_000)]).SerializeToString()
        status, _ = failure(service.client.send("ModelInfer", data, compression=compression))
        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
        rows = message("ModelInferRequest", model_name="cats", **ROWS).SerializeToString()
        service.client.send("ModelInfer", rows, compression=compression).result()
        assert service.rows() == 6
        assert counted(service, "ModelInfer", 413, model="") == 1


class Gate:
    """A listener that stops the writer until it is opened, so that calls stay in flight."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, event: Any) -> None:
        if event.kind == "learned":
            self.reached.set()
            self.opened.wait(SECONDS)


def test_health_calls_are_answered_while_all_calls_are_in_flight_and_a_stop_waits_for_them(tmp_path):
    gate = Gate()
    with ThreadPoolExecutor() as threads:
        with running(tmp_path, listeners=[gate], requests=1, seconds_to_finish=SECONDS) as service:
            client = Client(service.port)
            future = client.start("ModelInfer", model_name="cats", **ROWS)
            assert gate.reached.wait(SECONDS)
            busy = grpc.StatusCode.UNAVAILABLE, "busy: 1 requests are being answered"
            assert client.error("ModelMetadata", name="cats") == busy
            assert client.call("ServerReady").ready
            threads.submit(lambda: (time.sleep(0.5), gate.opened.set()))
        assert values(future.result().parameters)["learned"]
        assert client.error("ServerLive")[0] == grpc.StatusCode.UNAVAILABLE
        client.close()


def test_calls_are_counted_like_requests(tmp_path):
    with running(tmp_path) as service:
        service.client.infer(batch("a"))
        service.client.error("ModelInfer", model_name="cats")
        service.client.error("ModelInfer", model_name="birds")
        assert counted(service, "ModelInfer", 200) == counted(service, "ModelInfer", 400) == 1
        assert counted(service, "ModelInfer", 404, model="") == 1
        engine, now = service.models.find("cats").running(), time.time()
        service.history.sample(engine.status(), engine.contents, now=now)
        current = service.history.current(now=now)
        assert (current["requests"], current["errors"]) == (2, 1)


def counted(service: Service, call: str, status: int, model: str = "cats") -> float:
    labels = f'method="gRPC",model="{model}",route="{call}",status="{status}"'
    found = re.search(rf"^truing_requests_total{{{labels}}} (\S+)$", service.metrics.text().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0
