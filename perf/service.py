"""Durable learning over HTTP, compared with a minimal endpoint that does the same arithmetic.

The minimal endpoint runs in uvicorn as well. It reads a body, learns the queued batches together with the functions of
the core, commits them to SQLite in one transaction, and answers with the scores. It has no router, no checks, no ids,
no checksums, no metrics and no snapshots. Both servers use h11, one process and one BLAS thread, take turns, and
share the machine with the client.

Batches arrive in binary over 16 connections. Each connection sends its next batch when it has its answer.
"""

import asyncio
import json
import multiprocessing
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import uvicorn

from truing import Detector, Outputs
from truing.decisions.thresholds import Rate
from truing.stream import SolvedState, calibrated, learn_batches

from ._features import like_a_network
from ._rows import Row, faster, report, value
from ._timing import Measure

CONNECTIONS = 16
TURNS = 3
SECONDS = 120  # A load that takes longer fails.
SLOWEST = 1 / 20
CLASSES = 10
REFERENCE_ROWS = 500
INFER = "/v2/models/truing/infer"
LIMITS = {
    "contrast": "Learning takes most of the time on both sides; checks and checksums are on top.",
    "dlr": "Sums and p-values, which both sides compute; then HTTP, checks and checksums.",
    "wide contrast": "The fit to the sample of 2,048 columns.",
    "wide dlr": "The factorisation of 2,048 × 2,048 sums for every group of batches.",
    "contrast with components": "The projection on 64 components, and reading the request.",
    "dlr with components": "The 64 leading eigenvectors of 2,048 × 2,048 sums for every group of batches.",
}


class Work(NamedTuple):
    """A load: `requests` batches per turn, each of `rows` rows and `features` columns, learned by `method`."""

    rows: int
    features: int
    method: str
    requests: int
    components: int | None = None

    def __str__(self) -> str:
        within = "" if self.components is None else f", {self.components} components"
        return f"{self.rows} × {self.features}, {self.method}{within}"


