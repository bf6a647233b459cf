"""The HTTP routes: a model answers as a `Detector` does, and a refused request changes nothing."""

import gzip
import io
import json
import re
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import numpy as np
import pytest
from scipy.special import softmax

import truing
from truing.options import FEWEST_FOR_CONTRAST
from truing.service import live
from truing.service.app import create_app, open_paths
from truing.service.metrics import Metrics
from truing.service.models import Models
from truing.service.openapi import document
from truing.service.security import Access, Limits

from .batches import DETECTORS
from .running import CLASSES, FEATURES, INFER, Model, as_binary, as_json, batch, from_json, npz, serving

BODY_LIMIT = 200_000


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    state = tmp_path_factory.mktemp("http") / "state"
    with serving(state, "--body-limit", str(BODY_LIMIT)) as running:
        running.state = state
        yield running
    assert {path.suffix for path in state.iterdir()} == {".sqlite3", ""}  # Backups and drafts are gone.


def as_moments(content: bytes, folder) -> truing.Moments:
    (folder / "moments.npz").write_bytes(content)
    return truing.load(folder / "moments.npz")


@pytest.mark.filterwarnings("ignore::truing.TruingWarning")
@pytest.mark.parametrize("kind", DETECTORS)
def test_answers_equal_the_answers_of_a_detector_with_the_same_batches(service, kind):
    reference, detector = batch(200, seed=9), truing.Detector(**DETECTORS[kind])
    model = Model(service, **DETECTORS[kind])
    detector.calibrate(reference)
    assert model.calibrate(reference)["reference_rows"] == 200
    assert model.request("PUT", "/rate", json={"false_alarm": 0.1}).json()["false_alarm"] == 0.1
    for seed in range(3):
        rows = batch(20, seed)
        expected = detector.learn_and_decide(rows, false_alarm=0.1)
        answer = model.infer(rows) if seed == 0 else model.infer_bytes(rows, is_compressed=seed == 1)
        for name in ("scores", "p_values", "is_out"):
            np.testing.assert_array_equal(answer[name], getattr(expected, name))
        np.testing.assert_array_equal(answer["base_scores"], detector.base_scores(rows))
    status, rows = model.status(), batch(10, seed=5)
    answer = model.infer(rows, parameters={"learn": False})
    np.testing.assert_array_equal(answer["p_values"], detector.decide(rows, false_alarm=0.1).p_values)
    assert status["rows_learned"] == 60
    assert model.status() == status


def test_a_request_with_an_id_counts_once_in_its_model_only(service):
    one, two = Model(service), Model(service)
    first, again = (one.post(batch(7), id="only once").json() for _ in range(2))
    assert (first["id"], first["parameters"]["repeated"], again["parameters"]["repeated"]) == ("only once", False, True)
    other = one.post(batch(7, seed=1), id="only once")
    assert (other.status_code, "'only once' was used before for other rows" in other.json()["error"]) == (400, True)
    assert not two.post(batch(7), id="only once").json()["parameters"]["repeated"]
    assert (one.status()["rows"], two.status()["rows"]) == (7, 7)


def test_creating_a_model_is_idempotent_and_other_settings_are_a_conflict(service):
    model = Model(service, method="dlr", drift_alarm=0.01, rate={"accept": 0.9})
    model.infer(batch(5))
    assert model.status()["rate"] == {"accept": 0.9}
    for options in ({}, {"features": FEATURES, "method": "dlr"}, {"drift_alarm": 0.01, "rate": {"fdr": 0.2}}):
        again = model.request("PUT", json=options)
        assert (again.status_code, again.json()["rows"]) == (200, 5)
    assert model.status()["rate"] == {"fdr": 0.2}
    other = model.request("PUT", json={"features": 9, "base": "energy", "rate": {"fdr": 0.3}})
    assert other.status_code == 409
    assert f"model {model.name} exists with features 6, got 9; base 'msp', got 'energy'" in other.json()["error"]
    assert model.status()["rate"] == {"fdr": 0.2}


