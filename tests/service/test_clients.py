"""The clients of Triton and KServe work unchanged, over HTTP and gRPC, and so do the examples in the documentation.

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

# Each program prints what its client received as JSON, in the same form. `argv` holds the HTTP address, the gRPC
# address, the file with the rows of both models, and the token.
START = """
import json, sys
import numpy as np

http, grpc, path, token = sys.argv[1:]
rows = np.load(path)
headers = {"authorization": "Bearer " + token}
names = ["scores", "base_scores", "p_values", "is_out"]
received = {"answers": {}, "errors": {}}

def columns(model):
    return {name: rows[f"{model}_{name}"] for name in ("features", "logits")}
"""

TRITON_HTTP = """
import tritonclient.http as triton

client = triton.InferenceServerClient(http)

def infer(model="cats", binary=True, inputs=None, token=headers, **options):
    tensors = []
    for name, array in (inputs or columns(model)).items():
        tensors.append(triton.InferInput(name, array.shape, "FP32"))
        tensors[-1].set_data_from_numpy(array, binary_data=binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in names]
    # The client adds headers of its own to the dict.
    return client.infer(model, tensors, outputs=outputs, headers=dict(token), **options)

def parameters(answer):
    return answer.get_response()["parameters"]

def arrays(answer):
    return {name: answer.as_numpy(name).tolist() for name in names}

unlearned = {"parameters": {"learn": False}}
received["server"] = client.get_server_metadata(headers=headers)
received["model"] = client.get_model_metadata("cats", headers=headers)
received["index"] = client.get_model_repository_index(headers=headers)
for model in ("cats", "dogs"):
    received["answers"][f"{model} raw"] = arrays(infer(model, **unlearned))
    received["answers"][f"{model} typed"] = arrays(infer(model, binary=False, **unlearned))
for algorithm in ("gzip", "deflate"):
    for binary in (True, False):
        answer = infer(binary=binary, request_compression_algorithm=algorithm, **unlearned)
        received["answers"][f"cats {algorithm} {binary}"] = arrays(answer)
"""

TRITON_GRPC = """
import tritonclient.grpc as triton

client = triton.InferenceServerClient(grpc)

def infer(model="cats", inputs=None, token=headers, **options):
    tensors = []
    for name, array in (inputs or columns(model)).items():
        tensors.append(triton.InferInput(name, array.shape, "FP32"))
        tensors[-1].set_data_from_numpy(array)
    outputs = [triton.InferRequestedOutput(name) for name in names]
    return client.infer(model, tensors, outputs=outputs, headers=token, **options)

def parameters(answer):
    return {name: value.bool_param for name, value in answer.get_response().parameters.items()}

def arrays(answer):
    return {name: answer.as_numpy(name).tolist() for name in names}

unlearned = {"parameters": {"learn": False}}
received["server"] = client.get_server_metadata(headers=headers, as_json=True)
received["model"] = client.get_model_metadata("cats", headers=headers, as_json=True)
received["index"] = client.get_model_repository_index(headers=headers, as_json=True)["models"]
for model in ("cats", "dogs"):
    received["answers"][f"{model} raw"] = arrays(infer(model, **unlearned))
for algorithm in ("gzip", "deflate"):
    received["answers"][f"cats {algorithm}"] = arrays(infer(compression_algorithm=algorithm, **unlearned))
received["answers"]["cats ignored"] = arrays(infer(priority=1, timeout=10**7, sequence_id=3, **unlearned))
"""

TRITON_END = """
received["ready"] = [client.is_server_live(), client.is_server_ready()]
received["ready"] += [client.is_model_ready(model, headers=headers) for model in ("cats", "dogs", "birds")]
first, again = (infer(request_id=sys.argv[0]) for _ in range(2))
received["repeated"] = [parameters(answer)["repeated"] for answer in (first, again)]
received["learned"] = [parameters(answer)["learned"] for answer in (first, infer(**unlearned))]

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

