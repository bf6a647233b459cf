"""The service as a process: what it answers is what a detector says, and what it refuses leaves no trace."""

import asyncio
import gc
import io
import json
import re
import resource
import shutil
import socket
import time
import zipfile
from concurrent.futures import Future
from contextlib import ExitStack
from urllib.parse import quote

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import truing
from truing.options import FEWEST_FOR_CONTRAST
from truing.service.app import Service, create_app
from truing.service.bodies import Limits
from truing.service.engine import Engine, Store
from truing.service.history import History
from truing.service.live_page import OPEN_PATHS, page_routes
from truing.service.logs import JSONLines, printable
from truing.service.metrics import Metrics
from truing.service.openapi import document
from truing.service.protocol import Widths
from truing.service.requests import Answer

from .running import (
    CLASSES,
    FEATURES,
    INFER,
    as_binary,
    as_json,
    batch,
    from_binary,
    from_json,
    serving,
)

TOKEN = "0123456789abcdef-secret"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """One service for tests that leave it as they found it, but for learned rows."""
    with serving(tmp_path_factory.mktemp("state"), "--body-limit", "100000", "--body-timeout", "1") as running:
        yield running


def npz(**arrays) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def reference_of(rows: truing.Outputs) -> bytes:
    return npz(features=rows.features, logits=rows.logits)


@pytest.mark.parametrize("encoding", ["json", "binary"])
def test_answers_are_those_of_a_detector(tmp_path, encoding):
    known, detector = batch(200, seed=9), truing.Detector(method="contrast")
    detector.calibrate(known)
    with serving(tmp_path, "--method", "contrast") as running:
        assert running.client.put("/reference", content=reference_of(known)).json() == {"reference_rows": 200}
        assert running.client.put("/rate", json={"false_alarm": 0.1}).json() == {"false_alarm": 0.1}
        for seed in range(3):
            rows = batch(20, seed)
            expected = detector.learn_and_decide(rows, false_alarm=0.1)
            if encoding == "json":
                found = from_json(running.client.post(INFER, json=as_json(rows)))
            else:
                body, headers = as_binary(rows, parameters={"binary_data_output": True})
                found = from_binary(running.client.post(INFER, content=body, headers=headers))
            np.testing.assert_allclose(found["scores"], expected.scores, rtol=1e-9)
            np.testing.assert_allclose(found["base_scores"], truing.gen(rows.logits), rtol=1e-9)
            np.testing.assert_array_equal(found["p_values"], expected.p_values)
            np.testing.assert_array_equal(found["is_out"], expected.is_out)
        rows = batch(10, seed=5)
        found = from_json(running.client.post(INFER, json=as_json(rows, parameters={"learn": False})))
        np.testing.assert_array_equal(found["p_values"], detector.decide(rows, false_alarm=0.1).p_values)
        assert running.state_rows() == 60


def test_a_request_with_an_id_counts_once(service):
    before = service.state_rows()
    request = as_json(batch(7), id="only once")
    first, again = (service.client.post(INFER, json=request).json() for _ in range(2))
    assert (first["id"], first["parameters"]["repeated"], again["parameters"]["repeated"]) == ("only once", False, True)
    other = service.client.post(INFER, json=as_json(batch(7, seed=1), id="only once"))
    assert (other.status_code, "only once" in other.json()["error"]) == (400, True)
    assert service.state_rows() == before + 7


def test_a_restart_keeps_rows_reference_rate_and_ids(tmp_path):
    with serving(tmp_path) as running:
        running.client.put("/reference", content=reference_of(batch(50)))
        running.client.put("/rate", json={"fdr": 0.2})
        from_json(running.client.post(INFER, json=as_json(batch(12), id="x")))
        assert running.state_rows() == 12
    with serving(tmp_path) as running:
        assert "12 rows in 1 batch, 50 reference rows" in running.start_line
        assert running.state_rows() == 12
        assert running.client.get("/rate").json() == {"fdr": 0.2}
        assert running.client.post(INFER, json=as_json(batch(12), id="x")).json()["parameters"]["repeated"]
        assert running.state_rows() == 12


def test_moments_go_from_one_state_to_another_and_are_added(tmp_path):
    with serving(tmp_path / "a") as a, serving(tmp_path / "b") as b:
        from_json(a.client.post(INFER, json=as_json(batch(30, seed=1))))
        from_json(b.client.post(INFER, json=as_json(batch(20, seed=2))))
        moments = a.client.get("/moments").content
        (tmp_path / "a.npz").write_bytes(moments)
        assert truing.load(tmp_path / "a.npz").rows == 30
        assert b.client.post("/moments", content=moments).json() == {"rows": 50}
        both = truing.Outputs.concatenate([batch(30, seed=1), batch(20, seed=2)])
        found = from_json(b.client.post(INFER, json=as_json(batch(4), parameters={"learn": False})))
        expected = truing.fit_direct(both.features, truing.msp(both.logits)).predict(batch(4).features)
        np.testing.assert_allclose(found["scores"], expected, rtol=1e-6)


