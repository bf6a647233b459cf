"""The HTTP routes: a model answers as a `Detector` does, and a refused request changes nothing."""

import gzip
import io
import json
import re
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from urllib.parse import quote

import numpy as np
import pytest
from scipy.special import softmax

import truing
from truing.options import FEWEST_FOR_CONTRAST
from truing.service.app import create_app, open_paths
from truing.service.metrics import Metrics
from truing.service.models import Models
from truing.service.openapi import document
from truing.service.security import Access, Limits

from .running import CLASSES, FEATURES, INFER, Running, as_binary, as_json, batch, from_binary, from_json, npz, serving

BODY_LIMIT = 200_000
NUMBERS = count()


class Model:
    """A new model of a running service."""

    def __init__(self, service: Running, **options) -> None:
        self.service = service
        self.name = f"model-{next(NUMBERS)}"
        options = {"features": FEATURES, "classes": CLASSES, **options}
        assert self.request("PUT", json=options).status_code == 201

    def request(self, method: str, path: str = "", **how):
        return self.service.client.request(method, f"/models/{self.name}{path}", **how)

    def post(self, rows: truing.Outputs, **more):
        return self.service.client.post(f"/v2/models/{self.name}/infer", json=as_json(rows, **more))

    def infer(self, rows: truing.Outputs, **more) -> dict[str, np.ndarray]:
        return from_json(self.post(rows, **more))

    def calibrate(self, rows: truing.Outputs, **more) -> dict:
        response = self.request("PUT", "/reference", content=npz(rows, **more))
        assert response.status_code == 200, response.text
        return response.json()

    def status(self) -> dict:
        return self.service.status(self.name)

    def scores(self) -> np.ndarray:
        """Return the scores of some rows that are not learned, which depend on the whole state."""
        return self.infer(batch(9, seed=99), parameters={"learn": False})["scores"]


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


@pytest.mark.parametrize(("method", "encoding"), [("dlr", "json"), ("contrast", "binary")])
def test_answers_equal_the_answers_of_a_detector_with_the_same_batches(service, method, encoding):
    reference, detector, model = batch(200, seed=9), truing.Detector(method=method), Model(service, method=method)
    detector.calibrate(reference)
    answer = model.calibrate(reference)
    assert (answer["reference_rows"], answer["method"]) == (200, method)
    assert model.request("PUT", "/rate", json={"false_alarm": 0.1}).json() == {"false_alarm": 0.1}
    for seed in range(3):
        rows = batch(20, seed)
        expected = detector.learn_and_decide(rows, false_alarm=0.1)
        if encoding == "json":
            answer = model.infer(rows)
        else:
            body, headers = as_binary(rows, parameters={"binary_data_output": True})
            answer = from_binary(service.client.post(f"/v2/models/{model.name}/infer", content=body, headers=headers))
        np.testing.assert_allclose(answer["scores"], expected.scores, rtol=1e-9)
        np.testing.assert_allclose(answer["base_scores"], detector.base_scores(rows), rtol=1e-9)
        np.testing.assert_array_equal(answer["p_values"], expected.p_values)
        np.testing.assert_array_equal(answer["is_out"], expected.is_out)
    status, rows = model.status(), batch(10, seed=5)
    answer = model.infer(rows, parameters={"learn": False})
    np.testing.assert_array_equal(answer["p_values"], detector.decide(rows, false_alarm=0.1).p_values)
    assert status["rows"] == 60
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


WRONG_MODELS = {
    "features is missing": {"features": None},
    "classes is missing": {"classes": None},
    "at most 32768, got 1000000": {"features": 10**6},
    "got 'clases': did you mean classes?": {"clases": 1},
    "got 'fdr': give it as rate": {"fdr": 0.05},
    "base must be a score that needs no head, got vim": {"base": "vim"},
    "components must be at most the 6 features": {"components": 7},
    "rate must be one of accept, false_alarm, fdr": {"rate": 0.1},
}