KSERVE = """
import asyncio
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

def request(model="cats", binary=True, inputs=None, **options):
    tensors = []
    for name, array in (inputs or columns(model)).items():
        tensors.append(InferInput(name, list(array.shape), "FP32"))
        tensors[-1].set_data_from_numpy(array, binary_data=binary)
    outputs = [RequestedOutput(name, {"binary_data": binary}) for name in names]
    return InferRequest(model, tensors, request_outputs=outputs, **options)

def arrays(answer):
    return {output.name: output.as_numpy().tolist() for output in answer.outputs}

unlearned = {"parameters": {"learn": False}}

async def ask(infer, parameters, error_of):
    for model in ("cats", "dogs"):
        received["answers"][f"{model} raw"] = arrays(await infer(request(model, **unlearned)))
        received["answers"][f"{model} typed"] = arrays(await infer(request(model, binary=False, **unlearned)))
    first, again = [await infer(request(request_id=sys.argv[0])) for _ in range(2)]
    received["repeated"] = [parameters(answer)["repeated"] for answer in (first, again)]
    answers = [first, await infer(request(**unlearned))]
    received["learned"] = [parameters(answer)["learned"] for answer in answers]

    async def refused(name, token=headers, **options):
        try:
            await infer(request(**options), token)
        except Exception as error:
            received["errors"][name] = error_of(error)

    await refused("parameter", parameters={"lern": False})
    await refused("model", model="birds", inputs=columns("cats"))
    await refused("columns", inputs=columns("dogs"))
    await refused("token", token={"authorization": "Bearer wrong"})
"""

KSERVE_REST = """
async def main():
    url = "http://" + http
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        received["ready"] = [await client.is_server_live(url), await client.is_server_ready(url)]
        for model in ("cats", "dogs", "birds"):
            received["ready"].append(await client.is_model_ready(url, model, headers=headers))
        await ask(
            lambda asked, token=headers: client.infer(url, asked, model_name=asked.model_name, headers=dict(token)),
            lambda answer: answer.parameters,
            lambda error: [str(error.response.status_code), error.response.json()["error"]],
        )
    print(json.dumps(received))

asyncio.run(main())
"""

KSERVE_GRPC = """
async def main():
    async with InferenceGRPCClient(grpc) as client:
        received["ready"] = [await client.is_server_live(), await client.is_server_ready()]
        for model in ("cats", "dogs", "birds"):
            received["ready"].append(await client.is_model_ready(model, headers=list(headers.items())))
        await ask(
            lambda asked, token=headers: client.infer(asked, headers=list(token.items())),
            lambda answer: {name: value.bool_param for name, value in answer.parameters.items()},
            lambda error: [str(error.code()), error.details()],
        )
    print(json.dumps(received))

asyncio.run(main())
"""

CLIENTS = {
    "triton over HTTP": START + TRITON_HTTP + TRITON_END,
    "triton over gRPC": START + TRITON_GRPC + TRITON_END,
    "kserve over HTTP": START + KSERVE + KSERVE_REST,
    "kserve over gRPC": START + KSERVE + KSERVE_GRPC,
}

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


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_of_the_protocol_works_unchanged(service, client):
    batches = {model: batch(20, seed=3, sizes=sizes) for model, sizes in SIZES.items()}
    columns = {
        f"{model}_{name}": getattr(rows, name) for model, rows in batches.items() for name in ("features", "logits")
    }
    np.savez(service.folder / "rows.npz", **columns)
    expected = {model: unlearned(service, model, rows) for model, rows in batches.items()}
    before = service.state_rows("cats")
    program = service.folder / f"{client.replace(' ', '-')}.py"
    program.write_text(CLIENTS[client])
    printed = run(
        *(str(PYTHON), str(program), *addresses(service), str(service.folder / "rows.npz"), TOKEN),
        folder=service.folder,
    )
    received = json.loads(printed.splitlines()[-1])
    assert received["ready"] == [True, True, True, True, False]
    for name, answer in received["answers"].items():
        assert answer == expected[name.split()[0]], name
    assert len(received["answers"]) >= 4
    assert (received["learned"], received["repeated"]) == ([True, False], [False, True])
    assert service.state_rows("cats") == before + 20
    assert len(received["errors"]) >= 4
    for name, (status, text) in received["errors"].items():
        over_http, over_grpc, part = ERRORS[name]
        assert (over_grpc if "gRPC" in client else over_http) in status
        assert part in text
    if client.startswith("triton"):
        check_metadata(service, received)


def unlearned(service: Running, model: str, rows: Any) -> dict[str, Any]:
    """Return the outputs of rows that are not learned, as our own HTTP client receives them."""
    content, headers = as_binary(rows, parameters={"learn": False, "binary_data_output": True})
    response = service.client.post(f"/v2/models/{model}/infer", content=content, headers=headers)
    return {name: array.tolist() for name, array in from_binary(response).items()}


def check_metadata(service: Running, received: dict[str, Any]) -> None:
    """Check that Triton's client received the metadata that HTTP returns. Its JSON for gRPC has integers as strings."""

    def comparable(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: comparable(one) for name, one in value.items() if one != ""}
        return [comparable(one) for one in value] if isinstance(value, list) else str(value)

    for name, path in {"server": "/v2", "model": "/v2/models/cats", "index": "/v2/repository/index"}.items():
        assert comparable(received[name]) == comparable(service.client.get(path).json()), name


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
