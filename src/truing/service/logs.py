"""Structured logs: a JSON object on each line of stderr."""

import json
import logging
import sys
from typing import Any

LOGGER = logging.getLogger("truing.service")

# Characters of a text in a line.
_LONGEST = 300


class JSONLines(logging.Formatter):
    """A record as a line: time, level, event and what it was given besides."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        line: dict[str, Any] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{record.msecs:03.0f}",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "facts", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr() -> None:
    """Send the lines of the service, and what the server under it has to complain of, to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JSONLines())
    for name, level in (("truing.service", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False


def log(event: str, *, level: int = logging.INFO, **facts: Any) -> None:
    """Log an event with what is known of it."""
    LOGGER.log(level, event, extra={"facts": facts})


def printable(text: str) -> str:
    r"""Return a text that may hold what a client sent, as a log may show it: short, and without control characters.

    >>> printable("one line\nand \x1b[31mred")
    'one line?and ?[31mred'
    """
    shown = text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
    return "".join(letter if letter.isprintable() else "?" for letter in shown)