@pytest.mark.parametrize(("message", "options"), WRONG_MODELS.items(), ids=WRONG_MODELS)
def test_wrong_settings_are_named_and_create_no_model(service, message, options):
    response = service.client.put("/models/wrong", json={"features": FEATURES, "classes": CLASSES, **options})
    assert (response.status_code, message in response.json()["error"]) == (400, True), response.text
    assert service.client.get("/models/wrong").status_code == 404


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


def check_same(model: Model, detector: truing.Detector, rows: truing.Outputs) -> None:
    """Check that a model learns and decides as a detector does."""
    expected = detector.learn_and_decide(rows, false_alarm=0.05)
    np.testing.assert_array_equal(model.infer(rows)["p_values"], expected.p_values)


def test_a_contrast_asks_for_its_reference_and_accepts_another_at_any_time(service):
    model, detector = Model(service, method="contrast"), truing.Detector(method="contrast")
    for learn in (True, False):
        early = model.post(batch(40), parameters={"learn": learn})
        message = f"method contrast needs a reference, got none so far: PUT /models/{model.name}/reference"
        assert (early.status_code, early.json()) == (400, {"error": message})
    for seed in (9, 8):
        model.calibrate(batch(120, seed))
        detector.calibrate(batch(120, seed))
        check_same(model, detector, batch(40, seed + 2))


def test_moments_contain_all_rows_and_are_merged_once_per_id(service, tmp_path):
    one, two = Model(service, method="dlr"), Model(service, method="dlr")
    assert one.request("GET", "/moments").status_code == 204
    one.infer(batch(30, seed=1))
    two.infer(batch(20, seed=2))
    content = one.request("GET", "/moments").content
    assert as_moments(content, tmp_path).rows == 30
    for _ in range(2):
        assert two.request("POST", "/moments", params={"id": "a"}, content=content).json() == {"rows": 50}
    both = truing.Outputs.concatenate([batch(30, seed=1), batch(20, seed=2)])
    fit = truing.fit_direct(both.features, truing.msp(both.logits))
    np.testing.assert_allclose(two.scores(), fit.predict(batch(9, seed=99).features), rtol=1e-6)
    one.infer(batch(5, seed=3))
    reused = two.request("POST", "/moments", params={"id": "a"}, content=one.request("GET", "/moments").content)
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
    moments = as_moments(response.content, tmp_path)
    joined = truing.Outputs.concatenate(later)
    fit = truing.fit_direct(joined.features, truing.msp(joined.logits))
    assert moments.rows == 30
    np.testing.assert_allclose(moments.solve().predict(joined.features), fit.predict(joined.features), rtol=1e-6)
    for wrong in ("x", "-1", "", "1" * 16):
        assert model.request("GET", "/moments", params={"since": wrong}).status_code == 400
    model.request("POST", "/reset")
    model.infer(batch(5))
    gone = model.request("GET", "/moments", params={"since": since})
    assert (gone.status_code, "the model was reset or restored" in gone.json()["error"]) == (410, True)


def test_moments_of_another_kind_are_rejected(service):
    methods = {method: Model(service, method=method) for method in ("dlr", "contrast", "rlr")}
    for model in methods.values():
        model.calibrate(batch(60, seed=9))
        model.infer(batch(20))
    contents = {method: methods[method].request("GET", "/moments").content for method in ("dlr", "contrast")}
    rlr = "moments need method dlr or contrast, got a model with method rlr"
    assert methods["rlr"].request("GET", "/moments").json() == {"error": rlr}
    for target, source, message in (
        ("dlr", "contrast", "sample"),
        ("contrast", "dlr", "moments"),
        ("rlr", "dlr", rlr),
    ):
        response = methods[target].request("POST", "/moments", content=contents[source])
        assert (response.status_code, message in response.json()["error"]) == (400, True), response.text
        assert methods[target].status()["rows"] == 20


