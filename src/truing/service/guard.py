"""Who may ask: a bearer token, or nobody but programs on this machine; and what every answer carries.

A browser is the danger where there is no token: any page in it can send requests to this machine. Such requests name
their page (`Origin`), or, where a name was made to lead here, another host than this one.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from time import perf_counter
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .bodies import BODIES_IN_FLIGHT, InFlight, Limits, Refused, drain
from .logs import LOGGER
from .protocol import shown

# Called with the method, path, status and seconds of every request, and why it was refused where it was.
Watch = Callable[[str, str, int, float, str], None]

_HEADERS = [
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]
_NOTHING_LOADS = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")

# What every answer carries that is not a page.
SAFE_HEADERS = (*_HEADERS, _NOTHING_LOADS)


@dataclass(frozen=True)
class Access:
    """Who may ask: those with the `token`, where there is one; else all, or with `is_local` this machine's programs.

    `open_paths` need no token.
    """

    token: str | None = None
    is_local: bool = True
    open_paths: frozenset[str] = frozenset()

    def check(self, path: str, headers: dict[bytes, bytes]) -> None:
        """Refuse a request of somebody else."""
        if self.token is None:
            if self.is_local:
                _check_host(headers.get(b"host", b""))
            _check_origin(headers)
        elif path not in self.open_paths:
            self._check_token(headers.get(b"authorization"))

    def _check_token(self, given: bytes | None) -> None:
        assert self.token is not None
        scheme, _, secret = (given or b"").partition(b" ")
        is_right = hmac.compare_digest(secret.strip(), self.token.encode())
        if scheme.lower() != b"bearer" or not is_right:
            wanted = "Authorization must be Bearer and the token of this service"
            got = "none" if given is None else "another"
            raise Refused(401, f"{wanted}, got {got}", {"WWW-Authenticate": "Bearer"}, unread=True)


class Guard:
    """An app behind access control; what it refuses is answered as JSON, and every answer is watched.

    Requests of a method and a path in `direct` go straight to what stands there, for those in a hurry.
    """

    def __init__(
        self, app: ASGIApp, direct: Mapping[tuple[str, str], ASGIApp], access: Access, limits: Limits, watch: Watch
    ) -> None:
        self._app = app
        self._direct = direct
        self._access = access
        self._limits = limits
        self._in_flight = InFlight(BODIES_IN_FLIGHT * limits.body_bytes)
        self._watch = watch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start = perf_counter()
        status = 500
        reason = ""

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message["headers"] = [*message["headers"], *_HEADERS]
                if not any(name == b"content-security-policy" for name, _ in headers):
                    headers.append(_NOTHING_LOADS)
            await send(message)

        try:
            headers = _as_mapping(scope["headers"])
            self._access.check(scope["path"], headers)
            _check_encoding(headers)
            _check_path(scope)
            app = self._direct.get((scope["method"], scope["path"]), self._app)
            with self._in_flight.counting(receive) as receive_counted:
                await app(scope, receive_counted, send_with_headers)
        except Refused as refused:
            reason = refused.message
            await answer_refused(refused, scope, receive, send_with_headers, self._limits)
        except Exception:
            LOGGER.exception("an unexpected error")
            failed = Refused(500, "an unexpected error, of which the log has the details")
            await answer_refused(failed, scope, receive, send_with_headers, self._limits)
        finally:
            self._watch(scope["method"], scope["path"], status, perf_counter() - start, reason)


async def answer_refused(refused: Refused, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
    """Answer with an error; a body that is still coming is read past, lest the client not see the answer."""
    headers = refused.headers | ({"Connection": "close"} if refused.unread else {})
    response = JSONResponse({"error": refused.message}, refused.status, headers)
    if not refused.unread:
        await response(scope, receive, send)
        return
    body = bytes(response.body)
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    await drain(receive, limits)
    await send({"type": "http.response.body", "body": b""})


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@lru_cache(maxsize=64)
def _is_this_machine(host: bytes) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host.decode('latin-1')}").hostname or "")
    except ValueError:
        return False


def _check_host(host: bytes) -> None:
    if not _is_this_machine(host):
        wanted = "Host must be localhost, as long as the service has no token"
        raise Refused(403, f"{wanted}, got another", unread=True)


def _check_origin(headers: dict[bytes, bytes]) -> None:
    origin = headers.get(b"origin")
    if origin is not None and origin.partition(b"://")[2] != headers.get(b"host"):
        wanted = "Origin must be this service, as long as it has no token"
        raise Refused(403, f"{wanted}, got another", unread=True)


# Headers of which a second one would have to be believed or not.
_ONCE = frozenset(
    {b"authorization", b"content-encoding", b"content-type", b"host", b"inference-header-content-length", b"origin"}
)


def _as_mapping(headers: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    mapping = dict(headers)
    if len(mapping) < len(headers):
        names = [name for name, _ in headers]
        for name in mapping:
            if name in _ONCE and names.count(name) > 1:
                raise Refused(400, f"the header {name.decode()} must be given once, got it twice", unread=True)
    return mapping


def _check_path(scope: Scope) -> None:
    """Refuse a path with a control character: a line's end would match at the end of any route."""
    if not scope["path"].isprintable():
        raise Refused(404, f"{scope['method']} {shown(scope['path'])}: Not Found", unread=True)


def _check_encoding(headers: dict[bytes, bytes]) -> None:
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding.lower() != "identity":
        raise Refused(415, f"Content-Encoding must be identity, got {encoding!a}", unread=True)