def test_models_are_listed_until_they_are_deleted_and_start_anew_afterwards(service):
    model = Model(service)
    model.infer(batch(5), id="x")
    listed = {one["model"]: one for one in service.states()}
    assert listed[model.name] == model.status()
    assert model.request("DELETE").json() == {"deleted": model.name}
    assert model.name not in [one["model"] for one in service.states()]
    assert not list(service.state.glob(f"*{model.name}*"))
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/rate"), ("POST", "/reset")):
        assert model.request(method, path).status_code == 404
    assert model.request("PUT", json={"features": 4, "classes": 2}).status_code == 201
    answer = model.post(batch(5, sizes=(4, 2)), id="x")
    assert not answer.json()["parameters"]["repeated"]
    assert model.status()["rows"] == 5


def test_a_contrast_asks_for_its_reference_and_accepts_another_at_any_time(service):
    model, detector = Model(service, method="contrast"), truing.Detector(method="contrast")
    for learn in (True, False):
        early = model.post(batch(40), parameters={"learn": learn})
        message = f"method contrast needs a reference, got none so far: PUT /models/{model.name}/reference"
        assert (early.status_code, early.json()) == (400, {"error": message})
    for seed in (9, 8):
        model.calibrate(batch(120, seed))
        detector.calibrate(batch(120, seed))
        rows = batch(40, seed + 2)
        expected = detector.learn_and_decide(rows, false_alarm=0.05)
        np.testing.assert_array_equal(model.infer(rows)["p_values"], expected.p_values)


def test_moments_contain_all_rows_and_are_merged_once_per_id(service, tmp_path):
    one, two = Model(service, method="dlr"), Model(service, method="dlr")
    assert one.request("GET", "/moments").status_code == 204
    one.infer(batch(30, seed=1))
    two.infer(batch(20, seed=2))
    content = one.moments()
    assert as_moments(content, tmp_path).rows == 30
    for _ in range(2):
        assert two.request("POST", "/moments", params={"id": "a"}, content=content).json() == {"rows": 50}
    both = truing.Outputs.concatenate([batch(30, seed=1), batch(20, seed=2)])
    fit = truing.fit_direct(both.features, truing.msp(both.logits))
    np.testing.assert_allclose(two.scores(), fit.predict(batch(9, seed=99).features), rtol=1e-6)
    one.infer(batch(5, seed=3))
    reused = two.request("POST", "/moments", params={"id": "a"}, content=one.moments())
    assert (reused.status_code, "was used before for other moments" in reused.json()["error"]) == (400, True)
    assert two.request("POST", "/moments", content=content).json() == {"rows": 80}


def test_moments_since_a_change_contain_only_later_rows(service, tmp_path):
    model = Model(service, method="dlr")
    model.infer(batch(30, seed=1))
    since = model.request("GET", "/moments").headers["Truing-Sequence"]
    assert model.request("GET", "/moments", params={"since": since}).status_code == 204
    later = [batch(20, seed=2), batch(10, seed=3)]
    for rows in later:
        model.infer(rows)
    response = model.request("GET", "/moments", params={"since": since})
    assert int(response.headers["Truing-Sequence"]) == int(since) + 2 == model.status()["sequence"]
    moments, joined = as_moments(response.content, tmp_path), truing.Outputs.concatenate(later)
    fit = truing.fit_direct(joined.features, truing.msp(joined.logits))
    assert moments.rows == 30
    np.testing.assert_allclose(moments.solve().predict(joined.features), fit.predict(joined.features), rtol=1e-6)
    for wrong in ("x", "-1", "", "1" * 16):
        assert model.request("GET", "/moments", params={"since": wrong}).status_code == 400
    model.request("POST", "/reset")
    model.infer(batch(5))
    gone = model.request("GET", "/moments", params={"since": since})
    assert (gone.status_code, "the model was reset or restored" in gone.json()["error"]) == (410, True)


RLR_MOMENTS = "moments need method dlr or contrast, got a model with method rlr"


