"""The live page on HTTP: its files, which hold nothing secret and need no token, and what it asks for, which does."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .bodies import refusing
from .history import History
from .logs import log
from .serving import Serving

# Paths of the page's files; a request names one of these or nothing.
FILES = {
    "/": "index.html",
    "/live/icon.svg": "icon.svg",
    "/live/live.css": "live.css",
    "/live/live.js": "live.js",
    "/live/charts.js": "charts.js",
    "/live/series.js": "series.js",
    "/live/server.js": "server.js",
    "/live/words.js": "words.js",
    "/live/uPlot.min.css": "uPlot.min.css",
    "/live/uPlot.iife.min.js": "uPlot.iife.min.js",
}
OPEN_PATHS = frozenset(FILES)
HISTORY = "/live/history"

# The page loads from its own server alone, and nobody frames it.
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

LOOK_SECONDS = 1.0

_FOLDER = Path(__file__).parent / "live"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


def page_routes(history: History) -> list[Route]:
    """Return the routes of the page, and of the history that it shows."""

    async def tell(request: Request) -> Response:
        span = request.query_params.get("span", "10 minutes")
        with refusing():
            since = _since(request.query_params.get("since", "0"))
            told = history.as_json(span, since, now=time.time())
        return Response(told, media_type="application/json")

    return [*(_route(path, _FOLDER / name) for path, name in FILES.items()), Route(HISTORY, tell)]


@contextmanager
def looking(history: History, serving: Serving) -> Iterator[None]:
    """Have the history look at the detector about once a second, for as long as the block lasts."""
    ended = Event()

    def look() -> None:
        try:
            history.look(serving.detector, serving.facts(), now=time.time())
        except Exception as error:  # Whatever it is, the service goes on without its page.
            log("the live page cannot look at the detector", level=logging.ERROR, error=str(error))

    def look_on() -> None:
        while not ended.wait(LOOK_SECONDS):
            look()

    look()  # Lest a page that is open already take a state for empty.
    looks = Thread(target=look_on, name="truing-live-page", daemon=True)
    looks.start()
    try:
        yield
    finally:
        ended.set()
        looks.join()


def _route(path: str, file: Path) -> Route:
    body, kind = file.read_bytes(), _TYPES[file.suffix]

    async def page(request: Request) -> Response:
        return Response(body, media_type=kind, headers={"Content-Security-Policy": POLICY})

    return Route(path, page)


def _since(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise ValueError(f"since must be a whole number of up to 15 digits, got {text[:60]!a}")
    return int(text)