class Minimal:
    """The minimal endpoint."""

    def __init__(self, folder: str, work: Work) -> None:
        detector = Detector(method=work.method, components=work.components)
        self.state = SolvedState(calibrated(detector.state, reference_of(work)))
        self.database = sqlite3.connect(f"{folder}/minimal.sqlite3", isolation_level=None, check_same_thread=False)
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = FULL")
        self.database.execute("CREATE TABLE batches (body BLOB)")
        self.queue: deque[tuple[Outputs, bytes, Future[bytes]]] = deque()
        self.is_filled = threading.Semaphore(0)
        threading.Thread(target=self.write, daemon=True).start()

    def write(self) -> None:
        """Learn and commit the queued batches, in an endless loop."""
        while True:
            self.is_filled.acquire()
            group = [self.queue.popleft()]
            while self.is_filled.acquire(blocking=False):
                group.append(self.queue.popleft())
            self.state, answers = learn_batches(self.state, [one for one, _, _ in group], Rate("false_alarm", 0.05))
            self.database.execute("BEGIN")
            self.database.executemany("INSERT INTO batches VALUES (?)", [(body,) for _, body, _ in group])
            self.database.execute("COMMIT")
            for (_, _, future), answer in zip(group, answers, strict=True):
                future.set_result(answer.scores.tobytes())

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        length = int(dict(scope["headers"])[b"inference-header-content-length"])
        shapes = {one["name"]: one["shape"] for one in json.loads(body[:length])["inputs"]}
        numbers = np.frombuffer(body[length:], "<f4")
        cut = shapes["features"][0] * shapes["features"][1]
        outputs = Outputs(numbers[:cut].reshape(shapes["features"]), numbers[cut:].reshape(shapes["logits"]))
        future: Future[bytes] = Future()
        self.queue.append((outputs, body, future))
        self.is_filled.release()
        answer = await asyncio.wrap_future(future)
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def serve_minimal(folder: str, work: Work, listening: socket.socket) -> None:
    """Serve the minimal endpoint on a socket until the process is ended."""
    config = uvicorn.Config(
        Minimal(folder, work), http="h11", lifespan="off", log_config=None, access_log=False, ws="none"
    )
    uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def minimal(work: Work) -> Iterator[int]:
    """Run the minimal endpoint in a new process and yield its port."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:  # /tmp may be in memory.
        with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
            process = multiprocessing.get_context("spawn").Process(target=serve_minimal, args=(folder, work, listening))
            process.start()
            port = listening.getsockname()[1]
        try:
            yield port
        finally:
            process.kill()
            process.join()


@contextmanager
def truing_serve(work: Work) -> Iterator[int]:
    """Run `truing serve` and yield its port."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        reference_of(work).save(f"{folder}/reference.npz")
        options = ["--features", str(work.features), "--classes", str(CLASSES), "--method", work.method]
        options += [] if work.components is None else ["--components", str(work.components)]
        command = [sys.executable, "-m", "truing", "serve", "--state", f"{folder}/state", "--port", "0", *options]
        with Path(folder, "log").open("w+") as log:
            process = subprocess.Popen(
                [*command, "--reference", f"{folder}/reference.npz"],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            try:
                assert process.stdout is not None
                match = re.search(r"http://\S+:(\d+)", process.stdout.readline())
                if match is None:
                    raise RuntimeError(f"truing serve did not start: {Path(log.name).read_text()}")
                yield int(match[1])
            finally:
                process.kill()
                process.wait()


def reference_of(work: Work) -> Outputs:
    """Return the reference rows."""
    return _rows(REFERENCE_ROWS, work.features, seed=1)


def _rows(rows: int, features: int, seed: int) -> Outputs:
    logits = np.random.default_rng(seed).normal(0, 3, (rows, CLASSES)).astype(np.float32)
    return Outputs(like_a_network(rows, features, seed=seed)[0], logits)


def requests_of(work: Work, count: int = CONNECTIONS) -> list[bytes]:
    """Return requests with different rows."""
    every = _rows(count * work.rows, work.features, seed=0)
    return [_request(every[start : start + work.rows]) for start in range(0, len(every), work.rows)]


def _request(rows: Outputs) -> bytes:
    tensors = {"features": rows.features, "logits": rows.logits}
    inputs = [
        {"name": name, "shape": one.shape, "datatype": "FP32", "parameters": {"binary_data_size": one.nbytes}}
        for name, one in tensors.items()
    ]
    text = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([text, *(array.tobytes() for array in tensors.values())])
    head = (
        f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> float:
    """Send a request, read its answer, and return the seconds from sending to the end of the answer."""
    start = perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
    await reader.readexactly(int(length.partition(b":")[2]))
    return perf_counter() - start


async def load(port: int, requests: list[bytes], count: int) -> tuple[float, list[float]]:
    """Return the seconds of `count` requests over the connections, and the seconds of each request."""
    times: list[float] = []

    async def client(request: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        times.extend([await ask(reader, writer, request) for _ in range(count // CONNECTIONS)])
        writer.close()

    start = perf_counter()
    async with asyncio.timeout(SECONDS):
        await asyncio.gather(*map(client, requests))
    return perf_counter() - start, times


SERVERS = {"truing": truing_serve, "minimal": minimal}


def throughput(work: Work, turns: int, *servers: str) -> tuple[list[Measure], np.ndarray]:
    """Return the seconds per batch of each server, and the latencies of the first server's answers."""
    requests = requests_of(work)
    seconds: dict[str, list[float]] = {name: [] for name in servers}
    latencies: list[float] = []
    for _ in range(turns):
        for name in servers:
            with SERVERS[name](work) as port:
                asyncio.run(load(port, requests, 2 * CONNECTIONS))  # Warm up.
                taken, times = asyncio.run(load(port, requests, work.requests))
            seconds[name].append(taken / len(times))
            latencies += times if name == servers[0] else []
    return [Measure(median(seconds[name]), runs=turns) for name in servers], np.array(latencies)


def measure() -> Iterator[Row]:
    os.environ["OMP_NUM_THREADS"] = "1"  # Both servers inherit the setting.
    for work in (Work(256, 128, "contrast", 1600), Work(256, 128, "dlr", 1600)):
        (ours, theirs), latencies = throughput(work, TURNS, "truing", "minimal")
        limit = LIMITS[work.method]
        yield faster(f"{work}, a batch", ours, "minimal endpoint", theirs, 0.8, note=note(ours, latencies), limit=limit)
    for method in ("contrast", "dlr"):
        measured = []
        for components in (None, 64):
            work = Work(32, 2048, method, 160 if method == "contrast" else 96, components)
            (ours,), latencies = throughput(work, 1, "truing")
            limit = LIMITS[f"wide {method}" if components is None else f"{method} with components"]
            yield value(f"{work}, a batch", ours, SLOWEST, note=note(ours, latencies), limit=limit)
            measured.append(ours)
        plain, ours = measured
        work = f"32 × 2048, {method}, with 64 components"
        yield faster(work, ours, "without components", plain, 1.0, limit=LIMITS[f"{method} with components"])


def note(ours: Measure, latencies: np.ndarray) -> str:
    """Return the batches per second, and quantiles of the latencies, as text."""
    low, high = 1000 * np.quantile(latencies, (0.5, 0.99))
    return f"{1 / ours.value:,.0f} batches/s; p50 {low:.1f} ms, p99 {high:.1f} ms"


if __name__ == "__main__":
    report(measure, "starlette", "uvicorn")
