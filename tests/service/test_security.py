"""Access and limits, over raw sockets where a client library would not send such a request."""

import asyncio
import gzip
import json
import re
import socket
import time
from contextlib import ExitStack, suppress
from http import HTTPStatus

import httpx
import pytest
from starlette.responses import Response

from truing.service.app import open_paths
from truing.service.security import Access, Guard, InFlight, Limits, read_body

from .running import INFER, Running, as_binary, as_json, batch, begin, from_json, serving

TOKEN, CATS, NEW = "0123456789abcdef-all", "0123456789abcdef-cats", "0123456789abcdef-new"
BODY_LIMIT, MOST_REQUESTS = 100_000, 8
HOST = b"Host: localhost\r\n"
RESET = b"POST /models/truing/reset HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n"
LAST = b"GET /v2/health/live HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A service without a token, with small limits and some rows that a smuggled reset would forget."""
    limits = ("--body-limit", str(BODY_LIMIT), "--body-timeout", "1", "--max-requests", str(MOST_REQUESTS))
    with serving(tmp_path_factory.mktemp("state"), *limits) as running:
        from_json(running.client.post(INFER, json=as_json(batch(30))))
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A service with a token for all models and one for cats, and the models cats and truing."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text(f"# Who may do what.\n{TOKEN}\n\ncats: {CATS}\n")
    with serving(folder / "state", "--token-file", str(folder / "tokens")) as running:
        assert running.client.put("/models/cats", json=MODEL, headers=bearer(TOKEN)).status_code == 201
        running.tokens = folder / "tokens"
        yield running


