"""Models are created, deleted, used and copied at the same time, and every answer is right."""

import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from .replay import History
from .running import ENVIRONMENT, Running, command
from .served import BROKEN, Client, Ended, create, inference, serving, together

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


def repeat(server: Running, requests: list[tuple[str, str, Any]], statuses: set[int], ends: threading.Event) -> None:
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
        with together([partial(repeat, server, task, statuses, ends) for task in tasks], ends):
            ends.wait(3)
        assert statuses >= {200, 201, 404}
        client = Client(server)
        client.send("DELETE", "/models/m")
        time.sleep(0.1)
        assert not list(server.state.glob("*sqlite3"))


KIND = "window"


def learn(server: Running, prefix: str, learned: list[str], ends: threading.Event) -> None:
    client, count = Client(server), 0
    while not ends.is_set():
        name = f"{prefix}-{count}"
        assert client.send("POST", "/v2/models/m/infer", inference(name)).status == 200
        learned.append(name)
        count += 1


def take_backups(server: Running, folder: Path, learned: list[str]) -> list[tuple[Path, set[str]]]:
    """Return backups by HTTP and by the command, each with the batches that were acknowledged before it."""
    client, backups = Client(server), []
    for number in range(5):
        before = set(learned)
        reply = client.send("GET", "/models/m/backup")
        assert reply.status == 200, reply
        path = folder / f"{number}.sqlite3"
        path.write_bytes(reply.body)
        backups.append((path, before))
        time.sleep(0.05)
    assert client.send("POST", "/models/m/snapshots").status == 200
    before = set(learned)
    words = [*command(server.state)[:4], "backup", str(server.state), str(folder / "copy")]
    subprocess.run(words, check=True, capture_output=True, env=ENVIRONMENT)
    return [*backups, (folder / "copy" / "m.sqlite3", before)]


def test_a_backup_under_load_is_a_state_with_every_batch_that_was_acknowledged_before(tmp_path):
    learned, history, ends = list[str](), History(), threading.Event()
    with serving(tmp_path / "state") as server:
        create(Client(server), "m", KIND)
        with together([partial(learn, server, str(number), learned, ends) for number in range(3)], ends):
            time.sleep(0.2)
            backups = take_backups(server, tmp_path, learned)
        history.read(server.state / "m.sqlite3")
    copied = [set(history.check(path, KIND)) for path, _ in backups]
    assert all(names >= before for names, (_, before) in zip(copied, backups, strict=True))
    assert len({len(names) for names in copied}) > 1  # Batches were learned between the backups.
