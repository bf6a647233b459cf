"""The service over HTTP, beside an endpoint that reads the same body and answers nothing.

Batches of 256 × 128 float32 features and 10 logits come in binary over 16 connections. Each connection sends its next
batch when it has its answer. All servers run in uvicorn, one process each, and take turns. "Not durable" writes without
syncing. Times are wall-clock times; server and client share the machine.

At 2,048 columns, batches of 32 rows come 20 times a second, whether or not the last one was answered.
"""

import asyncio
import json
import multiprocessing
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import uvicorn

from _features import like_a_network
from _rows import Row, costs, faster, report
from _timing import Measure
from truing import Detector
from truing.service.app import INFER, create_app
from truing.service.engine import Engine
from truing.service.metrics import Metrics
from truing.service.protocol import Widths
from truing.service.store import Store

CONNECTIONS = 16
REQUESTS = 2000  # In a turn.
TURNS = 5
SYNCS = {"not durable": False, "durable": True}
NO_OP = "no-op"
PACED_SECONDS, BATCHES_A_SECOND = 20, 20


async def no_op(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Read the body and return an empty answer."""
    while (await receive()).get("more_body", False):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"{}"})


def serve(folder: str, widths: Widths, name: str, listening: socket.socket) -> None:
    """Serve on a socket until the process is ended."""
    app: Any = no_op
    if name in SYNCS:
        store = Store(folder, Detector(), features=widths.features, classes=widths.classes, sync=SYNCS[name])
        metrics = Metrics()
        app = create_app(Engine(store, listeners=[metrics.record]), metrics, widths=widths)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,
    )
    uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def served(widths: Widths, name: str) -> Iterator[int]:
    """Run a server in a new process and yield its port."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:  # /tmp may be in memory.
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
            arguments = (folder, widths, name, listening)
            process = multiprocessing.get_context("spawn").Process(target=serve, args=arguments)
            process.start()
            port = listening.getsockname()[1]
        try:
            yield port
        finally:
            process.kill()
            process.join()


def request_of(rows: int, widths: Widths) -> bytes:
    """Return one request."""
    return requests_of(1, rows, widths)[0]


def requests_of(count: int, rows: int, widths: Widths) -> list[bytes]:
    """Return requests with different rows."""
    features = like_a_network(count * rows, widths.features)[0]
    logits = np.random.default_rng(0).normal(0, 3, (count * rows, widths.classes)).astype(np.float32)
    parts = [slice(start, start + rows) for start in range(0, count * rows, rows)]
    return [_request({"features": features[part], "logits": logits[part]}) for part in parts]


def _request(tensors: dict[str, np.ndarray]) -> bytes:
    inputs = [
        {
            "name": name,
            "shape": array.shape,
            "datatype": "FP32",
            "parameters": {"binary_data_size": array.nbytes},
        }
        for name, array in tensors.items()
    ]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([text, *(array.tobytes() for array in tensors.values())])
    head = (
        f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> float:
    """Send a request, read its answer, and return the time that both took."""
    start = perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    return perf_counter() - start


async def as_fast_as_answered(port: int, request: bytes, requests: int, connections: int) -> tuple[float, list[float]]:
    """Return the time of all requests over some connections, and the time of each request."""
    times: list[float] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        times.extend([await ask(reader, writer, request) for _ in range(requests // connections)])
        writer.close()

    start = perf_counter()
    await asyncio.gather(*(client() for _ in range(connections)))
    return perf_counter() - start, times


async def paced(port: int, requests: list[bytes], a_second: float) -> list[float]:
    """Send a request at each tick, over a new connection if all are busy; return the time until each answer."""
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    times: list[float] = []

    async def one(request: bytes) -> None:
        pair = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        times.append(await ask(*pair, request))
        idle.append(pair)

    start = perf_counter()
    asked = []
    for tick, request in enumerate(requests):
        await asyncio.sleep(max(0.0, start + tick / a_second - perf_counter()))
        asked.append(asyncio.create_task(one(request)))
    await asyncio.gather(*asked)
    for _, writer in idle:
        writer.close()
    return times


def measure() -> Iterator[Row]:
    yield from throughput(Widths(128, 10), 256)
    yield keeping_up(Widths(2048, 10), 32)


def throughput(widths: Widths, rows: int, requests: int = REQUESTS, turns: int = TURNS) -> Iterator[Row]:
    request = request_of(rows, widths)
    names = (NO_OP, *SYNCS)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    latencies: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(turns):
        for name in names:
            with served(widths, name) as port:
                asyncio.run(as_fast_as_answered(port, request, 10 * CONNECTIONS, CONNECTIONS))  # Load everything.
                taken, times = asyncio.run(as_fast_as_answered(port, request, requests, CONNECTIONS))
            seconds[name].append(taken / len(times))
            latencies[name] += times
    measured = {name: Measure(median(seconds[name]), runs=turns) for name in names}
    batch = f"{rows} × {widths.features}, {CONNECTIONS} connections"

    for name, at_least in (("not durable", 0.7), ("durable", 0.45)):
        low, high = np.quantile(latencies[name], (0.5, 0.99))
        note = f"{1 / measured[name].value:,.0f} requests/s; p50 {1000 * low:.1f} ms, p99 {1000 * high:.1f} ms"
        yield faster(f"{batch}, {name}", measured[name], "no-op endpoint", measured[NO_OP], at_least, note=note)


def keeping_up(widths: Widths, rows: int, seconds: float = PACED_SECONDS) -> Row:
    first, *requests = requests_of(1 + round(seconds * BATCHES_A_SECOND), rows, widths)
    with served(widths, "durable") as port:
        asyncio.run(as_fast_as_answered(port, first, 1, 1))  # Load everything.
        start = perf_counter()
        times = asyncio.run(paced(port, requests, BATCHES_A_SECOND))
        taken = Measure((perf_counter() - start) / len(times), runs=len(times))
    low, high = np.quantile(times, (0.5, 0.99))
    note = f"p50 {1000 * low:.0f} ms, p99 {1000 * high:.0f} ms"
    work = f"{rows} × {widths.features}, {BATCHES_A_SECOND} batches a second, durable"
    # The answer to the last batch may come a little after its tick.
    return costs(work, taken, "as they come", Measure(1 / BATCHES_A_SECOND), 1.02, note=note)


if __name__ == "__main__":
    report(measure, "starlette", "uvicorn")
