"""Access checks (tokens, hosts, origins) and limits (sizes, times, numbers of requests), as ASGI middleware.

If the service has no token, web pages in a browser are a danger, because any page can send requests to this machine.
Such requests carry the `Origin` of the page or, with DNS rebinding, another `Host`.
"""

from __future__ import annotations

import asyncio
import hmac
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .engine import STOPPING, Unavailable
from .logs import LOGGER, log
from .models import Conflict, is_name

# The `Retry-After` of a busy service.
RETRY_SECONDS = 1

# Shorter tokens can be guessed.
MIN_TOKEN = 16

# The interval at which the token file is checked for changes.
_REREAD_SECONDS = 1.0

_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
_LOADS_NOTHING = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")

# The key in the ASGI scope of the function that counts the bytes of bodies.
_COUNT_BYTES = "truing.count_bytes"

# A function that is called with the scope, status, seconds and reason of every request. The reason is empty if the
# request succeeded.
OnAnswer = Callable[[Scope, int, float, str], None]


@dataclass(frozen=True)
class Limits:
    """Limits on requests.

    `json_bytes` limits JSON, because parsing it takes many times its size in memory. `body_bytes` limits all other
    bodies, before and after decompression. `body_seconds` is the time for a body to arrive. `requests` limits the
    number of concurrent requests, and `in_flight_bytes` the total size of their bodies, including decompressed bodies.
    """

    body_bytes: int = 64 * 2**20
    json_bytes: int = 4 * 2**20
    body_seconds: float = 30.0
    requests: int = 1000

    @property
    def in_flight_bytes(self) -> int:
        """The largest total size of the bodies of concurrent requests."""
        return 4 * self.body_bytes


