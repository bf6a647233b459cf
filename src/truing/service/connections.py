"""Connections whose lines before a body must come in time: uvicorn itself waits for them for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def connections_within(header_seconds: float) -> type[HttpToolsProtocol]:
    """Return uvicorn's connections, closed where a request's headers take longer than that to come."""

    class TimedConnection(HttpToolsProtocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._await_headers()

        def on_headers_complete(self) -> None:
            self._stop_waiting()
            super().on_headers_complete()

        def _await_headers(self) -> None:
            self._stop_waiting()
            self._deadline = self.loop.call_later(header_seconds, self.transport.close)

        def _stop_waiting(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

    return TimedConnection
