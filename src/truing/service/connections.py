"""Connections within limits that uvicorn itself does not have, on the size of a request's lines and on their time.

A request's lines are all that comes before its body, and the trailers behind a body in chunks.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .bodies import Limits
from .guard import SAFE_HEADERS


class Connection(HttpToolsProtocol):
    """A connection of uvicorn's, closed where a request's lines are too large or take too long to come."""

    limits = Limits()

    _deadline: asyncio.TimerHandle | None = None
    _is_in_head = False
    _head_bytes = 0
    _bytes_without_end = 0
    _has_come_on = False

    def connection_made(self, transport: Any) -> None:
        """Wait for the first request."""
        super().connection_made(transport)
        self._close_after(self.limits.header_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, unless it is more of a line than there may be.

        The parser tells of a line when it has come to its end. Data in which it told of nothing else is of a request's
        lines as a whole, and counts.
        """
        self._has_come_on = False
        super().data_received(data)
        self._bytes_without_end = 0 if self._has_come_on else self._bytes_without_end + len(data)
        if self._bytes_without_end > self.limits.header_bytes and not self.transport.is_closing():
            self._refuse_too_large()

    def on_message_begin(self) -> None:
        """Begin a request, whose lines must come in time."""
        super().on_message_begin()
        self._has_come_on = True
        self._is_in_head = True
        self._head_bytes = 0
        self._close_after(self.limits.header_seconds)

    def on_url(self, url: bytes) -> None:
        """Take a part of the first line."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; a trailer counts, and is left out."""
        self._count(len(name) + len(value) + len(b": \r\n"))
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Hand the request on, which has the time of its body from now on."""
        self._has_come_on = True
        self._is_in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._has_come_on = True
        super().on_body(body)

    def send_400_response(self, msg: str) -> None:
        """Refuse what the parser does not read on: what is not HTTP, and lines that are too large."""
        if self._head_bytes > self.limits.header_bytes:
            self._refuse_too_large()
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "the request must be HTTP/1.1, got something else")

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.header_bytes:
            raise ValueError("a request's lines are too large")  # To the parser, which stops.

    def _refuse_too_large(self) -> None:
        message = f"a request's lines must have at most {self.limits.header_bytes} bytes, got more"
        self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, message)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Close the connection, with an answer where it would not be taken for that to an earlier request."""
        if self._may_answer():
            body = json.dumps({"error": message}).encode()
            headers = [
                *self.server_state.default_headers,
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
                *SAFE_HEADERS,
            ]
            lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers), b"\r\n", body]
            self.transport.write(b"".join(lines))
        self.transport.close()

    def _may_answer(self) -> bool:
        if self.cycle is None or self.cycle.response_complete:
            return True
        # Else the body of the request that is being answered, or the lines of the one behind it.
        return not self._is_in_head and not self.pipeline and not self.cycle.response_started

    def _close_after(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connections_within(limits: Limits) -> type[Connection]:
    """Return connections within these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits})
