"""The live page: its files (no token needed), its data (a token is needed), and the thread that samples the models."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .history import History
from .logs import log
from .models import Model, Models

_FOLDER = Path(__file__).parent / "live"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# The file of each path.
FILES = {
    "/" if path.name == "index.html" else f"/live/{path.name}": path
    for path in sorted(_FOLDER.iterdir())
    if path.suffix in _TYPES
}
OPEN_PATHS = frozenset(FILES)

# The page may only load files from its own server, and must not be framed.
POLICY = "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"

# The interval at which every model is sampled.
SAMPLE_SECONDS = 2.0

# The fields of each model in the list of models, besides its name and its problem.
_LISTED = ("rows", "method", "base", "rate", "refused_share", "errors", "is_alarm")


def live_routes(models: Models, histories: Mapping[str, History]) -> list[Route]:
    """Return the routes for the files of the page, the list of models, and the history of a model."""

    def list_models(request: Request) -> Response:
        now = time.time()
        return JSONResponse({"models": [_summary(model, histories.get(model.name), now) for model in models]})

    def show_history(request: Request) -> Response:
        query = request.query_params
        history = _history(query.get("model", ""), models, histories)
        try:
            since = _since(query.get("since", "0"))
            body = history.as_json(query.get("span", "10 minutes"), since, now=time.time())
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        return Response(body, media_type="application/json")

    files = [_file_route(path, file) for path, file in FILES.items()]
    return [*files, Route("/live/models", list_models), Route("/live/history", show_history)]


@contextmanager
def sampling(models: Models, histories: Mapping[str, History]) -> Iterator[None]:
    """Sample every model every `SAMPLE_SECONDS` in a thread while the block runs.

    A repeated error of a model is logged once. It does not affect other models.
    """
    ended = Event()
    logged: dict[str, str] = {}

    def sample(model: Model) -> None:
        history = histories.get(model.name)
        if model.engine is None or history is None:
            return
        try:
            history.sample(model.engine.status(), model.engine.contents, now=time.time())
            logged.pop(model.name, None)
        except Exception as error:
            message = str(error) or type(error).__name__
            is_deleted = models.find(model.name) is not model
            if not is_deleted and logged.get(model.name) != message:
                logged[model.name] = message
                log("the live page cannot sample a model", model=model.name, error=message, level="error")

    def sample_all() -> None:
        for model in models:
            sample(model)

    def run() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            sample_all()

    sample_all()
    thread = Thread(target=run, name="truing-live", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _summary(model: Model, history: History | None, now: float) -> dict[str, Any]:
    current = {} if history is None else history.current(now=now)
    return {"name": model.name, "problem": model.problem} | {name: current.get(name) for name in _LISTED}


def _history(name: str, models: Models, histories: Mapping[str, History]) -> History:
    model, history = models.find(name), histories.get(name)
    if model is not None and model.engine is None:
        raise HTTPException(503, f"model {name} cannot be used: {model.damage}")
    if model is None or history is None:
        raise HTTPException(404, models.unknown(name))
    return history


def _since(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise ValueError(f"since must be a whole number of up to 15 digits, got {text[:60]!a}")
    return int(text)


def _file_route(path: str, file: Path) -> Route:
    body, media_type = file.read_bytes(), _TYPES[file.suffix]

    async def send_file(request: Request) -> Response:
        return Response(body, media_type=media_type, headers={"Content-Security-Policy": POLICY})

    return Route(path, send_file)
