"""The OpenAPI document of the service, written by hand; a test compares it with the routes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from .history import SPANS
from .protocol import ANSWERED, DATATYPES, MAX_ID_LENGTH, MODEL, Widths, model_metadata

_NPZ = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_MEANINGS = {
    400: "the input will not do; the message names it, what came and what was wanted",
    401: "the token is missing or another",
    403: "without a token: the request comes from a page of another site",
    408: "the body took too long to come",
    413: "the body is too large",
    415: "the body is of another type, or compressed",
    503: "busy, stopping or stopped; Retry-After says when to ask again",
}


def document(widths: Widths) -> dict[str, Any]:
    """Return the document of a service whose rows have so many columns."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "truing",
            "version": version("truing"),
            "description": "Out-of-distribution scores that learn as they are asked for; Open Inference Protocol v2.",
        },
        "components": {
            "schemas": {"Error": _ERROR, "Inference": _inference(widths), "Answer": _answer()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
        "paths": _paths(),
    }


def _paths() -> dict[str, Any]:
    model = f"/v2/models/{MODEL}"
    rate = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": False}
    share = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
    rate |= {"properties": {"accept": share, "false_alarm": share, "fdr": share}}
    infer = {
        "application/json": {"schema": {"$ref": "#/components/schemas/Inference"}},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    return {
        "/v2": {"get": _operation("What this server is", 401)},
        "/v2/health/live": {"get": _operation("Whether the process answers")},
        "/v2/health/ready": {"get": _operation("Whether requests are taken", 503)},
        model: {"get": _operation("What the model takes and gives", 401)},
        f"{model}/ready": {"get": _operation("Whether requests are taken", 401, 503)},
        f"{model}/infer": {
            "post": _operation("Score rows, and learn them", 400, 401, 408, 413, 415, 503, body=infer)
            | {"parameters": [_HEADER_LENGTH]}
        },
        "/reference": {
            "put": _operation(
                "Replace the in-distribution reference rows: an .npz with features, and logits or scores",
                *(400, 401, 408, 413, 503),
                body=_NPZ,
            )
        },
        "/rate": {
            "get": _operation("The error rate of decisions", 401),
            "put": _operation("Choose it", 400, 401, 408, 413, 503, body={"application/json": {"schema": rate}}),
        },
        "/moments": {
            "get": _operation(
                "Moments of the learned rows, or a sample of them for a contrast, an .npz", 400, 401, answer=_NPZ
            ),
            "post": _operation("Add the learned rows of another state", 400, 401, 408, 413, 503, body=_NPZ),
        },
        "/snapshot": {"post": _operation("Take a snapshot now", 400, 401, 408, 413, 503)},
        "/reset": {"post": _operation("Forget the learned rows; reference and rate stay", 400, 401, 408, 413, 503)},
        "/metrics": {
            "get": _operation("Metrics for Prometheus", 401, answer={"text/plain": {"schema": {"type": "string"}}})
        },
        "/live/history": {"get": _operation("What the live page shows", 400, 401) | {"parameters": [_SPAN, _SINCE]}},
        "/openapi.json": {"get": _operation("This document", 401)},
    }


_SPAN = {
    "name": "span",
    "in": "query",
    "required": False,
    "description": "How far to look back",
    "schema": {"enum": list(SPANS)},
}
_SINCE = {
    "name": "since",
    "in": "query",
    "required": False,
    "description": "The `next` of the answer before",
    "schema": {"type": "integer", "minimum": 0, "maximum": 10**15 - 1},
}
_HEADER_LENGTH = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "required": False,
    "description": "Length of the JSON, where tensors follow it as bytes",
    "schema": {"type": "integer", "minimum": 0},
}


def _operation(
    summary: str, *errors: int, body: dict[str, Any] | None = None, answer: dict[str, Any] | None = None
) -> dict[str, Any]:
    content = answer or {"application/json": {"schema": {"type": "object"}}}
    responses: dict[str, Any] = {"200": {"description": "as asked", "content": content}}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for status in {403, *errors}:
        responses[str(status)] = {"description": _MEANINGS[status], "content": error}
    operation: dict[str, Any] = {"summary": summary, "responses": responses}
    if body is not None:
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _inference(widths: Widths) -> dict[str, Any]:
    numbers = {"type": "array", "items": {"type": "number"}}
    nested = {"type": "array", "items": numbers}
    inputs = model_metadata(widths)["inputs"]
    shapes = [str(about["shape"]).replace("-1", "n") + f" of {about['name']}" for about in inputs]
    tensor = {
        "type": "object",
        "required": ["name", "shape", "datatype"],
        "additionalProperties": False,
        "properties": {
            "name": {"enum": [about["name"] for about in inputs]},
            "shape": {
                "type": "array",
                "items": {"type": "integer", "minimum": 1},
                "description": ", ".join(shapes),
            },
            "datatype": {"enum": list(DATATYPES)},
            "data": {"anyOf": [numbers, nested]},
            "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer", "minimum": 0}}},
        },
    }
    requested = {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {"enum": list(ANSWERED)},
            "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean"}}},
        },
    }
    parameters = {"learn": {"type": "boolean"}, "binary_data_output": {"type": "boolean"}}
    return {
        "type": "object",
        "required": ["inputs"],
        "additionalProperties": False,
        "properties": {
            "id": {"type": "string", "maxLength": MAX_ID_LENGTH},
            "parameters": {"type": "object", "properties": parameters},
            "inputs": {"type": "array", "items": tensor},
            "outputs": {"type": "array", "items": requested},
        },
    }


def _answer() -> dict[str, Any]:
    output = {
        "type": "object",
        "required": ["name", "datatype", "shape"],
        "properties": {"name": {"enum": list(ANSWERED)}, "datatype": {"enum": sorted(set(ANSWERED.values()))}},
    }
    return {
        "type": "object",
        "required": ["model_name", "outputs"],
        "properties": {"model_name": {"const": MODEL}, "outputs": {"type": "array", "items": output}},
    }
