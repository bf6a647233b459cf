"""A service as a separate process, and requests to it."""

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import truing

INFER = "/v2/models/truing/infer"
FEATURES, CLASSES = 6, 3
SECONDS = 60  # The longest wait for any event.

# The environment of a child process that runs truing.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(truing.__file__).parents[1])}


def command(state: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "truing", "serve", "--state", str(state), "--port", "0", *options]


class Running:
    """`truing serve` on a state directory. It can be killed and started again; every start listens on another port.

    Without sizes, it creates no model.
    """

    def __init__(self, state: Path, *options: str, sizes: tuple[int, int] | None = (FEATURES, CLASSES)) -> None:
        width = () if sizes is None else ("--features", str(sizes[0]), "--classes", str(sizes[1]))
        self.state = state
        self.log = state.with_name(f"{state.name}.log")
        self.is_up = threading.Event()
        self.start_line = self.url = ""
        self.port = 0
        self.clients: list[Any] = []  # `serving` closes the clients at its end.
        self._words = command(state, *width, *options)

    def launch(self) -> None:
        """Start the process, and do not wait until it serves."""
        with self.log.open("a") as log:
            self.process = subprocess.Popen(self._words, stdout=subprocess.PIPE, stderr=log, text=True, env=ENVIRONMENT)

    def start(self) -> None:
        """Start the process, and wait for its start line."""
        self.launch()
        self.start_line = self.process.stdout.readline()
        assert self.start_line, f"the service ended with {self.process.wait()}: {self.errors()[-1000:]}"
        self.url = re.search(r"http://\S+", self.start_line)[0]
        self.port = httpx.URL(self.url).port
        self.client = httpx.Client(base_url=self.url, timeout=SECONDS)
        self.is_up.set()

    def stop(self) -> int:
        """Stop the process with SIGTERM, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.ended()

    def ended(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        self.is_up.clear()
        code = self.process.wait(SECONDS)
        self.process.stdout.close()
        self.client.close()
        return code

    def metric(self, name: str, model: str = "truing") -> float:
        """Return the value of a gauge or counter whose only label is the model."""
        text = self.client.get("/metrics").text
        return float(re.search(rf'^{name}{{model="{model}"}} (\S+)$', text, re.MULTILINE)[1])

    def state_rows(self, model: str = "truing") -> float:
        return self.metric("truing_state_rows", model)

    def status(self, model: str = "truing") -> dict[str, Any]:
        return self.client.get(f"/models/{model}").json()

    def states(self) -> list[dict[str, Any]]:
        """Return the status of all models, which a rejected request must not change."""
        return self.client.get("/models").json()["models"]

    def errors(self) -> str:
        """Return what the process has written to stderr so far."""
        return self.log.read_text()

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of an event. Every line of stderr must be a JSON object."""
        lines = [json.loads(line) for line in self.errors().splitlines()]
        return [line for line in lines if line["event"] == event]


class Model:
    """A new model of a running service."""

    _numbers = count()

    def __init__(self, service: Running, **options: Any) -> None:
        self.service = service
        self.name = f"model-{next(self._numbers)}"
        options = {"features": FEATURES, "classes": CLASSES, **options}
        assert self.request("PUT", json=options).status_code == 201

    def request(self, method: str, path: str = "", **how: Any) -> httpx.Response:
        return self.service.client.request(method, f"/models/{self.name}{path}", **how)

    def post(self, rows: truing.Outputs, **more: Any) -> httpx.Response:
        return self.service.client.post(f"/v2/models/{self.name}/infer", json=as_json(rows, **more))

    def infer(self, rows: truing.Outputs, **more: Any) -> dict[str, np.ndarray]:
        return from_json(self.post(rows, **more))

    def infer_bytes(self, rows: truing.Outputs, *, is_compressed: bool) -> dict[str, np.ndarray]:
        """Send and receive tensors as bytes."""
        body, headers = as_binary(rows, parameters={"binary_data_output": True})
        if is_compressed:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        return from_binary(self.service.client.post(f"/v2/models/{self.name}/infer", content=body, headers=headers))

    def calibrate(self, rows: truing.Outputs, **more: Any) -> dict[str, Any]:
        response = self.request("PUT", "/reference", content=npz(rows, **more))
        assert response.status_code == 200, response.text
        return response.json()

    def moments(self) -> bytes:
        return self.request("GET", "/moments").content

    def status(self) -> dict[str, Any]:
        return self.service.status(self.name)

    def scores(self) -> np.ndarray:
        """Return the scores of some rows that are not learned, which depend on the whole state."""
        return self.infer(batch(9, seed=99), parameters={"learn": False})["scores"]


