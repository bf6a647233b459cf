"""Models are created, deleted, read and copied at the same time, and no request fails unexpectedly."""

import threading
import time
from functools import partial
from typing import Any

from .served import BROKEN, Client, Ended, Server, inference, run_together, serving

OPTIONS = {"features": 5, "classes": 3, "method": "dlr"}
STATUSES = {200, 201, 204, 400, 404, 409, 503}  # 400: nothing was learned so far. 503: the model is being deleted.
READS = [
    ("GET", "/models/m", b""),
    ("GET", "/models", b""),
    ("GET", "/metrics", b""),
    ("GET", "/v2/repository/index", b""),
    ("GET", "/v2/models/m/ready", b""),
    ("GET", "/models/m/snapshots", b""),
    ("GET", "/models/m/moments", b""),
    ("GET", "/models/m/backup", b""),
    ("POST", "/models/m/snapshots", b""),
    ("POST", "/models/m/reset", b""),
    ("POST", "/v2/models/m/infer", inference("scored", learn=False)),
]
WRITES = [
    ("PUT", "/models/m", OPTIONS),
    ("POST", "/v2/models/m/infer", inference("a")),
    ("POST", "/v2/models/m/infer", inference("b")),
    ("DELETE", "/models/m", b""),
]


def repeat(server: Server, requests: list[tuple[str, str, Any]], statuses: set[int], ends: threading.Event) -> None:
    client = Client(server)
    while not ends.is_set():
        for method, path, body in requests:
            try:
                reply = client.send(method, path, body)
            except BROKEN:
                raise Ended from None
            assert reply.status in STATUSES, (method, path, reply)
            statuses.add(reply.status)


def test_models_can_be_created_and_deleted_while_they_are_used(tmp_path):
    ends, statuses = threading.Event(), set[int]()
    with serving(tmp_path / "state") as server:
        tasks = [READS, READS[::-1], READS[5:] + READS[:5], WRITES, WRITES, WRITES[2:] + WRITES[:2]]
        threads, errors = run_together([partial(repeat, server, task, statuses, ends) for task in tasks], ends)
        ends.wait(3)
        ends.set()
        for thread in threads:
            thread.join(60)
        assert not errors, errors
        assert statuses >= {200, 201, 404}
        client = Client(server)
        client.send("DELETE", "/models/m")
        time.sleep(0.1)
        assert sorted(path.name for path in server.state.iterdir() if path.name.endswith("sqlite3")) == []
        assert server.stop() == 0
