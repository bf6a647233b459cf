"""The HTTP routes. Each handler reads the body, calls the engine of a model, and sends the answer.

Errors are JSON, `{"error": ...}`, as in the Open Inference Protocol. Invalid input is answered with a 4xx status and
changes nothing. If the service cannot accept a request now, it answers 503 with `Retry-After`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from weakref import WeakSet

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from ..decisions.thresholds import Rate
from ..stream import learned_since
from . import protocol, store
from .changes import Change, calibration, learning, merging
from .engine import Answer, Engine, Unavailable
from .history import History
from .live import OPEN_PATHS, live_routes
from .logs import FewPerSecond, log
from .metrics import Metrics
from .models import RATES, Model, Models
from .openapi import document
from .protocol import Inference
from .security import Access, Guard, InFlight, Limits, Refused, busy, check_json_size, model_of, read_body, refusing
from .uploads import check_has_moments, decode_moments, decode_reference, encode_moments

T = TypeVar("T")

HEALTH = frozenset({"/v2/health/live", "/v2/health/ready"})
INFER = "/v2/models/{name}/infer"

# Bodies of more bytes are decoded in a thread, and answers with more rows are encoded in a thread, so that other
# requests are not delayed.
LARGE_BODY = 2**20
MANY_ROWS = 10_000

# A backup occupies disk space until the client has read it, so the number of backups in transit is limited.
_MOST_BACKUPS = 2

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BODY_TYPES = ("application/json", "application/octet-stream")

# The response header with the sequence number of the state.
SEQUENCE = "Truing-Sequence"


def create_app(
    models: Models,
    metrics: Metrics,
    *,
    access: Access,
    limits: Limits,
    histories: Mapping[str, History],
) -> Starlette:
    """Return the app that serves these models.

    Parameters
    ----------
    models
        The models, which requests may create and delete.
    metrics
        The counters of requests.
    access
        Who may send requests. The health routes and the files of the live page need no token.
    limits
        The limits on requests.
    histories
        The history of each model, for the live page.
    """
    service = _Service(models, metrics, limits)
    routes: list[BaseRoute] = [*service.routes(), *live_routes(models, histories)]
    paths = frozenset(route.path for route in routes if isinstance(route, Route))
    watch = partial(_watch_http, Watch(models, metrics, histories), paths)
    guard = Middleware(Guard, access=access, in_flight=InFlight(limits), health=HEALTH, watch=watch)
    app = Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False
    return app


def open_paths() -> frozenset[str]:
    """Return the paths that need no token."""
    return HEALTH | OPEN_PATHS


class _Service:
    """The handlers of the routes."""

    def __init__(self, models: Models, metrics: Metrics, limits: Limits) -> None:
        self._models = models
        self._metrics = metrics
        self._limits = limits
        self._managing = ThreadPoolExecutor(2, "truing-manage")
        self._backups: WeakSet[BinaryIO] = WeakSet()

    def routes(self) -> list[Route]:
        """Return all routes, the most frequent one first."""
        model = "/v2/models/{name}"
        versioned = f"{model}/versions/{{version}}"
        return [
            Route(INFER, self.infer, methods=["POST"]),
            Route(f"{versioned}/infer", self.infer, methods=["POST"]),
            Route("/v2", self.server_metadata),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route("/v2/repository/index", self.repository_index, methods=["GET", "POST"]),
            Route(model, self.model_metadata),
            Route(versioned, self.model_metadata),
            Route(f"{model}/ready", self.model_ready),
            Route(f"{versioned}/ready", self.model_ready),
            Route("/models", self.list_models),
            Route("/models/{name}", self.get_model),
            Route("/models/{name}", self.put_model, methods=["PUT"]),
            Route("/models/{name}", self.delete_model, methods=["DELETE"]),
            Route("/models/{name}/reference", self.put_reference, methods=["PUT"]),
            Route("/models/{name}/rate", self.rate, methods=["GET", "PUT"]),
            Route("/models/{name}/moments", self.get_moments),
            Route("/models/{name}/moments", self.post_moments, methods=["POST"]),
            Route("/models/{name}/snapshots", self.list_snapshots),
            Route("/models/{name}/snapshots", self.take_snapshot, methods=["POST"]),
            Route("/models/{name}/restore", self.restore, methods=["POST"]),
            Route("/models/{name}/reset", self.reset, methods=["POST"]),
            Route("/models/{name}/backup", self.backup),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
        ]

    async def infer(self, request: Request) -> Response:
        """Score rows and, by default, learn them."""
        engine = self._engine(request)
        _check_type(request)
        length = _header_length(request)
        if length is not None:
            check_json_size(length, self._limits)
        body = await read_body(request.scope, request.receive, self._limits, is_json=length is None)
        inputs = protocol.inputs_of(engine.store.settings)
        decode = partial(protocol.decode_request, body, length, engine.name, inputs)
        with refusing():
            inference = await call_in_thread_if(len(body) > LARGE_BODY, decode)
            protocol.check_json_answer(inference)
            check_answerable(engine, inference)
            answer = await infer(engine, inference)
            encode = partial(protocol.encode_response, engine.name, inference, answer)
            content, json_length = await call_in_thread_if(len(answer.scores) > MANY_ROWS, encode)
        if json_length is None:
            return Response(content, media_type="application/json")
        headers = {"Inference-Header-Content-Length": str(json_length)}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def server_metadata(self, request: Request) -> Response:
        """Describe the server."""
        return JSONResponse(protocol.server_metadata())

    async def live(self, request: Request) -> Response:
        """Report that the process is alive."""
        return JSONResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """Report whether the server accepts requests: at least one model is ready, or there are no models."""
        return _readiness(self._models.problem)

    async def model_ready(self, request: Request) -> Response:
        """Report whether a model accepts requests."""
        return _readiness(self._model(request).problem)

    async def repository_index(self, request: Request) -> Response:
        """List the models and their states, as the model repository extension does."""
        only_ready = False
        if request.method == "POST":
            body = await read_body(request.scope, request.receive, self._limits, is_json=True)
            with refusing():
                options = protocol.parse_json(body) if body else {}
                only_ready = isinstance(options, dict) and options.get("ready") is True
        return JSONResponse(repository_index(self._models, only_ready=only_ready))

    async def model_metadata(self, request: Request) -> Response:
        """Describe the inputs and outputs of a model."""
        engine = self._engine(request)
        return JSONResponse(protocol.model_metadata(engine.name, engine.store.settings))

    async def list_models(self, request: Request) -> Response:
        """List the models."""
        return JSONResponse({"models": [_describe(model) for model in self._models]})

    async def get_model(self, request: Request) -> Response:
        """Return the status of a model."""
        return JSONResponse(_describe(self._model(request)))

    async def put_model(self, request: Request) -> Response:
        """Create a model, or set the rate of an existing model with the same settings."""
        name = request.path_params["name"]
        settings = await self._json(request)
        with refusing():
            rate = _rate(settings.pop("rate")) if "rate" in settings else None
            model, is_new = await self._manage(self._models.create, name, settings, rate)
        return JSONResponse(_describe(model), 201 if is_new else 200)

    async def delete_model(self, request: Request) -> Response:
        """Delete a model and its state."""
        name = self._model(request).name
        with refusing():
            try:
                await self._manage(self._models.delete, name)
            except KeyError:  # Another request deleted the model in the meantime.
                raise Refused(404, self._models.unknown(name)) from None
        return JSONResponse({"deleted": name})

    async def put_reference(self, request: Request) -> Response:
        """Replace the reference rows of a model."""
        engine = self._engine(request)
        body = await read_body(request.scope, request.receive, self._limits)
        with refusing():
            decode = partial(decode_reference, body, body_limit=self._limits.body_bytes)
            reference = await asyncio.to_thread(decode)
            await _commit(engine, calibration(reference.rows, reference.groups))
        status = engine.status()
        unused = [f"arrays of the reference that were not used: {', '.join(reference.unused)}"] * bool(reference.unused)
        answer = {"reference_rows": status.reference_rows, "method": status.method, "notes": [*unused, *status.notes]}
        return JSONResponse(answer)

    async def rate(self, request: Request) -> Response:
        """Return or set the error rate of decisions."""
        engine = self._engine(request)
        if request.method == "PUT":
            body = await self._json(request)
            with refusing():
                rate = _rate(body)
                await _commit(engine, Change("rate", (rate.name, rate.value)))
        contents = engine.contents
        answer: dict[str, Any] = {contents.rate.name: contents.rate.value}
        if request.method == "PUT" and contents.reference_notes:
            answer["notes"] = contents.reference_notes
        return JSONResponse(answer)

    async def get_moments(self, request: Request) -> Response:
        """Return the sums of all learned rows, or of the rows learned since an earlier sequence number."""
        engine = self._engine(request)
        since = _whole_number(request, "since")
        with refusing():
            return await asyncio.to_thread(_moments, engine, since)

    async def post_moments(self, request: Request) -> Response:
        """Add the learned rows of another model."""
        engine = self._engine(request)
        body = await read_body(request.scope, request.receive, self._limits)
        with refusing():
            request_id = protocol.decode_id(request.query_params.get("id"))
            moments = await asyncio.to_thread(decode_moments, body, engine.contents.detector)
            await _commit(engine, merging(moments, request_id))
        return JSONResponse({"rows": engine.contents.rows})

    async def list_snapshots(self, request: Request) -> Response:
        """List the states that can be restored."""
        engine = self._engine(request)
        with refusing():
            snapshots = await asyncio.to_thread(engine.store.snapshots)
            oldest = await asyncio.to_thread(engine.store.oldest)
        listed = [snapshot._asdict() for snapshot in snapshots]
        return JSONResponse({"snapshots": listed, "sequence": engine.contents.sequence, "restorable_from": oldest})

    async def take_snapshot(self, request: Request) -> Response:
        """Store a snapshot now."""
        engine = self._engine(request)
        await read_body(request.scope, request.receive, self._limits, is_json=True)
        with refusing():
            snapshot = await asyncio.wrap_future(engine.snapshot())
        return JSONResponse(snapshot._asdict())

    async def restore(self, request: Request) -> Response:
        """Go back to an earlier state."""
        engine = self._engine(request)
        body = await self._json(request)
        with refusing():
            if set(body) != {"sequence"} or type(body["sequence"]) is not int:
                raise ValueError(f'the body must be {{"sequence": NUMBER}}, got {protocol.shown(body)}')
            await _commit(engine, Change("restore", body["sequence"]))
        return JSONResponse(_describe(self._model(request)))

    async def reset(self, request: Request) -> Response:
        """Forget the learned rows. The reference and the rate stay."""
        engine = self._engine(request)
        await read_body(request.scope, request.receive, self._limits, is_json=True)
        with refusing():
            await _commit(engine, Change("reset"))
        return JSONResponse({"rows": engine.contents.rows})

    async def backup(self, request: Request) -> Response:
        """Return a copy of the database of a model."""
        engine = self._engine(request)
        with refusing():
            if sum(not file.closed for file in self._backups) >= _MOST_BACKUPS:
                raise Unavailable(f"busy: {_MOST_BACKUPS} backups are being sent")
            file = await self._manage(_backup, engine)
            self._backups.add(file)
        headers = {
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            "Content-Disposition": f'attachment; filename="{engine.store.path.name}"',
        }
        return StreamingResponse(_chunks(file), media_type="application/octet-stream", headers=headers)

    async def metrics(self, request: Request) -> Response:
        """Return the metrics for Prometheus."""
        text = await asyncio.to_thread(self._metrics.text)  # Reading the gauges may solve a wide fit, which is slow.
        return Response(text, media_type=_METRICS_TYPE)

    async def openapi(self, request: Request) -> Response:
        """Return the OpenAPI document."""
        return JSONResponse(document())

    async def _manage(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a slow function in a separate thread pool, so that it does not delay other requests."""
        return await asyncio.get_running_loop().run_in_executor(self._managing, function, *arguments)

    def _model(self, request: Request) -> Model:
        return find_model(self._models, request.path_params["name"], request.path_params.get("version"))

    def _engine(self, request: Request) -> Engine:
        model = self._model(request)
        with refusing():
            return model.running()

    async def _json(self, request: Request) -> dict[str, Any]:
        """Return the JSON object in the body of a request."""
        body = await read_body(request.scope, request.receive, self._limits, is_json=True)
        with refusing():
            value = protocol.parse_json(body)
            if not isinstance(value, dict):
                raise ValueError(f"the body must be a JSON object, got {protocol.shown(value)}")
            return value