def test_a_reset_forgets_rows_and_keeps_the_reference_and_a_snapshot_says_what_it_holds(tmp_path):
    with serving(tmp_path) as running:
        running.client.put("/reference", content=reference_of(batch(50)))
        from_json(running.client.post(INFER, json=as_json(batch(12))))
        taken = running.client.post("/snapshot").json()
        assert (tmp_path / taken["name"]).stat().st_size == taken["bytes"]
        assert running.client.post("/reset").json() == {"rows": 0}
        assert running.facts()[:3] == (0, 0, 50)


def test_a_replica_follows_snapshots_and_learns_nothing(tmp_path):
    with serving(tmp_path) as writer:
        from_json(writer.client.post(INFER, json=as_json(batch(12))))
        writer.client.post("/snapshot")
        with serving(tmp_path, "--read-only") as replica:
            expected = from_json(writer.client.post(INFER, json=as_json(batch(5), parameters={"learn": False})))
            found = from_json(replica.client.post(INFER, json=as_json(batch(5))))  # As if it had said not to learn.
            np.testing.assert_array_equal(found["scores"], expected["scores"])
            refused = replica.client.post(INFER, json=as_json(batch(5), parameters={"learn": True}))
            assert (refused.status_code, "read-only" in refused.json()["error"]) == (400, True)
            for method, path in (("POST", "/reset"), ("POST", "/snapshot"), ("PUT", "/rate")):
                assert replica.client.request(method, path, json={"fdr": 0.1}).status_code == 400
            from_json(writer.client.post(INFER, json=as_json(batch(3))))
            writer.client.post("/snapshot")
            deadline = time.monotonic() + 30
            while replica.state_rows() != 15 and time.monotonic() < deadline:
                time.sleep(0.2)
            assert replica.state_rows() == 15


def bad_bodies() -> dict[str, tuple[str, str, bytes]]:
    rows = batch(5)
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("features.npy", "w") as member:
        np.lib.format.write_array(member, np.zeros((2_000_000, FEATURES), np.float32))
    return {
        "no JSON": ("POST", INFER, b"{"),
        "NaN": ("POST", INFER, json.dumps(as_json(rows)).replace("[[", "[[NaN, ", 1).encode()),
        "other columns": ("POST", INFER, json.dumps(as_json(batch(5, sizes=(4, 3)))).encode()),
        "decisions without a reference": (
            "POST",
            INFER,
            json.dumps(as_json(rows, outputs=[{"name": "is_out"}])).encode(),
        ),
        "no logits": ("POST", INFER, json.dumps({"inputs": as_json(rows)["inputs"][:1]}).encode()),
        "rate": ("PUT", "/rate", b'{"fdr": 0}'),
        "two rates": ("PUT", "/rate", b'{"fdr": 0.1, "accept": 0.9}'),
        "no rate": ("PUT", "/rate", b'{"fdr": "0.1"}'),
        "another rate": ("PUT", "/rate", b'{"alpha": 0.1}'),
        "no zip": ("PUT", "/reference", b"PK\x03\x04"),
        "other features": ("PUT", "/reference", npz(features=np.ones((5, 4)))),
        "a byte too many": ("PUT", "/reference", npz(features=np.ones((5, FEATURES))) + b"x"),
        "no features": ("PUT", "/reference", npz(logits=np.ones((5, 3)))),
        "a zip that swells": ("PUT", "/reference", zipped.getvalue()),
        "no moments": ("POST", "/moments", reference_of(rows)),
    }


@pytest.mark.parametrize("name", bad_bodies())
def test_bad_input_is_refused_by_name_and_changes_nothing(service, name):
    method, path, body = bad_bodies()[name]
    before = service.facts()
    response = service.client.request(method, path, content=body)
    assert response.status_code == 400
    assert set(response.json()) == {"error"}
    assert service.facts() == before


