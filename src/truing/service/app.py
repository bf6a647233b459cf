"""The routes: each reads a body, asks the engine, and writes an answer.

Errors are JSON, `{"error": ...}`, as the Open Inference Protocol has them. Bad input is a 4xx and changes nothing; a
service that is busy or has stopped says 503 and when to come back.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..decisions.thresholds import Rate
from . import protocol
from .bodies import Limits, Refused, check_json_size, read_body, refusing
from .guard import Access, Guard
from .history import History
from .live_page import OPEN_PATHS, page_routes
from .logs import log, printable
from .metrics import Metrics
from .openapi import document
from .protocol import MODEL, Inference, Widths
from .requests import Answer, Request
from .serving import Serving
from .uploads import read_reference, read_uploaded_moments, written_moments

T = TypeVar("T")

HEALTH = frozenset({"/v2/health/live", "/v2/health/ready"})
INFER = f"/v2/models/{MODEL}/infer"

# Larger bodies are decoded in a thread, so that others are answered meanwhile.
_LARGE_BODY = 2**20

_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BODY_TYPES = ("application/json", "application/octet-stream")


def create_app(
    serving: Serving,
    metrics: Metrics,
    *,
    widths: Widths,
    token: str | None = None,
    is_local: bool = True,
    limits: Limits | None = None,
    is_read_only: bool = False,
    history: History | None = None,
) -> Starlette:
    """Return the app that asks `serving`.

    Parameters
    ----------
    serving
        What answers: an engine, or a replica.
    metrics
        The counters, which listen to the engine.
    widths
        How many columns features and logits have.
    token
        What clients must show; None for none.
    is_local
        Without a token, whether only requests to this machine by its own name are answered.
    limits
        On bodies; by default those of `Limits`.
    is_read_only
        Whether rows are learned only where a request says so, for replicas, which then refuse it.
    history
        What the live page shows, which listens to the engine and looks at it; None for no page.
    """
    limits = limits or Limits()
    metrics.observe_state(serving)
    service = Service(serving, metrics, widths, limits, is_read_only)
    routes = service.routes() + ([] if history is None else page_routes(history))
    paths = frozenset(route.path for route in routes)

    def watch(method: str, path: str, status: int, seconds: float, reason: str) -> None:
        known = path if path in paths else "other"  # Clients may ask for any number of others.
        metrics.watch(method, known, status, seconds)
        _log_request(method, known, status, seconds, reason)

    direct = {("POST", INFER): service.infer}
    access = Access(token, is_local, HEALTH | OPEN_PATHS)
    guard = Middleware(Guard, direct=direct, access=access, limits=limits, watch=watch)
    app = Starlette(routes=routes, middleware=[guard], exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False  # What is not there is a 404.
    return app


class Service:
    """The routes and what they stand on."""

    def __init__(self, serving: Serving, metrics: Metrics, widths: Widths, limits: Limits, is_read_only: bool) -> None:
        self._serving = serving
        self._metrics = metrics
        self._widths = widths
        self._limits = limits
        self._is_read_only = is_read_only

    def routes(self) -> list[Route]:
        """Return all routes, the one in a hurry first."""
        model = f"/v2/models/{MODEL}"
        return [
            Route(INFER, _ASGI(self.infer), methods=["POST"]),
            Route("/v2", self.server_metadata),
            Route("/v2/health/live", self.live),
            Route("/v2/health/ready", self.ready),
            Route(model, self.model_metadata),
            Route(f"{model}/ready", self.ready),
            Route("/reference", self.put_reference, methods=["PUT"]),
            Route("/rate", self.rate, methods=["GET", "PUT"]),
            Route("/moments", self.moments, methods=["GET", "POST"]),
            Route("/snapshot", self.snapshot, methods=["POST"]),
            Route("/reset", self.reset, methods=["POST"]),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
        ]

    async def infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Score rows and, unless they are not to be learned, learn them."""
        headers = dict(scope["headers"])
        _check_type(headers)
        length = _header_length(headers)
        if length is not None:
            check_json_size(length, self._limits)
        body = await read_body(scope, receive, self._limits, is_json=length is None)
        inference = await _decoded(len(body), lambda: self._inference(body, length))
        self._check_answerable(inference)
        asked = Request(inference.outputs, inference.learn, inference.request_id)
        answer = await _done(self._serving.submit(asked))
        response, json_length = await _encoded(inference, answer)
        await _send_inference(send, response, json_length)

    async def server_metadata(self, request: HTTPRequest) -> Response:
        """Say what this server is."""
        about = {"name": MODEL, "version": version("truing"), "extensions": ["binary_tensor_data"]}
        return JSONResponse(about)

    async def model_metadata(self, request: HTTPRequest) -> Response:
        """Say what the model takes and gives."""
        return JSONResponse(protocol.model_metadata(self._widths))

    async def live(self, request: HTTPRequest) -> Response:
        """Say that the process answers."""
        return JSONResponse({"live": True})

    async def ready(self, request: HTTPRequest) -> Response:
        """Say whether requests are taken, and why not."""
        facts = self._serving.facts()
        if facts.is_ready:
            return JSONResponse({"ready": True, "name": MODEL})
        raise Refused(503, facts.why_not, {"Retry-After": "1"})

    async def put_reference(self, request: HTTPRequest) -> Response:
        """Take known in-distribution rows, in place of any earlier ones."""
        body = await read_body(request.scope, request.receive, self._limits)
        read = partial(read_reference, body, body_limit=self._limits.body_bytes)
        reference = await _decoded(len(body), read, in_thread=True)
        await _done(self._serving.calibrate(reference))
        return JSONResponse({"reference_rows": len(reference)})

    async def rate(self, request: HTTPRequest) -> Response:
        """Tell or choose the error rate of decisions."""
        if request.method == "PUT":
            body = await read_body(request.scope, request.receive, self._limits, is_json=True)
            with refusing():
                rate = _rate(protocol.parse_json(body))
            await _done(self._serving.choose_rate(rate))
        rate = self._serving.rate
        return JSONResponse({rate.name: rate.value})

    async def moments(self, request: HTTPRequest) -> Response:
        """Give the sums of the learned rows, or add those of another state."""
        if request.method == "POST":
            body = await read_body(request.scope, request.receive, self._limits)
            read = partial(read_uploaded_moments, body, self._serving.detector)
            moments = await _decoded(len(body), read, in_thread=True)
            await _done(self._serving.merge(moments))
            return JSONResponse({"rows": self._serving.facts().rows})
        written = await _decoded(0, partial(written_moments, self._serving.detector), in_thread=True)
        return Response(written, media_type="application/octet-stream")

    async def snapshot(self, request: HTTPRequest) -> Response:
        """Take a snapshot now."""
        await read_body(request.scope, request.receive, self._limits, is_json=True)
        taken = await _done(self._serving.snapshot())
        return JSONResponse({"sequence": taken.sequence, "bytes": taken.bytes, "name": taken.name})

    async def reset(self, request: HTTPRequest) -> Response:
        """Forget the learned rows; the reference and the rate stay."""
        await read_body(request.scope, request.receive, self._limits, is_json=True)
        await _done(self._serving.reset())
        return JSONResponse({"rows": self._serving.facts().rows})

    async def metrics(self, request: HTTPRequest) -> Response:
        """Tell Prometheus how things are."""
        text = await asyncio.to_thread(self._metrics.text)  # A fit of many columns may have to be solved for it.
        return Response(text, media_type=_METRICS_TYPE)

    async def openapi(self, request: HTTPRequest) -> Response:
        """Describe all of this."""
        return JSONResponse(document(self._widths))

    def _inference(self, body: bytes, length: int | None) -> Inference:
        with _no_garbage_collection():
            return protocol.decode_request(body, length, self._widths, learns=not self._is_read_only)

    def _check_answerable(self, inference: Inference) -> None:
        """Refuse what needs a reference where there is none, before anything is learned."""
        detector = self._serving.detector
        if detector.reference is not None:
            return
        wanted = inference.asks_for("p_values", "is_out")
        if wanted or detector.settings.method == "contrast":
            needy = f"output {wanted[0]}" if wanted else "a contrast"
            raise Refused(400, f"{needy} needs a reference, got none so far: PUT /reference")


class _ASGI:
    """A coroutine function as an ASGI app, which Starlette hands on what comes without wrapping it."""

    def __init__(self, answer: Callable[[Scope, Receive, Send], Any]) -> None:
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(scope, receive, send)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Look for no cycles among millions of lists while they are made: what JSON makes has none."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def _decoded(size: int, decode: Callable[[], T], *, in_thread: bool = False) -> T:
    with refusing():
        if in_thread or size > _LARGE_BODY:
            return await asyncio.to_thread(decode)
        return decode()


async def _done(future: Future[T]) -> T:
    """Wait for what another thread does."""
    if not future.done():
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(_end, ended))
        await ended
    with refusing():
        return future.result()


def _end(ended: asyncio.Future[None]) -> None:
    if not ended.done():  # Its waiter may have been cancelled.
        ended.set_result(None)


async def _encoded(inference: Inference, answer: Answer) -> tuple[bytes, int | None]:
    with refusing():
        if len(answer.scores) > protocol.MANY_ROWS:
            return await asyncio.to_thread(_response, inference, answer)
        return _response(inference, answer)


def _response(inference: Inference, answer: Answer) -> tuple[bytes, int | None]:
    held = {
        "scores": answer.scores,
        "base_scores": answer.base_scores,
        "p_values": answer.p_values,
        "is_out": answer.is_out,
    }
    arrays = {name: array for name, array in held.items() if array is not None}
    parameters: dict[str, bool | str] = {"learned": answer.learned, "repeated": answer.repeated}
    if answer.notes:
        parameters["notes"] = "\n".join(answer.notes)
    returned = inference.returned(list(arrays))
    return protocol.encode_response(arrays, returned, inference.request_id, parameters)


