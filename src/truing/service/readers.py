"""Threads that answer requests which learn nothing, from contents as they are published; they wait for nobody."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from .answers import answer
from .requests import Answer, Event, Request, Unavailable
from .snapshots import Contents

_THREADS = 2
# Further requests are refused as too many.
_MAX_WAITING = 1024

_logger = logging.getLogger(__name__)


class Listeners:
    """Those who are told of events; what they raise is logged and goes no further."""

    def __init__(self, listeners: Sequence[Callable[[Event], None]]) -> None:
        self._listeners = tuple(listeners)

    def tell(self, event: Event) -> None:
        """Tell all of them."""
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                _logger.exception("a listener failed at the event %s", event.kind)


class Readers:
    """A few threads and how many requests may wait for them; `contents` returns what to answer from."""

    def __init__(self, contents: Callable[[], Contents], listeners: Listeners) -> None:
        self._contents = contents
        self._listeners = listeners
        self._threads = ThreadPoolExecutor(_THREADS, "truing-reader")
        self._free = threading.Semaphore(_MAX_WAITING)

    def submit(self, request: Request, future: Future[Answer]) -> None:
        """Have a request answered."""
        if not self._free.acquire(blocking=False):
            raise Unavailable("the service is busy: too many requests wait to be scored")
        try:
            self._threads.submit(self._answer, request, future, time.perf_counter())
        except RuntimeError:  # They were closed.
            self._free.release()
            raise Unavailable("the service is stopping") from None

    def close(self) -> None:
        """Answer what waits, and end the threads."""
        self._threads.shutdown()

    def _answer(self, request: Request, future: Future[Answer], since: float) -> None:
        try:
            if future.set_running_or_notify_cancel():
                found = answer(self._contents(), request.outputs, is_in_fit=False)
                future.set_result(found)
                self._listeners.tell(answered("scored", found, since))
        except Exception as error:
            fail(future, error)
        finally:
            self._free.release()


def answered(kind: str, found: Answer, since: float) -> Event:
    """Return the event of an answer to a request that came at `since`."""
    refused = 0 if found.is_out is None else int(found.is_out.sum())
    return Event(kind, time.time(), len(found.scores), refused, time.perf_counter() - since, found)


def fail(future: Future[Any], error: BaseException) -> None:
    """Complete a future with an error, unless it is complete."""
    if not future.done():
        future.set_exception(error)
