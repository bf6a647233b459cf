"""A service as a separate process, and requests to it."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import truing

INFER = "/v2/models/truing/infer"
FEATURES, CLASSES = 6, 3
SECONDS = 60  # An event that takes longer will not happen.


class Running:
    """A `truing serve` process that has printed its start line."""

    def __init__(self, process: subprocess.Popen[str], start_line: str, errors: Any) -> None:
        self.process = process
        self.start_line = start_line
        self.url = re.search(r"http://\S+", start_line)[0]
        self.client = httpx.Client(base_url=self.url, timeout=SECONDS)
        self._errors = errors

    def metric(self, name: str, model: str = "truing", **headers: str) -> float:
        """Return a gauge or counter of a model that has no other labels."""
        text = self.client.get("/metrics", headers=headers).text
        return float(re.search(rf'^{name}{{model="{model}"}} (\S+)$', text, re.MULTILINE)[1])

    def state_rows(self, model: str = "truing", **headers: str) -> float:
        return self.metric("truing_state_rows", model, **headers)

    def status(self, model: str = "truing") -> dict[str, Any]:
        return self.client.get(f"/models/{model}").json()

    def states(self) -> list[dict[str, Any]]:
        """Return the status of all models, which a refused request must not change."""
        return self.client.get("/models").json()["models"]

    def errors(self) -> str:
        """Return what the process has written to stderr so far."""
        return os.pread(self._errors.fileno(), os.fstat(self._errors.fileno()).st_size, 0).decode()

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Return the log lines of an event. Every line of stderr must be a JSON object."""
        lines = [json.loads(line) for line in self.errors().splitlines()]
        return [line for line in lines if line["event"] == event]

    def stop(self) -> int:
        """Ask the process to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        self.process.kill()
        self.ended()

    def ended(self) -> int:
        """Wait for the end of the process, and return its exit code."""
        code = self.process.wait(SECONDS)
        self.process.stdout.close()
        self.client.close()
        self._errors.close()
        return code


# Of a child process that runs truing.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(truing.__file__).parents[1])}


def command(state: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "truing", "serve", "--state", str(state), "--port", "0", *options]


def begin(state: Path, *options: str, sizes: tuple[int, int] | None = (FEATURES, CLASSES)) -> Running:
    """Start a service and wait for its start line. Without sizes, it creates no model."""
    width = () if sizes is None else ("--features", str(sizes[0]), "--classes", str(sizes[1]))
    errors = tempfile.TemporaryFile("a+")  # noqa: SIM115  # Closed by `Running.ended`.
    process = subprocess.Popen(
        command(state, *width, *options),
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=ENVIRONMENT,
    )
    line = process.stdout.readline()
    if not line:
        errors.seek(0)
        raise AssertionError(f"the service ended with {process.wait()}: {errors.read()}")
    return Running(process, line, errors)


@contextmanager
def serving(state: Path, *options: str, sizes: tuple[int, int] | None = (FEATURES, CLASSES)) -> Iterator[Running]:
    """Run a service during a block. It must end with exit code 0."""
    running = begin(state, *options, sizes=sizes)
    try:
        yield running
    except BaseException:
        running.kill()
        raise
    assert running.stop() == 0


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
