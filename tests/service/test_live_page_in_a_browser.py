"""The live page as a browser shows it, over a server that learns."""

import json
import re
import shutil
import socket
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from time import monotonic

import numpy as np
import pytest

import truing
from truing.service.engine import Engine, Request, Store
from truing.service.history import History
from truing.service.protocol import Widths

from ..browsing import POOR_CONTRAST

uvicorn = pytest.importorskip("uvicorn", reason="needs uvicorn: pip install '.[serve]'")
pytest.importorskip("starlette", reason="needs starlette: pip install '.[serve]'")
live_page = pytest.importorskip("truing.service.live_page")
app = pytest.importorskip("truing.service.app")
metrics = pytest.importorskip("truing.service.metrics")

TOKEN = "a-token-of-the-tests-alone"
INSIDE, OUTSIDE = truing.sample("cifar10-test"), truing.sample("svhn")
FEATURES, CLASSES = INSIDE.features.shape[1], INSIDE.logits.shape[1]
PATIENCE = 20_000  # Milliseconds.


class Server:
    """A running service, and the rows that it is sent."""

    def __init__(self, engine, address):
        self.engine = engine
        self.address = address

    def calibrate(self):
        self.engine.calibrate(INSIDE[5000:6000]).result()

    def learn(self, share_out, batches=4, rows=100):
        rng, both = np.random.default_rng(1), truing.Outputs.concatenate([INSIDE, OUTSIDE])
        for _ in range(batches):
            is_out = np.arange(rows) < share_out * rows
            places = np.where(is_out, rng.integers(len(INSIDE), len(both), rows), rng.integers(0, 5000, rows))
            self.engine.submit(Request(both[places], learn=True)).result()


@contextmanager
def served(folder, *, port=0, token=None):
    """A service of a state in a folder, until the block ends."""
    history, counters = History(), metrics.Metrics()
    store = Store(folder, truing.Detector(), features=FEATURES, classes=CLASSES)
    engine = Engine(store, listeners=[history.record, counters.record])
    made = app.create_app(engine, counters, widths=Widths(FEATURES, CLASSES), token=token, history=history)
    listening = socket.create_server(("127.0.0.1", port))
    server = uvicorn.Server(uvicorn.Config(made, lifespan="off", log_config=None, timeout_graceful_shutdown=1))
    running = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    with live_page.looking(history, engine):
        running.start()
        yield Server(engine, f"http://127.0.0.1:{listening.getsockname()[1]}/")
        server.should_exit = True
        running.join()
    listening.close()
    engine.close()


@pytest.fixture
def server(tmp_path):
    with served(tmp_path) as server:
        yield server


@contextmanager
def opened(browser, address, **about):
    """A page, and what its console said and what it asked for until the block ends."""
    context = browser.new_context(**about)
    page, complaints, asked = context.new_page(), [], []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: asked.append(request))
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    yield page, complaints, asked
    context.close()


def text(page, selector, pattern):
    """Return what an element says, once it says something like this."""
    page.wait_for_function(
        "([selector, pattern]) => new RegExp(pattern).test(document.querySelector(selector).innerText)",
        arg=[selector, pattern],
    )
    return page.inner_text(selector)


PICTURE = "document.querySelector(`#${id} canvas`).toDataURL()"


def drawn(page, chart):
    """Return the picture of a chart."""
    return page.evaluate(f"id => {PICTURE}", chart)


def share(told):
    return float(told.removesuffix("%")) / 100


def test_rows_arrive_the_numbers_follow_and_the_charts_move(browser, server):
    server.calibrate()
    server.learn(0.0)
    with opened(browser, server.address) as (page, complaints, asked):
        assert text(page, "#state-rows", "400") == "400"
        text(page, "#refused-share", "%")
        before = share(page.inner_text("#refused-share"))
        pictures = {chart: drawn(page, chart) for chart in ("refused", "scores", "throughput")}
        server.learn(0.8, batches=20)
        assert text(page, "#state-rows", "2,400") == "2,400"
        page.wait_for_function("() => parseFloat(document.querySelector('#out-share').innerText) >= 60")
        after, out = share(page.inner_text("#refused-share")), share(page.inner_text("#out-share"))
        assert before < 0.2
        assert 0.6 <= out <= after <= 1  # Of the last 2,000 rows four in five are out.
        text(page, "#numbers", "2,000|1,[0-9]{3}|[1-9]00")
        for chart, picture in pictures.items():
            page.wait_for_function(f"([id, before]) => {PICTURE} !== before", arg=[chart, picture])
        assert complaints == []
        paths = {request.url.partition("?")[0] for request in asked}
        of_the_page = {server.address + path.removeprefix("/") for path in [*live_page.FILES, "/live/history"]}
        assert of_the_page <= paths <= of_the_page | {f"{server.address}v2/models/truing"}