@pytest.mark.parametrize(
    ("target", "source", "features", "message"),
    [
        ("dlr", "contrast", FEATURES, "sample"),
        ("contrast", "dlr", FEATURES, "moments"),
        ("rlr", "dlr", FEATURES, RLR_MOMENTS),
        ("dlr", "dlr", 4, "moments must have 6 features, got 4"),
    ],
)
def test_moments_of_another_kind_or_width_are_rejected(service, target, source, features, message):
    model, other = Model(service, method=target), Model(service, method=source, features=features)
    for one, width in ((model, FEATURES), (other, features)):
        one.calibrate(batch(60, seed=9, sizes=(width, CLASSES)))
        one.infer(batch(20, sizes=(width, CLASSES)))
    response = model.request("POST", "/moments", content=other.moments())
    assert (response.status_code, message in response.json()["error"]) == (400, True), response.text
    assert model.status()["rows"] == 20
    if target == "rlr":
        assert model.request("GET", "/moments").json() == {"error": RLR_MOMENTS}


def test_restore_brings_back_a_state_and_exactly_its_ids_also_from_a_removed_branch(service):
    model = Model(service, method="dlr")

    def repeated(name: str) -> bool:
        return model.post(batch(20, ord(name)), id=name).json()["parameters"]["repeated"]

    def restore(sequence: object, **more):
        return model.request("POST", "/restore", json={"sequence": sequence, **more})

    model.calibrate(batch(50, seed=9))
    assert not repeated("a")
    status, scores = model.status(), model.scores()
    snapshot = model.request("POST", "/snapshots").json()
    assert (snapshot["sequence"], snapshot["rows"]) == (status["sequence"], 20)
    assert not repeated("b")
    both = model.status()
    model.request("PUT", "/rate", json={"fdr": 0.3})
    listed = model.request("GET", "/snapshots").json()
    assert (listed["snapshots"], listed["sequence"], listed["restorable_from"]) == ([snapshot], 4, 0)
    restored = restore(status["sequence"]).json()
    kept = ("rows", "rows_learned", "batches", "reference_rows", "rate", "method", "skipped_rows")
    assert {name: restored[name] for name in kept} == {name: status[name] for name in kept}
    assert restored["sequence"] == 5
    np.testing.assert_array_equal(model.scores(), scores)
    assert (repeated("a"), repeated("b")) == (True, False)
    for sequence in (99, -1, "1", True, None):
        assert restore(sequence).status_code == 400
    assert restore(1, more=1).status_code == 400
    assert model.request("POST", "/reset").json() == {"rows": 0}
    assert not repeated("a")
    assert restore(both["sequence"]).json()["rows"] == 40
    assert (repeated("a"), repeated("b"), repeated("c")) == (True, True, False)
    assert model.status()["rows"] == 60


def test_the_protocol_lists_models_and_their_only_version(service):
    model = Model(service)
    index = {"name": model.name, "version": "1", "state": "READY", "reason": ""}
    assert index in service.client.get("/v2/repository/index").json()
    assert index in service.client.post("/v2/repository/index", json={"ready": True}).json()
    path = f"/v2/models/{model.name}"
    assert service.client.get(path).json() == service.client.get(f"{path}/versions/1").json()
    assert service.client.get(f"{path}/versions/1/ready").json() == {"ready": True}
    answer = service.client.post(f"{path}/versions/1/infer", json=as_json(batch(5), model_version="1"))
    assert (answer.json()["model_name"], answer.json()["model_version"]) == (model.name, "1")
    for method, end in (("GET", ""), ("GET", "/ready"), ("POST", "/infer")):
        response = service.client.request(method, f"{path}/versions/2{end}", json=as_json(batch(5)))
        assert (response.status_code, response.json()["error"]) == (404, "model_version must be 1, got '2'")
    assert model.status()["rows"] == 5


