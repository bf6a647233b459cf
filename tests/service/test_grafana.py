"""The Grafana dashboard asks for metrics that there are."""

import json
import re
from itertools import combinations
from types import SimpleNamespace

import numpy as np
import pytest

import truing
from truing.decisions.thresholds import Rate
from truing.service.requests import Answer, Event, Facts

from ..conftest import ROOT

parser = pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client: pip install '.[serve]'")
app = pytest.importorskip("truing.service.app", reason="needs starlette: pip install '.[serve]'")
metrics = pytest.importorskip("truing.service.metrics")

BOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
QUERIES = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
OF_PROMETHEUS = {"instance"}  # It labels what it scrapes.


@pytest.fixture(scope="module")
def samples():
    """The labels of every sample that the service has once something has happened, by name."""
    numbers = dict.fromkeys(Facts.__dataclass_fields__, 0) | {"rate": Rate.of(0.95), "snapshot": None}
    counters = metrics.Metrics()
    counters.observe_state(SimpleNamespace(facts=lambda: Facts(**numbers), detector=truing.Detector()))
    rows = np.array([0.5])
    counters.record(Event("learned", 0.0, rows=1, answer=Answer(rows, rows, rows, rows < 1, True, False)))
    counters.watch("POST", app.INFER, 200, 0.1)
    found = {}
    for family in parser.text_string_to_metric_families(counters.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_the_dashboard_queries_something():
    assert len(QUERIES) >= 15
    assert {panel["title"] for panel in BOARD["panels"]} >= {"Share of rows refused", "Rows learned", "Drift alarms"}
    asked = " ".join(QUERIES)
    for name in ("truing_drift_alarm", "truing_drift_martingale"):
        assert name + "{" in asked


@pytest.mark.parametrize("query", [*QUERIES, BOARD["templating"]["list"][1]["query"]["query"]])
def test_every_metric_and_label_of_a_query_is_one_of_the_service(samples, query):
    names = re.findall(r"\btruing_\w+", query)
    assert names
    assert set(names) <= set(samples)
    selected = {label for inside in re.findall(r"\{(.*?)\}", query) for label in re.findall(r"(\w+)[=!]~?\"", inside)}
    grouped = {label.strip() for inside in re.findall(r"by \((.*?)\)", query) for label in inside.split(",")}
    for name in names:
        assert selected | grouped <= samples[name] | OF_PROMETHEUS, name


def test_latency_is_that_of_inference():
    paths = {path for query in QUERIES for path in re.findall(r'path="(.*?)"', query)}
    assert paths == {app.INFER}


def test_panels_have_numbers_of_their_own_and_lie_beside_one_another():
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_below