def test_pickled_objects_are_never_loaded(service):
    file = io.BytesIO()
    np.savez(file, features=np.array([print], dtype=object))
    response = service.client.put("/reference", content=file.getvalue())
    assert (response.status_code, "pickled objects" in response.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/live/..%2f..%2fetc%2fpasswd", 404),
        ("GET", "/rate/", 404),
        ("GET", "/rate%0A", 404),
        ("POST", INFER + "%0a", 404),
        ("GET", "/rate%00", 404),
        ("GET", INFER, 405),
        ("DELETE", "/reference", 405),
    ],
)
def test_what_is_not_there_is_an_error_in_json(service, method, path, status):
    response = service.client.request(method, path)
    assert response.status_code == status
    assert set(response.json()) == {"error"}


@pytest.mark.parametrize(
    "headers",
    [{"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data"}, {"Content-Encoding": "gzip"}],
)
def test_a_body_of_another_type_is_refused(service, headers):
    body = json.dumps(as_json(batch(2))).encode()
    assert service.client.post(INFER, content=body, headers=headers).status_code == 415


@pytest.mark.parametrize("name", ["Host", "Authorization", "Content-Type", "Inference-Header-Content-Length"])
def test_a_header_that_decides_is_given_once(service, name):
    twice = f"{name}: localhost\r\n" * 2
    with raw(service) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\n{twice}Connection: close\r\n\r\n".encode())
        came = connection.recv(4096)
        while block := connection.recv(4096):
            came += block
    assert came.startswith(b"HTTP/1.1 400 ")
    assert came.endswith(b'{"error":"the header %b must be given once, got it twice"}' % name.lower().encode())


def test_a_rate_that_is_none_is_shown_short(service):
    for rate in ("1" * 4000, '"' + "x" * 9999 + '"', "[" * 99 + "]" * 99, "true"):
        response = service.client.put("/rate", content=f'{{"fdr": {rate}}}')
        assert response.status_code == 400
        assert response.json()["error"].startswith("fdr must be a number from 0 to 1, got ")
        assert len(response.json()["error"]) < 100


def test_every_answer_forbids_what_a_page_could_load_to_frame_it_and_to_guess_its_type(service):
    asked = [*_operations(), *(("GET", path) for path in OPEN_PATHS), ("GET", "/nowhere"), ("DELETE", "/reference")]
    answers = [service.client.request(method, path) for method, path in asked if path != "/reset"]
    answers.append(service.client.get("/v2", headers={"Host": "example.org"}))
    assert {answer.status_code for answer in answers} >= {200, 400, 403, 404, 405}
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        own = "'self'" if answer.url.path in OPEN_PATHS else "'none'"
        assert policy.startswith(f"default-src {own}")
        assert set(re.findall(r"'[^']*'|https?:\S*|\*|data:", policy)) <= {"'none'", "'self'"}
        assert "frame-ancestors 'none'" in policy
        assert (answer.headers["x-frame-options"], answer.headers["x-content-type-options"]) == ("DENY", "nosniff")


def test_a_thousand_connections_are_answered_and_no_more(tmp_path):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2200:
        pytest.skip("needs more open files: ulimit -n 2200")
    with serving(tmp_path) as running, ExitStack() as held:
        idle = [held.enter_context(raw(running)) for _ in range(999)]
        assert first_line(running) == b"HTTP/1.1 200 OK"
        idle.append(held.enter_context(raw(running)))
        assert first_line(running) == b"HTTP/1.1 503 Service Unavailable"
        for connection in idle:
            connection.close()
        deadline = time.monotonic() + 30
        while first_line(running) != b"HTTP/1.1 200 OK":
            assert time.monotonic() < deadline
            time.sleep(0.1)


def first_line(running) -> bytes:
    """Return how a question on a connection of its own is answered."""
    with raw(running) as connection:
        connection.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return connection.makefile("rb").readline().strip()


def test_no_name_in_a_request_becomes_one_of_a_file(tmp_path):
    (tmp_path / "work").mkdir()
    engine = Engine(Store(tmp_path / "work" / "s", truing.Detector(), features=FEATURES, classes=CLASSES, sync=False))
    app = create_app(engine, Metrics(), widths=Widths(FEATURES, CLASSES))
    before = sorted(tmp_path.rglob("*"))
    for name in ("../../up", "/tmp/away", "settings.npz", "s/../../up", "log-1.truing", "..", "a\x00b"):
        asked = as_json(batch(3), id=name)
        asked["inputs"][0]["name"] = name
        path = "/" + quote(name, safe="/.")
        for method, where, body in (
            ("POST", INFER, as_json(batch(3), id=name)),
            ("POST", INFER, asked),
            ("PUT", "/rate", {name: 0.1}),
            ("GET", f"/live{path}", None),
            ("PUT", path, {"features": name}),
        ):
            (response,) = ask(app, (method, where, body))
            assert response.status_code in (200, 400, 404, 405)
    assert sorted(tmp_path.rglob("*")) == before
    engine.close()


