"""The memory of a service does not grow with the number of requests that it has answered."""

import gc
import re
import sys
import tracemalloc
from itertools import cycle
from pathlib import Path

import pytest

from truing.service.changes import learning

from .batches import DETECTORS, batch, calibrate, opened
from .served import Client, create, inference, serving


@pytest.mark.slow
def test_the_memory_of_an_engine_does_not_grow_with_batches(tmp_path):
    engine = opened(tmp_path, **DETECTORS["window"])
    calibrate(engine, 230)
    outputs = batch("rows")

    def learn(start: int, stop: int) -> int:
        """Learn and score batches, and return the size of all Python objects afterwards."""
        for number in range(start, stop, 50):
            futures = [engine.submit(learning(outputs, str(one))) for one in range(number, number + 50)]
            assert all(future.result(60).learned for future in futures)
            engine.score(outputs)
        futures.clear()
        engine.snapshot().result(60)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = learn(0, 200)
        grown = learn(200, 1200) - before
    finally:
        tracemalloc.stop()
    engine.close()
    assert grown < 50_000  # The rows of 1,000 batches take 192,000 bytes, and their ids 50,000.


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds."""
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1])


def requests(kinds: list[str], number: int) -> list[tuple[str, str, dict | bytes, int]]:
    """Return ten requests, and the status of the answer to each: learned, repeated, scored, refused and read."""
    kind = kinds[number % len(kinds)]
    path = f"/v2/models/{kind}/infer"
    learn = [("POST", path, inference(f"{number}-{one}", rows=30), 200) for one in range(4)]
    return [
        *learn,
        learn[0],
        ("POST", path, inference("scored", learn=False), 200),
        ("POST", path, {"inputs": [{"name": "features", "shape": [1, 9], "datatype": "FP32", "data": [0] * 9}]}, 400),
        ("POST", path, b"no JSON", 400),
        ("POST", f"/v2/models/unknown-{number}/infer", inference("unknown"), 404),
        ("GET", f"/models/{kind}", b"", 200),
    ]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
def test_the_memory_of_a_service_does_not_grow_from_5_000_to_20_000_requests(tmp_path):
    kinds = ["dlr", "window", "contrast"]
    with serving(tmp_path / "state") as server:
        clients = cycle([Client(server) for _ in range(8)])
        for kind in kinds:
            create(next(clients), kind, DETECTORS[kind], 900)

        def send(start: int, stop: int) -> int:
            for number in range(start, stop, 10):
                for method, path, body, status in requests(kinds, number):
                    assert next(clients).send(method, path, body).status == status, (method, path, body)
            assert next(clients).send("GET", "/metrics").status == 200
            return resident_bytes(server.process.pid)

        after_5_000 = send(0, 5_000)
        after_20_000 = send(5_000, 20_000)
        assert server.stop() == 0
    grown = after_20_000 - after_5_000
    assert grown < 6 * 2**20, f"{after_5_000:,} bytes grew by {grown:,}"  # The rows of 7,500 batches take 7,200,000.
