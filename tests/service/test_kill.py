"""A service that is killed at random moments under load loses no acknowledged batch, and learns none twice."""

import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from .replay import History
from .running import Running
from .served import Client, Reply, create, inference, serving, together

KILLS = 5
CLIENTS = 2  # For each model.
BRIEF = "brief"  # The model that is created and deleted again and again.


@dataclass
class Model:
    """A model, its history as read from the database, and the answers that clients got, by request id."""

    name: str
    kind: str
    history: History = field(default_factory=History)
    answers: dict[str, dict] = field(default_factory=dict)


@dataclass
class Load:
    """Clients that send requests until `ends` is set. `is_writing` is set while a model or snapshot is written."""

    server: Running
    models: list[Model]
    ends: threading.Event = field(default_factory=threading.Event)
    is_writing: threading.Event = field(default_factory=threading.Event)

    def clients(self, *, with_snapshots: bool) -> list[Callable[[], None]]:
        learning = [partial(self.learn, model, number) for model in self.models for number in range(CLIENTS)]
        return [*learning, self.score, self.create_and_delete, *([self.take_snapshots] if with_snapshots else [])]

    def write(self, client: Client, *request: Any, **options: Any) -> Reply:
        """Send a request that writes a model or a snapshot."""
        self.is_writing.set()
        reply = client.insist(*request, ends=self.ends, **options)
        self.is_writing.clear()
        return reply

    def learn(self, model: Model, number: int) -> None:
        """Send batches. Send a batch again, with the same id, until it is answered."""
        client, count = Client(self.server), 0
        while not self.ends.is_set():
            name = f"{model.name}-{number}-{count}"
            reply = client.insist("POST", f"/v2/models/{model.name}/infer", inference(name), ends=self.ends)
            assert reply.status == 200, reply
            assert reply.json["parameters"]["learned"]
            model.answers[name] = reply.json
            count += 1

    def score(self) -> None:
        """Send batches that are not learned."""
        client = Client(self.server)
        while not self.ends.wait(0.02):
            for model in self.models:
                body = inference("scored", learn=False)
                reply = client.insist("POST", f"/v2/models/{model.name}/infer", body, ends=self.ends)
                assert reply.status in (200, 400), reply  # 400: nothing was learned so far.

    def take_snapshots(self) -> None:
        """Read the history before every snapshot, which deletes changes."""
        client = Client(self.server)
        while not self.ends.wait(0.03):
            for model in self.models:
                read = partial(model.history.read, self.server.state / f"{model.name}.sqlite3")
                reply = self.write(client, "POST", f"/models/{model.name}/snapshots", before=read)
                assert reply.status == 200, reply

    def create_and_delete(self) -> None:
        """Create a model, let it learn, and delete it. No deleted batch may come back."""
        client, generation = Client(self.server), 0
        path = f"/models/{BRIEF}"
        while not self.ends.wait(0.01):
            reply = self.write(client, "PUT", path, {"features": 5, "classes": 3, "method": "dlr"})
            assert reply.status in (200, 201), reply
            for number in range(3):
                body = inference(f"{generation}-{number}")
                reply = client.insist("POST", f"/v2/models/{BRIEF}/infer", body, ends=self.ends)
                assert reply.status == 200, reply
            status = client.insist("GET", path, ends=self.ends).json
            assert (status["batches"], status["rows"], status["sequence"]) == (3, 18, 3)
            reply = self.write(client, "DELETE", path)
            assert reply.status in (200, 404), reply  # 404: deleted before the answer was lost.
            assert client.insist("GET", path, ends=self.ends).status == 404
            generation += 1


def kill_repeatedly(load: Load, kills: int, rng: random.Random) -> None:
    """Kill the server at random moments: under load, while a model or a snapshot is written, and while it starts."""
    server, start_seconds = load.server, 0.5
    for kill in range(kills):
        if kill % 3 == 0:
            server.kill()
            server.launch()
            time.sleep(start_seconds * rng.uniform(0.6, 1.1))
        elif kill % 3 == 1:
            time.sleep(rng.uniform(0.1, 0.4))
        else:
            time.sleep(0.1)
            load.is_writing.wait(5)
            time.sleep(rng.uniform(0, 0.005))
        server.kill()
        began = time.monotonic()
        server.start()
        start_seconds = time.monotonic() - began
        if load.ends.is_set():
            return


def check(model: Model, folder: Path) -> None:
    """Compare a recovered model with the acknowledged batches and with a replay of its history."""
    path = folder / f"{model.name}.sqlite3"
    model.history.read(path)
    expected = model.history.check(path, model.kind)
    assert set(model.answers) <= set(expected)  # No acknowledged batch was lost.
    for name, answer in model.answers.items():
        if not answer["parameters"]["repeated"]:
            outputs = {output["name"]: output["data"] for output in answer["outputs"]}
            assert outputs["scores"] == expected[name].scores.tolist()
            assert outputs["p_values"] == expected[name].decision.p_values.tolist()


@pytest.mark.parametrize("with_snapshots", [False, True])
def test_five_kills_under_load_lose_and_repeat_no_batch(tmp_path, with_snapshots):
    models = [Model(f"m-{kind}", kind) for kind in ("dlr", "window", "contrast")]
    with serving(tmp_path / "state") as server:
        for model in models:
            create(Client(server), model.name, model.kind)
        load = Load(server, models)
        with together(load.clients(with_snapshots=with_snapshots), load.ends):
            kill_repeatedly(load, KILLS, random.Random(with_snapshots))
            while not load.ends.wait(0.2) and any(len(model.answers) < KILLS for model in models):
                pass
        server.kill()
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    for model in models:
        check(model, tmp_path / "copy")