def test_restore_brings_back_an_earlier_state_and_forgets_later_ids(service):
    model = Model(service, method="dlr")
    model.calibrate(batch(50, seed=9))
    model.infer(batch(20, seed=1), id="a")
    status, scores = model.status(), model.scores()
    snapshot = model.request("POST", "/snapshots").json()
    assert (snapshot["sequence"], snapshot["rows"]) == (status["sequence"], 20)
    model.infer(batch(20, seed=2), id="b")
    model.request("PUT", "/rate", json={"fdr": 0.3})
    listed = model.request("GET", "/snapshots").json()
    assert (listed["snapshots"], listed["sequence"], listed["restorable_from"]) == ([snapshot], 4, 0)
    restored = model.request("POST", "/restore", json={"sequence": status["sequence"]}).json()
    kept = ("rows", "rows_learned", "batches", "reference_rows", "rate", "method", "skipped_rows")
    assert {name: restored[name] for name in kept} == {name: status[name] for name in kept}
    assert restored["sequence"] == 5
    np.testing.assert_array_equal(model.scores(), scores)
    again = [model.post(batch(20, seed), id=name).json()["parameters"] for seed, name in ((1, "a"), (2, "b"))]
    assert [one["repeated"] for one in again] == [True, False]
    for sequence in (99, -1, "1", True, None):
        assert model.request("POST", "/restore", json={"sequence": sequence}).status_code == 400
    assert model.request("POST", "/restore", json={"sequence": 1, "more": 1}).status_code == 400
    assert model.status()["rows"] == 40


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
    assert service.client.get("/v2").json()["extensions"] == ["binary_tensor_data", "model_repository"]


def zipped_zeros() -> bytes:
    """Return an `.npz` that unpacks to more bytes than the limit."""
    file = io.BytesIO()
    np.savez_compressed(file, features=np.zeros((BODY_LIMIT, FEATURES), np.float32))
    return file.getvalue()


def probabilities(rows: truing.Outputs) -> truing.Outputs:
    return truing.Outputs(rows.features, softmax(rows.logits, axis=1))


def json_of(rows: truing.Outputs, **more) -> bytes:
    return json.dumps(as_json(rows, **more)).encode()


BAD_BODIES = {
    "no body": ("/infer", b"", "the request must be JSON, got an empty body"),
    "columns": ("/infer", json_of(batch(5, sizes=(4, 3))), "the shape of features must be [n, 6]"),
    "no reference": ("/infer", json_of(batch(5), outputs=[{"name": "is_out"}]), "output is_out needs a reference"),
    "no logits": ("/infer", json_of(truing.Outputs(batch(5).features)), "logits"),
    "probabilities": ("/infer", json_of(probabilities(batch(20))), "logits must be outputs of the last layer before"),
    "rate of 0": ("/rate", b'{"fdr": 0}', "fdr"),
    "two rates": ("/rate", b'{"fdr": 0.1, "accept": 0.9}', "got"),
    "rate of text": ("/rate", b'{"fdr": "0.1"}', "fdr must be a number from 0 to 1, got '0.1'"),
    "other rate": ("/rate", b'{"alpha": 0.1}', "rate must be one of accept, false_alarm, fdr"),
    "no object": ("/rate", b"[1]", "the body must be a JSON object, got [1]"),
    "no zip": ("/reference", b"PK\x03\x04", "the reference must be an .npz file"),
    "width": ("/reference", npz(batch(9, sizes=(4, 3))), "features must have 6 columns, got 4"),
    "groups": ("/reference", npz(batch(5), groups=np.arange(4)), "groups"),
    "pickle": ("/reference", npz(features=np.array([print])), "pickled objects"),
    "zip bomb": ("/reference", zipped_zeros(), "the reference must be an .npz file of plain arrays: it unpacks to"),
    "no moments": ("/moments", npz(batch(5)), "the body must be a file saved by truing.save"),
}