def find_model(models: Models, name: str, version: str | None = None) -> Model:
    """Return a model by its name. If a version is given, it must be the version of the model."""
    model = models.find(name)
    if model is None:
        raise Refused(404, models.unknown(name))
    if version not in (None, protocol.VERSION):
        raise Refused(404, f"model_version must be {protocol.VERSION}, got {protocol.shown(version)}")
    return model


def repository_index(models: Models, *, only_ready: bool) -> list[dict[str, str]]:
    """Return the models and their states, as the model repository extension lists them."""
    return [
        {
            "name": model.name,
            "version": protocol.VERSION,
            "state": "UNAVAILABLE" if model.problem else "READY",
            "reason": model.problem,
        }
        for model in models
        if not (only_ready and model.problem)
    ]


async def infer(engine: Engine, inference: Inference) -> Answer:
    """Return the answer to a request. If its rows are learned, wait until they are durable."""
    answer: Answer
    if inference.learn:
        answer = await asyncio.wrap_future(engine.submit(learning(inference.outputs, inference.request_id)))
    else:
        answer = await asyncio.to_thread(engine.score, inference.outputs)
    if inference.needs_reference and answer.p_values is None:  # A restore removed the reference in the meantime.
        raise Unavailable("the reference was removed while the request was queued: send the request again")
    return answer


