"""A service as a process of its own, and requests to it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np

import truing

INFER = "/v2/models/truing/infer"
FEATURES, CLASSES = 6, 3
SECONDS = 60  # Until whatever is waited for counts as lost.


class Running:
    """A `truing serve` that has said where it is."""

    def __init__(self, process: subprocess.Popen[str], start_line: str) -> None:
        self.process = process
        self.start_line = start_line
        self.url = re.search(r"http://\S+", start_line)[0]
        self.client = httpx.Client(base_url=self.url, timeout=SECONDS)

    def state_rows(self, **headers: str) -> float:
        text = self.client.get("/metrics", headers=headers).text
        return float(re.search(r"^truing_state_rows (\S+)$", text, re.MULTILINE)[1])

    def facts(self) -> tuple[float, ...]:
        """Return what no request that is refused may change."""
        text = self.client.get("/metrics").text
        names = ("state_rows", "state_batches", "reference_rows", "sequence", "ready")
        return tuple(float(re.search(rf"^truing_{name} (\S+)$", text, re.MULTILINE)[1]) for name in names)

    def stop(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def kill(self) -> None:
        self.process.kill()
        self.ended()

    def ended(self) -> int:
        code = self.process.wait(SECONDS)
        self.process.stdout.close()
        self.client.close()
        return code


def command(state: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "truing", "serve", "--state", str(state), "--port", "0", *options]


def begin(state: Path, *options: str, sizes: tuple[int, int] | None = (FEATURES, CLASSES)) -> Running:
    """Start a service and wait for its first line."""
    width = () if sizes is None else ("--features", str(sizes[0]), "--classes", str(sizes[1]))
    process = subprocess.Popen(
        command(state, *width, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(truing.__file__).parents[1])},
    )
    line = process.stdout.readline()
    assert line, f"the service ended with {process.wait()}"
    return Running(process, line)


@contextmanager
def serving(state: Path, *options: str, sizes: tuple[int, int] = (FEATURES, CLASSES)) -> Iterator[Running]:
    """A service for the length of a block, which it must end well."""
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


def as_json(rows: truing.Outputs, **more: Any) -> dict[str, Any]:
    """Return rows as a request in JSON."""
    tensors = {"features": rows.features, "logits": rows.logits}
    inputs = [
        {"name": name, "shape": list(array.shape), "datatype": "FP32", "data": array.tolist()}
        for name, array in tensors.items()
    ]
    return {"inputs": inputs, **more}


def as_binary(rows: truing.Outputs, **more: Any) -> tuple[bytes, dict[str, str]]:
    """Return rows as a request with tensors behind its JSON, and the headers that it needs."""
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