def zipped_zeros() -> bytes:
    """Return an `.npz` that unpacks to more bytes than the limit."""
    file = io.BytesIO()
    np.savez_compressed(file, features=np.zeros((BODY_LIMIT, FEATURES), np.float32))
    return file.getvalue()


def probabilities(rows: truing.Outputs) -> truing.Outputs:
    return truing.Outputs(rows.features, softmax(rows.logits, axis=1))


def json_of(rows: truing.Outputs, **more) -> bytes:
    return json.dumps(as_json(rows, **more)).encode()


def new_model(**options) -> bytes:
    return json.dumps({"features": FEATURES, "classes": CLASSES, **options}).encode()


GZIP = {"Content-Encoding": "gzip"}
MODEL, NEW = "/models/truing", "PUT /models/wrong"
RATE, REFERENCE = f"PUT {MODEL}/rate", f"PUT {MODEL}/reference"
SEND = f"POST {INFER}"

# Requests with a body: the body, more headers, the status and a part of the reason.
WRONG_BODIES = [
    (NEW, new_model(features=None), {}, 400, "features is missing"),
    (NEW, new_model(classes=None), {}, 400, "classes is missing"),
    (NEW, new_model(features=10**6), {}, 400, "at most 32768, got 1000000"),
    (NEW, new_model(clases=1), {}, 400, "got 'clases': did you mean classes?"),
    (NEW, new_model(fdr=0.05), {}, 400, "got 'fdr': give it as rate"),
    (NEW, new_model(base="vim"), {}, 400, "base must be a score that needs no head, got vim"),
    (NEW, new_model(components=7), {}, 400, "components must be at most the 6 features"),
    (NEW, new_model(rate=0.1), {}, 400, "rate must be one of accept, false_alarm, fdr"),
    (NEW, new_model(keep=7), {}, 400, "keep must be"),
    (SEND, json_of(batch(5, sizes=(4, 3))), {}, 400, "the shape of features must be [n, 6]"),
    (SEND, json_of(batch(5), outputs=[{"name": "is_out"}]), {}, 400, "output is_out needs a reference"),
    (SEND, json_of(truing.Outputs(batch(5).features)), {}, 400, "logits"),
    (SEND, json_of(probabilities(batch(20))), {}, 400, "logits must be outputs of the last layer before"),
    (SEND, json_of(batch(2)), {"Content-Type": "text/plain"}, 415, "Content-Type must be"),
    (SEND, json_of(batch(2)), {"Content-Encoding": "br"}, 415, "Content-Encoding must be"),
    (SEND, gzip.compress(bytes(100 * BODY_LIMIT)), GZIP, 413, "more after decompression"),
    (SEND, gzip.compress(b"{}" * 99)[:-9], GZIP, 400, "one complete gzip stream"),
    (SEND, gzip.compress(b"{}") + b"more", GZIP, 400, "one complete gzip stream"),
    (SEND, b"{}", GZIP, 400, "the body must be gzip"),
    (RATE, b'{"fdr": 0}', {}, 400, "fdr"),
    (RATE, b'{"fdr": 0.1, "accept": 0.9}', {}, 400, "got"),
    (RATE, b'{"fdr": "0.1"}', {}, 400, "fdr must be a number from 0 to 1, got '0.1'"),
    (RATE, b'{"alpha": 0.1}', {}, 400, "rate must be one of accept, false_alarm, fdr"),
    (RATE, b"[1]", {}, 400, "the body must be a JSON object, got [1]"),
    (REFERENCE, b"PK\x03\x04", {}, 400, "the reference must be an .npz file"),
    (REFERENCE, npz(batch(9, sizes=(6, 4))), {}, 400, "logits must have 3 columns, got 4"),
    (REFERENCE, npz(batch(9, sizes=(4, 3))), {}, 400, "features must have 6 columns, got 4"),
    (REFERENCE, npz(batch(5), groups=np.arange(4)), {}, 400, "groups"),
    (REFERENCE, npz(features=np.array([print])), {}, 400, "pickled objects"),
    (REFERENCE, zipped_zeros(), {}, 400, "the reference must be an .npz file of plain arrays: it unpacks to"),
    (f"POST {MODEL}/moments", npz(batch(5)), {}, 400, "the body must be a file saved by truing.save"),
]
WRONG_PATHS = [
    ("GET /nowhere", b"", {}, 404, "there is no path '/nowhere': /openapi.json lists all paths"),
    (f"POST {MODEL}/infer", b"", {}, 404, "send rows to /v2/models/NAME/infer"),
    ("GET /models/trueing", b"", {}, 404, "there is no model 'trueing': did you mean truing?"),
    ("GET /v2/models/other", b"", {}, 404, "there is no model 'other': PUT /models/NAME creates a model"),
    ("GET /live/..%2f..%2fetc%2fpasswd", b"", {}, 404, "there is no path"),
    ("GET /live/uPlot.LICENSE", b"", {}, 404, "there is no path"),
    ("GET /live/history?model=trueing", b"", {}, 404, "there is no model 'trueing': did you mean truing?"),
    ("GET /live/history?model=truing&span=day", b"", {}, 400, "span must be one of 10 minutes, 12 hours, 90 days"),
    ("GET /live/history?model=truing&since=-1", b"", {}, 400, "since must be a whole number of up to 15 digits"),
    (f"{SEND}%0a", b"", {}, 404, "Not Found"),
    (f"GET {INFER}", b"", {}, 405, "must be POST, got GET"),
    (f"POST {MODEL}", b"", {}, 405, "must be DELETE or GET or PUT, got POST"),
]

