"""Triton's client works unchanged over HTTP and gRPC, and so do the examples in the documentation, also for KServe.

The clients need other versions of packages than truing, so they have their own environment.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .running import SECONDS, Running, as_binary, batch, from_binary, npz, serving

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"
PAGE = ROOT / "docs" / "clients.md"
TOKEN = "0123456789-abcdef"

# The models have different numbers of columns, so that no request can reach the wrong model unnoticed.
SIZES = {"cats": (6, 3), "dogs": (4, 2)}

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs .venv-clients: make .venv-clients/stamp")

# The program prints what Triton's client received as JSON. `argv` holds the transport, its address, the file with the
# rows of both models, and the token.
TRITON = """
import importlib, json, sys
import numpy as np

transport, address, path, token = sys.argv[1:]
is_http = transport == "http"
triton = importlib.import_module(f"tritonclient.{transport}")
rows = np.load(path)
headers = {"authorization": "Bearer " + token}
names = ["scores", "base_scores", "p_values", "is_out"]
client = triton.InferenceServerClient(address)

def columns(model):
    return {name: rows[f"{model}_{name}"] for name in ("features", "logits")}

def infer(model="cats", inputs=None, token=headers, binary=True, **options):
    how = {"binary_data": binary} if is_http else {}
    tensors = []
    for name, array in (inputs or columns(model)).items():
        tensors.append(triton.InferInput(name, array.shape, "FP32"))
        tensors[-1].set_data_from_numpy(array, **how)
    outputs = [triton.InferRequestedOutput(name, **how) for name in names]
    # The client over HTTP adds headers of its own to the dict.
    return client.infer(model, tensors, outputs=outputs, headers=dict(token), **options)

def parameter(answer, name):
    value = answer.get_response()["parameters"][name] if is_http else answer.get_response().parameters[name]
    return value if is_http else value.bool_param

def arrays(answer):
    return {name: answer.as_numpy(name).tolist() for name in names}

unlearned = {"parameters": {"learn": False}}
compression = "request_compression_algorithm" if is_http else "compression_algorithm"
asked = [("cats", {}), ("dogs", {})]
asked += [("cats", {compression: algorithm}) for algorithm in ("gzip", "deflate")]
if is_http:
    asked += [("dogs", {"binary": False}), ("cats", {"binary": False, compression: "gzip"})]
else:
    asked += [("cats", {"priority": 1, "timeout": 10**7, "sequence_id": 3})]  # Ignored parameters.
as_json = {} if is_http else {"as_json": True}
index = client.get_model_repository_index(headers=headers, **as_json)
first, again = (infer(request_id=transport) for _ in range(2))
received = {
    "answers": [(model, arrays(infer(model, **unlearned, **options))) for model, options in asked],
    "server": client.get_server_metadata(headers=headers, **as_json),
    "model": client.get_model_metadata("cats", headers=headers, **as_json),
    "index": index if is_http else index["models"],
    "live": [client.is_server_live(), client.is_server_ready()],
    "ready": [client.is_model_ready(model, headers=headers) for model in ("cats", "dogs", "birds")],
    "repeated": [parameter(answer, "repeated") for answer in (first, again)],
    "learned": [parameter(answer, "learned") for answer in (first, infer(**unlearned))],
    "errors": {},
}

def refused(name, **options):
    try:
        infer(**options)
    except triton.InferenceServerException as error:
        received["errors"][name] = [error.status(), error.message()]