@pytest.mark.parametrize(("path", "body", "message"), BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_bad_body_is_refused_by_name_and_changes_nothing(service, path, body, message):
    before = service.states()
    method = "PUT" if path in ("/rate", "/reference") else "POST"
    response = service.client.request(method, INFER if path == "/infer" else f"/models/truing{path}", content=body)
    assert (response.status_code, message in response.json()["error"]) == (400, True), response.text
    assert len(response.json()["error"]) < 400
    assert service.states() == before


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nowhere", 404, "there is no path '/nowhere': /openapi.json lists all paths"),
        ("POST", "/models/truing/infer", 404, "send rows to /v2/models/NAME/infer"),
        ("GET", "/models/trueing", 404, "there is no model 'trueing': did you mean truing?"),
        ("GET", "/v2/models/other", 404, "there is no model 'other': PUT /models/NAME creates a model"),
        ("GET", "/live/..%2f..%2fetc%2fpasswd", 404, "there is no path"),
        ("POST", INFER + "%0a", 404, "Not Found"),
        ("GET", INFER, 405, "must be POST, got GET"),
        ("POST", "/models/truing", 405, "must be DELETE or GET or PUT, got POST"),
    ],
)
def test_an_unknown_path_or_method_is_an_error_with_a_hint(service, method, path, status, message):
    response = service.client.request(method, path)
    assert response.status_code == status
    assert message in response.json()["error"]
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


@pytest.mark.parametrize("headers", [{"Content-Type": "text/plain"}, {"Content-Encoding": "br"}])
def test_a_body_of_another_type_or_encoding_is_refused(service, headers):
    body = json.dumps(as_json(batch(2))).encode()
    assert service.client.post(INFER, content=body, headers=headers).status_code == 415


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_body_is_decompressed(service, encoding):
    model = Model(service)
    body, headers = as_binary(batch(20))
    compress = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding]
    response = service.client.post(
        f"/v2/models/{model.name}/infer", content=compress(body), headers={**headers, "Content-Encoding": encoding}
    )
    assert from_json(response).keys() == {"scores", "base_scores"}
    detector = truing.Detector()
    detector.learn(batch(20))
    np.testing.assert_allclose(model.scores(), detector.score(batch(9, seed=99)), rtol=1e-9)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (gzip.compress(bytes(100 * BODY_LIMIT)), 413),
        (gzip.compress(b"{}" * 99)[:-9], 400),
        (gzip.compress(b"{}") + b"more", 400),
        (b"{}", 400),
    ],
    ids=["bomb", "truncated", "more", "not gzip"],
)
def test_a_wrong_gzip_body_is_refused_quickly_and_changes_nothing(service, body, status):
    before, began = service.states(), time.perf_counter()
    response = service.client.post(INFER, content=body, headers={"Content-Encoding": "gzip"})
    assert time.perf_counter() - began < 2
    assert response.status_code == status
    assert service.states() == before


def test_every_answer_forbids_loading_framing_and_type_guessing(service):
    paths = [path.replace("{name}", "truing").replace("{version}", "1") for path in document()["paths"]]
    answers = [service.client.get(path) for path in (*paths, "/nowhere", "/")]
    answers.append(service.client.get("/v2", headers={"Host": "example.org"}))
    assert {answer.status_code for answer in answers} >= {200, 403, 404, 405}
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';" if answer.url.path == "/" else "default-src 'none';")
        assert "frame-ancestors 'none'" in policy
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
        index = running.client.post("/v2/repository/index", json={"ready": True}).json()
        assert [model["name"] for model in index] == ["truing"]
        assert running.client.delete("/models/truing").status_code == 200
        ready = running.client.get("/v2/health/ready")  # Only broken models are left.
        assert (ready.status_code, ready.headers["retry-after"]) == (503, "1")
        assert broken.name in ready.json()["error"]
        assert str(tmp_path) not in ready.text
        assert running.client.delete(f"/models/{broken.name}").status_code == 200
        assert not path.exists()