MODEL = {"features": 6, "classes": 3}


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def connect(running: Running) -> socket.socket:
    url = httpx.URL(running.url)
    connection = socket.create_connection((url.host, url.port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def post(path: str, body: bytes, *lines: str) -> bytes:
    head = (f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *lines)
    return "\r\n".join((*head, "", "")).encode() + body


def received(connection: socket.socket) -> list[tuple[int, bytes]]:
    """Return the status and body of every response until the server closes the connection."""
    responses = []
    with connection.makefile("rb") as stream:
        while line := stream.readline():
            headers = {}
            while (header := stream.readline().rstrip()) != b"":
                name, _, value = header.partition(b":")
                headers[name.lower()] = value.strip()
            length = headers.get(b"content-length")
            responses.append((int(line.split()[1]), stream.read(None if length is None else int(length))))
    return responses


def exchange(running: Running, *parts: bytes) -> list[tuple[int, bytes]]:
    """Send parts, each in a packet of its own, and return the responses."""
    with connect(running) as connection:
        for part in parts:
            connection.sendall(part)
            if len(parts) > 1:
                time.sleep(0.002)
        return received(connection)


def until(seconds: float, is_done) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


UPGRADES = {
    "websocket": ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: eHg=", "Sec-WebSocket-Version: 13"),
    "h2c of Java": (
        *("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c"),
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    ),
}


@pytest.mark.parametrize("lines", UPGRADES.values(), ids=UPGRADES)
def test_the_body_of_an_upgrade_request_is_never_a_second_request(service, lines):
    before = service.states()
    stream = post(INFER, RESET, *lines) + LAST
    body_start = stream.index(RESET)
    splits = {
        *range(1, len(stream), len(stream) // 32),
        *range(body_start - 6, body_start + 6),
        body_start + len(RESET),
    }
    assert len(splits) > 40
    for split in sorted(splits):
        (status, body), last = exchange(service, stream[:split], stream[split:])
        assert (status, b"must be JSON" in body) == (400, True), split
        assert last == (200, b'{"live":true}')
    assert service.states() == before


def test_pipelined_requests_are_answered_in_order_and_once(service):
    before = service.status()["rows"]
    bodies = [json.dumps(as_json(batch(rows))).encode() for rows in (1, 2, 3)]
    stream = b"".join(post(INFER, body) for body in bodies) + post("/nowhere", RESET) + LAST
    answers = exchange(service, stream)
    assert [status for status, _ in answers] == [200, 200, 200, 404, 200]
    assert [json.loads(body)["outputs"][0]["shape"] for _, body in answers[:3]] == [[1], [2], [3]]
    assert service.status()["rows"] == before + 6


REFUSED = {
    "lengths": post(INFER, b"{}", "Content-Length: 3"),
    "list of lengths": post(INFER, b"{}").replace(b"Length: 2", b"Length: 2, 3"),
    "both": post(INFER, b"0\r\n\r\n", "Transfer-Encoding: chunked"),
    "both for health": post("/v2/health/live", b"0\r\n\r\n", "Transfer-Encoding: chunked"),
    "two encodings": post(INFER, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked\r\n" * 2),
    "bad chunk": post(INFER, b"zz\r\n").replace(b"Content-Length: 4", b"Transfer-Encoding: chunked"),
    "folded line": post(INFER, b"{}", "X: a", " b: c", "Content-Length : 3"),
    "no host": post(INFER, b"{}").replace(HOST, b""),
    "large header": b"GET /v2 HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 2**19 + b"\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00",
    **{name: post(INFER, b"{}", f"{name}: localhost", f"{name}: localhost") for name in ("Host", "Content-Encoding")},
    "two header lengths": post(INFER, b"{}", *["Inference-Header-Content-Length: 2"] * 2),
}


@pytest.mark.parametrize("stream", REFUSED.values(), ids=REFUSED)
def test_an_ambiguous_request_is_refused_and_the_connection_closed(service, stream):
    before = service.states()
    with suppress(ConnectionError):  # The server closes before it has read everything.
        answers = exchange(service, stream + RESET)
        assert [status for status, _ in answers] == [400]
    assert service.states() == before


def test_a_body_above_the_limit_is_refused_before_or_while_it_is_read(service):
    before = service.states()
    response = service.client.post(INFER, content=b" " * (BODY_LIMIT + 1))
    message = f"JSON must have at most {BODY_LIMIT} bytes, got {BODY_LIMIT + 1} bytes"
    assert (response.status_code, message in response.json()["error"]) == (413, True)
    path = "/models/truing/reference"
    with connect(service) as connection:  # No byte of the body is needed.
        connection.sendall(post(path, b"").replace(b"POST", b"PUT").replace(b"Length: 0", b"Length: 9999999999"))
        (answer,) = received(connection)
    assert answer == (413, b'{"error":"the body must have at most 100000 bytes, got 9999999999 bytes"}')
    with connect(service) as connection:
        connection.sendall(post(INFER, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
        for _ in range(11):
            connection.sendall(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")  # More could come.
    assert service.states() == before


def test_json_has_a_smaller_limit_than_tensors(tmp_path):
    rows = batch(200)
    big = json.dumps(as_json(rows)).encode()
    body, headers = as_binary(rows)
    length = {"Inference-Header-Content-Length": str(len(big)), "Content-Type": "application/octet-stream"}
    with serving(tmp_path, "--json-limit", "3000") as running:
        refused = [
            running.client.post(INFER, content=big),
            running.client.post(INFER, content=iter([big[:2999], big[2999:]])),
            running.client.post(INFER, content=big, headers=length),
            running.client.post(INFER, content=gzip.compress(b" " * 3001), headers={"Content-Encoding": "gzip"}),
            running.client.put("/models/truing/rate", content=b" " * 3001),
            running.client.post("/models/truing/reset", content=b" " * 3001),
        ]
        assert [response.status_code for response in refused] == [413] * 6
        assert all("JSON must have at most 3000 bytes, got" in response.json()["error"] for response in refused)
        assert len(body) > 3000
        from_json(running.client.post(INFER, content=body, headers=headers))
        assert running.state_rows() == 200


def test_a_body_that_arrives_too_slowly_is_cut_off(service):
    with connect(service) as connection:
        connection.sendall(post(INFER, b"").replace(b"Length: 0", b"Length: 1000"))
        connection.settimeout(0.1)
        began, answer = time.monotonic(), b""
        while not answer and time.monotonic() - began < 30:
            connection.sendall(b" ")
            with suppress(TimeoutError):
                answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - began < 3


def test_health_is_answered_while_all_requests_are_in_flight_and_other_requests_are_refused(service):
    with ExitStack() as stack:
        stuck = [stack.enter_context(connect(service)) for _ in range(MOST_REQUESTS)]
        for connection in stuck:
            connection.sendall(post(INFER, b"").replace(b"Length: 0", b"Length: 1000"))
        deadline = time.monotonic() + 0.8
        while (busy := httpx.get(f"{service.url}/v2")).status_code == 200:
            assert time.monotonic() < deadline
        assert (busy.status_code, busy.headers["retry-after"], busy.headers["connection"]) == (503, "1", "close")
        assert busy.json() == {"error": f"busy: {MOST_REQUESTS} requests are being answered"}
        for path in ("live", "ready"):
            assert httpx.get(f"{service.url}/v2/health/{path}").status_code == 200
        assert [received(connection)[0][0] for connection in stuck] == [408] * MOST_REQUESTS
    assert service.client.get("/v2").status_code == 200


def test_the_bodies_of_all_requests_together_have_a_limit(service):
    half = 60_000
    head = post("/models/truing/reference", b"").replace(b"POST", b"PUT").replace(b"Length: 0", b"Length: 60001")
    with ExitStack() as stack:
        held = [stack.enter_context(connect(service)) for _ in range(7)]
        for connection in held:
            connection.sendall(head + b" " * half)
        answers = [received(connection)[0] for connection in held]
    assert sorted(status for status, _ in answers) == [408] * 6 + [503]
    assert b"busy: the bodies of all requests may have at most 400000 bytes" in dict(answers)[503]
    response = service.client.put("/models/truing/reference", content=b" " * BODY_LIMIT)
    assert response.status_code == 400  # The whole body was read.


def test_the_limit_of_all_bodies_counts_decompressed_bytes():
    limits = Limits(body_bytes=1000)
    waiting: list[asyncio.Event] = []

    async def app(scope, receive, send):
        assert len(await read_body(scope, receive, limits)) == 900
        waiting.append(asyncio.Event())
        await waiting[-1].wait()
        await Response()(scope, receive, send)

    guard = Guard(app, access=Access(), in_flight=InFlight(limits), health=frozenset(), watch=lambda *_: None)

    async def statuses() -> list[int]:
        transport, headers = httpx.ASGITransport(guard), {"Content-Encoding": "gzip"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            body = gzip.compress(bytes(900))
            held = [asyncio.create_task(client.post("/", content=body, headers=headers)) for _ in range(4)]
            while len(waiting) < 4:
                await asyncio.sleep(0.001)
            refused = await asyncio.wait_for(client.post("/", content=body, headers=headers), 10)
            for event in waiting:
                event.set()
            return [response.status_code for response in [refused, *await asyncio.gather(*held)]]

    assert asyncio.run(statuses()) == [503, 200, 200, 200, 200]
    assert len(waiting) == 4  # The fifth was refused. A request that is cancelled after 10 seconds also gets 503.


def test_a_page_of_another_site_is_refused_if_there_is_no_token(service):
    before = service.states()
    for headers in ({"Origin": "https://example.org"}, {"Origin": "null"}, {"Host": "example.org"}, {"Host": "["}):
        response = service.client.post(INFER, json=as_json(batch(2)), headers=headers)
        assert response.status_code == 403
    for headers in ({"Origin": service.url}, {"Host": "localhost:1"}, {"Host": "[::1]"}):
        assert service.client.get("/v2", headers=headers).status_code == 200
    assert service.states() == before


def test_a_token_is_needed_everywhere_except_for_health_and_the_files_of_the_page(guarded):
    for path in open_paths():
        assert guarded.client.get(path).status_code == 200
    paths = guarded.client.get("/openapi.json", headers=bearer(TOKEN)).json()["paths"]
    operations = [
        (method, path.replace("{name}", "cats").replace("{version}", "1"))
        for path, methods in paths.items()
        for method in set(methods) - {"parameters"}
        if not path.startswith("/v2/health")
    ]
    assert len(operations) > 25
    wrong = [{}, bearer(TOKEN[:-1]), bearer(TOKEN + "x"), {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}]
    for headers in [*wrong, {"Authorization": "Bearer Ã¼".encode()}, {"Authorization": "Bearer"}]:
        for method, path in operations:
            response = guarded.client.request(method, path, headers=headers)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer"), path
    assert guarded.client.get("/models/cats", headers=bearer(TOKEN)).json()["rows"] == 0


def test_a_token_of_a_model_gives_access_to_this_model_only(guarded):
    def status(method: str, path: str, **how) -> int:
        return guarded.client.request(method, path, headers=bearer(CATS), **how).status_code

    request = as_json(batch(3), parameters={"learn": False})
    allowed = [
        ("POST", "/v2/models/cats/infer", as_json(batch(30))),
        ("POST", "/v2/models/cats/versions/1/infer", request),
        ("GET", "/models/cats", None),
        ("PUT", "/models/cats/rate", {"fdr": 0.1}),
        ("POST", "/models/cats/snapshots", None),
        ("GET", "/models/cats/backup", None),
    ]
    forbidden = [
        ("PUT", "/models/cats", MODEL),
        ("DELETE", "/models/cats", None),
        ("PUT", "/models/dogs", MODEL),
        ("POST", "/v2/models/truing/infer", request),
        ("POST", "/models/truing/reset", None),
        ("GET", "/models/truing", None),
        ("GET", "/models/cats/../truing/rate", None),
        ("GET", "/models", None),
        ("GET", "/metrics", None),
        ("GET", "/openapi.json", None),
        ("GET", "/live/history?model=cats", None),
        ("POST", "/v2/repository/index", None),
    ]
    assert [status(method, path, json=body) for method, path, body in allowed] == [200] * len(allowed)
    assert [status(method, path, json=body) for method, path, body in forbidden] == [403] * len(forbidden)


def test_a_wrong_token_closes_the_connection_before_the_body_is_read(guarded):
    size, sent = 60 * 2**20, 0
    with connect(guarded) as connection:
        connection.sendall(post(INFER, b"").replace(b"Length: 0", f"Length: {size}".encode()))
        assert connection.recv(100).startswith(b"HTTP/1.1 401 ")
        with suppress(ConnectionError):
            while sent < size:
                sent += connection.send(bytes(2**16))
    assert sent < size // 4


def refusals(running: Running) -> tuple[int, int]:
    """Return how many refused requests have a log line, and how many are only counted."""
    counts = [line["count"] for line in running.logged("requests refused without a log line")]
    return len(running.logged("request refused")), sum(counts)


def test_the_log_of_refused_requests_is_limited_and_counts_the_rest(guarded):
    before, began = refusals(guarded), time.monotonic()
    for _ in range(200):
        assert guarded.client.get("/v2").status_code == 401
    seconds = time.monotonic() - began
    time.sleep(1.1)
    guarded.client.get("/v2")
    until(5, lambda: sum(refusals(guarded)) >= sum(before) + 201)
    assert 1 <= refusals(guarded)[0] - before[0] <= 5 * (seconds + 2) + 1
    line = guarded.logged("request refused")[-1]
    assert line["reason"] == "Authorization must be Bearer and a valid token, got none"


def test_invalid_http_writes_few_lines_to_the_log_and_all_of_them_are_json(service):
    before = len(service.errors().splitlines())
    for path in ("/v2/health/live", "/nowhere"):
        for delay in (0, 0.01):
            for _ in range(3):  # The server has answered or is answering when the invalid chunk arrives.
                with connect(service) as connection, suppress(ConnectionError):
                    connection.sendall(post(path, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
                    time.sleep(delay)
                    connection.sendall(b"zz\r\n" * 2)
                    received(connection)
    assert service.client.get("/v2").status_code == 200
    lines = service.errors().splitlines()[before:]
    assert all(isinstance(json.loads(line), dict) for line in lines)
    assert len(lines) < 30


def test_the_log_has_the_reason_of_a_refusal_without_control_characters(service):
    time.sleep(1.1)  # Earlier refusals of the same second count towards the limit.
    reused = as_json(batch(2), id="a\x1b[31m\nb")
    assert service.client.post(INFER, json=reused).status_code == 200
    assert service.client.post(INFER, json=as_json(batch(3), id=reused["id"])).status_code == 400
    service.client.get("/v2")  # A line is written after its answer was sent, and before the next one.
    line = next(line for line in service.logged("request refused") if "31m" in line["reason"])
    assert (line["model"], line["route"], line["status"]) == ("truing", "/v2/models/{name}/infer", 400)
    assert line["reason"].startswith("id 'a\\x1b[31m\\nb' was used before")


KEPT = "the token file cannot be read: the earlier tokens stay valid"


def test_tokens_are_read_again_when_their_file_changes_and_an_invalid_file_keeps_them(guarded):
    def status(token: str) -> int:
        return guarded.client.get("/v2", headers=bearer(token)).status_code

    old = guarded.tokens.read_text()
    try:
        guarded.tokens.write_text(f"{old}{NEW}\n")
        until(3, lambda: status(NEW) == 200)
        assert status(TOKEN) == 200
        guarded.tokens.write_text(f"{NEW}\n")
        until(3, lambda: status(TOKEN) == 401)
        assert (status(NEW), guarded.client.get("/models/cats", headers=bearer(CATS)).status_code) == (200, 401)
        for invalid in ("short\n", "one/two:0123456789abcdef-secret\n", None):
            errors = len(guarded.logged(KEPT))
            guarded.tokens.unlink() if invalid is None else guarded.tokens.write_text(invalid)
            until(3, lambda: status(NEW) == 200 and len(guarded.logged(KEPT)) > errors)  # noqa: B023
    finally:
        guarded.tokens.write_text(old)
    until(3, lambda: status(TOKEN) == 200)
    assert status(NEW) == 401
    assert not re.search("secret|one/two|0123456789", guarded.errors())


@pytest.mark.slow
def test_a_request_that_is_unfinished_at_the_end_of_a_shutdown_gets_503(tmp_path):
    running = begin(tmp_path)
    with connect(running) as connection:
        connection.sendall(post(INFER, b"").replace(b"Length: 0", b"Length: 1000"))
        time.sleep(0.5)
        running.process.terminate()
        (answer,) = received(connection)
    assert answer == (HTTPStatus.SERVICE_UNAVAILABLE, b'{"error":"the service is stopping"}')
    assert running.ended() == 0