def check_answerable(engine: Engine, inference: Inference) -> None:
    """Raise an error, before anything is learned, if a request needs a reference and the model has none."""
    if engine.contents.solved.state.reference is not None:
        return
    is_contrast = engine.contents.solved.state.settings.method == "contrast"
    name = inference.needs_reference
    if name or is_contrast:
        what = f"output {name}" if name else "method contrast"
        raise ValueError(f"{what} needs a reference, got none so far: PUT /models/{engine.name}/reference")


async def _commit(engine: Engine, change: Change) -> None:
    """Apply a change, and wait until it is durable."""
    await asyncio.wrap_future(engine.submit(change))


async def call_in_thread_if(in_thread: bool, function: Callable[[], T]) -> T:
    """Call a function and return its result. Use a thread if the call would block the event loop for long."""
    return await asyncio.to_thread(function) if in_thread else function()


def _moments(engine: Engine, since: int | None) -> Response:
    contents = engine.contents
    detector = contents.detector
    check_has_moments(detector)
    moments = detector.moments
    if since is not None:
        try:
            before = engine.store.before(since)
        except LookupError as error:
            raise Refused(410, str(error.args[0])) from None
        moments = learned_since(contents.solved.state, before.solved.state)
    headers = {SEQUENCE: str(contents.sequence)}
    if moments is None:
        return Response(status_code=204, headers=headers)
    return Response(encode_moments(moments, detector), media_type="application/octet-stream", headers=headers)


