"""A service that is stopped under load answers or refuses every request, and loses no acknowledged batch."""

import http.client
import json
import random
import socket
import threading
import time
from contextlib import closing
from functools import partial

from truing.service.store import Store

from .replay import History
from .running import SECONDS
from .served import Client, create, inference, serving, together

KINDS = ["window", "contrast"]


def send_batches(client: Client, name: str, prefix: str, learned: list[str], ends: threading.Event) -> None:
    """Send batches until the service closes the connection. Only a closed connection is allowed to fail a request."""
    for number in range(10_000):
        batch = f"{prefix}-{number}"
        try:
            reply = client.send("POST", f"/v2/models/{name}/infer", inference(batch))
        except (http.client.RemoteDisconnected, ConnectionError):  # Closed before any byte of an answer.
            assert ends.wait(SECONDS)
            return
        if reply.status == 503:
            assert reply.json["error"] == "the service is stopping"
        else:
            assert reply.status == 200, reply
            learned.append(batch)


def test_a_service_that_is_stopped_under_load_loses_no_acknowledged_batch(tmp_path):
    rng = random.Random(0)
    histories = {kind: History() for kind in KINDS}
    learned = {kind: list[str]() for kind in KINDS}
    with serving(tmp_path / "state") as server:
        for kind in KINDS:
            create(Client(server), kind, kind)
        for cycle in range(3):
            ends = threading.Event()
            clients = [
                partial(send_batches, Client(server), kind, f"{kind}-{cycle}-{number}", learned[kind], ends)
                for kind in KINDS
                for number in range(4)
            ]
            with together(clients, ends):
                few = 7 * cycle + 7
                while not ends.wait(rng.uniform(0.1, 0.4)) and min(map(len, learned.values())) < few:
                    pass
                assert server.stop() == 0
            for kind in KINDS:
                histories[kind].read(server.state / f"{kind}.sqlite3")
            server.start()
    for kind in KINDS:
        answers = histories[kind].check(server.state / f"{kind}.sqlite3", kind)
        assert sorted(learned[kind]) == sorted(answers)  # A graceful stop answers every batch that was learned.
        assert len(answers) > 20


def test_a_request_that_began_before_the_stop_is_answered(tmp_path):
    with serving(tmp_path / "state") as server:
        create(Client(server), "m", "dlr")
        body = json.dumps(inference("last")).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
            headers = f"Host: localhost\r\nContent-Length: {len(body)}\r\nExpect: 100-continue"
            connection.sendall(f"POST /v2/models/m/infer HTTP/1.1\r\n{headers}\r\n\r\n".encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 100")  # The service waits for the body.
            server.process.terminate()
            time.sleep(0.5)
            connection.sendall(body)
            response = http.client.HTTPResponse(connection)
            response.begin()
            assert response.status == 200
            assert json.loads(response.read())["parameters"]["learned"]
        assert server.stop() == 0
    with closing(Store(server.state / "m.sqlite3")) as store:
        assert store.find("last") is not None
        assert store.load().rows_learned == 6
