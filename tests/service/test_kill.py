"""A service that is killed at random moments under load loses no acknowledged batch, and learns none twice."""

import random
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from truing.service.store import Store

from .batches import DETECTORS, bits
from .replay import History
from .running import Running
from .served import Client, create, inference, run_together, serving

REFERENCE_ROWS = 230
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
                self.is_writing.set()
                reply = client.insist("POST", f"/models/{model.name}/snapshots", ends=self.ends, before=read)
                self.is_writing.clear()
                assert reply.status == 200, reply

    def create_and_delete(self) -> None:
        """Create a model, let it learn, and delete it. No deleted batch may come back."""
        client, generation = Client(self.server), 0
        path = f"/models/{BRIEF}"
        while not self.ends.wait(0.01):
            self.is_writing.set()
            reply = client.insist("PUT", path, {"features": 5, "classes": 3, "method": "dlr"}, ends=self.ends)
            self.is_writing.clear()
            assert reply.status in (200, 201), reply
            for number in range(3):
                body = inference(f"{generation}-{number}")
                reply = client.insist("POST", f"/v2/models/{BRIEF}/infer", body, ends=self.ends)
                assert reply.status == 200, reply
            status = client.insist("GET", path, ends=self.ends).json
            assert (status["batches"], status["rows"], status["sequence"]) == (3, 18, 3)
            self.is_writing.set()
            reply = client.insist("DELETE", path, ends=self.ends)
            self.is_writing.clear()
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
    learned = list(model.history.ids.values())
    assert len(set(learned)) == len(learned)  # No batch was learned twice.
    assert set(model.answers) <= set(learned)  # No acknowledged batch was lost.
    detector, answers = model.history.replay(DETECTORS[model.kind], REFERENCE_ROWS)
    store = Store(path)
    contents = store.load()
    assert bits(contents.detector) == bits(detector)
    assert (contents.batches, contents.rows_learned) == (len(learned), 6 * len(learned))
    assert contents.sequence == len(learned) + 1
    assert all(store.find(name) is not None for name in learned)
    store.close()
    for name, answer in model.answers.items():
        if not answer["parameters"]["repeated"]:
            outputs = {output["name"]: output["data"] for output in answer["outputs"]}
            assert outputs["scores"] == answers[name].scores.tolist()
            assert outputs["p_values"] == answers[name].decision.p_values.tolist()


def survive(state: Path, kinds: list[str], kills: int, seed: int, *, with_snapshots: bool) -> None:
    """Kill a server under load, and check every model afterwards."""
    models = [Model(f"m-{kind}", kind) for kind in kinds]
    with serving(state) as server:
        for model in models:
            create(Client(server), model.name, DETECTORS[model.kind], REFERENCE_ROWS)
        load = Load(server, models)
        threads, errors = run_together(load.clients(with_snapshots=with_snapshots), load.ends)
        kill_repeatedly(load, kills, random.Random(seed))
        time.sleep(0.2)
        load.ends.set()
        for thread in threads:
            thread.join(60)
        assert not errors, errors
        server.kill()
    shutil.copytree(state, state.with_name("copy"))
    for model in models:
        assert len(model.answers) >= kills
        check(model, state.with_name("copy"))


@pytest.mark.parametrize("with_snapshots", [False, True])
def test_five_kills_under_load_lose_and_repeat_no_batch(tmp_path, with_snapshots):
    survive(tmp_path / "state", ["dlr", "window", "contrast"], 5, with_snapshots, with_snapshots=with_snapshots)
