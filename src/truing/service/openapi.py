"""The OpenAPI document of the service, written by hand. A test compares it with the routes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from ..states import METHODS
from .engine import MAX_ID_LENGTH
from .history import SPANS
from .protocol import DATATYPES, OUTPUTS

_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_STATUSES = {
    400: "Invalid input: the message names the input, what was received and what was expected",
    401: "The token is missing or unknown",
    403: "The token is for another model; or the service has no token, and the request comes from another site",
    404: "The model, version or path does not exist",
    408: "The body took too long to arrive",
    409: "The model exists with other settings",
    410: "The earlier state is no longer stored",
    413: "The body is too large",
    415: "The body has an unsupported type or encoding",
    503: "Busy, stopping, or unable to write; Retry-After is the time to wait in seconds",
}

# The statuses of errors, for requests with a body and for requests to a model.
_BODY_ERRORS = (400, 401, 404, 408, 413, 415, 503)
_MODEL_ERRORS = (401, 404, 503)


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "truing",
            "version": version("truing"),
            "description": "Out-of-distribution detection on a stream, by the Open Inference Protocol v2.",
        },
        "components": {
            "schemas": {"Error": _ERROR, "Inference": _INFERENCE, "Answer": _ANSWER, "Model": _MODEL, "Rate": _RATE},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
        "paths": _paths(),
    }


def _paths() -> dict[str, Any]:
    infer = _operation(
        "Score rows and, by default, learn them",
        *_BODY_ERRORS,
        body=_json("Inference") | _FILE,
        answer=_json("Answer") | _FILE,
        parameters=[_HEADER_LENGTH],
    )
    metadata = _operation("Describe the inputs and outputs of a model", *_MODEL_ERRORS)
    ready = _operation("Whether a model accepts requests", *_MODEL_ERRORS)
    protocol = {"": {"get": metadata}, "/ready": {"get": ready}, "/infer": {"post": infer}}
    return {
        "/v2": {"get": _operation("Describe the server", 401)},
        "/v2/health/live": {"get": _operation("Whether the process is alive")},
        "/v2/health/ready": {"get": _operation("Whether the server accepts requests", 503)},
        "/v2/repository/index": {
            "get": _operation("List the models and their states", 401),
            "post": _operation("List the models and their states", 400, 401, 408, 413),
        },
        **_below("/v2/models/{name}", protocol, _NAME),
        **_below("/v2/models/{name}/versions/{version}", protocol, _NAME, _VERSION),
        "/models": {"get": _operation("List the models", 401)},
        **_below("/models/{name}", _model_operations(), _NAME),
        "/metrics": {
            "get": _operation("Metrics for Prometheus", 401, answer={"text/plain": {"schema": {"type": "string"}}})
        },
        "/live/models": {"get": _operation("The models on the live page", 401)},
        "/live/history": {
            "get": _operation(
                "The charts of the live page", 400, *_MODEL_ERRORS, parameters=[_LIVE_MODEL, _SPAN, _LIVE_SINCE]
            )
        },
        "/openapi.json": {"get": _operation("This document", 401)},
    }


def _model_operations() -> dict[str, Any]:
    """Return the operations below the path of a model."""
    create = _operation("Create a model, or set its rate", *_BODY_ERRORS, 409, body=_json("Model"))
    create["responses"]["201"] = create["responses"]["200"]
    moments = _operation(
        "Sums of all learned rows, or of the rows learned since a change", 400, 410, *_MODEL_ERRORS, answer=_FILE
    )
    moments["responses"]["204"] = {"description": "No rows were learned since then"}
    return {
        "": {
            "get": _operation("Status of a model", *_MODEL_ERRORS),
            "put": create,
            "delete": _operation("Delete a model and its state", *_MODEL_ERRORS),
        },
        "/reference": {"put": _operation("Replace the reference, an .npz with rows", *_BODY_ERRORS, body=_FILE)},
        "/rate": {
            "get": _operation("Error rate of decisions", *_MODEL_ERRORS),
            "put": _operation("Set the error rate", *_BODY_ERRORS, body=_json("Rate")),
        },
        "/moments": {
            "get": moments | {"parameters": [_SINCE]},
            "post": _operation("Add the learned rows of another model", *_BODY_ERRORS, body=_FILE, parameters=[_ID]),
        },
        "/snapshots": {
            "get": _operation("List the states that can be restored", *_MODEL_ERRORS),
            "post": _operation("Store a snapshot now", 400, 408, 413, *_MODEL_ERRORS),
        },
        "/restore": {"post": _operation("Go back to an earlier state", *_BODY_ERRORS, body=_RESTORE)},
        "/reset": {"post": _operation("Forget the learned rows", 400, 408, 413, *_MODEL_ERRORS)},
        "/backup": {"get": _operation("Copy of the database of a model", *_MODEL_ERRORS, answer=_FILE)},
    }


def _below(path: str, operations: dict[str, Any], *parameters: dict[str, Any]) -> dict[str, Any]:
    return {path + end: {"parameters": list(parameters), **methods} for end, methods in operations.items()}


def _operation(
    summary: str,
    *statuses: int,
    body: dict[str, Any] | None = None,
    answer: dict[str, Any] | None = None,
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return an operation, given its summary, the statuses of its errors, its body and its answer."""
    content = answer or {"application/json": {"schema": {}}}
    responses: dict[str, Any] = {"200": {"description": "Success", "content": content}}
    for status in sorted({403, *statuses}):
        responses[str(status)] = {"description": _STATUSES[status], "content": _json("Error")}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    if parameters:
        operation["parameters"] = parameters
    return operation