def test_a_body_over_the_limit_is_refused_before_it_is_read(service):
    before = service.facts()
    response = service.client.post(INFER, content=b" " * 100_001)
    assert (response.status_code, response.json()["error"]) == (
        413,
        "the body must be at most 100000 bytes, got 100001 bytes",
    )
    with raw(service) as connection:  # Not a byte of a body that is announced so large need come.
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
    assert service.facts() == before


def test_a_body_in_chunks_over_the_limit_is_refused_while_it_is_read(service):
    before = service.facts()
    response = service.client.post(INFER, content=(b" " * 10_000 for _ in range(50)))
    assert response.status_code == 413
    with raw(service) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(11):
            connection.sendall(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")  # With more to come.
    assert service.facts() == before


def test_json_has_a_limit_of_its_own_and_tensors_as_bytes_are_beyond_it(tmp_path):
    with serving(tmp_path, "--json-limit", "3000") as running:
        before = running.facts()
        rows = batch(200)
        big = json.dumps(as_json(rows)).encode()
        wanted = "JSON must be at most 3000 bytes, got"
        announced = running.client.post(INFER, content=big)
        assert announced.json() == {"error": f"{wanted} {len(big)} bytes: send tensors as bytes (binary_data_size)"}
        in_chunks = running.client.post(INFER, content=(big[start : start + 999] for start in range(0, len(big), 999)))
        before_tensors = {"Inference-Header-Content-Length": str(len(big)), "Content-Type": "application/octet-stream"}
        refused = [
            announced,
            in_chunks,
            running.client.post(INFER, content=big, headers=before_tensors),
            running.client.put("/rate", content=b" " * 3001),
            running.client.post("/reset", content=b" " * 3001),
        ]
        assert [response.status_code for response in refused] == [413] * 5
        assert all(wanted in response.json()["error"] for response in refused)
        assert running.facts() == before
        body, headers = as_binary(rows)
        assert len(body) > 3000
        from_json(running.client.post(INFER, content=body, headers=headers))
        assert running.client.put("/reference", content=reference_of(rows)).status_code == 200
        assert running.state_rows() == 200


def test_bodies_of_all_connections_together_have_a_limit_which_is_free_again_when_they_are_gone(service):
    half = 60_000  # Of the 100,000 that a body may have, four of which may be there at once.
    head = f"PUT /reference HTTP/1.1\r\nHost: localhost\r\nContent-Length: {half + 1}\r\n\r\n".encode()
    with ExitStack() as stack:
        held = [stack.enter_context(raw(service)) for _ in range(7)]
        for connection in held:
            connection.sendall(head + b" " * half)
        answers = [connection.recv(4096) for connection in held]
    statuses = sorted(answer.split()[1] for answer in answers)
    assert statuses == [b"408"] * 6 + [b"503"]
    (busy,) = (answer for answer in answers if b" 503 " in answer)
    assert b"retry-after: 1" in busy
    assert b"the bodies of other requests leave no room within 400000 bytes" in busy
    response = service.client.put("/reference", content=b" " * 100_000)
    assert response.status_code == 400  # All of it was read.


def test_garbage_is_collected_again_after_a_request_good_or_bad(tmp_path):
    engine = Engine(Store(tmp_path / "s", truing.Detector(), features=FEATURES, classes=CLASSES, sync=False))
    app = create_app(engine, Metrics(), widths=Widths(FEATURES, CLASSES))
    ask(app, ("POST", INFER, as_json(batch(3))), ("POST", INFER, [[]]))
    assert gc.isenabled()
    engine.close()


def test_a_body_that_trickles_is_cut_off(service):
    with raw(service) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode())
        connection.settimeout(0.1)
        answer = b""
        for _ in range(100):  # A byte now and then keeps no connection.
            try:
                connection.sendall(b" ")
                answer += connection.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
            if answer:
                break
        assert answer.startswith(b"HTTP/1.1 408 ")


def raw(service) -> socket.socket:
    url = httpx.URL(service.url)
    return socket.create_connection((url.host, url.port), timeout=30)


