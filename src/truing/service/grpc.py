"""The gRPC service of the Open Inference Protocol, `inference.GRPCInferenceService`, for clients of Triton and KServe.

The messages are built from the table `MESSAGES`, in a separate descriptor pool. So there is no generated code, and no
conflict with a client library in the same process that registers the same messages.

A call is handled like an HTTP request: the token is checked before the message is read, the message must arrive in
time, the limits are the same, and the errors have the same texts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from typing import Any

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from . import protocol
from .app import LARGE_BODY, MANY_ROWS, Watch, call_in_thread_if, check_answerable, find_model, infer, repository_index
from .engine import Answer
from .logs import LOGGER
from .models import Models
from .protocol import Inference
from .security import Access, InFlight, Limits, Refused, refusing

SERVICE = "inference.GRPCInferenceService"

# The number of messages that are received at a time. The size of a message is known only after it has arrived.
_READERS = 8

# Calls that are exempt from access checks and limits.
_HEALTH = ("ServerLive", "ServerReady")

# The gRPC status of an HTTP status.
_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}

# The fields of each message, numbered from 1 in this order. A type in brackets is repeated, a type in braces is the
# value of a map from strings, and types after "|" are the choices of the message's oneof.
_TENSOR = {"name": "string", "datatype": "string", "shape": "[int64]"}
_TENSOR_WITH_CONTENTS = {**_TENSOR, "parameters": "{InferParameter}", "contents": "InferTensorContents"}
_MODEL = {"name": "string", "version": "string"}
MESSAGES: dict[str, dict[str, str]] = {
    "ServerLiveRequest": {},
    "ServerLiveResponse": {"live": "bool"},
    "ServerReadyRequest": {},
    "ServerReadyResponse": {"ready": "bool"},
    "ModelReadyRequest": _MODEL,
    "ModelReadyResponse": {"ready": "bool"},
    "ServerMetadataRequest": {},
    "ServerMetadataResponse": {"name": "string", "version": "string", "extensions": "[string]"},
    "ModelMetadataRequest": _MODEL,
    "ModelMetadataResponse": {
        "name": "string",
        "versions": "[string]",
        "platform": "string",
        "inputs": "[ModelMetadataResponse.TensorMetadata]",
        "outputs": "[ModelMetadataResponse.TensorMetadata]",
    },
    "ModelMetadataResponse.TensorMetadata": _TENSOR,
    "ModelInferRequest": {
        "model_name": "string",
        "model_version": "string",
        "id": "string",
        "parameters": "{InferParameter}",
        "inputs": "[ModelInferRequest.InferInputTensor]",
        "outputs": "[ModelInferRequest.InferRequestedOutputTensor]",
        "raw_input_contents": "[bytes]",
    },
    "ModelInferRequest.InferInputTensor": _TENSOR_WITH_CONTENTS,
    "ModelInferRequest.InferRequestedOutputTensor": {"name": "string", "parameters": "{InferParameter}"},
    "ModelInferResponse": {
        "model_name": "string",
        "model_version": "string",
        "id": "string",
        "parameters": "{InferParameter}",
        "outputs": "[ModelInferResponse.InferOutputTensor]",
        "raw_output_contents": "[bytes]",
    },
    "ModelInferResponse.InferOutputTensor": _TENSOR_WITH_CONTENTS,
    "InferParameter": {
        "bool_param": "|bool",
        "int64_param": "|int64",
        "string_param": "|string",
        "double_param": "|double",
        "uint64_param": "|uint64",
    },
    "InferTensorContents": {
        "bool_contents": "[bool]",
        "int_contents": "[int32]",
        "int64_contents": "[int64]",
        "uint_contents": "[uint32]",
        "uint64_contents": "[uint64]",
        "fp32_contents": "[float]",
        "fp64_contents": "[double]",
        "bytes_contents": "[bytes]",
    },
    "RepositoryIndexRequest": {"repository_name": "string", "ready": "bool"},
    "RepositoryIndexResponse": {"models": "[RepositoryIndexResponse.ModelIndex]"},
    "RepositoryIndexResponse.ModelIndex": {**_MODEL, "state": "string", "reason": "string"},
}

# The field of InferTensorContents for each datatype. FP16 and BF16 have no field, and are sent as raw bytes.
_CONTENTS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BOOL": "bool_contents",
}


@contextmanager
def serving(
    models: Models, host: str, port: int, access: Access, limits: Limits, watch: Watch, *, seconds_to_finish: float
) -> Iterator[int]:
    """Serve gRPC while the block runs, and yield the port. At the end, wait for running calls.

    The server runs its own event loop in a thread.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="truing-grpc", daemon=True)
    thread.start()

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    try:
        server, bound = run(_started(_Service(models, access, limits, watch), host, port, limits))
        try:
            yield bound
        finally:
            run(server.stop(seconds_to_finish))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def message(kind: str, /, **fields: Any) -> Any:
    """Return a message of the protocol. The fields may hold dicts for messages."""
    return _CLASSES[kind](**fields)


