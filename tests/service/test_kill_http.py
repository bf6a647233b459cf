"""Clients of a service that is killed at any moment: what was answered is kept, and a retry is not counted twice."""

import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest

import truing

from .running import INFER, SECONDS, Running, as_binary, batch, begin, from_json

CLIENTS = 4


def rows_of(number: int) -> truing.Outputs:
    return batch(1 + number % 9, seed=number)


def send(client: httpx.Client, number: int) -> bool:
    """Send one batch, and return whether it had been learned before."""
    body, headers = as_binary(rows_of(number), id=f"batch-{number}")
    response = client.post(INFER, content=body, headers=headers)
    assert response.status_code == 200, response.text
    found = response.json()
    assert (found["id"], found["parameters"]["learned"]) == (f"batch-{number}", True)
    return found["parameters"]["repeated"]


class Load:
    """Clients that send batches one after another until the service is gone."""

    def __init__(self, url: str, start: int) -> None:
        self.sent: list[int] = []
        self.acknowledged: list[int] = []
        self._url = url
        self._next = start
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def wait_for(self, answers: int) -> None:
        """Wait until so many batches are acknowledged, however slow the machine."""
        deadline = time.monotonic() + SECONDS
        while len(self.acknowledged) < answers:
            assert time.monotonic() < deadline
            time.sleep(0.002)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=30) as client:
            while True:
                with self._lock:
                    number, self._next = self._next, self._next + 1
                    self.sent.append(number)
                try:
                    assert send(client, number) is False
                except httpx.TransportError:
                    return
                self.acknowledged.append(number)


def check_kept(running: Running, load: Load, learned: list[int]) -> list[int]:
    """Send all of a load again; return all batches that are learned then, each once."""
    repeated = {number: send(running.client, number) for number in load.sent}
    assert all(repeated[number] for number in load.acknowledged)
    learned = [*learned, *load.sent]
    assert running.state_rows() == sum(len(rows_of(number)) for number in learned)
    return learned


def survive(state: Path, kills: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    learned: list[int] = []
    running = begin(state)
    try:
        for _ in range(kills):
            load = Load(running.url, start=len(learned))
            load.wait_for(int(rng.integers(3, 40)))
            time.sleep(rng.uniform(0, 0.02))
            running.kill()
            load.join()
            running = begin(state)
            learned = check_kept(running, load, learned)
        check_fit(running, learned)
    except BaseException:
        running.kill()
        raise
    assert running.stop() == 0


def check_fit(running: Running, learned: list[int]) -> None:
    """Compare what the service scores by with a fit of all batches at once."""
    rows = truing.Outputs.concatenate(map(rows_of, learned))
    body, headers = as_binary(batch(20, seed=1_000_000), parameters={"learn": False})
    found = from_json(running.client.post(INFER, content=body, headers=headers))["scores"]
    fit = truing.fit_direct(rows.features, truing.msp(rows.logits))
    np.testing.assert_allclose(found, fit.predict(batch(20, seed=1_000_000).features), rtol=1e-8)


def test_three_kills_lose_nothing_answered_and_count_no_retry_twice(tmp_path):
    survive(tmp_path, 3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_two_hundred_kills_lose_nothing_answered_and_count_no_retry_twice(tmp_path, seed):
    survive(tmp_path, 20, seed)