def test_a_token_is_asked_for_everywhere_but_of_health(tmp_path):
    (tmp_path / "token").write_text(TOKEN + "\n")
    with serving(tmp_path / "state", "--token-file", str(tmp_path / "token")) as running:
        client, right = running.client, {"Authorization": f"Bearer {TOKEN}"}
        assert client.get("/v2/health/live").status_code == client.get("/v2/health/ready").status_code == 200
        wrong = [
            {},
            {"Authorization": "Bearer " + TOKEN[:-1]},
            {"Authorization": TOKEN},
            {"Authorization": f"Basic {TOKEN}"},
        ]
        for headers in [*wrong, {"Authorization": "Bearer Ã¼"}]:
            for method, path in _operations():
                if not path.startswith("/v2/health"):
                    response = client.request(method, path, headers={k: v.encode() for k, v in headers.items()})
                    assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer"), path
        assert client.get("/v2", headers=right).status_code == 200
        from_json(client.post(INFER, json=as_json(batch(5)), headers=right))
        assert running.state_rows(**right) == 5


def test_without_a_token_pages_of_other_sites_are_refused(service):
    before = service.facts()
    for headers in ({"Origin": "https://example.org"}, {"Origin": "null"}, {"Host": "example.org"}):
        response = service.client.post(INFER, json=as_json(batch(2)), headers=headers)
        assert response.status_code == 403
    own = {"Origin": service.url}
    assert service.client.get("/v2", headers=own).status_code == 200
    assert service.facts() == before


def _operations() -> list[tuple[str, str]]:
    paths = document(Widths(FEATURES, CLASSES))["paths"]
    return [(method.upper(), path) for path, operations in paths.items() for method in operations]


def test_the_document_has_the_routes_that_there_are_but_the_files_of_the_live_page():
    routes = Service(None, None, Widths(FEATURES, CLASSES), Limits(), False).routes() + page_routes(History())
    found = {(method, route.path) for route in routes for method in route.methods - {"HEAD"}}
    assert found == {*_operations(), *(("GET", path) for path in OPEN_PATHS)}


