"""Structured logs: one JSON object per line on stderr."""

import json
import logging
import sys
import threading
import time
from typing import Any

LOGGER = logging.getLogger("truing.service")

# Longer texts are truncated.
_MAX_CHARACTERS = 300

# Clients can cause any number of rejected requests and of errors in uvicorn. For each of the two kinds, at most this
# many lines are logged per second, and one more line states how many were suppressed.
_LINES_PER_SECOND = 5


class JSONLines(logging.Formatter):
    """Formats a log record as a line of JSON with the time, the level, the event and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr() -> None:
    """Write the events of the service, and errors of uvicorn, asyncio and gRPC, to stderr."""
    own, others = logging.StreamHandler(sys.stderr), logging.StreamHandler(sys.stderr)
    few = FewPerSecond("errors without a log line")
    others.addFilter(lambda record: few.is_next_shown())
    for name, handler in ((LOGGER.name, own), ("uvicorn.error", others), ("asyncio", others), ("grpc", others)):
        handler.setFormatter(JSONLines())
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.INFO if handler is own else logging.ERROR)
        logger.propagate = False


def log(event: str, *, level: str = "info", **fields: Any) -> None:
    """Log an event with its fields. Strings are made printable, because a client may have sent them."""
    shown = {name: printable(value) if isinstance(value, str) else value for name, value in fields.items()}
    LOGGER.log(logging.getLevelNamesMapping()[level.upper()], event, extra={"fields": shown})


def printable(text: str) -> str:
    r"""Return a text for a log line: short, and without control characters.

    >>> printable("one line\nand \x1b[31mred")
    'one line?and ?[31mred'
    """
    shown = text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"
    return "".join(letter if letter.isprintable() else "?" for letter in shown)


class FewPerSecond:
    """Limits the log lines that clients can cause, so that no client can fill the disk.

    Parameters
    ----------
    event
        The event name of the line that states how many lines were suppressed.
    """

    def __init__(self, event: str) -> None:
        self._event = event
        self._lock = threading.Lock()
        self._second = 0
        self._logged = 0
        self._suppressed = 0

    def is_next_shown(self) -> bool:
        """Count a line, and return whether to log it. Log how many lines were suppressed in an earlier second."""
        with self._lock:
            second = int(time.monotonic())
            suppressed = 0
            if second != self._second:
                suppressed, self._suppressed = self._suppressed, 0
                self._second, self._logged = second, 0
            self._logged += 1
            is_shown = self._logged <= _LINES_PER_SECOND
            self._suppressed += not is_shown
        if suppressed:
            log(self._event, count=suppressed)
        return is_shown
