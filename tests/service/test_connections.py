"""Connections: no client takes more memory or time with a request's lines than it is given, nor stays for nothing."""

import asyncio
import json
import select
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


def asking(address, *, seconds: float = PATIENCE) -> socket.socket:
    return socket.create_connection(address, timeout=seconds)


def said(address, *parts: bytes) -> bytes:
    """Return what a server says to these parts of a request, until it closes the connection."""
    with asking(address) as connection:
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
    with listening(echo, Limits(header_bytes=1000, header_seconds=600)) as address:
        yield address


CHUNKS = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

# How a request begins, and what comes again and again.
ENDLESS = {
    "a header": (HEAD + b"X: ", b"x" * 500),
    "the name of a header": (HEAD, b"x" * 500),
    "headers": (HEAD, b"X: 1\r\n"),
    "a path": (b"GET /", b"x" * 500),
    "blanks of a header": (HEAD + b"X:", b" " * 500),
    "empty lines": (b"", b"\r\n" * 250),
    "trailers": (CHUNKS + b"0\r\n", b"X: 1\r\n"),
    "a trailer": (CHUNKS + b"0\r\nX: ", b"x" * 500),
    "a note on a chunk": (CHUNKS + b"2;x=", b"x" * 500),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_lines_without_end_are_refused(strict, name):
    start, again = ENDLESS[name]
    with asking(strict) as connection:
        connection.sendall(start)
        sent = 0
        while not select.select([connection], [], [], 0.001)[0]:
            assert sent < 2**20  # More than is read at once, however busy the machine.
            connection.sendall(again)
            sent += len(again)
        head, _, body = read_on(connection).partition(b"\r\n\r\n")
    if head:  # A client that still sends may not come to see it.
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


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"

# A request that is answered at once, and what comes behind its answer.
LEFT_OPEN = {
    "nothing": (GET + b"\r\n", b""),
    "an empty line": (GET + b"\r\n", b"\r\n"),
    "no byte of a body": (GET + b"Content-Length: 100\r\n\r\n", b""),
    "a byte of a body": (GET + b"Content-Length: 100\r\n\r\n", b"x"),
    "a part of a chunk": (GET + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\nab"),
    "the rest of a body": (GET + b"Content-Length: 3\r\n\r\n", b"abc"),
    "a part of a line": (GET + b"\r\n", b"GET / HT"),
}


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_a_connection_is_closed_in_time_whatever_comes_after_an_answer(name):
    request, more = LEFT_OPEN[name]
    with listening(careless, Limits(header_seconds=0.2, idle_seconds=0.3)) as address, asking(address) as connection:
        connection.sendall(request)
        assert connection.recv(4096).endswith(b"yes")
        connection.sendall(more)
        assert read_on(connection) == b""


def test_empty_lines_now_and_then_keep_no_connection():
    with listening(careless, Limits(idle_seconds=0.3)) as address, asking(address, seconds=0.05) as connection:
        connection.sendall(GET + b"\r\n")
        for _ in range(PATIENCE * 20):
            try:
                connection.sendall(b"\r\n")
                if not connection.recv(4096):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        else:
            raise AssertionError("the connection is still open")


def test_a_connection_goes_on_after_a_body_that_nobody_read():
    with listening(careless, Limits()) as address, asking(address) as connection:
        for _ in range(3):
            connection.sendall(GET + b"Content-Length: 3\r\n\r\n")
            assert connection.recv(4096).endswith(b"yes")
            connection.sendall(b"abc")


def test_an_answer_that_is_not_taken_is_given_up():
    given_up = threading.Event()

    async def endless(scope, receive, send):
        await receive()
        left = asyncio.create_task(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not left.done():
            await send({"type": "http.response.body", "body": b"x" * 2**20, "more_body": True})
            await asyncio.sleep(0)
        given_up.set()

    with listening(endless, Limits(body_seconds=0.2)) as address, asking(address) as connection:
        connection.sendall(GET + b"\r\n")
        assert given_up.wait(PATIENCE)


def test_a_stop_lets_requests_end_that_have_begun_and_one_that_is_on_its_way():
    with listening(careless, Limits()) as address:
        idle, begun = asking(address), asking(address)
        idle.sendall(GET + b"\r\n")
        assert idle.recv(4096).endswith(b"yes")
        begun.sendall(GET)
        time.sleep(0.1)
        stopping = threading.Timer(0.3, lambda: begun.sendall(b"\r\n"))
        stopping.start()
    with idle, begun:
        stopping.join()
        assert read_on(begun).endswith(b"yes")
        assert read_on(idle) == b""