def _json(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _parameter(name: str, place: str, about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "description": about, "schema": schema}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


_COUNT = {"type": "integer", "minimum": 1}
_SEQUENCE = {"type": "integer", "minimum": 0, "maximum": 10**15 - 1}
_BOOLEAN = {"type": "boolean"}
_SHARE = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}

_NAME = _parameter("name", "path", "Name of the model", {"type": "string", "minLength": 1, "maxLength": 64})
_VERSION = _parameter("version", "path", "Version of the model", {"const": "1"})
_SINCE = _parameter("since", "query", "Truing-Sequence of an earlier answer", _SEQUENCE)
_ID = _parameter(
    "id", "query", "Moments with the same id are added once", {"type": "string", "maxLength": MAX_ID_LENGTH}
)
_LIVE_MODEL = _parameter("model", "query", "Name of the model", {"type": "string"})
_SPAN = _parameter("span", "query", "How far to look back", {"enum": list(SPANS)})
_LIVE_SINCE = _parameter("since", "query", "`next` of an earlier answer", _SEQUENCE)
_HEADER_LENGTH = _parameter(
    "Inference-Header-Content-Length",
    "header",
    "Length of the JSON if tensors follow it",
    {"type": "integer", "minimum": 0},
)

_ERROR = _object(["error"], error={"type": "string"})
_RATE = {
    **_object([], accept=_SHARE, false_alarm=_SHARE, fdr=_SHARE),
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
}
_RESTORE = {"application/json": {"schema": _object(["sequence"], sequence=_SEQUENCE)}}
_MODEL = {
    **_object(
        ["features"],
        features=_COUNT,
        classes={"type": "integer", "minimum": 2},
        base={"type": "string"},
        method={"enum": list(METHODS)},
        rate={"$ref": "#/components/schemas/Rate"},
        temperature={"type": "number", "exclusiveMinimum": 0},
        intercept=_BOOLEAN,
        components=_COUNT,
        decay=_SHARE,
        window=_COUNT,
        keep=_SHARE,
        same_mix=_BOOLEAN,
        drift_alarm=_SHARE,
    ),
    "additionalProperties": False,
}
_NUMBERS = {"type": "array", "items": {"type": "number"}}
_TENSOR = {
    **_object(
        ["name", "shape", "datatype"],
        name={"enum": ["features", "logits", "scores"]},
        shape={"type": "array", "items": _COUNT, "description": "[n, columns], and [n] for scores"},
        datatype={"enum": list(DATATYPES)},
        data={"anyOf": [_NUMBERS, {"type": "array", "items": _NUMBERS}]},
        parameters=_object([], binary_data_size={"type": "integer", "minimum": 0}),
    ),
    "additionalProperties": False,
}
_INFERENCE = {
    **_object(
        ["inputs"],
        id={"type": "string", "maxLength": MAX_ID_LENGTH},
        parameters=_object([], learn=_BOOLEAN, binary_data_output=_BOOLEAN),
        inputs={"type": "array", "items": _TENSOR},
        outputs={
            "type": "array",
            "items": _object(["name"], name={"enum": list(OUTPUTS)}, parameters=_object([], binary_data=_BOOLEAN)),
        },
    ),
    "additionalProperties": False,
}
_ANSWER = _object(
    ["model_name", "outputs"],
    model_name={"type": "string"},
    outputs={
        "type": "array",
        "items": _object(
            ["name", "datatype", "shape"],
            name={"enum": list(OUTPUTS)},
            datatype={"enum": sorted(set(OUTPUTS.values()))},
        ),
    },
)