def test_only_what_is_new_is_asked_for(browser, server):
    server.learn(0.0)
    with opened(browser, server.address) as (page, _, asked):
        text(page, "#state-rows", "400")
        page.wait_for_timeout(2500)
        questions = [request for request in asked if "/live/history" in request.url]
        since = [int(re.search(r"since=(\d+)", request.url)[1]) for request in questions]
        lengths = [len(request.response().json()["series"]["times"]) for request in questions[1:]]
    assert since[0] == 0
    assert all(earlier < later for earlier, later in pairwise(since))
    assert all(length <= 5 for length in lengths)


def test_the_example_of_an_empty_server_works_and_fills_the_page(browser, server):
    bash = shutil.which("bash")
    if bash is None or shutil.which("curl") is None:
        pytest.skip("needs bash and curl")
    with opened(browser, server.address) as (page, complaints, _):
        assert "Nothing learned yet: send a batch" in text(page, "#empty", "curl")
        assert not page.is_visible("#stream")
        done = subprocess.run([bash, "-c", page.inner_text("#example")], capture_output=True, text=True, check=True)
        assert "scores" in [output["name"] for output in json.loads(done.stdout)["outputs"]]
        assert text(page, "#state-rows", "[1-9]") == "300"
        assert not page.is_visible("#empty")
        assert complaints == []


def test_a_token_is_asked_for_kept_until_the_tab_closes_and_sent(browser, tmp_path):
    with served(tmp_path, token=TOKEN) as server, opened(browser, server.address) as (page, _, asked):
        server.learn(0.0)
        page.wait_for_selector("#needs-token", state="visible")
        assert not page.is_visible("#stream")
        assert page.evaluate("document.activeElement.id") == "token"
        page.fill("#token", "another one")
        page.keyboard.press("Enter")
        assert text(page, "#token-refused", ".") == "The server did not take this token."
        page.fill("#token", TOKEN)
        page.click("text=Show the page")
        assert text(page, "#state-rows", "[1-9]") == "400"
        assert not page.is_visible("#needs-token")
        assert asked[-1].headers["authorization"] == f"Bearer {TOKEN}"
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
        page.reload()
        assert text(page, "#state-rows", "[1-9]") == "400"
        assert TOKEN not in "".join(request.url for request in asked)


def times(page):
    return page.eval_on_selector_all("#numbers th", "cells => cells.map(cell => cell.innerText)")


def test_a_page_outlives_its_server_and_goes_on_with_the_next(browser, tmp_path):
    with ExitStack() as stack:
        with served(tmp_path) as server:
            server.learn(0.0)
            page, _, _ = stack.enter_context(opened(browser, server.address))
            text(page, "#state-rows", "400")
            text(page, "#numbers", ":")
            before = times(page)
        assert "does not answer" in text(page, "#status", "answer")
        assert page.inner_text("#state-rows") == "400"
        with served(tmp_path, port=int(server.address.rsplit(":")[-1].strip("/"))) as again:
            text(page, "#status", "Connected")
            again.learn(0.0, batches=1)
            assert text(page, "#state-rows", "500") == "500"
            page.wait_for_function("count => document.querySelectorAll('#numbers tr').length > count", arg=len(before))
            assert set(before) <= set(times(page))


SCHEMES = {"light": "rgb(252, 252, 251)", "dark": "rgb(21, 24, 28)"}


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (360, "light"),
        (1280, "dark"),
        pytest.param(360, "dark", marks=pytest.mark.slow),
        pytest.param(1280, "light", marks=pytest.mark.slow),
    ],
)
def test_the_page_fits_and_is_readable(browser, tmp_path, width, scheme):
    with served(tmp_path) as server:
        server.calibrate()
        server.learn(0.3)
        about = {"viewport": {"width": width, "height": 800}, "color_scheme": scheme}
        with opened(browser, server.address, **about) as (page, complaints, _):
            text(page, "#out-share", "%")
            text(page, "#numbers", ":")
            assert page.evaluate("document.documentElement.scrollWidth") == width
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == SCHEMES[scheme]
            wide = "[...document.querySelectorAll('canvas')].filter(chart => chart.clientWidth > innerWidth).length"
            assert page.evaluate(wide) == 0
            seen, poor = page.evaluate(POOR_CONTRAST)
            assert seen > 40
            assert poor == complaints == []


