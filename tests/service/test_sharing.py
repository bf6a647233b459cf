"""One process owns a state directory. Others may copy it while it is in use."""

import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from truing.service.store import Store

from .batches import DETECTORS, bits
from .replay import History
from .served import Client, Server, create, inference, run_together, serving

REFERENCE_ROWS = 230
KIND = "window"


def learn(server: Server, prefix: str, learned: list[str], ends: threading.Event) -> None:
    client, count = Client(server), 0
    while not ends.is_set():
        name = f"{prefix}-{count}"
        assert client.send("POST", "/v2/models/m/infer", inference(name)).status == 200
        learned.append(name)
        count += 1


def take_backups(server: Server, folder: Path, learned: list[str]) -> list[tuple[Path, set[str]]]:
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
    command = [sys.executable, "-m", "truing", "serve", "backup", str(server.state), str(folder / "copy")]
    subprocess.run(command, check=True, capture_output=True)
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


def test_a_second_process_is_refused_and_the_first_goes_on(tmp_path):
    with serving(tmp_path / "state") as server:
        client = Client(server)
        create(client, "m", {"method": "dlr"})
        second = Server(server.state)
        second.log = tmp_path / "second.log"
        second.launch()
        assert second.process.wait(60) == 1
        second.process.stdout.close()
        assert "in use by another process" in second.log.read_text()
        assert client.send("POST", "/v2/models/m/infer", inference("a")).status == 200
        server.kill()
        server.start()  # A killed process leaves no lock behind.
        assert client.send("GET", "/models/m").json["batches"] == 1


def test_a_backup_can_be_served(tmp_path):
    with serving(tmp_path / "state") as server:
        client = Client(server)
        create(client, "m", {"method": "dlr"})
        assert client.send("POST", "/v2/models/m/infer", inference("a")).status == 200
        (tmp_path / "restored").mkdir()
        (tmp_path / "restored" / "m.sqlite3").write_bytes(client.send("GET", "/models/m/backup").body)
    shutil.rmtree(server.state)
    with serving(tmp_path / "restored") as server:
        client = Client(server)
        reply = client.send("POST", "/v2/models/m/infer", inference("a"))
        assert reply.json["parameters"]["repeated"]
        assert client.send("GET", "/models/m").json["rows"] == 6