def begin(state: Path, *options: str, sizes: tuple[int, int] | None = (FEATURES, CLASSES)) -> Running:
    """Start a service and wait for its start line."""
    running = Running(state, *options, sizes=sizes)
    running.start()
    return running


@contextmanager
def serving(state: Path, *options: str, sizes: tuple[int, int] | None = (FEATURES, CLASSES)) -> Iterator[Running]:
    """Run a service during a block. It must end with exit code 0, and must not log an unexpected error."""
    running = begin(state, *options, sizes=sizes)
    try:
        yield running
        if running.process.poll() is None:
            assert running.stop() == 0
    finally:
        if running.process.poll() is None:
            running.kill()
        for client in running.clients:
            client.close()
    errors = running.errors()
    assert not re.search("unexpected error|^Traceback", errors, re.MULTILINE), errors[-5000:]


def batch(rows: int, seed: int = 0, sizes: tuple[int, int] = (FEATURES, CLASSES)) -> truing.Outputs:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, sizes[0])).astype(np.float32)
    return truing.Outputs(features, (3 * rng.normal(size=(rows, sizes[1]))).astype(np.float32))


def npz(rows: truing.Outputs | None = None, **arrays: Any) -> bytes:
    """Return rows and arrays as the bytes of an `.npz` file."""
    file = io.BytesIO()
    columns = {} if rows is None else {"features": rows.features, "logits": rows.logits}
    np.savez(file, **columns, **arrays)
    return file.getvalue()


def as_json(rows: Any, **more: Any) -> dict[str, Any]:
    """Return rows as a JSON request, in FP32 or FP64."""
    columns = {name: getattr(rows, name, None) for name in ("features", "logits", "scores")}
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": f"FP{8 * array.itemsize}", "data": array.tolist()}
        for name, array in columns.items()
        if array is not None
    ]
    return {"inputs": inputs, **more}


def as_binary(rows: truing.Outputs, **more: Any) -> tuple[bytes, dict[str, str]]:
    """Return rows as a request with tensors after its JSON, and the headers that it needs."""
    inputs, tensors = [], []
    for name in ("features", "logits"):
        tensor = getattr(rows, name).astype("<f4").tobytes()
        size = {"binary_data_size": len(tensor)}
        shape = list(getattr(rows, name).shape)
        inputs.append({"name": name, "shape": shape, "datatype": "FP32", "parameters": size})
        tensors.append(tensor)
    header = json.dumps({"inputs": inputs, **more}).encode()
    headers = {"Inference-Header-Content-Length": str(len(header)), "Content-Type": "application/octet-stream"}
    return b"".join([header, *tensors]), headers


def from_json(response: httpx.Response) -> dict[str, np.ndarray]:
    assert response.status_code == 200, response.text
    return {output["name"]: np.array(output["data"]) for output in response.json()["outputs"]}


def from_binary(response: httpx.Response) -> dict[str, np.ndarray]:
    assert response.status_code == 200, response.text
    length = int(response.headers["Inference-Header-Content-Length"])
    start, arrays = length, {}
    for output in json.loads(response.content[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        dtype = {"FP64": "<f8", "BOOL": "?"}[output["datatype"]]
        arrays[output["name"]] = np.frombuffer(response.content[start : start + size], dtype).reshape(output["shape"])
        start += size
    assert start == len(response.content)
    return arrays
