"""Models are created, deleted, used and copied at the same time, and every answer is right."""

import subprocess
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from truing.service.store import Store

from .batches import DETECTORS, bits
from .replay import History
from .running import ENVIRONMENT, Running, command
from .served import BROKEN, Client, Ended, create, inference, run_together, serving

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


REFERENCE_ROWS = 230
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
        create(Client(server), "m", DETECTORS[KIND], REFERENCE_ROWS)
        threads, errors = run_together(
            [partial(learn, server, str(number), learned, ends) for number in range(3)], ends
        )
        time.sleep(0.2)
        backups = take_backups(server, tmp_path, learned)
        ends.set()
        for thread in threads:
            thread.join(60)
        assert not errors, errors
        history.read(server.state / "m.sqlite3")
    sequences = []
    for path, before in backups:
        with closing(Store(path)) as store:
            contents = store.load()
            ids = {name for name in history.ids.values() if store.find(name) is not None}
        sequences.append(contents.sequence)
        assert ids == {name for sequence, name in history.ids.items() if sequence <= contents.sequence}
        assert ids >= before
        detector, _ = history.replay(DETECTORS[KIND], REFERENCE_ROWS, last=contents.sequence)
        assert bits(contents.detector) == bits(detector)
    assert len(set(sequences)) > 1  # Batches were learned between the backups.