def test_every_chart_tells_its_latest_value_in_words(browser, server):
    server.calibrate()
    server.learn(0.3)
    with opened(browser, server.address) as (page, _, _):
        text(page, "#out-share .latest", "%")
        labels = page.eval_on_selector_all(".plot", "plots => plots.map(plot => plot.getAttribute('aria-label'))")
        assert len(labels) == 6
        assert any(
            re.fullmatch(r"Share of rows refused: [\d.]+% of the last 400 rows decided", label) for label in labels
        )


DRIFT = {"evidence": 2.5, "alarm_line": 2.0, "is_alarm": True, "changes": ["More rows are refused than before."]}


def test_an_alarm_stands_out_and_says_what_changed(browser, server):
    server.calibrate()
    server.learn(0.3)

    def with_drift(route):
        told = route.fetch().json()
        told["drift"] = DRIFT
        told["series"]["evidence"] = [2.5 for _ in told["series"]["times"]]
        route.fulfill(json=told)

    with opened(browser, "about:blank") as (page, complaints, _):
        page.route("**/live/history*", with_drift)
        page.goto(server.address)
        assert text(page, "#drift", "Yes") == "Yes"
        assert page.inner_text("#drift-more") == "evidence 316, alarm from 100 on"
        assert page.inner_text("#alarm-reason") == "The stream has changed."
        assert page.inner_text("#changes") == "More rows are refused than before."
        assert page.get_attribute("#alarm-reason", "role") == "alert"
        assert complaints == []


def test_without_an_alarm_or_a_reference_the_page_says_so(browser, server):
    server.learn(0.0)
    with opened(browser, server.address) as (page, complaints, _):
        assert text(page, "#drift", "watched") == "Not watched"
        assert page.inner_text("#refused-share-more") == "nothing decided yet"
        assert page.inner_text("#refused .meaning") == "Rows are refused once the server has a reference."
        assert not page.is_visible("#alarm")
        assert complaints == []


def test_the_reader_chooses_how_far_to_look_back_and_may_stop_the_page(browser, server):
    server.learn(0.0)
    with opened(browser, server.address) as (page, complaints, asked):
        text(page, "#state-rows", "400")
        page.check("text=12 hours")
        assert "a minute a line" in text(page, "#numbers-caption", "minute")
        page.click("#pause")
        page.wait_for_timeout(300)
        questions = len(asked)
        page.wait_for_timeout(1500)
        assert len(asked) == questions
        page.click("#pause")
        server.learn(0.0)
        assert text(page, "#state-rows", "800") == "800"
        assert complaints == []


def test_a_page_in_the_background_asks_for_nothing_also_once_an_answer_comes(browser, server):
    server.learn(0.0)
    with opened(browser, server.address) as (page, complaints, asked):
        text(page, "#state-rows", "400")
        held = []
        page.route("**/live/history*", lambda route: held.append(route))
        while not held:
            page.wait_for_timeout(50)
        hide(page, is_hidden=True)
        held[0].continue_()
        questions = len(asked)
        page.wait_for_timeout(1500)
        assert len(asked) == questions
        page.unroute("**/live/history*")
        server.learn(0.0)
        for is_hidden in (False, True, False):  # However fast: one question a second is asked.
            hide(page, is_hidden=is_hidden)
        assert text(page, "#state-rows", "800") == "800"
        page.wait_for_timeout(500)
        questions, begun = len(asked), monotonic()
        page.wait_for_timeout(2000)
        assert len(asked) - questions <= 1 + monotonic() - begun
        page.wait_for_event("request")
        assert complaints == []


def hide(page, *, is_hidden):
    """Have a page told that its reader looks at another, or at it again."""
    page.evaluate(
        """is_hidden => {
            Object.defineProperty(document, "hidden", {configurable: true, get: () => is_hidden});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )
