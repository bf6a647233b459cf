"""Connections: no client takes more memory or time with a request's lines than it is given, nor stays for nothing."""

import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from truing.service.bodies import Limits

uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn: pip install '.[serve]'")
connections = pytest.importorskip("truing.service.connections")

PATIENCE = 30  # Seconds until whatever is waited for counts as lost.
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"


async def echo(scope, receive, send):
    """Answer with the headers that came, and the number of bytes of the body, which is read to its end."""
    size = 0
    while (message := await receive())["type"] == "http.request":
        size += len(message["body"])
        if not message["more_body"]:
            break
    told = {"headers": [name.decode() for name, _ in scope["headers"]], "size": size}
    await answer(send, json.dumps(told).encode())


async def careless(scope, receive, send):
    """Answer at once, whatever body is to come."""
    await answer(send, b"yes")


async def answer(send, body):
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def listening(app, limits):
    """The address of a server in a thread."""
    http = connections.connections_within(limits)
    config = uvicorn.Config(app, http=http, lifespan="off", log_config=None, ws="none", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def said(address, *parts: bytes) -> bytes:
    """Return what a server says to these parts of a request, until it closes the connection."""
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        try:
            for part in parts:
                connection.sendall(part)
        except OSError:  # It may have closed before all was sent.
            pass
        return read_on(connection)


def read_on(connection) -> bytes:
    came = b""
    try:
        while block := connection.recv(2**16):
            came += block
    except ConnectionResetError:
        pass
    return came


@pytest.fixture(scope="module")
def strict():
    """A server that takes a thousand bytes of lines."""
    with listening(echo, Limits(header_bytes=1000)) as address:
        yield address


ENDLESS = {
    "a header without end": (HEAD + b"X: ", b"x" * 2000),
    "a name without end": (HEAD, b"x" * 2000),
    "headers without end": (HEAD, *[b"X: 1\r\n"] * 400),
    "headers at once": (HEAD + b"X: 1\r\n" * 400,),
    "a path without end": (b"GET /", b"x" * 2000),
    "a header of blanks": (HEAD + b"X:", *[b" " * 500] * 4),
    "empty lines": tuple([b"\r\n" * 250] * 4),
    "trailers without end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", *[b"X: 1\r\n"] * 400),
    "a trailer without end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ", *[b"x" * 500] * 4),
    "a note on a chunk without end": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;x=", *[b"x" * 500] * 4),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_lines_beyond_the_limit_are_refused_before_they_end(strict, name):
    with socket.create_connection(strict, timeout=PATIENCE) as connection:
        for part in ENDLESS[name]:
            try:
                connection.sendall(part)
            except OSError:
                break
            time.sleep(0.001)  # Lest all of them come as one.
        head, _, body = read_on(connection).partition(b"\r\n\r\n")
    if head:  # Which a client that still sends may not come to see.
        assert head.startswith(b"HTTP/1.1 431 ")
        assert json.loads(body) == {"error": "a request's lines must have at most 1000 bytes, got more"}


@given(sizes=st.lists(st.integers(0, 300), max_size=12), cut=st.integers(1, 400), body=st.integers(0, 5000))
def test_lines_are_refused_if_and_only_if_they_are_beyond_the_limit(strict, sizes, cut, body):
    lines = [b"Host: localhost\r\n", b"Connection: close\r\n", b"Content-Length: %d\r\n" % body]
    lines += [b"X: %b\r\n" % (b"x" * size) for size in sizes]
    whole = b"POST / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n" + b" " * body
    size = len(b"/") + sum(map(len, lines))
    came = said(strict, whole[:cut], whole[cut:])
    if size <= 1000:
        assert came.startswith(b"HTTP/1.1 200 ")
        assert json.loads(came.partition(b"\r\n\r\n")[2])["size"] == body
    else:
        assert came[:13] in (b"HTTP/1.1 431 ", b"")


def test_a_trailer_is_no_header(strict):
    lines = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    came = said(strict, lines, b"2\r\nab\r\n0\r\nAuthorization: Bearer x\r\n\r\n")
    told = json.loads(came.partition(b"\r\n\r\n")[2])
    assert told == {"headers": ["host", "connection", "transfer-encoding"], "size": 2}


@pytest.mark.parametrize("noise", [b"\x16\x03\x01 hello\r\n\r\n", b"GET / HTTP/1.1\r\nno header\r\n\r\n", b"\x00" * 99])
def test_what_is_not_http_is_refused_in_json(strict, noise):
    head, _, body = said(strict, noise).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-security-policy: default-src 'none'" in head
    assert set(json.loads(body)) == {"error"}


def test_a_body_that_is_none_is_refused_and_no_answer_comes_behind_it(strict):
    came = said(strict, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"no number\r\n")
    assert came.startswith(b"HTTP/1.1 400 ")
    assert came.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\n"])
def test_lines_before_a_body_that_trickle_are_cut_off(start):
    with listening(echo, Limits(header_seconds=0.2)) as address:
        assert said(address, start) == b""
