"""nginx with deploy/nginx.conf forwards inference, and stops everything else that comes from outside."""

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from .test_deploy import DEPLOY, run

INSIDE, OUTSIDE = "127.0.0.1", "127.0.0.2"  # The configuration allows management from the first address only.
INFER = "/v2/models/a/infer"


class Recorder(BaseHTTPRequestHandler):
    """Records every request and answers with 200."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, body, self.headers))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: object) -> None:
        pass


class Proxy:
    """A running nginx, and the requests that it forwarded."""

    def __init__(self, port: int, requests: list[tuple]) -> None:
        self.port = port
        self.requests = requests

    def connect(self, source: str) -> ssl.SSLSocket:
        plain = socket.create_connection((INSIDE, self.port), timeout=20, source_address=(source, 0))
        return ssl._create_unverified_context().wrap_socket(plain)

    def ask(self, method: str, path: str, source: str = OUTSIDE, *lines: str, body: bytes = b"") -> int:
        """Send a request and return the status of its answer."""
        lines = (f"{method} {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *lines)
        with closing(self.connect(source)) as connection:
            connection.sendall("\r\n".join((*lines, "", "")).encode() + body)
            answer = HTTPResponse(connection, method=method)
            answer.begin()
            return answer.status


def is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((INSIDE, port)) == 0


@pytest.fixture(scope="module")
def proxy(tmp_path_factory) -> Iterator[Proxy]:
    """Run nginx in front of a recorder, with free ports and shorter timeouts."""
    if shutil.which("nginx") is None:
        pytest.skip("needs nginx")
    folder = tmp_path_factory.mktemp("nginx")
    with socket.create_server((INSIDE, 0)) as listener:
        port = listener.getsockname()[1]
    recorder = ThreadingHTTPServer((INSIDE, 0), Recorder)
    recorder.requests = []
    (folder / "tls").mkdir()
    files = ("-keyout", folder / "tls" / "truing.key", "-out", folder / "tls" / "truing.crt")
    assert run("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=a", *files).returncode == 0
    text = (DEPLOY / "nginx.conf").read_text().replace("listen 443", f"listen {INSIDE}:{port}")
    text = text.replace("127.0.0.1:8080", f"127.0.0.1:{recorder.server_port}").replace("timeout 10s", "timeout 1s")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = " ".join(f"{kind}_temp_path {folder / kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(text.replace("http {", f"http {{ access_log off; {paths}", 1))
    words = ["-e", "stderr", "-p", folder, "-c", folder / "nginx.conf", "-g", f"pid {folder}/pid; daemon off;"]
    checked = run("nginx", *words, "-t")
    assert checked.returncode == 0, checked.stderr
    process = subprocess.Popen(["nginx", *map(str, words)], stderr=subprocess.DEVNULL)
    Thread(target=recorder.serve_forever, daemon=True).start()
    while process.poll() is None and not is_listening(port):
        time.sleep(0.05)
    yield Proxy(port, recorder.requests)
    process.terminate()
    assert process.wait(30) == 0
    recorder.shutdown()
    recorder.server_close()


@pytest.mark.parametrize("path", ["/v2/health/live", "/", "/models", "/models/a"])
def test_reads_are_forwarded(proxy, path):
    assert proxy.ask("GET", path) == 200
    assert proxy.requests[-1][:2] == ("GET", path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/models/a"),
        ("DELETE", "/models/a"),
        ("POST", "/models/a/reset"),
        ("PUT", "/v2/models/../../models/a"),
        ("GET", "/metrics"),
        ("GET", "/%6detrics"),
        ("GET", "/v2/models/..%2f..%2fmetrics"),
        ("GET", "/models/a/backup"),
    ],
)
def test_management_is_forbidden_from_outside_and_allowed_from_inside(proxy, method, path):
    count = len(proxy.requests)
    assert proxy.ask(method, path) == 403
    assert len(proxy.requests) == count
    assert proxy.ask(method, path, INSIDE) == 200


def test_the_service_gets_the_path_that_nginx_compared(proxy):
    assert proxy.ask("PUT", "/models/a/../../v2/models/b/infer") == 200
    assert proxy.requests[-1][1] == "/v2/models/b/infer"


def test_the_body_of_an_upgrade_is_not_read_as_a_second_request_and_the_token_is_forwarded(proxy):
    count, body = len(proxy.requests), b"PUT /models/b HTTP/1.1\r\nHost: a\r\n\r\n"
    lines = ("Connection: Upgrade", "Upgrade: h2c", "Authorization: Bearer secret")
    assert proxy.ask("POST", INFER, OUTSIDE, *lines, body=body) == 200
    [(method, path, received, headers)] = proxy.requests[count:]
    assert (method, path, received) == ("POST", INFER, body)
    assert (headers["Upgrade"], headers["Connection"], headers["Authorization"]) == (None, None, "Bearer secret")


def test_a_body_over_64_mib_is_refused_before_it_is_read(proxy):
    with closing(proxy.connect(OUTSIDE)) as connection:
        connection.sendall(f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {2**26 + 1}\r\n\r\n".encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "sent", ["GET / HTTP/1.1\r\nHost: a\r\n", f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"]
)
def test_a_client_that_stops_sending_is_cut_off(proxy, sent):
    count = len(proxy.requests)
    with closing(proxy.connect(OUTSIDE)) as connection:
        connection.sendall(sent.encode())
        with suppress(ConnectionResetError):
            assert connection.recv(100) == b""
    assert len(proxy.requests) == count
