"""Connections within limits that uvicorn itself does not have, on the size of a request's lines and on time.

A request's lines are all that comes before its body, and the trailers behind a body in chunks.

At any moment a connection waits for one of these: lines that have begun to come, or those of the first request; the
app, which has limits of its own for a body; what is left of a body after its answer; the next request; the client to
take an answer. Each has its time, after which the connection is closed, whatever else came meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .bodies import Limits
from .guard import SAFE_HEADERS

# How long a connection without a request stays open when the service stops: one may be on its way.
_STOPPING_SECONDS = 0.25


class Connection(HttpToolsProtocol):
    """A connection of uvicorn's, closed where a request's lines are too large or a client takes too long."""

    limits = Limits()

    _deadline: asyncio.TimerHandle | None = None
    _writing_deadline: asyncio.TimerHandle | None = None
    _is_stopping = False
    _is_in_request = False
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
        self.resume_writing()
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
        self._is_in_request = True
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
        if self._is_stopping:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._has_come_on = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request; one that has been answered leaves the connection idle."""
        self._is_in_request = False
        super().on_message_complete()
        if self.cycle.response_complete:
            self._close_after(self.limits.idle_seconds)

    def on_response_complete(self) -> None:
        """Wait for the next request, or first for what is left of the body of this one."""
        is_next_here = bool(self.pipeline)
        super().on_response_complete()
        self._unset_keepalive_if_required()  # Which any byte would, for good.
        if self.transport.is_closing():
            self._close_at_last()
        elif not is_next_here and self._deadline is None:  # Else the lines of the next one come, and have their time.
            self._close_after(self.limits.header_seconds if self._is_in_request else self.limits.idle_seconds)

    def pause_writing(self) -> None:
        """Give the client time to take its answer."""
        super().pause_writing()
        self._writing_deadline = self.loop.call_later(self.limits.body_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Write on."""
        super().resume_writing()
        if self._writing_deadline is not None:
            self._writing_deadline.cancel()
            self._writing_deadline = None

    def shutdown(self) -> None:
        """Close the connection when what was asked is answered, and what has begun to come."""
        self._is_stopping = True
        if self._is_answering():
            self.cycle.keep_alive = False
        elif not self._is_in_request:
            self._close_after(_STOPPING_SECONDS)

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
        self._close_at_last()

    def _may_answer(self) -> bool:
        if not self._is_answering():
            return True
        # Else the body of the request that is being answered, or the lines of the one behind it.
        return not self._is_in_head and not self.pipeline and not self.cycle.response_started

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _close_after(self, seconds: float) -> None:
        self._stop_waiting()
        self._deadline = self.loop.call_later(seconds, self._close)

    def _close(self) -> None:
        if self._is_answering():
            self.cycle.keep_alive = False  # Behind the answer.
        else:
            self._close_at_last()

    def _close_at_last(self) -> None:
        """Close the connection when the client has taken what was written, or has had time to."""
        self.transport.close()
        self._stop_waiting()
        self._deadline = self.loop.call_later(self.limits.header_seconds, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def connections_within(limits: Limits) -> type[Connection]:
    """Return connections within these limits."""
    return type("LimitedConnection", (Connection,), {"limits": limits})
