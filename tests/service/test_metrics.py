"""The metrics for Prometheus count what happened, and the number of series is bounded."""

import re
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing

from .batches import far
from .running import CLASSES, FEATURES, as_json, batch, from_json, npz, serving

MODEL = {"features": FEATURES, "classes": CLASSES}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    state = tmp_path_factory.mktemp("metrics")
    with serving(state, "--method", "dlr") as running:
        running.state = state
        yield running


def text_of(service) -> str:
    return service.client.get("/metrics").text


def value(text: str, name: str, **labels: str) -> float:
    """Return the value of a series with exactly these labels."""
    wanted = {f'{label}="{one}"' for label, one in labels.items()}
    for series, number in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE):
        if set(series.split(",")) == wanted or (not series and not wanted):
            return float(number)
    raise AssertionError(f"there is no {name} with {labels}")


def create(service, name: str, **options) -> None:
    assert service.client.put(f"/models/{name}", json=MODEL | options).status_code == 201


def infer(service, name: str, rows: truing.Outputs, **more) -> dict[str, np.ndarray]:
    return from_json(service.client.post(f"/v2/models/{name}/infer", json=as_json(rows, **more)))


def test_requests_rows_and_refusals_are_counted_by_model(service):
    create(service, "counted", method="dlr")
    reference = batch(200, seed=3)
    service.client.put("/models/counted/reference", content=npz(reference))
    answers = [infer(service, "counted", batch(50, seed), id=f"{seed}") for seed in range(4)]
    answers.append(infer(service, "counted", batch(20, 9), parameters={"learn": False}))
    infer(service, "counted", batch(50, 0), id="0")
    service.client.post("/v2/models/counted/infer", content=b"{")
    text, route = text_of(service), "/v2/models/{name}/infer"
    requests = {"model": "counted", "method": "POST", "route": route}
    assert value(text, "truing_requests_total", **requests, status="200") == 6
    assert value(text, "truing_requests_total", **requests, status="400") == 1
    assert value(text, "truing_request_seconds_count", model="counted", route=route) == 7
    rows = {kind: value(text, "truing_rows_total", model="counted", kind=kind) for kind in ("learned", "scored")}
    assert rows == {"learned": 200, "scored": 20}
    assert value(text, "truing_rows_total", model="counted", kind="repeated") == 50
    assert value(text, "truing_events_total", model="counted", kind="calibrate") == 1
    refused = sum(int(answer["is_out"].sum()) for answer in answers)
    assert value(text, "truing_refused_rows_total", model="counted") == refused > 0
    assert value(text, "truing_refused_share", model="counted") == refused / 220
    names = ("state_rows", "state_batches", "reference_rows", "sequence", "ready", "skipped_rows", "queued_requests")
    gauges = [value(text, f"truing_{name}", model="counted") for name in names]
    assert gauges == [200, 4, 200, 5, 1, 0, 0]
    learned = truing.Outputs.concatenate([reference, *(batch(50, seed) for seed in range(4))])
    fit = truing.fit_direct(learned.features, truing.msp(learned.logits))
    assert value(text, "truing_fit_r2", model="counted") == pytest.approx(fit.explained)
    assert value(text, "truing_fit_rank", model="counted") == FEATURES
    database = service.state / "counted.sqlite3"
    files = [database, database.with_name("counted.sqlite3-wal")]
    on_disk = sum(file.stat().st_size for file in files if file.exists())
    assert value(text, "truing_database_bytes", model="counted") == pytest.approx(on_disk, rel=0.2)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_the_drift_alarm_equals_the_alarm_of_a_detector_until_the_reference_changes(service):
    create(service, "drifting", method="dlr", drift_alarm=0.01)
    detector, reference = truing.Detector(method="dlr", drift_alarm=0.01), batch(900, seed=9)
    detector.calibrate(reference)
    service.client.put("/models/drifting/reference", content=npz(reference))

    def metrics() -> list[float]:
        text = text_of(service)
        names = ("truing_alarms_total", "truing_drift_alarm", "truing_drift_martingale")
        return [value(text, name, model="drifting") for name in names]

    for seed in range(10):
        infer(service, "drifting", batch(40, seed))
        detector.learn_and_decide(batch(40, seed), false_alarm=0.05)
    assert metrics() == [0, 0, pytest.approx(detector.drift.martingale)]
    for seed in range(10, 30):
        infer(service, "drifting", far(batch(40, seed)))
        detector.learn_and_decide(far(batch(40, seed)), false_alarm=0.05)
    assert detector.drift.is_alarming
    assert metrics() == [1, 1, pytest.approx(detector.drift.martingale)]
    (line,) = service.logged("drift alarm")
    assert (line["model"], line["level"]) == ("drifting", "warning")
    service.client.put("/models/drifting/reference", content=npz(reference))
    assert metrics()[:2] == [1, 0]


def test_no_series_of_a_deleted_model_is_left(service):
    create(service, "deleted")
    infer(service, "deleted", batch(20))
    assert value(text_of(service), "truing_state_rows", model="deleted") == 20
    service.client.delete("/models/deleted")
    service.client.get("/models/deleted")
    assert "deleted" not in text_of(service)


@settings(max_examples=40)
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "BREW"]),
    st.sampled_from(["/", "/v2/models/", "/models/", "/models/truing/", "/v2/models/truing/versions/", "/live/"]),
    st.text(min_size=1, max_size=8),
)
def test_random_paths_names_and_methods_add_few_series(service, method, start, end):
    service.client.request(method, start + quote(end, safe=""), json={})
    labels = set(re.findall(r'(model|method|route|status)="([^"]*)"', text_of(service)))
    values = {label: {one for name, one in labels if name == label} for label in ("model", "method", "route", "status")}
    assert values["model"] <= {"", *(model["model"] for model in service.states())}
    assert values["method"] <= {"GET", "POST", "PUT", "DELETE", "HEAD", "other"}
    documented = set(service.client.get("/openapi.json").json()["paths"])
    assert {route for route in values["route"] if not route.startswith("/live")} <= {*documented, "/", "other"}
    assert {len(status) for status in values["status"]} == {3}
