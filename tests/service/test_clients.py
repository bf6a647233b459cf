"""Clients that know nothing of truing work unchanged: Triton's and KServe's, in JSON and in bytes.

They ask for other versions of packages than ours, so that they live in an environment of their own.
"""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest

import truing

from .running import SECONDS, batch, serving

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-clients" / "bin" / "python"

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="needs .venv-clients: make .venv-clients/stamp")

TRITON = """
import json, sys
import numpy as np
import tritonclient.http as triton

url, path = sys.argv[1].removeprefix("http://"), sys.argv[2]
arrays, headers = np.load(path), {"Authorization": "Bearer " + sys.argv[3]}
client = triton.InferenceServerClient(url)
assert client.is_server_live() and client.is_server_ready()
assert client.is_model_ready("truing", headers=headers)
about = client.get_model_metadata("truing", headers=headers)
assert client.get_server_metadata(headers=headers)["name"] == "truing"
names = [output["name"] for output in about["outputs"]]

for is_binary in (False, True):
    inputs = []
    for name in ("features", "logits"):
        inputs.append(triton.InferInput(name, arrays[name].shape, "FP32"))
        inputs[-1].set_data_from_numpy(arrays[name], binary_data=is_binary)
    outputs = [triton.InferRequestedOutput(name, binary_data=is_binary) for name in names]

    def ask(**options):
        return client.infer("truing", inputs, headers=headers, **options)

    first, again = (ask(outputs=outputs, request_id=f"binary {is_binary}") for _ in range(2))
    unnamed = ask(parameters={"learn": False})
    told = {name: first.as_numpy(name).tolist() for name in names}
    told["repeated"] = [answer.get_response()["parameters"]["repeated"] for answer in (first, again)]
    told["all"] = [output["name"] for output in unnamed.get_response()["outputs"]]
    try:
        ask(outputs=outputs, parameters={"lern": False})
    except triton.InferenceServerException as error:
        told["error"] = [error.status(), error.message()]
    print(json.dumps(told))
"""

KSERVE = """
import asyncio, json, sys
import numpy as np
from kserve import InferInput, InferRequest, InferenceRESTClient, RESTConfig
from kserve.protocol.infer_type import RequestedOutput

url, path = sys.argv[1:3]
arrays, headers = np.load(path), {"Authorization": "Bearer " + sys.argv[3]}
names = ["scores", "base_scores", "p_values", "is_out"]

def request(is_binary, **options):
    inputs = []
    for name in ("features", "logits"):
        inputs.append(InferInput(name, list(arrays[name].shape), "FP32"))
        inputs[-1].set_data_from_numpy(arrays[name], binary_data=is_binary)
    outputs = [RequestedOutput(name, {"binary_data": is_binary}) for name in names]
    return InferRequest("truing", inputs, request_outputs=outputs, **options)

async def told_by(client, is_binary):
    async def ask(**options):
        return await client.infer(url, request(is_binary, **options), model_name="truing", headers=dict(headers))

    first, again = [await ask(request_id=f"binary {is_binary}") for _ in range(2)]
    told = {output.name: output.as_numpy().tolist() for output in first.outputs}
    told["repeated"] = [answer.parameters["repeated"] for answer in (first, again)]
    unlearned = await ask(parameters={"learn": False})
    told["all"] = [output.name for output in unlearned.outputs]
    try:
        await ask(parameters={"lern": False})
    except Exception as error:
        told["error"] = [str(error.response.status_code), error.response.json()["error"]]
    return told

async def main():
    async with InferenceRESTClient(RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(url) and await client.is_server_ready(url)
        assert await client.is_model_ready(url, "truing", headers=dict(headers))
        for is_binary in (False, True):
            print(json.dumps(await told_by(client, is_binary)))

asyncio.run(main())
"""


@pytest.mark.parametrize("client", [TRITON, KSERVE], ids=["tritonclient", "kserve"])
def test_a_client_of_the_protocol_works_unchanged_in_both_encodings(tmp_path, client):
    known, rows, token = batch(60, seed=1), batch(40), "0123456789-abcdef"
    (tmp_path / "token").write_text(token)
    known.save(tmp_path / "held.npz")
    np.savez(tmp_path / "rows.npz", features=rows.features, logits=rows.logits)
    options = ("--token-file", str(tmp_path / "token"), "--reference", str(tmp_path / "held.npz"))
    with serving(tmp_path / "state", *options) as running:
        words = [str(PYTHON), "-c", client, running.url, str(tmp_path / "rows.npz"), token]
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stderr
        assert running.state_rows(Authorization=f"Bearer {token}") == 80
    detector = truing.Detector()
    detector.calibrate(known)
    in_json, in_binary = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    for told in (in_json, in_binary):
        expected = detector.learn_and_decide(rows, false_alarm=0.05)
        np.testing.assert_allclose(told["scores"], expected.scores, rtol=1e-9)
        np.testing.assert_allclose(told["base_scores"], truing.msp(rows.logits), rtol=1e-9)
        np.testing.assert_array_equal(told["p_values"], expected.p_values)
        np.testing.assert_array_equal(told["is_out"], expected.is_out)
        assert told["repeated"] == [False, True]
        assert told["all"] == ["scores", "base_scores", "p_values", "is_out"]
        status, message = told["error"]
        assert "400" in status
        assert "got 'lern'" in message