WRONG = [*WRONG_BODIES, *WRONG_PATHS]


@pytest.mark.parametrize(
    ("request_line", "body", "headers", "status", "message"), WRONG, ids=[f"{case[0]}: {case[-1]}" for case in WRONG]
)
def test_a_wrong_request_is_refused_with_the_reason_and_changes_nothing(
    service, request_line, body, headers, status, message
):
    before, files = service.states(), sorted(service.state.iterdir())
    method, path = request_line.split(" ")
    response = service.client.request(method, path, content=body, headers=headers)
    assert (response.status_code, message in response.json()["error"]) == (status, True), response.text
    assert len(response.json()["error"]) < 400
    assert (service.states(), sorted(service.state.iterdir())) == (before, files)
    if status == 405:
        assert set(response.headers["allow"].split(", ")) - {"HEAD"} == {*re.findall("[A-Z]{3,}", message)} - {method}


@pytest.mark.parametrize("name", ["..", "../up", ".hidden", "a\x00b", "x" * 65, "é"])
def test_an_invalid_model_name_creates_no_file(service, name):
    before = sorted(service.state.parent.rglob("*"))
    responses = [
        service.client.put("/models/" + quote(name, safe=""), json={"features": 2, "classes": 2}),
        service.client.post(INFER, json={"inputs": [], "model_name": name}),
    ]
    assert {response.status_code for response in responses} <= {400, 404, 405}
    assert sorted(service.state.parent.rglob("*")) == before


def test_a_reference_with_too_few_rows_unused_groups_or_unused_arrays_gets_notes(service):
    model = Model(service)
    assert model.post(batch(5)).json()["parameters"]["notes"] == (
        "no in/out decisions without a reference: PUT /models/NAME/reference sets one"
    )
    notes = model.calibrate(batch(10), groups=np.arange(10), group=np.arange(10))["notes"]
    assert notes[0] == "arrays of the reference that were not used: group"
    assert notes[1].startswith("no row can be refused at this rate: 10 reference rows")
    assert "groups were not used: this method does not split the reference" in notes
    assert model.status()["notes"] == notes[1:]
    assert any(
        "no row can be refused" in note for note in model.request("PUT", "/rate", json={"fdr": 0.01}).json()["notes"]
    )
    assert "no row can be refused" in model.post(batch(5)).json()["parameters"]["notes"]
    assert Model(service).calibrate(batch(FEWEST_FOR_CONTRAST))["notes"] == []