async def _chunks(file: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the content of a file, and close it at the end or when the client disconnects."""
    with file:
        while chunk := await asyncio.to_thread(file.read, 2**20):
            yield chunk


def _backup(engine: Engine) -> BinaryIO:
    """Return an open file with a copy of the database. The file is unlinked, so it is gone when it is closed."""
    path = engine.store.path
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        target = Path(folder) / path.name
        store.backup(path, target)
        return target.open("rb")


def _describe(model: Model) -> dict[str, Any]:
    if model.engine is None:
        return {"model": model.name, "problem": model.problem}
    described = asdict(model.engine.status())
    name, value = described.pop("rate")
    snapshot = described.pop("snapshot")
    snapshot = None if snapshot is None else store.Snapshot(*snapshot)._asdict()
    return described | {"rate": {name: value}, "snapshot": snapshot}


def _readiness(problem: str) -> Response:
    if problem:
        raise busy(problem)
    return JSONResponse({"ready": True})


def _check_type(request: Request) -> None:
    header = request.headers.get("content-type")
    kind = "" if header is None else header.partition(";")[0].strip().lower()
    if header is not None and kind not in _BODY_TYPES:
        expected = " or ".join(_BODY_TYPES)
        hint = "with curl, add -H 'Content-Type: application/json'"
        raise Refused(415, f"Content-Type must be {expected}, got {protocol.shown(kind)}: {hint}", close=True)


def _header_length(request: Request) -> int | None:
    header = request.headers.get("inference-header-content-length")
    if header is None:
        return None
    if not (header.isascii() and header.isdigit() and len(header) <= 18):
        name = "Inference-Header-Content-Length"
        raise Refused(400, f"{name} must be a whole number, got {protocol.shown(header)}", close=True)
    return int(header)


def _whole_number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise Refused(400, f"{name} must be a whole number of up to 15 digits, got {protocol.shown(text)}")
    return int(text)


def _rate(value: Any) -> Rate:
    if not isinstance(value, dict) or set(value) - set(RATES):
        expected = f'one of {", ".join(RATES)}, such as {{"false_alarm": 0.05}}'
        raise ValueError(f"rate must be {expected}, got {protocol.shown(value)}")
    for name, share in value.items():
        if type(share) not in (int, float) or not 0 <= share <= 1:
            raise ValueError(f"{name} must be a number from 0 to 1, got {protocol.shown(share)}")
    return Rate.of(**value)


async def _http_error(request: Request, error: Exception) -> Response:
    """Return the JSON answer to an error that a route or Starlette raised."""
    assert isinstance(error, HTTPException)
    message, headers, path = error.detail, error.headers, request.url.path
    if error.status_code == 405:  # Starlette lists the methods of one route only.
        methods = _methods_of(request)
        expected = " or ".join(sorted(methods - {"HEAD"}))
        message = f"the method for {protocol.shown(path)} must be {expected}, got {request.method}"
        headers = {"Allow": ", ".join(sorted(methods))}
    elif message == "Not Found":
        hint = "send rows to /v2/models/NAME/infer" if path.endswith("infer") else "/openapi.json lists all paths"
        message = f"there is no path {protocol.shown(path)}: {hint}"
    return JSONResponse({"error": message}, error.status_code, headers)


def _methods_of(request: Request) -> set[str]:
    """Return the methods that the path of a request accepts."""
    routes = [route for route in request.app.routes if route.matches(request.scope)[0] != Match.NONE]
    return {method for route in routes for method in route.methods or ()}


class Watch:
    """Counts requests by model, method and route. Logs failed requests, and changes other than learned batches."""

    def __init__(self, models: Models, metrics: Metrics, histories: Mapping[str, History]) -> None:
        self._models = models
        self._metrics = metrics
        self._histories = histories
        self._refusals = FewPerSecond("requests refused without a log line")

    def __call__(self, model: str, method: str, route: str, status: int, seconds: float, reason: str) -> None:
        """Count one request. `reason` is empty if the request succeeded."""
        if self._models.find(model) is None:
            model = ""
        self._metrics.watch(model, method, route, status, seconds)
        history = self._histories.get(model)
        if history is not None:
            history.watch(status, seconds)
        fields: dict[str, Any] = {
            "model": model,
            "method": method,
            "route": route,
            "status": status,
            "seconds": round(seconds, 6),
        }
        if status >= 500 and status != 503:
            log("request failed", reason=reason, level="error", **fields)
        elif status >= 400:
            if self._refusals.is_next_shown():
                log("request refused", reason=reason, **fields)
        elif method not in ("GET", "HEAD", "gRPC") and not route.endswith("/infer"):
            log("request", **fields)


def _watch_http(watch: Watch, routes: frozenset[str], scope: Scope, status: int, seconds: float, reason: str) -> None:
    """Count an HTTP request by its route."""
    path = scope["path"]
    model = model_of(path) or ""
    route = path.replace(f"/models/{model}", "/models/{name}", 1) if model else path
    route = route.replace(f"/versions/{protocol.VERSION}", "/versions/{version}", 1)
    # An unknown path counts as "other", so that it does not become a new label of the metrics.
    watch(model, scope["method"], route if route in routes else "other", status, seconds, reason)