class Refused(Exception):  # noqa: N818  # Not named Error, because the exception becomes a response.
    """An answer with an error status. With `close`, the connection is closed without reading the rest of the body."""

    def __init__(
        self, status: int, message: str, headers: dict[str, str] | None = None, *, close: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = (headers or {}) | ({"Connection": "close"} if close else {})


@contextmanager
def refusing() -> Iterator[None]:
    """Turn errors into answers: invalid input into 400, a conflict into 409, and a temporary problem into 503."""
    try:
        yield
    except Unavailable as error:
        raise busy(str(error)) from None
    except OSError as error:  # The message must not show the path.
        raise busy(f"the state cannot be read or written: {error.strerror or error}") from None
    except Conflict as error:
        raise Refused(409, str(error)) from None
    except (ValueError, TypeError, ArithmeticError) as error:
        raise Refused(400, str(error)) from None
    except MemoryError:
        raise Refused(413, "the request needs more memory than the server has") from None


def busy(message: str, *, close: bool = False) -> Refused:
    """Return the answer of a service that cannot accept a request now."""
    return Refused(503, message, {"Retry-After": str(RETRY_SECONDS)}, close=close)


class Tokens:
    """The tokens in a file, which is read again when it changes.

    A line is a token for everything, or `NAME: TOKEN`, a token for one model. A token for one model cannot create or
    delete the model. Several tokens may be valid at a time, so that tokens can be rotated. Lines that start with # are
    comments.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._stamp = self._changed()
        self._tokens = read_tokens(path)
        self._next_look = time.monotonic() + _REREAD_SECONDS

    def allows(self, token: bytes, model: str | None) -> bool:
        """Return whether a token gives access to a model, or to routes without a model (None)."""
        return any(name is None or name == model for name in self._names(token))

    def knows(self, token: bytes) -> bool:
        """Return whether a token is in the file, for any model."""
        return len(self._names(token)) > 0

    def _names(self, token: bytes) -> list[str | None]:
        """Return the models that a token gives access to. None stands for everything."""
        self._reread()
        return [name for valid, name in self._tokens if hmac.compare_digest(token, valid.encode())]

    def _reread(self) -> None:
        with self._lock:
            if time.monotonic() < self._next_look:
                return
            self._next_look = time.monotonic() + _REREAD_SECONDS
            try:
                stamp = self._changed()
                if stamp != self._stamp:
                    self._stamp, self._tokens = stamp, read_tokens(self._path)
                    log("tokens read again", count=len(self._tokens))
            except (OSError, ValueError) as error:
                log("the token file cannot be read: the earlier tokens stay valid", error=str(error), level="error")

    def _changed(self) -> tuple[int, int, int]:
        status = self._path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino


def read_tokens(path: Path) -> list[tuple[str, str | None]]:
    """Return the tokens in a file, each with the name of its model, or None for all models."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path} must be text in UTF-8, got other bytes") from None
    tokens: list[tuple[str, str | None]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, token = line.rpartition(":")
        token = token.strip()
        if colon and not is_name(name.strip()):  # The message must not show the text: it may be part of a token.
            raise ValueError(f"{path}, line {number}: the text before the colon must be the name of a model")
        if len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
            expected = f"at least {MIN_TOKEN} ASCII characters without spaces"
            raise ValueError(f"{path}, line {number}: a token must have {expected}, got {len(token)} characters")
        tokens.append((token, name.strip() if colon else None))
    if not tokens:
        raise ValueError(f"{path} must contain at least one token, got none")
    return tokens


@dataclass(frozen=True, eq=False)
class Access:
    """Who may send requests.

    With `tokens`, a request needs a token, except for `open_paths`. Without `tokens`, requests from web pages of other
    sites are rejected and, if `is_local`, requests that do not come from this machine.
    """

    tokens: Tokens | None = None
    is_local: bool = True
    open_paths: frozenset[str] = frozenset()

    def check(self, method: str, path: str, headers: dict[bytes, bytes]) -> None:
        """Raise `Refused` for a request without a valid token, or from another site."""
        if self.tokens is None:
            if self.is_local:
                _check_host(headers.get(b"host", b""))
            _check_origin(headers)
        elif path not in self.open_paths:
            model = model_of(path)
            is_admin = path == f"/models/{model}" and method in ("PUT", "DELETE")
            self.check_token(headers.get(b"authorization"), None if is_admin else model)

    def check_token(self, header: bytes | None, model: str | None, *, is_model_known: bool = True) -> None:
        """Check the `Authorization` header. Raise `Refused` with 401 for an invalid token.

        Raise `Refused` with 403 for a token of another model. Accept any valid token while the model is not known.
        """
        if self.tokens is None:
            return
        scheme, _, token = (header or b"").partition(b" ")
        token = token.strip()
        if scheme.lower() != b"bearer" or not self.tokens.knows(token):
            received = "none" if header is None else "another one"
            message = f"Authorization must be Bearer and a valid token, got {received}"
            raise Refused(401, message, {"WWW-Authenticate": "Bearer"}, close=True)
        if is_model_known and not self.tokens.allows(token, model):
            needed = "a token for all models" if model is None else "a token for this model"
            raise Refused(403, f"Authorization must have {needed}, got the token of another model", close=True)


def model_of(path: str) -> str | None:
    """Return the name of the model in a path.

    >>> model_of("/v2/models/cats/infer"), model_of("/models/cats"), model_of("/metrics")
    ('cats', 'cats', None)
    """
    parts = path.removeprefix("/v2").split("/")
    return parts[2] if len(parts) > 2 and parts[:2] == ["", "models"] and parts[2] else None


class InFlight:
    """Counts the concurrent requests and the bytes of their bodies."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.requests = 0
        self.bytes = 0

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request while the block runs. Raise `Refused` if there are too many requests."""
        if self.requests >= self._limits.requests:
            raise busy(f"busy: {self.requests} requests are being answered", close=True)
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1

    @contextmanager
    def body(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts the bytes of a body until the block ends, and refuses too many bytes."""
        mine = 0

        def add(size: int) -> None:
            nonlocal mine
            if self.bytes + size > self._limits.in_flight_bytes:
                at_most = self._limits.in_flight_bytes
                raise busy(f"busy: the bodies of all requests may have at most {at_most} bytes", close=True)
            self.bytes += size
            mine += size

        try:
            yield add
        finally:
            self.bytes -= mine


class Guard:
    """Middleware that checks access and limits, answers errors as JSON, and reports every request to `watch`.

    Health routes are exempt from access checks and limits.
    """

    def __init__(
        self, app: ASGIApp, *, access: Access, in_flight: InFlight, health: frozenset[str], watch: OnAnswer
    ) -> None:
        self._app = app
        self._access = access
        self._in_flight = in_flight
        self._health = health
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status, reason, is_started = 500, "", False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_started
            if message["type"] == "http.response.start":
                status, is_started = message["status"], True
                headers = message["headers"] = [*message["headers"], *_HEADERS]
                if not any(name == b"content-security-policy" for name, _ in headers):
                    headers.append(_LOADS_NOTHING)
            await send(message)

        try:
            await self._checked(scope, receive, send_with_headers)
        except (Exception, asyncio.CancelledError) as error:
            if is_started:
                raise
            refused = _refusal(error)
            reason = refused.message
            response = JSONResponse({"error": reason}, refused.status, refused.headers)
            await response(scope, receive, send_with_headers)
        finally:
            self._watch(scope, status, time.perf_counter() - began, reason)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        headers = _headers_of(scope)
        _check_request(scope, headers)
        if path in self._health:
            await self._app(scope, receive, send)
            return
        self._access.check(scope["method"], path, headers)
        with self._in_flight.request(), self._in_flight.body() as add:
            scope[_COUNT_BYTES] = add

            async def receive_counted() -> Message:
                message = await receive()
                add(len(message.get("body", b"")))
                return message

            await self._app(scope, receive_counted, send)


def _refusal(error: BaseException) -> Refused:
    """Return the answer for an error."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, asyncio.CancelledError):  # uvicorn cancels requests that a shutdown would wait for too long.
        return busy(STOPPING, close=True)
    LOGGER.error("unexpected error", exc_info=error)
    return Refused(500, "unexpected error: the log has the details")


async def read_body(scope: Scope, receive: Receive, limits: Limits, *, is_json: bool = False) -> bytes:
    """Return the whole body of a request, decompressed, within the limits."""
    headers = dict(scope["headers"])
    at_most = min(limits.json_bytes, limits.body_bytes) if is_json else limits.body_bytes
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > at_most:
        raise _too_large(at_most, f"{int(announced)} bytes", is_json)
    try:
        async with asyncio.timeout(limits.body_seconds):
            body = await _read(receive, at_most, is_json)
    except TimeoutError:
        raise Refused(408, f"the body must arrive within {limits.body_seconds:g} seconds", close=True) from None
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding == b"identity":
        return body
    text = await asyncio.to_thread(_decompressed, body, encoding, at_most, is_json)
    scope[_COUNT_BYTES](len(text))
    return text


def check_json_size(size: int, limits: Limits) -> None:
    """Raise `Refused` if the JSON before the tensors is too large."""
    if size > limits.json_bytes:
        raise _too_large(limits.json_bytes, f"{size} bytes", is_json=True)


def is_loopback(host: str) -> bool:
    """Return whether a host can only be reached from this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def _read(receive: Receive, at_most: int, is_json: bool) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the client disconnected before its request was complete")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > at_most:
            raise _too_large(at_most, "more", is_json)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _decompressed(body: bytes, encoding: bytes, at_most: int, is_json: bool) -> bytes:
    """Return a decompressed body. Stop at the limit, because a small body can expand a thousandfold."""
    stream = zlib.decompressobj(zlib.MAX_WBITS | (16 if encoding == b"gzip" else 0))
    try:
        text = stream.decompress(body, at_most + 1)
    except zlib.error as error:
        raise Refused(400, f"the body must be {encoding.decode()}: {error}") from None
    if len(text) > at_most:
        raise _too_large(at_most, "more after decompression", is_json)
    if not stream.eof or stream.unused_data:
        raise Refused(
            400, f"the body must be one complete {encoding.decode()} stream, got an incomplete stream or trailing bytes"
        )
    return text


def _too_large(at_most: int, received: str, is_json: bool) -> Refused:
    message = f"the body must have at most {at_most} bytes, got {received}"
    if is_json:
        message = f"JSON must have at most {at_most} bytes, got {received}: send tensors as bytes (binary_data_size)"
    return Refused(413, message, close=True)


@lru_cache(maxsize=64)
def _is_this_machine(host: bytes) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    except ValueError:
        return False


def _check_host(host: bytes) -> None:
    if not _is_this_machine(host):
        raise Refused(403, "Host must be localhost if the service has no token, got another host", close=True)


def _check_origin(headers: dict[bytes, bytes]) -> None:
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
        raise Refused(403, "Origin must be this service if it has no token, got another origin", close=True)


# If one of these headers is repeated, a proxy and the service may use different values.
_SINGLE = frozenset(
    {
        *(b"authorization", b"content-encoding", b"content-length", b"content-type", b"host", b"origin"),
        *(b"inference-header-content-length", b"transfer-encoding"),
    }
)


def _headers_of(scope: Scope) -> dict[bytes, bytes]:
    headers = dict(scope["headers"])
    if len(headers) < len(scope["headers"]):
        names = [name for name, _ in scope["headers"]]
        for name in _SINGLE.intersection(headers):
            if names.count(name) > 1:
                raise Refused(400, f"the header {name.decode()} must be given once, got it twice", close=True)
    return headers


def _check_request(scope: Scope, headers: dict[bytes, bytes]) -> None:
    """Raise `Refused` for unsupported encodings, and requests that a proxy may interpret differently."""
    if b"transfer-encoding" in headers and b"content-length" in headers:
        raise Refused(400, "a request must not have both Transfer-Encoding and Content-Length", close=True)
    if not scope["path"].isprintable():  # Otherwise a route would match a path that ends with a line feed.
        raise Refused(404, "Not Found", close=True)
    encoding = headers.get(b"content-encoding", b"identity").lower()
    if encoding not in (b"identity", b"gzip", b"deflate"):
        raise Refused(415, f"Content-Encoding must be gzip, deflate or identity, got {encoding[:60]!a}", close=True)
