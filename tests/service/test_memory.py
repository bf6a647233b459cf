"""The memory of a service does not grow with the number of requests that it has answered."""

import asyncio
import gc
import tracemalloc
from contextlib import closing

import httpx
import pytest

from truing.service.app import create_app
from truing.service.changes import calibration
from truing.service.history import History
from truing.service.metrics import Metrics
from truing.service.models import Models
from truing.service.security import Access, Limits

from .batches import CLASSES, DETECTORS, FEATURES, batch
from .served import inference


def requests(number: int) -> list[tuple[str, str, dict, int]]:
    """Return requests and the status of each answer: learned, repeated, scored, rejected and read."""
    path = "/v2/models/m/infer"
    return [
        *[("POST", path, inference(f"{number}-{one}"), 200) for one in (0, 1, 0)],
        ("POST", path, inference("scored", learn=False), 200),
        ("POST", path, {"inputs": [{"name": "features", "shape": [1, 9], "datatype": "FP32", "data": [0] * 9}]}, 400),
        ("POST", f"/v2/models/unknown-{number}/infer", inference("unknown"), 404),
        ("GET", "/models/m", {}, 200),
        ("GET", "/metrics", {}, 200),
        ("POST", "/models/m/snapshots", {}, 200) if number % 50 == 0 else ("GET", "/models", {}, 200),
    ]


@pytest.mark.slow
def test_memory_does_not_grow_with_requests(tmp_path):
    history, metrics = History(), Metrics()
    models = Models(tmp_path, listeners=lambda name: [metrics.listener(name), history.record])
    metrics.observe(models, {"m": history})
    app = create_app(models, metrics, access=Access(), limits=Limits(), histories={"m": history})

    async def send(start: int, stop: int) -> int:
        """Send requests, and return the size of all Python objects afterwards."""
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            for number in range(start, stop):
                for method, path, body, status in requests(number):
                    assert (await client.request(method, path, json=body)).status_code == status, (method, path)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    with closing(models):
        options = {"features": FEATURES, "classes": CLASSES, **DETECTORS["window"]}
        models.create("m", options)[0].running().submit(calibration(batch("reference", 230))).result()
        asyncio.run(send(0, 150))  # Fill the caches, and the history of the last 2,000 rows.
        tracemalloc.start()
        try:
            before = asyncio.run(send(150, 200))
            grown = asyncio.run(send(200, 350)) - before
        finally:
            tracemalloc.stop()
    assert grown < 100_000, grown  # The bodies of 1,350 requests take more than a million bytes.
