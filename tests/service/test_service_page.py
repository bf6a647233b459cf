"""The page of the service: what it shows runs, and says what it shows."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import truing
from truing.service.openapi import document
from truing.service.protocol import Widths

from .running import SECONDS, serving

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "service.md").read_text()
CLIENTS = ROOT / ".venv-clients" / "bin" / "python"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    truing.sample()[5000:].save(folder / "held.npz")
    rows = truing.sample("svhn")[:50]
    np.savez(folder / "test.npz", features=rows.features, logits=rows.logits)
    with serving(folder / "state", "--reference", str(folder / "held.npz"), sizes=(64, 10)) as running:
        running.folder = folder
        yield running


def run(service, *words: str, code: str) -> str:
    code = code.replace("http://localhost:8080", service.url).replace("localhost:8080", service.url[7:])
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(Path(truing.__file__).parents[1])}
    done = subprocess.run(
        [*words, code],
        capture_output=True,
        text=True,
        cwd=service.folder,
        env=environment,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_s_curl_asks_what_it_says(service):
    ask, further, reset = blocks("sh")
    found = run(service, "sh", "-ec", code=ask)
    answer = json.loads(found)
    assert answer["id"] == "batch-1"
    assert [output["name"] for output in answer["outputs"]] == ["scores", "is_out"]
    printed = run(service, "sh", "-ec", code=further)
    assert '{"reference_rows":5000}{"fdr":0.05}' in printed
    assert re.search(r"^truing_state_rows [1-9]", printed, re.MULTILINE)
    assert truing.load(service.folder / "moments.npz").rows > 0
    assert run(service, "sh", "-ec", code=reset) == '{"rows":0.0}'


def test_the_page_s_python_prints_what_it_shows(service):
    code = blocks("py")[0]
    assert run(service, sys.executable, "-c", code=code) == re.search(r"^# (.*)$", code, re.MULTILINE)[1] + "\n"


@pytest.mark.skipif(not CLIENTS.exists(), reason="needs .venv-clients: make .venv-clients/stamp")
def test_the_page_s_triton_client_finds_house_numbers_out(service):
    found = run(service, str(CLIENTS), "-c", code=blocks("py")[1])
    assert float(found.split()[0]) > 0.2


def test_the_page_has_every_route_every_error_and_every_metric(service):
    described = document(Widths(64, 10))["paths"]
    for path in described:
        if not path.endswith("/ready"):
            assert path.removeprefix("/v2/models/truing") in PAGE, path
    statuses = {status for about in described.values() for one in about.values() for status in one["responses"]}
    assert statuses - {"200"} <= set(re.findall(r"^\| (\d+)", PAGE, re.MULTILINE)) | {"405"}
    metrics = set(re.findall(r"^# TYPE (truing_\w+) ", service.client.get("/metrics").text, re.MULTILINE))
    for name in metrics:
        if not name.endswith("_created") and name not in ("truing_reference_rows", "truing_sequence"):
            assert name in PAGE, name