async def _send_inference(send: Send, body: bytes, json_length: int | None) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    if json_length is None:
        headers.append((b"content-type", b"application/json"))
    else:
        headers.append((b"content-type", b"application/octet-stream"))
        headers.append((b"inference-header-content-length", b"%d" % json_length))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _check_type(headers: Mapping[bytes, bytes]) -> None:
    given = headers.get(b"content-type")
    if given is None:
        return
    kind = given.decode("latin-1").partition(";")[0].strip().lower()
    if kind not in _BODY_TYPES:
        wanted = " or ".join(_BODY_TYPES)
        raise Refused(415, f"Content-Type must be {wanted}, got {protocol.shown(kind)}", unread=True)


def _header_length(headers: Mapping[bytes, bytes]) -> int | None:
    given = headers.get(b"inference-header-content-length")
    if given is None:
        return None
    if not given.isdigit() or len(given) > 18:
        text = protocol.shown(given.decode("latin-1"))
        raise Refused(400, f"Inference-Header-Content-Length must be a whole number, got {text}", unread=True)
    return int(given)


def _rate(given: Any) -> Rate:
    if not isinstance(given, dict) or set(given) - {"accept", "false_alarm", "fdr"}:
        wanted = 'the rate must be one of accept, false_alarm and fdr, such as {"false_alarm": 0.05}'
        raise ValueError(f"{wanted}, got {protocol.shown(given)}")
    for name, value in given.items():
        if type(value) not in (int, float) or not 0 <= value <= 1:
            raise ValueError(f"{name} must be a number from 0 to 1, got {protocol.shown(value)}")
    return Rate.of(**given)


async def _http_error(request: HTTPRequest, error: Exception) -> Response:
    """Answer what Starlette refuses: a path or a method that is not there."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {protocol.shown(request.url.path)}: {error.detail}"
    return JSONResponse({"error": message}, error.status_code, error.headers)


def _log_request(method: str, path: str, status: int, seconds: float, reason: str) -> None:
    """Log what changes more than rows, and what failed and why; the metrics count all."""
    if status < 400 and (path == INFER or method in ("GET", "HEAD")):
        return
    level = logging.ERROR if status >= 500 else logging.INFO
    facts = {"reason": printable(reason)} if reason else {}
    log("request", level=level, method=method, path=path, status=status, seconds=round(seconds, 6), **facts)
