"""Every request gets a 2xx or 4xx status, and a refused request changes nothing."""

import json
import warnings
from copy import deepcopy

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from truing.service.openapi import document

from .running import CLASSES, FEATURES, INFER, Running, as_binary, as_json, batch, from_json, serving

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install '.[dev]'")
    from schemathesis.generation import GenerationMode

pytestmark = pytest.mark.filterwarnings("ignore")  # schemathesis warns of schemas that it cannot negate.

MODEL = {"features": FEATURES, "classes": CLASSES}
MOST_MODELS = 6


def narrowed() -> dict:
    """Return the OpenAPI document with fewer valid values, so that more generated requests are accepted.

    Models have few features, two names are likely, and tensors have the shape of the first model.
    """
    narrow = deepcopy(document())
    schemas = narrow["components"]["schemas"]
    schemas["Model"]["properties"]["features"] = {"enum": [1, 2, FEATURES]}
    schemas["Model"]["properties"]["classes"] = {"enum": [2, CLASSES]}
    tensors = []
    for name, columns in (("features", FEATURES), ("logits", CLASSES)):
        tensor = deepcopy(schemas["Inference"]["properties"]["inputs"]["items"])
        size = {"minItems": 2 * columns, "maxItems": 2 * columns}
        tensor["properties"] |= {
            "name": {"const": name},
            "shape": {"const": [2, columns]},
            "data": {"type": "array", "items": {"type": "number", "minimum": -1e3, "maximum": 1e3}, **size},
        }
        tensor["required"].append("data")
        del tensor["properties"]["parameters"]
        tensors.append(tensor)
    schemas["Inference"]["properties"]["inputs"] = {
        "type": "array",
        "prefixItems": tensors,
        "items": False,
        "minItems": 2,
    }
    history = narrow["paths"]["/live/history"]["get"]["parameters"]
    for parameter in (*history, *(one for path in narrow["paths"].values() for one in path.get("parameters", ()))):
        if parameter["name"] in ("model", "name"):
            parameter["schema"] = {"enum": ["truing", "other"]}
    return narrow


class Fuzzed:
    """A service that is sent one request after another, and the states of its models after the last one."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.session = requests.Session()
        self._states = running.states()

    def check(self, status: int, body: bytes) -> None:
        """Check the answer to a request, and the states after it."""
        states = self.running.states()
        assert status // 100 in (2, 4), (status, body)
        if status >= 400:
            # uvicorn itself answers requests that are not HTTP.
            assert body == b"Invalid HTTP request received." or set(json.loads(body)) == {"error"}
            assert states == self._states
        assert not any(model["problem"] for model in states)
        self._states = states
        self._tidy()

    def _tidy(self) -> None:
        """If the first model is missing or there are too many models, go back to the first model only."""
        names = [model["model"] for model in self._states]
        if "truing" in names and len(names) <= MOST_MODELS:
            return
        for name in {*names} - {"truing"}:
            assert self.running.client.delete(f"/models/{name}").status_code == 200
        assert self.running.client.put("/models/truing", json=MODEL).status_code in (200, 201)
        self._states = self.running.states()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("state"), "--body-limit", "200000", "--body-timeout", "5") as running:
        from_json(running.client.post(INFER, json=as_json(batch(30))))
        fuzzed = Fuzzed(running)
        yield fuzzed
        fuzzed.session.close()
        assert not running.logged("unexpected error")


SCHEMA = schemathesis.openapi.from_dict(narrowed())
cases = st.one_of([SCHEMA.as_strategy(generation_mode=mode) for mode in GenerationMode])
unhurried = settings(deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("examples", [30, pytest.param(800, marks=pytest.mark.slow)])
def test_no_request_within_or_outside_the_openapi_document_causes_a_server_error(service, examples):
    @settings(unhurried, max_examples=examples, derandomize=examples == 30)
    @given(case=cases)
    def check(case) -> None:
        response = case.call(base_url=service.running.url, session=service.session)
        service.check(response.status_code, response.content)

    check()


VALID, HEADERS = as_binary(batch(4), parameters={"learn": False})
damaged = st.tuples(st.integers(0, len(VALID)), st.integers(0, len(VALID)), st.binary(max_size=20)).map(
    lambda drawn: VALID[: min(drawn[:2])] + drawn[2] + VALID[max(drawn[:2]) :]
)


@settings(unhurried, max_examples=100)
@given(
    body=st.binary(max_size=400) | damaged,
    length=st.sampled_from([HEADERS["Inference-Header-Content-Length"], None])
    | st.from_regex(r"[0-9+-]{1,20}", fullmatch=True),
    encoding=st.sampled_from([None, None, None, "gzip", "deflate", "identity", "br"]),
)
def test_any_bytes_for_inference_are_scored_or_rejected(service, body, length, encoding):
    headers = {"Inference-Header-Content-Length": length, "Content-Encoding": encoding}
    given_headers = {name: one for name, one in headers.items() if one is not None}
    response = service.running.client.post(INFER, content=body, headers=given_headers)
    assert response.status_code in (200, 400, 413, 415)
    service.check(response.status_code, response.content)
