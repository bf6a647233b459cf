"""gRPC has the same answers, errors and limits as HTTP. test_clients.py tests its messages with other clients."""

import asyncio
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
from .running import from_json

SECONDS = 30
TOKEN, CATS_TOKEN = "0123456789abcdef-all", "0123456789abcdef-cats"
INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
FIELDS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


class Service:
    """The models `cats` and `dogs` in this process: over gRPC, with truing's own messages, and over HTTP."""

    def __init__(self, port: int, models: Models, metrics: Metrics, history: History, app: Any) -> None:
        self.models = models
        self.history = history
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)])
        self._metrics = metrics
        self._app = app

    def start(self, call: str, /, *, token: str = "", **fields: Any) -> grpc.Future:
        return self.send(call, message(f"{call}Request", **fields).SerializeToString(), token=token)

    def send(self, call: str, data: bytes, *, token: str = "", **options: Any) -> grpc.Future:
        """Send any bytes as the message of a call."""
        method = self.channel.unary_unary(
            f"/{SERVICE}/{call}", response_deserializer=type(message(f"{call}Response")).FromString
        )
        metadata = [("authorization", f"Bearer {token}")] if token else []
        return method.future(data, metadata=metadata, timeout=SECONDS, **options)

    def stalled(self, call: str) -> tuple[grpc.Future, threading.Event]:
        """Begin a call whose message is never sent. Setting the event lets the client give up."""
        done = threading.Event()

        def nothing() -> Iterator[bytes]:
            done.wait(SECONDS)
            yield from ()

        return self.channel.stream_unary(f"/{SERVICE}/{call}").future(nothing(), timeout=SECONDS), done

    def call(self, call: str, /, **fields: Any) -> Any:
        return self.start(call, **fields).result()

    def error(self, call: str, /, **fields: Any) -> tuple[grpc.StatusCode, str]:
        return failure(self.start(call, **fields))

    def infer(self, rows: truing.Outputs, model: str = "cats") -> Any:
        return self.call("ModelInfer", model_name=model, **raw(rows))

    def infer_over_http(self, model: str, request: dict[str, Any]) -> dict[str, np.ndarray]:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.post(f"/v2/models/{model}/infer", json=request)

        return from_json(asyncio.run(send()))

    def rows(self, model: str = "cats") -> float:
        return self.models.find(model).running().contents.rows

    def counted(self, call: str, status: int, model: str = "cats") -> float:
        """Return how many calls were counted with a status."""
        series = f'truing_requests_total{{method="gRPC",model="{model}",route="{call}",status="{status}"}}'
        found = re.search(rf"^{series} (\S+)$", self._metrics.text().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0


@contextmanager
def running(folder: Path, *, listeners=(), tokens: str = "", **limits) -> Iterator[Service]:
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
        with serving(models, "127.0.0.1", 0, access, limits, watch, seconds_to_finish=SECONDS) as port:
            service = Service(port, models, metrics, histories["cats"], app)
            yield service
        service.channel.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service for tests that learn the same rows in both models."""
    with running(tmp_path_factory.mktemp("grpc")) as service:
        for model in ("cats", "dogs"):
            service.infer(batch("first", 30), model)
        yield service


def failure(future: grpc.Future) -> tuple[grpc.StatusCode, str]:
    """Return the status and the text of a call that fails."""
    with pytest.raises(grpc.RpcError) as caught:
        future.result()
    return caught.value.code(), caught.value.details()


def tensors(arrays: dict[str, np.ndarray], datatypes: dict[str, str], *, is_raw: bool = True) -> dict[str, Any]:
    """Return the fields of a request with these inputs, as bytes or as numbers. FP16 has no field for numbers."""
    inputs = [{"name": name, "datatype": datatypes[name], "shape": one.shape} for name, one in arrays.items()]
    if is_raw:
        return {"inputs": inputs, "raw_input_contents": [array.tobytes() for array in arrays.values()]}
    for tensor, array in zip(inputs, arrays.values(), strict=True):
        if tensor["datatype"] == "FP16":
            tensor["datatype"] = "FP32"
        tensor["contents"] = {FIELDS[tensor["datatype"]]: array.ravel().tolist()}
    return {"inputs": inputs}


def raw(rows: truing.Outputs) -> dict[str, Any]:
    """Return the fields of a request with rows as bytes."""
    return tensors({"features": rows.features, "logits": rows.logits}, {"features": "FP32", "logits": "FP32"})


def learn_is(learn: bool) -> dict[str, Any]:
    return {"parameters": {"learn": message("InferParameter", bool_param=learn)}}


def outputs_of(response: Any) -> dict[str, list[Any]]:
    """Return the outputs in a message."""
    if not response.raw_output_contents:
        return {
            one.name: list(one.contents.bool_contents if one.datatype == "BOOL" else one.contents.fp64_contents)
            for one in response.outputs
        }
    return {
        output.name: np.frombuffer(data, "?" if output.datatype == "BOOL" else "<f8").tolist()
        for output, data in zip(response.outputs, response.raw_output_contents, strict=True)
    }


@settings(max_examples=30)
@given(data=st.data())
def test_an_answer_to_raw_or_typed_tensors_equals_the_answer_over_http_bit_by_bit(service, data):
    rows, learn, is_raw = data.draw(st.integers(1, 4)), data.draw(st.booleans()), data.draw(st.booleans())
    outputs = [{"name": name} for name in data.draw(st.lists(st.sampled_from(sorted(protocol.OUTPUTS)), unique=True))]
    arrays, datatypes = {}, {}
    for name, columns in data.draw(st.permutations([("features", FEATURES), ("logits", CLASSES)])):
        datatypes[name] = data.draw(st.sampled_from(["FP16", *FIELDS]))
        numbers = data.draw(st.lists(st.integers(1, 100), min_size=rows * columns, max_size=rows * columns))
        arrays[name] = np.array(numbers, protocol.DATATYPES[datatypes[name]]).reshape(rows, columns)
    described = [
        {"name": name, "datatype": datatypes[name], "shape": array.shape, "data": array.tolist()}
        for name, array in arrays.items()
    ]
    request = {"inputs": described, "outputs": outputs, "parameters": {"learn": learn}}
    over_http = service.infer_over_http("cats", request)
    fields = tensors(arrays, datatypes, is_raw=is_raw)
    over_grpc = service.call("ModelInfer", model_name="dogs", outputs=outputs, **fields, **learn_is(learn))
    assert outputs_of(over_grpc) == {name: array.tolist() for name, array in over_http.items()}
    assert service.rows("cats") == service.rows("dogs")


def test_a_model_is_ready_if_it_exists_and_can_be_used(tmp_path):
    with running(tmp_path):
        pass
    (tmp_path / "state" / "dogs.sqlite3").write_bytes(b"no database" * 1000)
    with running(tmp_path) as service:
        assert service.call("ServerReady").ready
        ready = {name: service.call("ModelReady", name=name).ready for name in ("cats", "dogs", "birds")}
        assert ready == {"cats": True, "dogs": False, "birds": False}
        assert not service.call("ModelReady", name="cats", version="2").ready
        assert [one.name for one in service.call("RepositoryIndex", ready=True).models] == ["cats"]
        status, text = service.error("ModelInfer", model_name="dogs", **raw(batch("a")))
        assert (status, "model dogs cannot be used" in text) == (grpc.StatusCode.UNAVAILABLE, True)
        service.infer(batch("a"), "cats")


ROWS = raw(batch("a"))
LOGITS = ROWS["raw_input_contents"][1]


def with_features(**fields: Any) -> dict[str, Any]:
    """Return a request with some fields of the features replaced."""
    return {**ROWS, "inputs": [{**ROWS["inputs"][0], **fields}, ROWS["inputs"][1]]}


REJECTED = {
    "version": ({**ROWS, "model_version": "2"}, NOT_FOUND, "model_version must be 1, got '2'"),
    "parameter": ({**ROWS, "parameters": {"lern": message("InferParameter")}}, INVALID, "got 'lern': did you mean"),
    "one input": ({name: part[:1] for name, part in ROWS.items()}, INVALID, "logits"),
    "datatype": (with_features(datatype="BYTES"), INVALID, "the datatype of features must be one of"),
    "shape": (with_features(shape=[2**40, FEATURES]), INVALID, f"the shape of features must be [n, {FEATURES}]"),
    "few bytes": ({**ROWS, "raw_input_contents": [b"1234", LOGITS]}, INVALID, "features must have 120 bytes"),
    "NaN": ({**ROWS, "raw_input_contents": [b"\xff" * 120, LOGITS]}, INVALID, "features must be finite"),
    "one raw": ({**ROWS, "raw_input_contents": [LOGITS]}, INVALID, "one entry per input, 2, got 1"),
    "both": (
        with_features(contents={"fp32_contents": [1.0]}),
        INVALID,
        "raw_input_contents or in contents, got both",
    ),
    "other contents": (
        {"inputs": with_features(contents={"fp64_contents": [1.0] * 30})["inputs"]},
        INVALID,
        "'features' of datatype FP32 must come in fp32_contents, got fp64_contents",
    ),
    "no contents": ({"inputs": ROWS["inputs"]}, INVALID, "the data of features must be 30 numbers for [6, 5], got 0"),
}


@pytest.mark.parametrize(("fields", "status", "text"), REJECTED.values(), ids=REJECTED)
def test_an_invalid_request_is_rejected_with_the_reason_and_changes_nothing(service, fields, status, text):
    before = service.rows()
    received, reason = service.error("ModelInfer", model_name="cats", **fields)
    assert (received, text in reason) == (status, True), reason
    assert service.rows() == before


@given(st.data())
@settings(max_examples=60)
def test_any_bytes_are_answered_or_rejected_as_the_fault_of_the_client(service, data):
    valid = message("ModelInferRequest", model_name="cats", **ROWS, **learn_is(False)).SerializeToString()
    start = data.draw(st.integers(0, len(valid)))
    end = data.draw(st.integers(start, min(start + 8, len(valid))))
    damaged = valid[:start] + data.draw(st.binary(max_size=8)) + valid[end:]
    error = service.send("ModelInfer", damaged).exception()
    assert error is None or error.code() in (INVALID, NOT_FOUND), error


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
            futures = {call: service.start(call, token=token, **fields) for call, fields in calls.items()}
            return {call: error.code() for call, one in futures.items() if (error := one.exception()) is not None}

        denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
        assert rejected(TOKEN, calls) == {}
        assert rejected(CATS_TOKEN, calls) == {"ServerMetadata": denied, "RepositoryIndex": denied}
        assert rejected(CATS_TOKEN, {"ModelInfer": {"model_name": "dogs", **ROWS}}) == {"ModelInfer": denied}
        everything = dict.fromkeys([*calls][1:], unknown)
        assert rejected("", calls) == rejected("wrong-token-0123456789", calls) == everything
        assert service.rows("dogs") == 0
        future, done = service.stalled("ModelInfer")  # The token is checked before the message arrives.
        assert failure(future)[0] == unknown
        done.set()


def test_a_message_must_arrive_in_time_and_health_calls_need_none(tmp_path):
    with running(tmp_path, body_seconds=0.2) as service:
        future, done = service.stalled("ModelInfer")
        text = "the message must arrive within 0.2 seconds"
        assert failure(future) == (grpc.StatusCode.DEADLINE_EXCEEDED, text)
        done.set()
        future, done = service.stalled("ServerLive")
        assert future.result() == message("ServerLiveResponse", live=True).SerializeToString()
        done.set()
        service.infer(batch("a"))


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_above_the_limit_is_rejected_before_and_after_decompression(tmp_path, compression):
    with running(tmp_path, body_bytes=100_000) as service:
        data = message("ModelInferRequest", raw_input_contents=[bytes(1_000_000)]).SerializeToString()
        status, _ = failure(service.send("ModelInfer", data, compression=compression))
        assert status == grpc.StatusCode.RESOURCE_EXHAUSTED
        rows = message("ModelInferRequest", model_name="cats", **ROWS).SerializeToString()
        service.send("ModelInfer", rows, compression=compression).result()
        assert service.rows() == 6
        assert service.counted("ModelInfer", 413, model="") == 1


def test_health_calls_are_answered_while_all_calls_are_in_flight_and_a_stop_waits_for_them(tmp_path):
    reached, opened = threading.Event(), threading.Event()

    def stop_the_writer(event: Any) -> None:
        if event.kind == "learned":
            reached.set()
            opened.wait(SECONDS)

    with ThreadPoolExecutor() as threads:
        with running(tmp_path, listeners=[stop_the_writer], requests=1) as service:
            future = service.start("ModelInfer", model_name="cats", **ROWS)
            assert reached.wait(SECONDS)
            busy = grpc.StatusCode.UNAVAILABLE, "busy: 1 requests are being answered"
            assert service.error("ModelMetadata", name="cats") == busy
            assert service.call("ServerReady").ready
            threads.submit(lambda: (time.sleep(0.5), opened.set()))
        assert future.result().parameters["learned"].bool_param


def test_calls_are_counted_like_requests(tmp_path):
    with running(tmp_path) as service:
        service.infer(batch("a"))
        service.error("ModelInfer", model_name="cats")
        service.error("ModelInfer", model_name="birds")
        assert service.counted("ModelInfer", 200) == service.counted("ModelInfer", 400) == 1
        assert service.counted("ModelInfer", 404, model="") == 1
        engine, now = service.models.find("cats").running(), time.time()
        service.history.sample(engine.status(), engine.contents, now=now)
        current = service.history.current(now=now)
        assert (current["requests"], current["errors"]) == (2, 1)
