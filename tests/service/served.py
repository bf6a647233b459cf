"""Clients that send a request again until it is answered, while the service is killed and restarted."""

import http.client
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from . import running
from .batches import CLASSES, DETECTORS, FEATURES, FEW_REFERENCE_ROWS, batch
from .running import SECONDS, Running, as_json, npz

serving = partial(running.serving, sizes=None)
BROKEN = (ConnectionError, http.client.HTTPException, TimeoutError)


class Reply(NamedTuple):
    """The status and body of an answer."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection to a server, which is opened again after it broke."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._connection: http.client.HTTPConnection | None = None
        server.clients.append(self)

    def send(self, method: str, path: str, body: bytes | dict[str, Any] = b"") -> Reply:
        """Send a request once. Raise one of `BROKEN` if the connection breaks before the answer."""
        if self._connection is None or self._connection.port != self._server.port:
            self.close()
            self._connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=SECONDS)
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        try:
            self._connection.request(method, path, content, {"Content-Type": "application/json"})
            response = self._connection.getresponse()
            return Reply(response.status, response.read())
        except BROKEN:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def insist(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] = b"",
        *,
        ends: threading.Event,
        before: Callable[[], None] = lambda: None,
    ) -> Reply:
        """Send a request until it is answered. Raise `Ended` if `ends` is set while there is no answer.

        `before` is called before every attempt.
        """
        while True:
            while not self._server.is_up.wait(0.1):
                if ends.is_set():
                    raise Ended
            before()
            try:
                return self.send(method, path, body)
            except BROKEN:
                if ends.wait(0.01):
                    raise Ended from None


class Ended(Exception):  # noqa: N818  # The end of a test, not an error.
    """The test has ended before the request was answered."""


def create(client: Client, name: str, kind: str) -> None:
    """Create a model with a kind of detector, and give it a reference."""
    options = {"features": FEATURES, "classes": CLASSES, **DETECTORS[kind]}
    assert client.send("PUT", f"/models/{name}", options).status == 201
    reply = client.send("PUT", f"/models/{name}/reference", npz(batch("reference", FEW_REFERENCE_ROWS)))
    assert reply.status == 200, reply


def inference(name: str, *, learn: bool = True) -> dict[str, Any]:
    """Return the request for the batch with this name. The name is the request id."""
    return as_json(batch(name), id=name, parameters={"learn": learn})


@contextmanager
def together(functions: Iterable[Callable[[], None]], ends: threading.Event) -> Iterator[None]:
    """Run functions in threads during a block, and set `ends` after it. No function may fail; a failure sets `ends`."""
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except Ended:
            pass
        except BaseException as error:
            errors.append(error)
            ends.set()

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
    for thread in threads:
        thread.join(SECONDS)
    assert not errors, errors