def test_every_answer_forbids_loading_framing_and_type_guessing(service):
    paths = [path.replace("{name}", "truing").replace("{version}", "1") for path in document()["paths"]]
    answers = [service.client.get(path) for path in (*paths, *live.FILES, "/nowhere")]
    answers.append(service.client.get("/v2", headers={"Host": "example.org"}))
    assert {answer.status_code for answer in answers} >= {200, 403, 404, 405}
    for answer in answers:
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        file = live.FILES.get(answer.url.path)
        if file is None:
            assert policy["default-src"] == "'none'"
        else:
            assert (policy["default-src"], policy["object-src"], policy["base-uri"]) == ("'self'", "'none'", "'none'")
            assert answer.content == file.read_bytes()
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in str(policy)
        assert (answer.headers["x-frame-options"], answer.headers["x-content-type-options"]) == ("DENY", "nosniff")


def test_the_openapi_document_lists_exactly_the_routes_except_the_files_of_the_page(service, tmp_path):
    models = Models(tmp_path)
    app = create_app(models, Metrics(), access=Access(), limits=Limits(), histories={})
    models.close()
    routes = {(method, route.path) for route in app.routes for method in route.methods - {"HEAD"}}
    documented = document()["paths"]
    operations = {(method.upper(), path) for path, methods in documented.items() for method in methods}
    files = {("GET", path) for path in open_paths() if not path.startswith("/v2")}
    assert {one for one in operations if one[0] != "PARAMETERS"} == routes - files
    assert service.client.get("/openapi.json").json() == document()


def test_other_requests_are_answered_while_a_large_one_is_computed(tmp_path):
    body, headers = as_binary(batch(240_000), parameters={"learn": False})
    with serving(tmp_path) as running, ThreadPoolExecutor(1) as thread:
        running.client.post(INFER, json=as_json(batch(30)))
        large = thread.submit(running.client.post, INFER, content=body, headers=headers)
        answered = 0
        while not large.done():
            assert running.client.get("/v2/health/live").status_code == 200
            answered += 1
        assert answered >= 5
        assert len(from_json(large.result())["scores"]) == 240_000


def test_a_broken_database_affects_no_other_model(tmp_path):
    with serving(tmp_path) as running:
        broken = Model(running)
    path = tmp_path / f"{broken.name}.sqlite3"
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xa5" * (len(content) - 4096))
    with serving(tmp_path) as running:
        assert running.client.get("/v2/health/ready").json() == {"ready": True}
        from_json(running.client.post(INFER, json=as_json(batch(5))))
        problem = running.status(broken.name)["problem"]
        assert problem.startswith(f"{broken.name}.sqlite3")
        assert (running.metric("truing_ready"), running.metric("truing_ready", broken.name)) == (1, 0)
        for method, route in (
            *(("POST", f"/v2/models/{broken.name}/infer"), ("GET", f"/v2/models/{broken.name}/ready")),
            *(("PUT", f"/models/{broken.name}"), ("GET", f"/models/{broken.name}/backup")),
        ):
            response = running.client.request(method, route, json={"features": FEATURES})
            assert (response.status_code, response.headers["retry-after"]) == (503, "1"), route
            assert problem in response.json()["error"]
            assert str(tmp_path) not in response.text
        history = running.client.get("/live/history", params={"model": broken.name})
        assert (history.status_code, problem in history.json()["error"]) == (503, True)
        listed = running.client.get("/live/models").json()["models"]
        assert {one["name"]: one["problem"] for one in listed} == {"truing": "", broken.name: problem}
        index = running.client.post("/v2/repository/index", json={"ready": True}).json()
        assert [model["name"] for model in index] == ["truing"]
        assert running.client.delete("/models/truing").status_code == 200
        ready = running.client.get("/v2/health/ready")  # Only broken models are left.
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
        assert broken.name in ready.json()["error"]
        assert str(tmp_path) not in ready.text
        assert running.client.delete(f"/models/{broken.name}").status_code == 200
        assert not path.exists()