@settings(max_examples=25)
@given(
    batches=st.lists(
        arrays(
            np.float64,
            st.tuples(st.integers(1, 4), st.just(FEATURES + CLASSES)),
            elements=st.floats(allow_nan=False, allow_infinity=False)
            | st.floats(-1e100, 1e100)
            | st.sampled_from([0.0, -0.0, 5e-324, 1e-160, 1e100, -1e100]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_numbers_however_large_or_small_are_learned_and_scored_or_refused(tmp_path_factory, batches):
    folder = tmp_path_factory.mktemp("state")
    engine = Engine(Store(folder, truing.Detector(), features=FEATURES, classes=CLASSES, sync=False))
    app = create_app(engine, Metrics(), widths=Widths(FEATURES, CLASSES))
    try:
        for number, rows in enumerate(batches):
            before = engine.facts()
            tensors = {"features": rows[:, :FEATURES], "logits": rows[:, FEATURES:]}
            inputs = [
                {"name": name, "shape": list(array.shape), "datatype": "FP64", "data": array.tolist()}
                for name, array in tensors.items()
            ]
            learn = {"learn": number != 2}
            (response,) = ask(app, ("POST", INFER, {"inputs": inputs, "parameters": learn}))
            assert response.status_code in (200, 400), response.text
            learned = len(rows) if response.status_code == 200 and number != 2 else 0
            assert engine.facts().rows == before.rows + learned
            assert engine.facts().is_ready
    finally:
        engine.close()
        shutil.rmtree(folder)


def test_the_log_has_why_a_request_was_refused_in_a_line_without_control_characters(tmp_path, caplog):
    engine = Engine(Store(tmp_path / "s", truing.Detector(), features=FEATURES, classes=CLASSES, sync=False))
    app = create_app(engine, Metrics(), widths=Widths(FEATURES, CLASSES))
    reused = as_json(batch(2), id="a\x1b[31m\n" + "b" * 100)
    caplog.set_level("INFO", logger="truing.service")
    answers = ask(
        app,
        ("POST", INFER, as_json(batch(2, sizes=(4, 3)))),
        ("POST", INFER, reused),
        ("POST", INFER, as_json(batch(3), id=reused["id"])),
        ("PUT", "/rate", {"fdr": 0.1}),
    )
    engine.close()
    lines = [JSONLines().format(record) for record in caplog.records if record.message == "request"]
    assert all(line.isascii() and line.isprintable() for line in lines)
    told = [json.loads(line) for line in lines]
    assert [(line["status"], "reason" in line) for line in told] == [(400, True), (400, True), (200, False)]
    assert [answer.status_code for answer in answers] == [400, 200, 400, 200]
    assert told[0]["reason"] == answers[0].json()["error"]
    assert told[1]["reason"].startswith("request id must be another for other rows, got 'a")
    assert all(line["reason"].isprintable() for line in told[:2])


@given(st.text(max_size=1000))
def test_what_a_log_shows_of_a_text_is_short_and_printable(text):
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown) == min(len(text), 300)
    if text.isprintable() and len(text) <= 300:
        assert shown == text


def test_what_nobody_expected_is_told_without_its_details(tmp_path):
    class Broken:
        detector = truing.Detector()

        def submit(self, request):
            raise RuntimeError("a secret of the server")

    app = create_app(Broken(), Metrics(), widths=Widths(FEATURES, CLASSES))
    (response,) = ask(app, ("POST", INFER, as_json(batch(3))))
    assert (response.status_code, "secret" in response.text) == (500, False)
    assert set(response.json()) == {"error"}


class Scoring:
    """In place of an engine: every row that is asked for has these scores."""

    detector = truing.Detector()

    def __init__(self, scores):
        self.scores = scores

    def submit(self, request):
        future = Future()
        future.set_result(Answer(self.scores, np.zeros_like(self.scores), None, None, learned=False, repeated=False))
        return future


def test_others_are_answered_while_an_answer_of_very_many_rows_is_written(rng):
    scores = rng.normal(size=300_000)
    app = create_app(Scoring(scores), Metrics(), widths=Widths(FEATURES, CLASSES))

    async def asked_meanwhile():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            large = asyncio.create_task(client.post(INFER, json=as_json(batch(2))))
            answered = 0
            while not large.done():
                await asyncio.sleep(0.001)
                assert (await client.get("/v2/health/live")).status_code == 200
                answered += 1
            return answered, await large

    answered, response = asyncio.run(asked_meanwhile())
    assert answered >= 10  # A few before and after, and none meanwhile, where nobody has a turn.
    np.testing.assert_array_equal(from_json(response)["scores"], scores)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_score_that_json_does_not_have_is_refused_by_name_and_given_as_bytes(number):
    scores = np.array([0.0, number])
    app = create_app(Scoring(scores), Metrics(), widths=Widths(FEATURES, CLASSES))
    asked = as_json(batch(2))
    as_bytes = asked | {"parameters": {"binary_data_output": True}}
    in_json, in_bytes = ask(app, ("POST", INFER, asked), ("POST", INFER, as_bytes))
    assert in_json.status_code == 400
    assert "output scores must be finite to be JSON" in in_json.json()["error"]
    np.testing.assert_array_equal(from_binary(in_bytes)["scores"], scores)


def ask(app, *questions) -> list[httpx.Response]:
    """Ask an app in this process."""

    async def answers() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return [await client.request(method, path, json=body) for method, path, body in questions]

    return asyncio.run(answers())


def test_a_service_that_stopped_says_why_and_when_to_come_back(tmp_path):
    engine = Engine(Store(tmp_path / "s", truing.Detector(), features=FEATURES, classes=CLASSES))
    app = create_app(engine, Metrics(), widths=Widths(FEATURES, CLASSES))
    engine.close()

    questions = [
        ("GET", "/v2/health/ready", None),
        ("POST", INFER, as_json(batch(3))),
        ("GET", "/v2/health/live", None),
    ]
    ready, infer, live = ask(app, *questions)
    for response in (ready, infer):
        assert (response.status_code, response.headers["retry-after"]) == (503, "1")
        assert response.json() == {"error": "the service is stopping"}
    assert live.status_code == 200


def test_a_score_of_one_s_own_is_the_base_score_of_a_state_made_for_it_and_refused_by_others(tmp_path, service):
    rows, scores = batch(40), np.arange(40.0)
    asked = as_json(rows)
    asked["inputs"].append({"name": "scores", "shape": [40], "datatype": "FP64", "data": scores.tolist()})
    before = service.facts()
    response = service.client.post(INFER, json=asked)
    said = "inputs must be of features, logits, got one named 'scores'"
    assert (response.status_code, response.json()) == (400, {"error": said})
    assert service.facts() == before
    with serving(tmp_path / "given", "--base", "given") as running:
        found = from_json(running.client.post(INFER, json=asked))
        np.testing.assert_array_equal(found["base_scores"], scores)
        expected = truing.fit_direct(rows.features, scores).predict(rows.features)
        np.testing.assert_allclose(found["scores"], expected, rtol=1e-6)
        assert inputs_of(running) == ["features", "logits", "scores"]
    assert inputs_of(service) == ["features", "logits"]


def inputs_of(running) -> list[str]:
    """Return what a service says that it takes, and check that its document says the same."""
    names = [about["name"] for about in running.client.get("/v2/models/truing").json()["inputs"]]
    assert str({"enum": names}) in str(running.client.get("/openapi.json").json())
    return names


ALARM = ("--method", "dlr", "--drift-alarm", "0.01")


def metric(running, name: str) -> float:
    return float(re.search(rf"^{name} (\S+)$", running.client.get("/metrics").text, re.MULTILINE)[1])


def far(rows: truing.Outputs) -> truing.Outputs:
    return truing.Outputs(rows.features + np.float32(2), rows.logits * np.float32(0.1))


def drift_shown(running, *, is_alarm: bool) -> dict:
    """Return what the live page shows of the drift alarm, as soon as it is or is not raised."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        drift = running.client.get("/live/history").json()["drift"]
        if drift is not None and drift["is_alarm"] == is_alarm:
            return drift
        time.sleep(0.1)
    raise AssertionError(f"the live page shows {drift}")


def page_changes(detector: truing.Detector) -> list[str]:
    """Return what the live page is to say of an alarm."""
    report = detector.drift.report()
    return [f"seen in {report.what}, after {report.since:,} rows", *str(report).splitlines()[1:]]


def test_a_stream_that_drifts_raises_an_alarm_on_the_page_and_in_the_metrics(tmp_path):
    known, plain = batch(900, seed=9), truing.Detector(method="dlr", drift_alarm=0.01)
    known.save(tmp_path / "held.npz")
    plain.calibrate(known)
    with serving(tmp_path / "state", *ALARM, "--reference", str(tmp_path / "held.npz")) as running:
        assert running.client.get("/rate").json() == {"false_alarm": 0.05}
        for seed in range(20):
            rows = batch(40, seed)
            from_json(running.client.post(INFER, json=as_json(rows)))
            plain.learn_and_decide(rows, false_alarm=0.05)
        assert not drift_shown(running, is_alarm=False)["changes"]
        assert (metric(running, "truing_alarms_total"), metric(running, "truing_drift_alarm")) == (0, 0)
        refused = 0
        for seed in range(20, 40):
            rows = far(batch(40, seed))
            answer = running.client.post(INFER, json=as_json(rows, id=f"batch {seed}"))
            np.testing.assert_array_equal(
                from_json(answer)["is_out"], plain.learn_and_decide(rows, false_alarm=0.05).is_out
            )
            refused += from_json(answer)["is_out"].sum()
        assert plain.drift.is_alarming
        assert refused > 0
        assert drift_shown(running, is_alarm=True)["changes"][0] == page_changes(plain)[0]
        assert (metric(running, "truing_alarms_total"), metric(running, "truing_drift_alarm")) == (1, 1)
        assert metric(running, "truing_drift_martingale") == pytest.approx(plain.drift.martingale)
    with serving(tmp_path / "state", *ALARM) as running:  # An alarm stands until there is another reference.
        assert metric(running, "truing_drift_alarm") == 1
        assert drift_shown(running, is_alarm=True)["changes"] == page_changes(plain)
        running.client.put("/reference", content=reference_of(known))
        assert metric(running, "truing_drift_alarm") == 0
        drift_shown(running, is_alarm=False)


def test_moments_of_another_kind_are_refused(tmp_path):
    sample = truing.Detector(method="contrast")
    sample.calibrate(batch(60))
    sample.learn(batch(20))
    truing.save(sample.moments, tmp_path / "sample.npz")
    direct = truing.Detector()
    direct.learn(batch(20))
    truing.save(direct.moments, tmp_path / "moments.npz")
    wanted = {
        "dlr": ("sample.npz", "the body must hold moments, which truing fit --moments writes, got a sample"),
        "contrast": ("moments.npz", "the body must hold the sample of a contrast, got moments"),
    }
    for method, (name, error) in wanted.items():
        with serving(tmp_path / method, "--method", method) as running:
            running.client.put("/reference", content=reference_of(batch(60, seed=9)))
            answer = running.client.post("/moments", content=(tmp_path / name).read_bytes())
            assert (answer.status_code, answer.json()) == (400, {"error": error})
            assert running.state_rows() == 0


@pytest.mark.parametrize("method", ["dlr", "contrast"])
def test_moments_go_from_one_state_to_another_and_survive_a_restart(tmp_path, method):
    known, plain = batch(200, seed=9), truing.Detector(method=method)
    plain.calibrate(known)
    with serving(tmp_path / "one", "--method", method) as one, serving(tmp_path / "two", "--method", method) as two:
        for running, seed in ((one, 1), (two, 2)):
            running.client.put("/reference", content=reference_of(known))
            from_json(running.client.post(INFER, json=as_json(batch(40, seed))))
        body = one.client.get("/moments").content
        assert two.client.post("/moments", content=body).json() == {"rows": 80}
    (tmp_path / "moments.npz").write_bytes(body)
    plain.learn(batch(40, 2))
    plain.merge(truing.load(tmp_path / "moments.npz"))
    with serving(tmp_path / "two") as two:
        found = from_json(two.client.post(INFER, json=as_json(batch(30, 3))))
    expected = plain.learn_and_decide(batch(30, 3), false_alarm=0.05)
    np.testing.assert_array_equal(found["p_values"], expected.p_values)


def test_rlr_gives_and_takes_no_moments(tmp_path):
    direct = truing.Detector()
    direct.learn(batch(20))
    truing.save(direct.moments, tmp_path / "moments.npz")
    with serving(tmp_path / "state", "--method", "rlr") as running:
        running.client.put("/reference", content=reference_of(batch(60, seed=9)))
        from_json(running.client.post(INFER, json=as_json(batch(40))))
        posted = running.client.post("/moments", content=(tmp_path / "moments.npz").read_bytes())
        for answer in (running.client.get("/moments"), posted):
            assert answer.status_code == 400
            error = "moments are for the methods dlr and contrast, got a state of the method rlr"
            assert answer.json() == {"error": error}
        assert running.state_rows() == 40


def test_a_contrast_asks_for_its_reference_and_takes_another_at_any_time(tmp_path):
    plain = truing.Detector(method="contrast")
    with serving(tmp_path, "--method", "contrast") as running:
        for learn in (True, False):
            early = running.client.post(INFER, json=as_json(batch(40), parameters={"learn": learn}))
            assert early.status_code == 400
            assert early.json() == {"error": "a contrast needs a reference, got none so far: PUT /reference"}
        for seed in (9, 8):
            reference, rows = batch(120, seed=seed), batch(40, seed)
            assert running.client.put("/reference", content=reference_of(reference)).json() == {"reference_rows": 120}
            plain.calibrate(reference)
            answer = from_json(running.client.post(INFER, json=as_json(rows)))
            expected = plain.learn_and_decide(rows, false_alarm=0.05)
            np.testing.assert_array_equal(answer["p_values"], expected.p_values)
        assert running.state_rows() == 80


@pytest.mark.parametrize("first", ["reference", "rows"])
def test_the_default_method_is_a_contrast_if_the_reference_comes_first(tmp_path, first):
    reference, rows = batch(FEWEST_FOR_CONTRAST, seed=9), batch(40)
    plain = truing.Detector(method="contrast" if first == "reference" else "dlr")
    with serving(tmp_path) as running:
        if first == "rows":
            from_json(running.client.post(INFER, json=as_json(rows)))
            plain.learn(rows)
        assert running.client.put("/reference", content=reference_of(reference)).status_code == 200
        plain.calibrate(reference)
    with serving(tmp_path) as running:
        answer = from_json(running.client.post(INFER, json=as_json(batch(30, 1))))
        trust = float(re.search(r"^truing_fit_trust (\S+)$", running.client.get("/metrics").text, re.MULTILINE)[1])
    expected = plain.learn_and_decide(batch(30, 1), false_alarm=0.05)
    np.testing.assert_array_equal(answer["p_values"], expected.p_values)
    np.testing.assert_array_equal(trust, plain.current_fit.trust if first == "reference" else np.nan)


def test_metrics_count_requests_rows_and_refusals(tmp_path):
    known = batch(200, seed=3)
    with serving(tmp_path, "--method", "dlr") as running:
        running.client.put("/reference", content=reference_of(known))
        answers = [from_json(running.client.post(INFER, json=as_json(batch(50, seed)))) for seed in range(4)]
        running.client.post(INFER, content=b"{")
        text = running.client.get("/metrics").text

    def value(name: str) -> float:
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])

    refused = sum(int(answer["is_out"].sum()) for answer in answers)
    assert value(f'truing_requests_total{{method="POST",path="{INFER}",status="200"}}') == 4
    assert value(f'truing_requests_total{{method="POST",path="{INFER}",status="400"}}') == 1
    assert value(f'truing_request_seconds_count{{path="{INFER}"}}') == 5
    assert value('truing_rows_total{kind="learned"}') == value("truing_state_rows") == 200
    assert value("truing_refused_rows_total") == refused
    assert value("truing_refused_share") == refused / 200
    rows = truing.Outputs.concatenate([known, *(batch(50, seed) for seed in range(4))])
    fit = truing.fit_direct(rows.features, truing.msp(rows.logits))
    assert value("truing_fit_r2") == pytest.approx(fit.explained)
    assert value("truing_fit_rank") == FEATURES
    assert value("truing_log_bytes") > 4 * 50 * 4 * (FEATURES + CLASSES)