async def _started(service: _Service, host: str, port: int, limits: Limits) -> tuple[grpc.aio.Server, int]:
    """Return a running server and its port."""
    options = [
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((service.handlers(),))
    try:
        bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError:
        raise OSError(f"cannot listen on {host}, port {port} for gRPC") from None
    await server.start()
    return server, bound


class _Service:
    """The calls of the service, and the checks before them."""

    def __init__(self, models: Models, access: Access, limits: Limits, watch: Watch) -> None:
        self._models = models
        self._access = access
        self._limits = limits
        self._watch = watch
        self._in_flight = InFlight(limits)
        self._readers = asyncio.Semaphore(_READERS)
        self._calls: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelInfer": self.model_infer,
            "RepositoryIndex": self.repository_index,
        }

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers of all calls.

        All are stream handlers, because a stream handler is called before the message is received, so that the call can
        be checked first. On the wire, a stream of one message is the same as a single message.
        """
        handlers = {call: grpc.stream_unary_rpc_method_handler(partial(self._answer, call)) for call in self._calls}
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def server_live(self, request: Any) -> Any:
        """Report that the process is alive."""
        return message("ServerLiveResponse", live=True)

    async def server_ready(self, request: Any) -> Any:
        """Report whether the server accepts requests."""
        return message("ServerReadyResponse", ready=not self._models.problem)

    async def model_ready(self, request: Any) -> Any:
        """Report whether a model accepts requests. An unknown model is not ready, as in Triton."""
        model = self._models.find(request.name)
        is_ready = model is not None and not model.problem and request.version in ("", protocol.VERSION)
        return message("ModelReadyResponse", ready=is_ready)

    async def server_metadata(self, request: Any) -> Any:
        """Describe the server."""
        return message("ServerMetadataResponse", **protocol.server_metadata())

    async def model_metadata(self, request: Any) -> Any:
        """Describe the inputs and outputs of a model."""
        engine = find_model(self._models, request.name, request.version or None).running()
        return message("ModelMetadataResponse", **protocol.model_metadata(engine.name, engine.store.settings))

    async def model_infer(self, request: Any) -> Any:
        """Score rows and, by default, learn them."""
        engine = find_model(self._models, request.model_name, request.model_version or None).running()
        raw = request.raw_input_contents
        decode = partial(_decode, request, engine.name, protocol.inputs_of(engine.store.settings))
        inference = await call_in_thread_if(not raw or sum(map(len, raw)) > LARGE_BODY, decode)
        check_answerable(engine, inference)
        answer = await infer(engine, inference)
        encode = partial(_encode, engine.name, inference, answer, is_raw=len(raw) > 0)
        return await call_in_thread_if(len(answer.scores) > MANY_ROWS, encode)

    async def repository_index(self, request: Any) -> Any:
        """List the models and their states."""
        return message("RepositoryIndexResponse", models=repository_index(self._models, only_ready=request.ready))

    async def _answer(self, call: str, requests: Any, context: Any) -> Any:
        """Answer one call. `_handle` is separate, so that the message is freed before the answer is sent."""
        status, reason, response = await self._handle(call, context)
        if status == 200:
            return response
        return await context.abort(_STATUS.get(status, grpc.StatusCode.INTERNAL), reason)

    async def _handle(self, call: str, context: Any) -> tuple[int, str, bytes]:
        """Return the HTTP status of a call, the reason if it is rejected, and the response. Count the call."""
        began = time.perf_counter()
        model, status, reason = "", 499, "the client cancelled the call"
        try:
            with refusing():
                if call in _HEALTH:
                    response = await self._calls[call](None)
                else:
                    token = _token_of(context)
                    self._access.check_token(token, None, is_model_known=False)
                    with self._in_flight.request(), self._in_flight.body() as add:
                        data = await self._read(context)
                        add(len(data))
                        request = await call_in_thread_if(len(data) > LARGE_BODY, partial(_parse, call, data))
                        model = getattr(request, "model_name", "") or getattr(request, "name", "")
                        self._access.check_token(token, model or None)
                        response = await self._calls[call](request)
            status, reason = 200, ""
            return status, reason, response.SerializeToString()
        except Refused as refused:
            status, reason = refused.status, refused.message
        except Exception:
            LOGGER.exception("unexpected error")
            status, reason = 500, "unexpected error: the log has the details"
        finally:
            self._watch(model, "gRPC", call, status, time.perf_counter() - began, reason)
        return status, reason, b""

    async def _read(self, context: Any) -> bytes:
        """Return the message of a call. gRPC itself ends a call whose message is too large or is never sent."""
        seconds = self._limits.body_seconds
        try:
            async with asyncio.timeout(seconds), self._readers:
                data = await context.read()
        except TimeoutError:
            raise Refused(408, f"the message must arrive within {seconds:g} seconds") from None
        if not isinstance(data, bytes):
            raise Refused(413, f"the message must have at most {self._limits.body_bytes} bytes")
        return data


def _token_of(context: Any) -> bytes | None:
    header = dict(context.invocation_metadata()).get("authorization")
    return None if header is None else str(header).encode()


def _parse(call: str, data: bytes) -> Any:
    try:
        return _CLASSES[f"{call}Request"].FromString(data)
    except DecodeError:
        raise ValueError(f"the message must be a {call}Request, got other bytes") from None


def _decode(request: Any, model: str, inputs: Mapping[str, protocol.Shape]) -> Inference:
    """Return the request in a `ModelInferRequest`."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise ValueError(f"raw_input_contents must have one entry per input, {len(request.inputs)}, got {len(raw)}")
    fields = {
        "id": request.id,
        "parameters": _values(request.parameters),
        "inputs": list(map(_input_fields, request.inputs, raw or repeat(None))),
        "outputs": [{"name": output.name, "parameters": _values(output.parameters)} for output in request.outputs],
    }
    return protocol.decode_fields(fields, memoryview(b""), model, inputs)


