"""The metrics for Prometheus count what happened, and the number of series is bounded."""

import re
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import truing

from .batches import far
from .running import FEATURES, Model, batch, serving


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    state = tmp_path_factory.mktemp("metrics")
    with serving(state, "--method", "dlr") as running:
        running.state = state
        yield running


def value(text: str, name: str, **labels: str) -> float:
    """Return the value of a series with exactly these labels."""
    wanted = {f'{label}="{one}"' for label, one in labels.items()}
    for series, number in re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", text, re.MULTILINE):
        if set(series.split(",")) == wanted or (not series and not wanted):
            return float(number)
    raise AssertionError(f"there is no {name} with {labels}")


def test_requests_rows_and_refusals_are_counted_by_model(service):
    model, reference = Model(service, method="dlr"), batch(200, seed=3)
    model.calibrate(reference)
    answers = [model.infer(batch(50, seed), id=f"{seed}") for seed in range(4)]
    answers.append(model.infer(batch(20, 9), parameters={"learn": False}))
    model.infer(batch(50, 0), id="0")
    service.client.post(f"/v2/models/{model.name}/infer", content=b"{")
    text, route = service.client.get("/metrics").text, "/v2/models/{name}/infer"

    def counted(name: str, **labels: str) -> float:
        return value(text, f"truing_{name}", model=model.name, **labels)

    statuses = [counted("requests_total", method="POST", route=route, status=status) for status in ("200", "400")]
    assert (statuses, counted("request_seconds_count", route=route)) == ([6, 1], 7)
    rows = {kind: counted("rows_total", kind=kind) for kind in ("learned", "scored", "repeated")}
    assert rows == {"learned": 200, "scored": 20, "repeated": 50}
    assert counted("events_total", kind="calibrate") == 1
    refused = sum(int(answer["is_out"].sum()) for answer in answers)
    assert counted("refused_rows_total") == refused > 0
    assert counted("refused_share") == refused / 220
    gauges = ("state_rows", "state_batches", "reference_rows", "sequence", "ready", "skipped_rows", "queued_requests")
    assert list(map(counted, gauges)) == [200, 4, 200, 5, 1, 0, 0]
    learned = truing.Outputs.concatenate([reference, *(batch(50, seed) for seed in range(4))])
    fit = truing.fit_direct(learned.features, truing.msp(learned.logits))
    assert counted("fit_r2") == pytest.approx(fit.explained)
    assert counted("fit_rank") == FEATURES
    on_disk = sum(file.stat().st_size for file in service.state.glob(f"{model.name}.sqlite3*"))
    assert counted("database_bytes") == pytest.approx(on_disk, rel=0.2)


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
def test_the_drift_alarm_equals_the_alarm_of_a_detector_until_the_reference_changes(service):
    options, reference = {"method": "dlr", "drift_alarm": 0.01}, batch(900, seed=9)
    model, detector = Model(service, **options), truing.Detector(**options)
    model.calibrate(reference)
    detector.calibrate(reference)

    def metrics() -> list[float]:
        names = ("truing_alarms_total", "truing_drift_alarm", "truing_drift_martingale")
        return [service.metric(name, model.name) for name in names]

    def learn(rows: truing.Outputs) -> None:
        model.infer(rows)
        detector.learn_and_decide(rows, false_alarm=0.05)

    for seed in range(10):
        learn(batch(40, seed))
    assert metrics() == [0, 0, pytest.approx(detector.drift.martingale)]
    for seed in range(10, 30):
        learn(far(batch(40, seed)))
    assert detector.drift.is_alarming
    assert metrics() == [1, 1, pytest.approx(detector.drift.martingale)]
    (line,) = service.logged("drift alarm")
    assert (line["model"], line["level"]) == (model.name, "warning")
    model.calibrate(reference)
    assert metrics()[:2] == [1, 0]


def test_no_series_of_a_deleted_model_is_left(service):
    model = Model(service)
    model.infer(batch(20))
    assert service.state_rows(model.name) == 20
    model.request("DELETE")
    assert model.request("GET").status_code == 404
    assert f'"{model.name}"' not in service.client.get("/metrics").text


@settings(max_examples=40)
@given(
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "BREW"]),
    st.sampled_from(["/", "/v2/models/", "/models/", "/models/truing/", "/v2/models/truing/versions/", "/live/"]),
    st.text(min_size=1, max_size=8),
)
def test_random_paths_names_and_methods_add_few_series(service, method, start, end):
    service.client.request(method, start + quote(end, safe=""), json={})
    labels = set(re.findall(r'(model|method|route|status)="([^"]*)"', service.client.get("/metrics").text))
    values = {label: {one for name, one in labels if name == label} for label in ("model", "method", "route", "status")}
    assert values["model"] <= {"", *(model["model"] for model in service.states())}
    assert values["method"] <= {"GET", "POST", "PUT", "DELETE", "HEAD", "other"}
    documented = set(service.client.get("/openapi.json").json()["paths"])
    assert {route for route in values["route"] if not route.startswith("/live")} <= {*documented, "/", "other"}
    assert {len(status) for status in values["status"]} == {3}