refused("parameter", parameters={"lern": False})
refused("model", model="birds", inputs=columns("cats"))
refused("version", model_version="2")
refused("columns", inputs=columns("dogs"))
refused("token", token={"authorization": "Bearer wrong"})
print(json.dumps(received))
"""

# The errors by HTTP status, gRPC status and a part of the text.
ERRORS = {
    "parameter": ("400", "INVALID_ARGUMENT", "got 'lern'"),
    "model": ("404", "NOT_FOUND", "there is no model 'birds'"),
    "version": ("404", "NOT_FOUND", "model_version must be 1, got '2'"),
    "columns": ("400", "INVALID_ARGUMENT", "the shape of features must be [n, 6]"),
    "token": ("401", "UNAUTHENTICATED", "Authorization must be Bearer and a valid token"),
}


def addresses(running: Running) -> tuple[str, str]:
    """Return the addresses of HTTP and gRPC."""
    port = re.search(r"gRPC on port (\d+)", running.start_line)[1]
    return running.url.removeprefix("http://"), f"127.0.0.1:{port}"


def run(*words: str, folder: Path) -> str:
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Two models with references, behind a token. Rows are learned by every test."""
    folder = tmp_path_factory.mktemp("clients")
    (folder / "token").write_text(TOKEN)
    options = ("--token-file", str(folder / "token"), "--grpc-port", "0")
    with serving(folder / "state", *options, sizes=None) as running:
        running.client.headers["Authorization"] = f"Bearer {TOKEN}"
        running.folder = folder
        for model, sizes in SIZES.items():
            settings = {"features": sizes[0], "classes": sizes[1], "method": "dlr"}
            assert running.client.put(f"/models/{model}", json=settings).status_code == 201
            reference = npz(batch(60, seed=1, sizes=sizes))
            assert running.client.put(f"/models/{model}/reference", content=reference).status_code == 200
            content, headers = as_binary(batch(30, seed=2, sizes=sizes))
            assert running.client.post(f"/v2/models/{model}/infer", content=content, headers=headers).is_success
        yield running


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_tritons_client_works_unchanged(service, transport):
    batches = {model: batch(20, seed=3, sizes=sizes) for model, sizes in SIZES.items()}
    columns = {
        f"{model}_{name}": getattr(rows, name) for model, rows in batches.items() for name in ("features", "logits")
    }
    np.savez(service.folder / "rows.npz", **columns)
    before = service.state_rows("cats")
    address = dict(zip(("http", "grpc"), addresses(service), strict=True))[transport]
    words = (str(PYTHON), "-c", TRITON, transport, address, str(service.folder / "rows.npz"), TOKEN)
    received = json.loads(run(*words, folder=service.folder).splitlines()[-1])
    assert (received["live"], received["ready"]) == ([True, True], [True, True, False])
    assert (received["learned"], received["repeated"]) == ([True, False], [False, True])
    assert service.state_rows("cats") == before + 20
    for model, answer in received["answers"]:
        assert answer == unlearned(service, model, batches[model])
    assert set(received["errors"]) == set(ERRORS)
    for name, (status, text) in received["errors"].items():
        assert ERRORS[name][transport == "grpc"] in status
        assert ERRORS[name][2] in text
    for name, path in {"server": "/v2", "model": "/v2/models/cats", "index": "/v2/repository/index"}.items():
        assert comparable(received[name]) == comparable(service.client.get(path).json()), name


def unlearned(service: Running, model: str, rows: Any) -> dict[str, Any]:
    """Return the outputs of rows that are not learned, as our own HTTP client receives them."""
    content, headers = as_binary(rows, parameters={"learn": False, "binary_data_output": True})
    response = service.client.post(f"/v2/models/{model}/infer", content=content, headers=headers)
    return {name: array.tolist() for name, array in from_binary(response).items()}


def comparable(value: Any) -> Any:
    """Return JSON without empty texts, and with numbers as texts, as in Triton's JSON for gRPC."""
    if isinstance(value, dict):
        return {name: comparable(one) for name, one in value.items() if one != ""}
    return [comparable(one) for one in value] if isinstance(value, list) else str(value)


def examples() -> list[tuple[str, str, str]]:
    """Return the examples of the page: language, code and output."""
    return re.findall(r"```(sh|py|java)\n(.*?)```\n\n```text\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def example_service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples")
    with serving(folder / "state", "--grpc-port", "0", sizes=(2, 3)) as running:
        running.folder = folder
        yield running


@pytest.mark.parametrize(("language", "code", "output"), examples(), ids=lambda text: text if len(text) < 5 else "")
def test_an_example_of_the_page_prints_what_the_page_shows(example_service, language, code, output):
    if language == "java" and shutil.which("java") is None:
        pytest.skip("needs java: apt-get install default-jdk-headless")
    http, grpc = addresses(example_service)
    code = code.replace("localhost:8080", http).replace("localhost:8081", grpc)
    if language == "java":
        (example_service.folder / "Infer.java").write_text(code)
    words = {"sh": ("sh", "-ec", code), "py": (str(PYTHON), "-c", code), "java": ("java", "Infer.java")}
    assert rounded(run(*words[language], folder=example_service.folder).strip()) == rounded(output.strip())


def rounded(text: str) -> str:
    """Return a text with rounded numbers: the last digits may depend on the machine."""
    return re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.9f}", text)