def _input_fields(tensor: Any, raw: bytes | None) -> dict[str, Any]:
    """Return the fields of an input in the form that `protocol.decode_fields` takes. Raw bytes replace the contents."""
    received = [field.name for field, _ in tensor.contents.ListFields()]
    name, datatype, expected = tensor.name, tensor.datatype, _CONTENTS.get(tensor.datatype)
    if raw is not None and received:
        raise ValueError(f"{protocol.shown(name)} must come in raw_input_contents or in contents, got both")
    if received not in ([], [expected]) and datatype in protocol.DATATYPES:
        place, got = expected or "raw_input_contents", ", ".join(received)
        raise ValueError(f"{protocol.shown(name)} of datatype {datatype} must come in {place}, got {got}")
    numbers = getattr(tensor.contents, expected) if expected else ()
    parameters = _values(tensor.parameters)
    parameters.pop("binary_data_size", None)  # KServe's client sends this parameter, but only HTTP needs it.
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(tensor.shape),
        "parameters": parameters,
        "data": np.fromiter(numbers, np.float64, len(numbers)) if raw is None else raw,
    }


def _values(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a map of `InferParameter`."""
    chosen = {name: parameter.WhichOneof("parameter_choice") for name, parameter in parameters.items()}
    return {name: choice and getattr(parameters[name], choice) for name, choice in chosen.items()}


def _encode(model: str, inference: Inference, answer: Answer, *, is_raw: bool) -> Any:
    """Return the response to a request. The outputs are raw bytes if the inputs are raw bytes, as in KServe."""
    arrays = protocol.arrays_of(answer)
    names = [output.name for output in inference.requested or ()] or list(arrays)
    outputs: list[dict[str, Any]] = []
    for name in names:
        array, datatype = arrays[name], protocol.OUTPUTS[name]
        contents = {} if is_raw else {"contents": {_CONTENTS[datatype]: array.tolist()}}
        outputs.append({"name": name, "datatype": datatype, "shape": array.shape, **contents})
    parameters = {
        name: message("InferParameter", **{"bool_param" if isinstance(value, bool) else "string_param": value})
        for name, value in protocol.parameters_of(answer).items()
    }
    return message(
        "ModelInferResponse",
        model_name=model,
        model_version=protocol.VERSION,
        id=inference.request_id or "",
        parameters=parameters,
        outputs=outputs,
        raw_output_contents=[protocol.encode_tensor(arrays[name]) for name in names] if is_raw else [],
    )


def _classes() -> dict[str, Any]:
    """Return the class of every message in `MESSAGES`."""
    file = descriptor_pb2.FileDescriptorProto(name="truing/inference.proto", package="inference", syntax="proto3")
    described: dict[str, Any] = {}
    for name, fields in MESSAGES.items():
        owner, _, own = name.rpartition(".")
        described[name] = (described[owner].nested_type if owner else file.message_type).add(name=own)
        _describe(described[name], name, fields)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"inference.{name}")) for name in MESSAGES}


def _describe(described: Any, message: str, fields: dict[str, str]) -> None:
    """Add fields to the description of a message."""
    for number, (name, text) in enumerate(fields.items(), start=1):
        field = described.field.add(name=name, number=number)
        field.label = field.LABEL_REPEATED if text[0] in "[{" else field.LABEL_OPTIONAL
        kind = text.strip("[]{}|")
        if text[0] == "{":  # A map is a repeated message with a key and a value.
            entry = described.nested_type.add(name=f"{name.title()}Entry")
            entry.options.map_entry = True
            kind = f"{message}.{entry.name}"
            _describe(entry, kind, {"key": "string", "value": text.strip("{}")})
        if text[0] == "|":
            if not described.oneof_decl:
                described.oneof_decl.add(name="parameter_choice")
            field.oneof_index = 0
        if kind[0].isupper():
            field.type, field.type_name = field.TYPE_MESSAGE, f".inference.{kind}"
        else:
            field.type = getattr(field, f"TYPE_{kind.upper()}")


_CLASSES = _classes()
