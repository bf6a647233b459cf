"""A service whose disk is full or fails refuses to learn, still answers, loses nothing, and recovers by itself."""

import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .replay import History
from .running import Running
from .served import Client, create, inference, serving

KIND = "dlr"


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def learn(client: Client, name: str) -> int:
    return client.send("POST", "/v2/models/m/infer", inference(name)).status


def learn_until_refused(client: Client, learned: list[str]) -> str:
    """Learn batches until one is refused, and return its name."""
    for number in range(1000):
        name = f"batch-{number}"
        if learn(client, name) != 200:
            return name
        learned.append(name)
    pytest.fail("the disk never failed")


def check_refusals(server: Running, client: Client, refused: str) -> None:
    """Check all that a service with a failing disk answers. No answer is a 500, and none has a path."""
    replies = [
        client.send("POST", "/v2/models/m/infer", inference(refused)),
        client.send("POST", "/models/m/snapshots"),
        client.send("PUT", "/models/m/rate", {"accept": 0.5}),
        client.send("GET", "/v2/health/ready"),
        client.send("GET", "/v2/models/m/ready"),
    ]
    for reply in replies:
        assert reply.status == 503, reply
        assert re.search("full|disk", reply.json["error"]), reply
        assert str(server.state) not in reply.json["error"]
    assert client.send("GET", "/v2/health/live").status == 200
    scored = client.send("POST", "/v2/models/m/infer", inference("scored", learn=False))
    assert scored.status == 200
    status = client.send("GET", "/models/m").json
    assert status["problem"]
    assert status["snapshot_error"]
    assert server.metric("truing_ready", "m") == 0
    assert server.metric("truing_write_failures_total", "m") >= 1
    assert server.metric("truing_snapshot_failures_total", "m") == 1


def check_recovery(client: Client, learned: list[str], refused: str) -> None:
    """Wait until the service is ready again, and send the refused batch again."""
    for _ in range(100):
        if client.send("GET", "/v2/health/ready").status == 200:
            break
        time.sleep(0.1)
    for name in (refused, "later"):
        assert learn(client, name) == 200
        learned.append(name)
    assert learn(client, refused) == 200  # A repetition, which is not learned again.
    assert client.send("POST", "/models/m/snapshots").status == 200
    status = client.send("GET", "/models/m").json
    assert (status["problem"], status["snapshot_error"], status["batches"]) == ("", "", len(learned))


def check_state(state: Path, learned: list[str], history: History) -> None:
    """Check that the database of a closed model holds each of these batches once, bit for bit."""
    history.read(state / "m.sqlite3")
    assert list(history.check(state / "m.sqlite3", KIND)) == learned


def survive(server: Running, fails: Callable[[], object], works: Callable[[], object]) -> None:
    """Let a disk fail and work again under a server."""
    client, learned, history = Client(server), list[str](), History()
    create(client, "m", KIND)
    assert learn(client, "first") == 200
    learned.append("first")
    fails()
    refused = learn_until_refused(client, learned)
    check_refusals(server, client, refused)
    works()
    check_recovery(client, learned, refused)
    history.read(server.state / "m.sqlite3")
    assert server.stop() == 0
    check_state(server.state, learned, history)


def fill(path: Path) -> None:
    """Write a file until the disk is full."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1024))
    assert shutil.disk_usage(path).free == 0


def test_a_service_survives_a_full_disk(small_disk):
    filler = small_disk / "filler"
    with serving(small_disk / "state") as server:
        survive(server, lambda: fill(filler), filler.unlink)


def test_a_service_survives_a_disk_that_fails(tmp_path):
    with serving(tmp_path / "state") as server:
        limit, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)

        def set_limit(size: int) -> None:
            resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (size, hard))

        log = server.state / "m.sqlite3-wal"
        survive(server, lambda: set_limit(log.stat().st_size), lambda: set_limit(limit))


def test_a_full_disk_refuses_a_new_model_and_a_backup_and_leaves_no_files(small_disk):
    with serving(small_disk / "state") as server:
        client = Client(server)
        create(client, "m", KIND)
        assert learn(client, "first") == 200
        fill(small_disk / "filler")
        files = {path.name for path in server.state.iterdir()}
        for method, path in (("PUT", "/models/new"), ("GET", "/models/m/backup")):
            reply = client.send(method, path, {"features": 5, "classes": 3})
            assert reply.status == 503, reply
            assert "full" in reply.json["error"]
            assert str(small_disk) not in reply.json["error"]
        assert client.send("GET", "/models/new").status == 404
        assert {path.name for path in server.state.iterdir()} == files


def test_a_service_that_stops_on_a_full_disk_loses_nothing_and_says_why_it_does_not_start(small_disk):
    learned, history, filler = ["first"], History(), small_disk / "filler"
    with serving(small_disk / "state") as server:
        client = Client(server)
        create(client, "m", KIND)
        assert learn(client, "first") == 200
        fill(filler)
        learn_until_refused(client, learned)
        assert server.stop() == 0
        fill(filler)  # Closing has removed the write-ahead log.
        server.launch()
        assert server.process.wait(60) != 0
        server.process.stdout.close()
        assert "disk is full" in server.errors()
    filler.unlink()
    check_state(server.state, learned, history)
