"""Request bodies: read within limits, and what a request is refused with.

A limit on size is enforced twice: on what a request announces, before any of it is read, and on what comes, for a body
in chunks announces nothing. JSON has a smaller one: what is parsed of it may take fifty times its size, and
nobody else is answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope

from .requests import Unavailable

# When to come back where the service is busy, or has stopped and may be started again.
RETRY_SECONDS = 1


@dataclass(frozen=True)
class Limits:
    """What a client may take: bytes of a body and of the lines around it, seconds to send either, and to stay idle.

    `json_bytes` are those of a body that is JSON, and of the JSON that tensors follow as bytes; `body_bytes` those of
    any other.
    """

    body_bytes: int = 64 * 2**20
    json_bytes: int = 4 * 2**20
    body_seconds: float = 30.0
    header_bytes: int = 64 * 2**10
    header_seconds: float = 10.0
    idle_seconds: float = 75.0


# All bodies that are held at one time may be so many times the largest.
BODIES_IN_FLIGHT = 4


class Refused(Exception):  # noqa: N818  # It says of the request what it is.
    """What a request is answered with in place of a result; `unread` says that its body may still be coming."""

    def __init__(
        self, status: int, message: str, headers: dict[str, str] | None = None, *, unread: bool = False
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}
        self.unread = unread


@contextmanager
def refusing() -> Iterator[None]:
    """Answer errors of this block as they are meant: bad input by 400, a service that takes no request by 503."""
    try:
        yield
    except Unavailable as error:
        raise Refused(503, str(error), {"Retry-After": str(RETRY_SECONDS)}) from None
    except (ValueError, TypeError, ArithmeticError) as error:
        raise Refused(400, str(error)) from None
    except MemoryError:
        raise Refused(413, "the request takes more memory than there is") from None


class InFlight:
    """The bytes of bodies that are held at the moment, over all connections, and how many may be."""

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._held = 0

    @contextmanager
    def counting(self, receive: Receive) -> Iterator[Receive]:
        """Return a `receive` whose bytes count until the block ends, and that refuses more than there may be."""
        mine = 0

        async def receive_counted() -> Message:
            nonlocal mine
            message = await receive()
            size = len(message.get("body", b""))
            if self._held + size > self._at_most:
                busy = f"busy: the bodies of other requests leave no room within {self._at_most} bytes"
                raise Refused(503, busy, {"Retry-After": str(RETRY_SECONDS)}, unread=True)
            self._held += size
            mine += size
            return message

        try:
            yield receive_counted
        finally:
            self._held -= mine


async def read_body(scope: Scope, receive: Receive, limits: Limits, *, is_json: bool = False) -> bytes:
    """Return the whole body of a request within limits."""
    _check_announced(scope, limits, is_json)
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await _read(receive, limits, is_json)
    except TimeoutError:
        wanted = f"the body must come within {limits.body_seconds:g} seconds"
        raise Refused(408, wanted, {"Connection": "close"}) from None


async def drain(receive: Receive, limits: Limits) -> None:
    """Read what a client still sends, and keep nothing, so that it comes to read the answer. Not for ever."""
    try:
        async with asyncio.timeout(limits.body_seconds):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass
    except TimeoutError:
        return


def check_json_size(size: int, limits: Limits) -> None:
    """Refuse the JSON before tensors where it is too large."""
    if size > limits.json_bytes:
        raise _too_large(limits, f"{size} bytes", is_json=True)


async def _read(receive: Receive, limits: Limits, is_json: bool) -> bytes:
    at_most = _at_most(limits, is_json)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the client left before its request was whole")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > at_most:
            raise _too_large(limits, "more", is_json)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _check_announced(scope: Scope, limits: Limits, is_json: bool) -> None:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > _at_most(limits, is_json):
            raise _too_large(limits, f"{int(value)} bytes", is_json)


def _at_most(limits: Limits, is_json: bool) -> int:
    return min(limits.json_bytes, limits.body_bytes) if is_json else limits.body_bytes


def _too_large(limits: Limits, got: str, is_json: bool) -> Refused:
    message = f"the body must be at most {limits.body_bytes} bytes, got {got}"
    if is_json and limits.json_bytes < limits.body_bytes:
        message = f"JSON must be at most {limits.json_bytes} bytes, got {got}: send tensors as bytes (binary_data_size)"
    return Refused(413, message, {"Connection": "close"}, unread=True)
