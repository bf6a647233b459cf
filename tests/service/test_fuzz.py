"""Whatever the document allows, and what it forbids, gets a 2xx or a 4xx; what is refused changes nothing."""

import warnings

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from truing.service.openapi import document
from truing.service.protocol import Widths

from .running import CLASSES, FEATURES, INFER, Running, as_json, batch, from_json, serving

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis: pip install '.[dev]'")
    from schemathesis.generation import GenerationMode

pytestmark = pytest.mark.filterwarnings("ignore")  # Of the generator, on what it cannot make.

SCHEMA = schemathesis.openapi.from_dict(document(Widths(FEATURES, CLASSES)))


class Fuzzed:
    """A service that is asked one thing after another, and what it held after the last."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._session = requests.Session()
        self._held = running.facts()

    def ask(self, case) -> None:
        response = case.call(base_url=self._running.url, session=self._session)
        held = self._running.facts()
        assert response.status_code // 100 in (2, 4), (response.status_code, case.body)
        if response.status_code >= 400:
            assert set(response.json()) == {"error"}
            assert held == self._held
        assert held[-1] == 1  # It is ready for more.
        self._held = held

    def close(self) -> None:
        self._session.close()


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("state"), "--body-limit", "200000", "--body-timeout", "5") as running:
        from_json(running.client.post(INFER, json=as_json(batch(30))))
        fuzzed = Fuzzed(running)
        yield fuzzed
        fuzzed.close()


cases = st.one_of([SCHEMA.as_strategy(generation_mode=mode) for mode in GenerationMode])
unhurried = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


@unhurried
@given(case=cases)
def test_no_request_is_an_error_of_the_server_nor_leaves_a_trace_when_refused(service, case):
    service.ask(case)


@pytest.mark.slow
@settings(unhurried, max_examples=10_000, derandomize=False)
@given(case=cases)
def test_nor_are_ten_thousand(service, case):
    service.ask(case)
